"""Measures what eviction adds to the pauses of lookups: `python -m benchmarks.eviction_pause`.

One table of dim 16 with row-wise Adagrad takes steps of new ids, while a thread times lookups of
256 ids. In each round one table only grows, and another evicts beside its steps by all policies: a
time to live, which its thread sweeps for, a norm, and a limit of rows, at which new rows displace
others. Both have the same steps.
"""

from __future__ import annotations

import dataclasses
import gc
import threading
import time
from typing import Any

import embedps  # noqa: F401  before TensorFlow: it has it start quietly
from benchmarks.harness import Benchmark, Content, Options, main
from benchmarks.layout import Part, Table
from embedps.config_fields import option

# isort: split
import numpy as np

from benchmarks.byte_limit import EvictingTable, ids_of
from benchmarks.growth import latencies
from embedps import kernels
from embedps.tables import MinNorm, SizeLimit, TimeToLive
from embedps.tables.eviction import EvictionPolicy

DIM = 16
_STEP_IDS = 8192
_READ_IDS = 256
_READ_EVERY_SECS = 0.001


class Reader(threading.Thread):
    """Times lookups of ids that the table has, or had."""

    def __init__(self, table: EvictingTable, ids: int) -> None:
        super().__init__(name="reader")
        self.secs: list[float] = []
        self._table = table
        self._ids = ids
        self._end = threading.Event()

    def run(self) -> None:
        rng = np.random.default_rng(7)
        splits = np.asarray([0, _READ_IDS], np.int32)
        while not self._end.wait(_READ_EVERY_SECS):
            ids = ids_of(rng.choice(self._ids, size=_READ_IDS, replace=False))
            began = time.perf_counter()
            kernels.load().embedps_lookup(self._table.store, ids, splits, dim=DIM, insert=False)
            self.secs.append(time.perf_counter() - began)

    def end(self) -> None:
        """Stops the thread and waits for it."""
        self._end.set()
        self.join()


def run_round(number: int, rows: int, *, evicts: bool) -> tuple[list[float], dict[str, int]]:
    """Takes the steps of a round; returns the seconds of the lookups, and the table's counts."""
    steps = max(2, rows // _STEP_IDS)
    policies: list[EvictionPolicy] = [
        TimeToLive(steps=max(1, steps // 4)),
        MinNorm(norm=1e-3),
        SizeLimit(max_rows=max(1, rows // 2)),
    ]
    table = EvictingTable(f"{number}-{evicts}", policies if evicts else (), DIM)
    reader = Reader(table, rows)
    gc.collect()
    gc.disable()
    reader.start()
    try:
        for step in range(steps):
            table.step(ids_of(np.arange(step * _STEP_IDS, (step + 1) * _STEP_IDS)))
    finally:
        reader.end()
        gc.enable()
    counts = table.counts()
    kernels.load().embedps_clear(table.store)
    return reader.secs, counts


def measure(rows: int, rounds: int) -> dict[str, Any]:
    """Measures both tables in turn; returns the JSON's results."""
    names = ("growing", "evicting")
    secs: dict[str, list[float]] = {name: [] for name in names}
    counts: dict[str, dict[str, int]] = {}
    longest: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names:
            found, counts[name] = run_round(number, rows, evicts=name == "evicting")
            secs[name] += found
            longest[name].append(round(max(found, default=0.0) * 1e3, 3))
    return {
        name: {
            "lookups": latencies(secs[name]),
            "longest_ms_by_round": longest[name],
            "rows": counts[name]["rows"],
            "evicted": counts[name]["evicted"],
        }
        for name in names
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The tables and the rounds."""

    rows: int = option(2_000_000, "of the growing table, at the end of a round", least=1)
    rounds: int = option(5, "of both tables", least=1)


def layout(content: Content) -> list[Part]:
    """Lays out the latencies beside both tables."""
    marks = ("median_ms", "p99_ms", "p999_ms", "max_ms")
    rows = [
        [name, *(f"{of['lookups'][mark]:.2f}" for mark in marks), f"{of['evicted']:,}"]
        for name, of in content["results"].items()
    ]
    config = content["config"]
    title = f"lookups of {config['read_ids']} ids beside steps of {config['step_ids']} new ids, ms"
    heads = [title, "median", "p99", "p99.9", "longest", "evicted in a round"]
    return [Table(heads=heads, rows=rows)]


BENCHMARK = Benchmark(
    config=Config,
    measure=lambda config, run: {
        "config": {"dim": DIM, "step_ids": _STEP_IDS, "read_ids": _READ_IDS},
        "results": measure(config.rows, config.rounds),
    },
    layout=layout,
)


if __name__ == "__main__":
    main(BENCHMARK)
