"""Measures what the statistics of tables cost a step: `python -m benchmarks.statistics_cost`.

DLRM at the Kaggle configuration trains in this process, unit after unit, on tables of --rows rows.
Windows with statistics alternate with windows without. A window with them begins with a look: it
reads the counts, writes statistics.json and TensorBoard points, and begins a walk over all rows,
which lasts about as long as the window. So looks come 60 / --window-secs times as often as a run
takes them by default, and a walk is always under way.
"""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import embedded_dlrm, report
from benchmarks.checkpoint_pause import TrainingThread, fill
from benchmarks.harness import Benchmark, Content, Options, main
from benchmarks.layout import Part, figures, spread
from benchmarks.workload import W1, files, make_batches
from embedps.config_fields import option
from embedps.metrics import Accumulator
from embedps.run.config import TrainConfig
from embedps.training.table_report import points, texts
from embedps.training.table_watch import TableWatch
from embedps.training.training_log import TrainingLog

_BATCH = 2048
_WARM_UP_UNITS = 16


def measure(rows: int, rounds: int, window_secs: float) -> dict[str, Any]:
    """Trains on a thread while this one takes statistics in every other window."""
    with (
        files(W1, make_batches(W1, 64 * _BATCH)) as examples,
        tempfile.TemporaryDirectory() as folder,
    ):
        dlrm = embedded_dlrm.make(
            container="benchmark-statistics",
            batch=_BATCH,
            unit_batches=4,
            sparse="adagrad",
            rate=0.01,
        )
        fill(dlrm.collection, rows)
        units = itertools.count()

        def train_unit() -> int:
            k = next(units)
            return dlrm.train(examples / "batches.parquet", k % 16 * 4 * _BATCH, 4 * _BATCH, k)

        for _ in range(_WARM_UP_UNITS):
            train_unit()
        watch = TableWatch(
            dlrm.collection, Path(folder), every_secs=window_secs, share_machine=True
        )
        log = TrainingLog(Path(folder), lambda: Accumulator(lambda counts: {}))
        cpu_secs: list[float] = []

        def look() -> None:
            began = time.thread_time()
            found = watch.look(step=4 * next(units))
            log.write("tables", points(found), step=next(units), texts=texts(found))
            cpu_secs.append(time.thread_time() - began)

        look()  # makes the walk's function
        trainer = TrainingThread(train_unit)
        rates: dict[bool, list[float]] = {False: [], True: []}
        trainer.start()
        try:
            time.sleep(window_secs)
            for k in range(rounds):
                for with_statistics in (False, True) if k % 2 == 0 else (True, False):
                    watch.join()
                    began = time.perf_counter()
                    if with_statistics:
                        look()
                    time.sleep(max(0.0, window_secs - (time.perf_counter() - began)))
                    rates[with_statistics].append(trainer.rate(began, time.perf_counter()))
                latest = [rates[each][-1] for each in (False, True)]
                print(f"round {k + 1}/{rounds}: {latest[0]:,.0f}/s, {latest[1]:,.0f}/s", flush=True)
        finally:
            trainer.stop()
        ratios = [a / b for a, b in zip(rates[True], rates[False], strict=True)]
        return {
            "measured": "examples per second in windows with statistics, by those without",
            "rows": sum(dlrm.collection.stats().rows.values()),
            "tables": len(dlrm.collection.tables),
            "examples_per_sec": {
                "without": report.spread(rates[False]),
                "with": report.spread(rates[True]),
            },
            "ratio": report.spread(ratios),
            "look_cpu_ms": report.spread([1000 * secs for secs in cpu_secs[1:]]),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The tables and the windows."""

    rows: int = option(4_000_000, "of the tables, before training adds some", least=1)
    rounds: int = option(12, "of a window with and one without statistics", least=1)
    window_secs: float = option(5.0, "of a window", above=0)


def layout(content: Content) -> list[Part]:
    """Lays out the speed with statistics by that without, and the time of a look."""
    r = content["results"]
    rows = [
        ["examples per second with statistics, by those without", spread(r["ratio"], ".3f")],
        ["processor time of a look, ms", spread(r["look_cpu_ms"], ".1f")],
    ]
    return [figures(f"{r['rows']:,} rows of {r['tables']} tables", rows)]


BENCHMARK = Benchmark(
    config=Config,
    measure=lambda config, run: {
        "config": {"batch_size": _BATCH, "default_stats_secs": TrainConfig.stats_secs},
        "results": measure(config.rows, config.rounds, config.window_secs),
    },
    layout=layout,
)


if __name__ == "__main__":
    main(BENCHMARK)
