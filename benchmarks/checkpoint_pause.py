"""Measures how much saves slow training: `python -m benchmarks.checkpoint_pause`.

DLRM at the Kaggle configuration trains in this process, unit after unit, on tables of --rows rows.
Windows without saves alternate with windows of back-to-back saves of one kind: bases, deltas of all
rows touched since the save before the window, and deltas since the last save, which hold few steps.
The writers are throttled as in a run.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from benchmarks import embedded_dlrm, report
from benchmarks.harness import DIR, Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table, spread
from benchmarks.workload import W1, files, make_batches
from embedps.config_fields import option
from embedps.run.checkpoint_config import CheckpointConfig
from embedps.tables.collection import EmbeddingCollection
from embedps.training.checkpoint_writer import REST_SHARE

Kind = Literal["base", "delta", "small_delta"]
_KINDS: tuple[Kind, ...] = ("base", "delta", "small_delta")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The tables, and the run to imitate."""

    rows: int = option(2_000_000, "of the tables, before training adds some", least=1)
    batch_size: int = option(2048, "examples per step", least=1)
    window_secs: float = option(4.0, "of a window", above=0)
    rounds: int = option(7, "of a window without saves and one with each kind", least=1)
    delta_secs: float = option(CheckpointConfig.delta_secs, "of the run to imitate", above=0)
    folder: str | None = option(None, "a folder on the disk to measure", metavar=DIR)


def measure(config: Config, run: Run) -> Content:
    """Trains on a thread while this one saves."""
    batch = config.batch_size
    with (
        files(W1, make_batches(W1, 64 * batch)) as examples,
        tempfile.TemporaryDirectory(dir=config.folder) as folder,
    ):
        dlrm = embedded_dlrm.make(
            container="benchmark-pause", batch=batch, unit_batches=4, sparse="adagrad", rate=0.01
        )
        collection = dlrm.collection
        fill(collection, config.rows)
        units = itertools.count()

        def train_unit() -> int:
            k = next(units)
            return dlrm.train(examples / "batches.parquet", k % 16 * 4 * batch, 4 * batch, k)

        for _ in range(16):  # traces the functions and creates the rows of the examples
            train_unit()
        rows = sum(collection.stats().rows.values())
        trainer = TrainingThread(train_unit)
        cuts = _Cuts(collection, Path(folder), rest_secs=REST_SHARE * config.delta_secs)
        cuts.write("base")
        rates: dict[Kind | None, list[float]] = {kind: [] for kind in (None, *_KINDS)}
        peaks: dict[Kind | None, list[int]] = {kind: [] for kind in (None, *_KINDS)}
        trainer.start()
        try:
            for k in range(config.rounds):
                kinds = list(rates) if k % 2 == 0 else list(rates)[::-1]
                for kind in kinds:
                    rate, peak = _window(trainer, cuts, kind, config.window_secs)
                    rates[kind].append(rate)
                    peaks[kind].append(peak)
                latest = ", ".join(f"{kind or 'none'} {r[-1]:,.0f}/s" for kind, r in rates.items())
                print(f"round {k + 1}/{config.rounds}: {latest}", flush=True)
        finally:
            trainer.stop()
        ratios = {
            kind: [
                during / without for during, without in zip(rates[kind], rates[None], strict=True)
            ]
            for kind in _KINDS
        }
        least = statistics.median(peaks[None])
        return {
            "measured": "examples a second in windows of back-to-back cuts, by those without",
            "rows": rows,
            "examples_per_sec": {kind or "none": report.spread(r) for kind, r in rates.items()},
            "ratio_during_cuts": {kind: report.spread(r) for kind, r in ratios.items()},
            "cuts": cuts.summary(),
            "peak_memory_over_training_mb": {
                kind: round((max(peaks[kind]) - least) / 1e6, 1) for kind in _KINDS
            },
            "table_mb": round(collection.stats().memory_bytes / 1e6, 1),
        }


def fill(collection: EmbeddingCollection, rows: int) -> None:
    """Creates `rows` rows in the largest tables."""
    largest = sorted(range(len(W1.cardinalities)), key=lambda i: -W1.cardinalities[i])[:5]
    names = [f"C{i + 1}" for i in range(len(W1.cardinalities))]
    each = -(-rows // len(largest))
    for first in range(0, each, 50_000):
        ids = np.arange(first, min(each, first + 50_000))
        batch = {
            name: tf.constant(ids if i in largest else np.zeros(1, np.int64), tf.int64)
            for i, name in enumerate(names)
        }
        collection.lookup(batch, insert=True)


class TrainingThread:
    """Trains unit after unit on a thread until it is stopped, and counts examples."""

    def __init__(self, run_unit: Any) -> None:
        self._run_unit = run_unit
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.done: list[tuple[float, int]] = []  # time, and examples trained until then

    def _run(self) -> None:
        examples = 0
        while not self._stop.is_set():
            examples += self._run_unit()
            self.done.append((time.perf_counter(), examples))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def rate(self, first: float, last: float) -> float:
        """Returns the examples per second between the first and last unit that ended in a span."""
        inside = [(t, n) for t, n in self.done if first <= t <= last]
        (begin, before), (end, after) = inside[0], inside[-1]
        return (after - before) / (end - begin)


class _Cuts:
    """Writes saves one after the other, and removes each when it is written."""

    def __init__(self, collection: EmbeddingCollection, folder: Path, *, rest_secs: float) -> None:
        self._collection = collection
        self._folder = folder
        self._rest_secs = rest_secs
        self._since: dict[tuple[str, int], int] = {}
        self._written: dict[Kind, list[tuple[float, int, int]]] = {kind: [] for kind in _KINDS}

    def write(self, kind: Kind) -> None:
        began = time.perf_counter()
        files = self._collection.files.write(
            "base" if kind == "base" else "delta",
            str(self._folder / "cut"),
            since=self._since,
            max_pause_secs=self._rest_secs,
        )
        secs = time.perf_counter() - began
        if kind != "delta":
            self._since = {(f.group, f.shard): f.cut for f in files}
        self._written[kind].append((secs, sum(f.bytes for f in files), sum(f.rows for f in files)))
        shutil.rmtree(self._folder / "cut")

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for kind, written in self._written.items():
            secs, sizes, rows = (statistics.median(x) for x in zip(*written, strict=True))
            found[kind] = {
                "count": len(written),
                "median_secs": round(secs, 3),
                "median_mb": round(sizes / 1e6, 2),
                "median_rows": int(rows),
            }
        return found


def _window(
    trainer: TrainingThread, cuts: _Cuts, kind: Kind | None, secs: float
) -> tuple[float, int]:
    """Measures a window: its rate, and the peak memory of this process in bytes."""
    began = time.perf_counter()
    peak = 0
    ending = threading.Event()

    def cut() -> None:
        while kind is not None and not ending.is_set():
            cuts.write(kind)

    thread = threading.Thread(target=cut)
    thread.start()
    while time.perf_counter() - began < secs:
        peak = max(peak, report.rss_bytes())
        time.sleep(0.005)
    ending.set()
    thread.join()
    return trainer.rate(began, time.perf_counter()), peak


def layout(content: Content) -> list[Part]:
    """Lays out the speed beside saves of each kind."""
    names = {
        "base": "bases",
        "delta": "deltas since the cut before the window",
        "small_delta": "deltas since the last cut",
    }
    rows = []
    for kind, name in names.items():
        cut = content["cuts"][kind]
        rows.append(
            [
                name,
                spread(content["ratio_during_cuts"][kind], ".3f"),
                f"{cut['median_secs']:.2f} s",
                f"{cut['median_rows']:,} rows, {cut['median_mb']:,.1f} MB",
                f"{content['peak_memory_over_training_mb'][kind]:.0f} MB",
            ]
        )
    heads = ["saves back to back", "examples per second, against those without saves"]
    heads += ["one save takes", "one save holds", "memory above training"]
    told = f"{content['rows']:,} rows, {content['table_mb']:,.0f} MB of tables."
    return [Table(heads=heads, rows=rows), told]


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)
