"""Measures what the policies of tables cost a step: `python -m benchmarks.policy_cost --run DIR`.

DLRM with the zoo's defaults trains on the dataset of DIR, the folder that `make train ROWS=2000000`
made, unit by unit. There is one process per set of policies. In each round each trains on the same
unit, in another order each round, and the others stand still. So a set's time has its own
background threads in it, and no other's.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import embedps  # noqa: F401  before TensorFlow: it chooses the Keras
from benchmarks.harness import DIR, Benchmark, Content, Options, main
from benchmarks.layout import Part, Table
from embedps.config_fields import option

# isort: split
from benchmarks import report
from benchmarks.paused_process import PausedProcess
from benchmarks.unit_trainer import UnitTrainer
from embedps.constants import EVICTION_CAUSES
from embedps.data.dataset import Dataset
from embedps.models import dlrm

BATCH, UNIT_ROWS, WARM_UP_UNITS = 2048, 16384, 2
EVICTION = {"row_ttl_steps": 1000, "max_table_bytes": 16 << 20, "min_row_norm": 1e-3}
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "admission": {"min_count": 2},
    "eviction": EVICTION,
    "all": {"min_count": 2, **EVICTION},
}
_SETS = tuple(POLICIES)[1:]


def serve(connection: Connection, data: Path, policies: Mapping[str, Any]) -> None:
    """Trains on each unit that it is told; answers with the wall and processor seconds.

    At the end it answers with the counts of rows.
    """
    dataset = Dataset.open(data)
    recommender = dlrm.make(dlrm.Config(**policies), dataset)
    trainer = UnitTrainer(recommender, dataset, container="policy-cost", batch=BATCH)
    connection.send(None)
    for path, first, number in iter(connection.recv, None):
        step = number * (UNIT_ROWS // BATCH)
        began = time.perf_counter(), time.process_time()
        trainer.train(path, first, UNIT_ROWS, seed=number, step=step, rate=0.05)
        connection.send((time.perf_counter() - began[0], time.process_time() - began[1]))
    (shard,) = trainer.tables.use()
    of_tables = shard.tables.values()
    connection.send(
        {
            "rows": sum(table.rows for table in of_tables),
            "memory_bytes": shard.memory_bytes,
            "counters": sum(each.counters for each in trainer.tables.admission_stats().values()),
            "refused": sum(table.refused for table in of_tables),
            "evicted": {
                cause: sum(table.evicted[cause] for table in of_tables) for cause in EVICTION_CAUSES
            },
        }
    )


def units_of(dataset: Dataset) -> list[tuple[Path, int]]:
    """Returns the whole units of an epoch: path and first row."""
    files = zip(dataset.paths("train"), dataset.split("train").files, strict=True)
    return [
        (Path(path), first)
        for path, file in files
        for first in range(0, file.rows - UNIT_ROWS + 1, UNIT_ROWS)
    ]


def measure(data: Path, names: Sequence[str], epochs: int) -> dict[str, Any]:
    """Trains with each set of policies in turn, unit by unit."""
    units = units_of(Dataset.open(data))
    trainers: dict[str, PausedProcess] = {}
    try:
        for name in names:
            trainers[name] = PausedProcess(serve, data, POLICIES[name])
            trainers[name].wait_until_ready()
        return _train(trainers, units, epochs)
    finally:
        for trainer in trainers.values():
            trainer.kill()


def _train(
    trainers: Mapping[str, PausedProcess], units: Sequence[tuple[Path, int]], epochs: int
) -> dict[str, Any]:
    secs: dict[str, list[tuple[float, float]]] = {name: [] for name in trainers}
    order = list(trainers)
    for number, (path, first) in enumerate(list(units) * epochs):
        order = [*order[1:], order[0]]
        for name in order:
            secs[name].append(trainers[name].ask((str(path), first, number)))
        if (number + 1) % len(units) == 0:
            print(f"epoch {(number + 1) // len(units)}/{epochs}", flush=True)
    counts = {name: trainer.end() for name, trainer in trainers.items()}
    return {
        "units_per_epoch": len(units),
        "epochs": [
            _compare({name: all_secs[first:last] for name, all_secs in secs.items()})
            for first, last in (
                (max(WARM_UP_UNITS, epoch * len(units)), (epoch + 1) * len(units))
                for epoch in range(epochs)
            )
        ],
        "both": _compare({name: all_secs[WARM_UP_UNITS:] for name, all_secs in secs.items()}),
        "at_the_end": counts,
    }


def _compare(secs: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """Compares with the first set: by the sums, and by the median of the rounds' ratios."""
    base = next(iter(secs.values()))
    found: dict[str, Any] = {}
    for name, times in secs.items():
        found[name] = {}
        for k, clock in enumerate(("wall", "cpu")):
            pairs = [(of_set[k], of_base[k]) for of_set, of_base in zip(times, base, strict=True)]
            found[name][clock] = {
                "ms_per_unit": report.spread([1000 * mine for mine, _ in pairs]),
                "ratio": report.spread([mine / theirs for mine, theirs in pairs]),
                "ratio_of_sums": round(sum(m for m, _ in pairs) / sum(t for _, t in pairs), 4),
            }
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """Which policies, on what."""

    run: str = option(dataclasses.MISSING, "the folder that `make train` made", metavar=DIR)
    epochs: int = option(2, "of each set of policies", least=1)
    policies: tuple[str, ...] = option(_SETS, "sets, each beside none", some_of=_SETS)


def layout(content: Content) -> list[Part]:
    """Lays out each set's time by that without policies."""
    results = content["results"]
    parts = [*results["epochs"], results["both"]]
    rows = [
        [name, clock, *(f"{part[name][clock]['ratio_of_sums']:.3f}" for part in parts)]
        for name in list(results["both"])[1:]
        for clock in ("wall", "cpu")
    ]
    epochs = (f"epoch {k + 1}" for k in range(len(results["epochs"])))
    return [Table(heads=["policies; time by that without", "clock", *epochs, "all"], rows=rows)]


BENCHMARK = Benchmark(
    config=Config,
    measure=lambda config, run: {
        "config": {
            "batch_size": BATCH,
            "unit_rows": UNIT_ROWS,
            "settings": {name: dict(POLICIES[name]) for name in ("none", *config.policies)},
            "model": dataclasses.asdict(dlrm.Config()),
        },
        "results": measure(Path(config.run) / "dataset", ["none", *config.policies], config.epochs),
    },
    layout=layout,
)


if __name__ == "__main__":
    main(BENCHMARK)
