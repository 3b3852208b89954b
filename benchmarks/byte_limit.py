"""Measures what a server's memory is under a byte limit: `python -m benchmarks.byte_limit`.

Each case is a process of its own, with malloc as a parameter server has it. It has one table of a
limited number of bytes, or two tables under one limit of the server, and a stream of steps; each
step looks ids up, and updates their rows. After every few steps it writes a delta to a file. A
thread reads the process' anonymous memory every few milliseconds. Before, an equal stream runs
through as many small tables of the same process. Its peak is TensorFlow's own, with the buffers of
calls and of files. The peak of the limited tables is compared with it. A step is many calls, so
these buffers are small: how many of them are held at a time differs from run to run.

Streams:

- new: every id is new;
- zipf: ids by Zipf's law with exponent 1.05; what is frequent drifts;
- alternating: two sets of ids that both fill the table, in turn;
- sweeps: half of the rows go by hand between saves, and others come;
- rare saves: every id is new, and a delta comes after each has been displaced several times;
- counters: the table admits an id by its second example. Each step has as many new ids as ids of
  the step before last, which it admits;
- counters zipf: the same table, and ids by Zipf's law;
- counters first: the same table, which sees new ids until counters would fill the limit, and then
  the stream of counters;
- evicted rows: every id is new, and rows that go are written to files, a file per save;
- evicted rarely: the same with rare saves.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import embedps  # noqa: F401  before TensorFlow: it has it start quietly

# isort: split
import dataclasses

import numpy as np
import numpy.typing as npt

from benchmarks import child, report
from benchmarks.harness import Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table
from embedps import kernels
from embedps.config_fields import option
from embedps.server import keep_freed_memory
from embedps.splitmix import mix
from embedps.tables import Initializer, MinCount, SizeLimit, TableSpec, new_store, ops
from embedps.tables.byte_limits import ServerLimit
from embedps.tables.eviction import EvictionPolicy

STREAMS = ("new", "zipf", "alternating", "sweeps", "rare_saves")
COUNTING = ("counters", "counters_zipf", "counters_first")
KEEPING = ("evicted_rows", "evicted_rarely")
ALL_STREAMS = (*STREAMS, *COUNTING, *KEEPING)
_BATCH_IDS = 16384
_CALL_IDS = 512
"""Of a step, per call. TensorFlow and malloc hold the arrays of a few calls, more in some runs. So
an array must be small beside a limit: at dim 64 it has 128 KiB."""
_SAMPLE_SECS = 0.004
_SMALL_ROWS = 50_000
_SMALL_BYTES = 8 << 20  # of a small table that counts, whose counters max_rows does not limit
_SMALL_STEPS = 100
_COUNTER_BYTES = 16  # of an id without a row, at least

Ids = npt.NDArray[np.int64]


@functools.cache
def gradients(dim: int) -> npt.NDArray[np.float32]:
    """Gives a step's gradients. They are not memory of a table, so all tables share them."""
    return np.full((_BATCH_IDS, dim), 0.1, np.float32)


def ones(num_ids: int) -> npt.NDArray[np.int32]:
    """Gives the examples of a step that show each id."""
    return np.ones(num_ids, np.int32)


class EvictingTable:
    """A store of one table with policies of eviction."""

    def __init__(
        self,
        name: str,
        policies: Sequence[EvictionPolicy],
        dim: int,
        *,
        max_server_bytes: int = 0,
        counts: bool = False,
        evicted: Path | None = None,
    ) -> None:
        """Makes an empty store.

        Args:
          policies: of eviction.
          dim: of its rows.
          max_server_bytes: the limit of all tables of the process; 0 is no limit.
          counts: whether an id gets a row by its second example.
          evicted: a folder for the files of evicted rows.
        """
        self._dim = dim
        self._counts = counts
        self._evicted = evicted
        self._name = name
        self._cut = -1
        self._step = 0
        self._gradients = gradients(dim)
        table = TableSpec(
            name=name,
            embedding_dim=dim,
            initializer=Initializer.uniform(0.25),
            admission=MinCount(count=2) if counts else None,
            eviction=tuple(policies),
        )
        limit = ServerLimit(max_bytes=max_server_bytes) if max_server_bytes else None
        self.store = ops.row_store(
            container="byte-limit",
            shared_name=name,
            group=name,
            **new_store.attributes([table], server_limit=limit),
            server_memory="server-memory",
            keeps_evicted=evicted is not None,
        )
        self._next_evicted_file()

    def step(self, ids: Ids, call_ids: int = _BATCH_IDS) -> None:
        """Looks ids up and updates their rows, so many per call."""
        for first in range(0, len(ids), call_ids):
            self._call(ids[first : first + call_ids])
        self._step += 1

    def _call(self, ids: Ids) -> None:
        splits = np.asarray([0, len(ids)], np.int32)
        if self._counts:
            shown = (self.store, ids, splits, ones(len(ids)))
            step = np.int64(self._step)
            _, absent = ops.lookup_shown(*shown, dim=self._dim, step=step)
            ops.admit(*shown, absent, step=step)
        else:
            kernels.load().embedps_lookup(self.store, ids, splits, dim=self._dim, insert=True)
        kernels.load().embedps_update(
            self.store,
            ids,
            splits,
            self._gradients[: len(ids)],
            np.float32(0.1),
            np.int64(self._step),
            np.bool_(True),
        )

    def evict_older_half(self, steps: int) -> None:
        """Removes the rows of all but the last steps."""
        kernels.load().embedps_evict(self.store, self._step - steps, 2**31, table=0)

    def save(self, kind: str, folder: Path) -> None:
        """Writes and forgets a file of rows."""
        path = folder / "shard-0-of-1.arrow"
        made = kernels.load().embedps_write_rows(self.store, str(path), self._cut, 0.0, kind=kind)
        self._cut = int(made.info.numpy()[0])
        path.unlink()
        (folder / "admission-0-of-1.arrow").unlink(missing_ok=True)
        self._next_evicted_file()

    def _next_evicted_file(self) -> None:
        if self._evicted is not None:
            shutil.rmtree(self._evicted / self._name, ignore_errors=True)
            path = self._evicted / self._name / f"save-{self._cut + 1}" / "shard-0-of-1.parquet"
            kernels.load().embedps_next_evicted_file(self.store, str(path))

    def counts(self) -> dict[str, int]:
        """Counts rows, bytes as the store knows them, and rows that the limit displaced."""
        kernels.load().embedps_hold_sweeps(self.store, held=True)  # else rows go between the counts
        stats = kernels.load().embedps_stats(self.store)
        displaced = kernels.load().embedps_eviction_stats(self.store).numpy()[0]
        kernels.load().embedps_hold_sweeps(self.store, held=False)
        return {
            "rows": int(stats.rows.numpy()[0]),
            "counted_bytes": int(stats.counters.numpy()[0]),
            "evicted": int(displaced.sum()),
        }


class PeakMemory(threading.Thread):
    """Finds the most anonymous memory of the process."""

    def __init__(self) -> None:
        super().__init__(name="peak-memory")
        self.bytes = 0
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(_SAMPLE_SECS):
            self.bytes = max(self.bytes, report.anonymous_bytes())

    def end(self) -> int:
        """Stops the thread and returns the peak."""
        self._end.set()
        self.join()
        return max(self.bytes, report.anonymous_bytes())


def ids_of(numbers: Ids) -> Ids:
    """Maps distinct numbers to distinct 64-bit ids."""
    return mix(numbers.astype(np.uint64)).view(np.int64)


def batches(stream: str, capacity: int, first_steps: int = 0) -> Iterator[Ids]:
    """Yields the distinct ids of each step, for ever.

    Args:
      stream: one of ALL_STREAMS.
      capacity: about what the table holds.
      first_steps: of "counters_first", before it goes on as "counters".
    """
    rng = np.random.default_rng(3)
    step, half = 0, _BATCH_IDS // 2
    while True:
        first = step * _BATCH_IDS
        numbers = np.arange(first, first + _BATCH_IDS, dtype=np.int64)
        if stream in ("zipf", "counters_zipf"):
            ranks = rng.zipf(1.05, size=2 * _BATCH_IDS) % (8 * capacity)
            numbers = (ranks + np.where(ranks < capacity, first // 8, 0)).astype(np.int64)
        elif stream == "alternating":
            turn = first // capacity % 2
            numbers = turn * 2 * capacity + numbers % capacity
        elif stream == "counters" or (stream == "counters_first" and step >= first_steps):
            again = np.arange(half * (step - 2), half * (step - 1), dtype=np.int64)
            numbers = np.concatenate([np.arange(half * step, half * (step + 1)), again])
            numbers += 1 << 40  # apart from those that come once
        yield np.unique(ids_of(numbers))[:_BATCH_IDS]
        step += 1


def run_case(
    stream: str, max_bytes: int, dim: int, turnovers: int, num_tables: int
) -> dict[str, Any]:
    """Runs a stream in this process; returns its peak. Several tables share a server's limit."""
    keep_freed_memory()
    capacity = max_bytes // (16 + 4 * dim + 4 + 24)
    steps = turnovers * capacity // _BATCH_IDS
    is_rare = stream in ("rare_saves", "evicted_rarely")
    filling = max_bytes // _COUNTER_BYTES // _BATCH_IDS if stream == "counters_first" else 0
    per_save = max(1, (3 if is_rare else 1) * capacity // _BATCH_IDS)
    if not is_rare and stream != "sweeps":
        per_save = max(1, per_save // 3)

    def play(tables: Sequence[EvictingTable], first: int, steps: int, folder: Path) -> None:
        for table in tables:
            table.save("base", folder)
        for step, ids in zip(range(steps), batches(stream, capacity, first), strict=False):
            tables[step % len(tables)].step(ids, _CALL_IDS)
            if step % per_save == per_save - 1:
                for table in tables:
                    if stream == "sweeps":
                        table.evict_older_half(per_save // 2)
                    table.save("delta", folder)

    with tempfile.TemporaryDirectory(prefix="embedps-byte-limit-") as name:
        counts = stream in COUNTING
        small_limit = SizeLimit(max_rows=_SMALL_ROWS, max_bytes=_SMALL_BYTES if counts else 0)
        small = [
            EvictingTable(f"small{i}", [small_limit], dim, counts=counts) for i in range(num_tables)
        ]
        peak = PeakMemory()
        peak.start()
        play(small, _SMALL_STEPS // 2, _SMALL_STEPS, Path(name))
        own = peak.end()
        peak = PeakMemory()
        peak.start()
        of_server = max_bytes if num_tables > 1 else 0
        tables = [
            EvictingTable(
                f"table{i}",
                [] if of_server else [SizeLimit(max_bytes=max_bytes)],
                dim,
                max_server_bytes=of_server,
                counts=counts,
                evicted=Path(name, "evicted") if stream in KEEPING else None,
            )
            for i in range(num_tables)
        ]
        play(tables, filling, filling + steps, Path(name))
        found = [table.counts() for table in tables]
        for table in tables:
            table.save("base", Path(name))
    added = peak.end() - own
    return {
        "stream": stream,
        "dim": dim,
        "max_bytes": max_bytes,
        "peak_bytes": added,
        "ratio": round(added / max_bytes, 4),
        "own_bytes": own,
        "tables": num_tables,
        **{name: sum(counts[name] for counts in found) for name in found[0]},
    }


def in_a_process(
    stream: str, max_bytes: int, dim: int, turnovers: int, num_tables: int
) -> dict[str, Any]:
    """Runs a case in a process of its own."""
    found: dict[str, Any] = child.call(
        "benchmarks.byte_limit:run_case",
        stream=stream,
        max_bytes=max_bytes,
        dim=dim,
        turnovers=turnovers,
        num_tables=num_tables,
    )
    return found


def merged(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Gives all cases in the order of a whole run; new ones replace old ones of the same case."""

    def place(case: dict[str, Any]) -> tuple[int, int, int, int]:
        stream = ALL_STREAMS.index(case["stream"])
        return case["tables"], case["max_bytes"], case["dim"], stream

    cases = {place(case): case for case in (*old, *new)}
    return [cases[key] for key in sorted(cases)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The cases: each stream with each limit, dim and number of tables."""

    max_bytes: tuple[int, ...] = option((32 << 20, 128 << 20, 512 << 20), "limits", least=1)
    dims: tuple[int, ...] = option((16, 64), "of the rows", least=1)
    tables: tuple[int, ...] = option(
        (1, 2), "1: a limit of the table; more: one limit of the server for all", least=1
    )
    turnovers: int = option(4, "ids of a stream over what fits", least=1)
    streams: tuple[str, ...] = option(ALL_STREAMS, "see above", some_of=ALL_STREAMS)
    add: bool = option(False, "keep what the result has of other cases")


def measure(config: Config, run: Run) -> Content:
    """Runs each case in a process of its own."""
    cases = [
        in_a_process(stream, max_bytes, dim, config.turnovers, num_tables)
        for num_tables in config.tables
        for max_bytes in config.max_bytes
        for dim in config.dims
        for stream in config.streams
    ]
    if config.add:
        cases = merged(run.earlier()["results"]["cases"], cases)
    worst = max(case["ratio"] for case in cases)
    return {
        "config": {"batch_ids": _BATCH_IDS},
        "results": {"worst_ratio": worst, "cases": cases},
    }


def layout(content: Content) -> list[Part]:
    """Lays out the peak over the limit."""
    cases = content["results"]["cases"]
    sizes = sorted({(case["dim"], case["max_bytes"]) for case in cases})
    ratios = {(c["stream"], c["tables"], c["dim"], c["max_bytes"]): c["ratio"] for c in cases}
    rows = []
    for stream, tables in dict.fromkeys((case["stream"], case["tables"]) for case in cases):
        found = (ratios.get((stream, tables, *size)) for size in sizes)
        cells = ("" if ratio is None else f"{ratio:.3f}" for ratio in found)
        rows.append([stream.replace("_", " "), str(tables), *cells])
    heads = [f"dim {dim}, {max_bytes >> 20} MiB" for dim, max_bytes in sizes]
    return [Table(heads=["peak over limit, by stream", "tables", *heads], rows=rows)]


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)
