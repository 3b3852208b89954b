"""Grows a table far beyond the caches: `python -m benchmarks.growth`.

One table of dim 16 with row-wise Adagrad, in this process. Measured while it grows: bytes per row,
against the bytes of rows, optimizer slots and ids; and the latencies of lookups with their longest
pauses, against the same lookups in a small table that does not grow. Measured afterwards: the time
of a lookup in the grown table, against the small one. For this, the caches are flushed before each
lookup, so that every row and index entry comes from memory, and both tables are asked for the same
number of distinct rows.

Address translations miss the cache too. A large table needs one page per row and one per index
entry, while the rows and entries of a small table share pages. So the grown table is measured in
three ways:

- anywhere: rows anywhere in the table;
- stretch: rows of a stretch that was inserted in sequence and is as long as the small table. They
  lie in as many pages as the small table's rows, but their index entries lie anywhere in an index
  that is larger by the same factor as the table;
- equal misses: the rows of such a stretch whose index entries lie in a part of the index that is as
  large as the small table's. Then rows and index use as many distinct cache lines and pages as in
  the small table. (Virtual machines often hide the counters of misses, so misses are made equal
  and are not counted.)

During the lookups, a thread touches a new page of memory every few milliseconds. Its longest time
is the time that the host of a virtual machine takes to provide a page.

Python's garbage collector is off during the measurement: a full collection of TensorFlow's objects
stops the client for 120 ms, while lookups on a server run no Python.
"""

from __future__ import annotations

import gc
import mmap
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import embedps  # noqa: F401  before TensorFlow: it has it start quietly

# isort: split
import dataclasses

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from benchmarks import report
from benchmarks.harness import Benchmark, Content, Options, main
from benchmarks.layout import Part, figures, spread
from embedps import kernels
from embedps.checkpoint.format.row_hashes import row_hashes
from embedps.config_fields import option
from embedps.splitmix import mix
from embedps.tables import TableSpec, new_store, ops

DIM = 16
SMALL_ROWS = 1_000_000
NEED_BYTES = 4 * DIM + 4 + 8
"""Per row: its embedding, accumulator and id."""
_INSERT_IDS = 8192
_READ_IDS = 256
_READ_EVERY_SECS = 0.001  # rare, as growth needs the cores
_TIMED_IDS = 8192
_ROWS_BETWEEN_CUTS = 5_000_000
_EVICT_BYTES = 1 << 30
_TOUCH_EVERY_SECS = 0.004
_TOUCHED_PAGES = 1 << 16
_INDEX_PART_BIT = 24
"""The lowest bit of a row's hash that selects a segment of the index (kernels/store/stripe.h)."""


def ids_of(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Maps distinct numbers to distinct 64-bit ids, by SplitMix64's finalizer."""
    return mix(numbers.astype(np.uint64)).view(np.int64)


class OneTable:
    """A store of one table; its ids are `ids_of` 0, 1, 2 and so on."""

    def __init__(self, name: str) -> None:
        self.rows = 0
        self._name = name
        self._store = ops.row_store(
            container=f"growth-{name}",
            shared_name=name,
            group=name,
            **new_store.attributes([TableSpec(name=name, embedding_dim=DIM)]),
        )

    def lookup(self, ids: npt.NDArray[np.int64], *, insert: bool) -> float:
        """Looks distinct ids up; returns the seconds of the op."""
        arguments = (tf.constant(ids), tf.constant([0, len(ids)], tf.int32))
        began = time.perf_counter()
        ops.lookup(self._store, *arguments, dim=DIM, insert=insert)
        return time.perf_counter() - began

    def grow(self, rows: int) -> float:
        """Inserts the next rows; returns the seconds of the op."""
        ids = ids_of(np.arange(self.rows, self.rows + rows, dtype=np.int64))
        secs = self.lookup(ids, insert=True)
        self.rows += rows
        return secs

    def some_ids(
        self, rng: np.random.Generator, count: int, *, among: int | None = None
    ) -> npt.NDArray[np.int64]:
        """Draws distinct ids of existing rows, in random order.

        Args:
          among: draw from this many rows inserted in sequence; None: from all rows.
        """
        among = self.rows if among is None else min(among, self.rows)
        first = rng.integers(0, self.rows - among + 1)
        numbers = np.unique(rng.integers(first, first + among, size=count + count // 4 + 16))
        return ids_of(rng.permutation(numbers)[:count])

    def some_ids_of_index_part(
        self, rng: np.random.Generator, count: int, *, among: int
    ) -> npt.NDArray[np.int64]:
        """Draws as `some_ids`, only ids whose index entries lie in `among / rows` of the index."""
        parts = 1 << (self.rows // among).bit_length() - 1
        first = rng.integers(0, self.rows - among + 1)
        ids = ids_of(np.arange(first, first + among, dtype=np.int64))
        part = row_hashes(self._name, ids) >> np.uint64(_INDEX_PART_BIT) & np.uint64(parts - 1)
        return rng.permutation(ids[part == rng.integers(parts)])[:count]

    def mark_clean(self) -> None:
        """Marks all rows as saved, as a committed checkpoint does."""
        kernels.load().embedps_mark_clean(self._store)

    def memory_bytes(self) -> int:
        """Returns the bytes that the store reports."""
        return int(kernels.load().embedps_stats(self._store).counters[0])


class Reader(threading.Thread):
    """Times lookups in the growing table and in the constant one, in turn."""

    def __init__(self, tables: Sequence[OneTable]) -> None:
        super().__init__(name="reader")
        self.secs: list[list[float]] = [[] for _ in tables]
        self._tables = tables
        self._end = threading.Event()

    def run(self) -> None:
        rng = np.random.default_rng(7)
        while not self._end.wait(_READ_EVERY_SECS):
            for table, secs in zip(self._tables, self.secs, strict=True):
                ids = table.some_ids(rng, min(_READ_IDS, table.rows // 2))
                secs.append(table.lookup(ids, insert=False))

    def end(self) -> None:
        """Stops the thread and waits for it."""
        self._end.set()
        self.join()


class Toucher(threading.Thread):
    """Times the first touch of single pages of memory."""

    def __init__(self) -> None:
        super().__init__(name="toucher")
        self.secs: list[float] = []
        self._end = threading.Event()

    def run(self) -> None:
        with mmap.mmap(-1, _TOUCHED_PAGES * mmap.PAGESIZE) as pages:
            for at in range(0, len(pages), mmap.PAGESIZE):
                if self._end.wait(_TOUCH_EVERY_SECS):
                    return
                began = time.perf_counter()
                pages[at] = 1
                self.secs.append(time.perf_counter() - began)

    def end(self) -> None:
        """Stops the thread and waits for it."""
        self._end.set()
        self.join()


def latencies(secs: Sequence[float]) -> dict[str, float]:
    """Summarizes seconds as milliseconds: median, p99, p99.9 and maximum."""
    ms = np.asarray(secs) * 1e3
    marks = {"median_ms": 50, "p99_ms": 99, "p999_ms": 99.9, "max_ms": 100}
    return {"count": len(secs)} | {
        k: round(float(np.percentile(ms, q)), 4) for k, q in marks.items()
    }


def grow(table: OneTable, small: OneTable, rows: int) -> dict[str, Any]:
    """Fills the table while another thread looks rows up; returns bytes and latencies."""
    before = report.rss_bytes()
    began = time.perf_counter()
    inserts = [table.grow(_INSERT_IDS)]
    reader = Reader([table, small])
    toucher = Toucher()
    reader.start()
    toucher.start()
    steps: list[tuple[int, float]] = []
    gc.collect()
    gc.disable()
    try:
        while table.rows < rows:
            inserts.append(table.grow(min(_INSERT_IDS, rows - table.rows)))
            if table.rows >= _ROWS_BETWEEN_CUTS * (len(steps) + 1):
                table.mark_clean()
                steps.append((table.rows, table.memory_bytes() / (NEED_BYTES * table.rows)))
    finally:
        reader.end()
        toucher.end()
        gc.enable()
    secs = time.perf_counter() - began
    table.mark_clean()
    need = NEED_BYTES * table.rows
    return {
        "rows": table.rows,
        "secs": round(secs, 1),
        "needed_bytes": need,
        "memory_bytes": table.memory_bytes(),
        "memory_ratio": round(table.memory_bytes() / need, 4),
        "resident_bytes": report.rss_bytes() - before,
        "resident_ratio": round((report.rss_bytes() - before) / need, 4),
        "memory_ratio_while_growing": [[n, round(ratio, 4)] for n, ratio in steps],
        "insert_lookups": latencies(inserts),
        "lookups_while_growing": latencies(reader.secs[0]),
        "lookups_of_the_other_table": latencies(reader.secs[1]),
        "first_touches_of_pages": latencies(toucher.secs),
    }


def time_cold(small: OneTable, table: OneTable, rounds: int) -> dict[str, Any]:
    """Times lookups with cold caches, in turn; compares the grown table with the small one."""
    rng = np.random.default_rng(11)
    junk = np.zeros(_EVICT_BYTES // 8)
    among = small.rows
    kinds: dict[str, tuple[OneTable, Callable[[], npt.NDArray[np.int64]]]] = {
        "small": (small, lambda: small.some_ids(rng, _TIMED_IDS)),
        "anywhere": (table, lambda: table.some_ids(rng, _TIMED_IDS)),
        "stretch": (table, lambda: table.some_ids(rng, _TIMED_IDS, among=among)),
        "equal_misses": (table, lambda: table.some_ids_of_index_part(rng, _TIMED_IDS, among=among)),
    }
    micros: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, (asked, draw) in kinds.items():
            ids = draw()
            junk += 1.0
            micros[kind].append(asked.lookup(ids, insert=False) / len(ids) * 1e6)
    results: dict[str, Any] = {
        "cold_micros_per_id": {kind: report.spread(values) for kind, values in micros.items()}
    }
    for kind in ("anywhere", "stretch", "equal_misses"):
        ratios = [b / a for a, b in zip(micros["small"], micros[kind], strict=True)]
        results[f"cold_ratio_{kind}"] = report.spread(ratios)
    return results


def measure(rows: int, rounds: int) -> dict[str, Any]:
    """Grows a table to `rows` rows and times lookups; returns the JSON's results."""
    small, table = OneTable("small"), OneTable("grown")
    while small.rows < SMALL_ROWS:
        small.grow(min(_INSERT_IDS, SMALL_ROWS - small.rows))
    results = grow(table, small, rows)
    return results | time_cold(small, table, rounds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The table that grows."""

    rows: int = option(100_000_000, "of the grown table", least=1)
    rounds: int = option(40, "of cold lookups", least=1)


def layout(content: Content) -> list[Part]:
    """Lays out bytes, cold lookups and pauses, with their limits."""
    r = content["results"]
    rows = [
        [
            "bytes, against those of rows, optimizer slots and ids",
            f"{r['memory_ratio']:.3f} x",
            "1.25 x",
        ],
        ["resident memory, against the same", f"{r['resident_ratio']:.3f} x"],
    ]
    cold = r["cold_micros_per_id"]
    for kind, name, limit in (
        ("equal_misses", "cold lookup at equal misses, against the table of 1M rows", "1.3 x"),
        ("stretch", "cold lookup of 1M rows inserted in sequence, against the same", ""),
        ("anywhere", "cold lookup of rows anywhere, against the same", ""),
    ):
        micros = f"{cold[kind]['median']:.3f} and {cold['small']['median']:.3f} us per id"
        rows.append([name, f"{spread(r[f'cold_ratio_{kind}'])} x: {micros}", limit])
    for key, name, limit in (
        ("insert_lookups", f"a training lookup of {_INSERT_IDS} new ids", "50 ms"),
        ("lookups_while_growing", f"a lookup of {_READ_IDS} ids while it grows", "50 ms"),
        ("lookups_of_the_other_table", "the same of the other table, which does not grow", ""),
        ("first_touches_of_pages", "the first touch of a page of memory, for comparison", ""),
    ):
        ms = r[key]
        text = f"p99.9 {ms['p999_ms']:.1f} ms, longest {ms['max_ms']:.1f} ms of {ms['count']:,}"
        rows.append([name, text, limit])
    return [figures(f"{r['rows']:,} rows x dim {DIM}, row-wise Adagrad", rows)]


BENCHMARK = Benchmark(
    config=Config,
    measure=lambda config, run: {
        "config": {
            "dim": DIM,
            "needed_bytes_per_row": NEED_BYTES,
            "rows_between_cuts": _ROWS_BETWEEN_CUTS,
            "small_rows": SMALL_ROWS,
        },
        "results": measure(config.rows, config.rounds),
    },
    layout=layout,
)


if __name__ == "__main__":
    main(BENCHMARK)
