"""Compares `embedps plan` of rows on disk with the runs: `python -m benchmarks.tier_plan`.

DLRM trains on examples like W1's, with fewer rows in its large tables, in one process. For each
share of the rows' floats that fits the memory, the plan is made, then the run. Hits and speed are
those of epochs after the first: a hit is a row of a step that was not read from disk. A share is
measured beside those that are in the result already, so that each is a short command.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import embedps
from benchmarks import child
from benchmarks.example_columns import describe
from benchmarks.harness import DIR, Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table
from benchmarks.tiers import smaller
from benchmarks.workload import ZIPF_EXPONENT, files, make_batches
from embedps.config_fields import option
from embedps.data.dataset import describe_file
from embedps.data.dataset_metadata import Split
from embedps.planning.speed import name_of
from embedps.scheduling.division import LedgerOptions
from embedps.scheduling.ledger import Ledger

_UNIT_ROWS, _HEAD_BYTES, _FLOAT_BYTES, _TABLE_BYTES = 16384, 29, 84, 200_000
_FIGURES = ("examples_per_sec", "all_in_memory", "hits", "misses_per_step", "rows_in_memory")


class _AtUnits(embedps.Callback):
    """Notes time, examples and rows read from disk at the ends of two units."""

    def __init__(self, first: int, last: int) -> None:
        self.trainer: embedps.Trainer | None = None
        self.found: list[tuple[float, int, int]] = []
        self._at, self._ended, self._rows = (first, last), 0, 0

    def on_unit_end(self, run: Any, event: Any) -> None:
        self._ended += 1
        self._rows += event.unit.num_rows
        if self.trainer is not None and self._ended in self._at:
            tier = self.trainer.collection.tier_stats()
            self.found.append((time.monotonic(), self._rows, tier.read))


def train(
    data: str, max_bytes: int, spill: str | None, epochs: int, batch_size: int
) -> dict[str, float]:
    """Trains; gives the speed and the reads of epochs after the first, but for two units."""
    with tempfile.TemporaryDirectory() as model_dir:
        config = embedps.TrainConfig.from_options(
            model="dlrm",
            data=data,
            model_dir=model_dir,
            eval="none",
            epochs=epochs + 1,
            batch_size=batch_size,
            unit_rows=_UNIT_ROWS,
            delta_secs=1e6,
            max_memory_bytes=max_bytes,
            spill_dir=spill,
        )
        dataset = embedps.Dataset.open(data)
        units = Ledger(dataset, LedgerOptions.of_run(config), epochs=1).units_of(0)
        first, last = len(units) + 1, len(units) * (epochs + 1) - 1  # the last one saves
        noted = _AtUnits(first, last)
        trainer = embedps.Trainer.from_config(config, callbacks=[noted])
        noted.trainer = trainer
        trainer.fit()
        began, ended = noted.found
        secs, rows, read = (b - a for a, b in zip(began, ended, strict=True))
        stats, tier = trainer.collection.stats(), trainer.collection.tier_stats()
        return {
            "examples_per_sec": rows / secs,
            "misses_per_step": read / (rows / config.batch_size),
            "rows": sum(stats.rows.values()),
            "rows_in_memory": sum(stats.rows.values()) - sum(tier.rows_on_disk.values()),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """What the runs train on, and their memory."""

    rows: int = option(40_000_000, "of the tables, at most; not all come", least=100_000)
    examples: int = option(300_000, "of an epoch", least=50_000)
    epochs: int = option(1, "that are measured, after the first", least=1)
    percents: tuple[int, ...] = option((50, 25, 10), "of the rows in memory", least=1, most=99)
    batch_size: int = option(2048, "of a step", least=1)
    zipf_exponent: float = option(ZIPF_EXPONENT, "of the ids", above=0, most=10)
    spill_dir: str = option("/tmp", "on the disk to measure", metavar=DIR)


def measure(config: Config, run: Run) -> Content:
    """Plans and runs each share."""
    before = run.earlier()
    of_earlier = before.get("config", {})
    is_same = all(
        of_earlier.get(name) == getattr(config, name)
        for name in ("examples", "batch_size", "zipf_exponent")
    )
    found: dict[str, Any] = before.get("results", {}).get("cases", {}) if is_same else {}
    workload = smaller(config.rows)
    examples = make_batches(workload, config.examples, zipf_exponent=config.zipf_exponent)
    with (
        files(workload, examples) as folder,
        tempfile.TemporaryDirectory(dir=config.spill_dir) as spill,
    ):
        columns = describe(workload.num_numerics, len(workload.cardinalities))
        path = folder / "batches.parquet"
        split = Split(rows=config.examples, positives=0, files=(describe_file(folder, path),))
        dataset = dataclasses.replace(columns, directory=folder, splits={"train": split})
        dataset.save()
        shared = [f"--data={folder}", "--model=dlrm", f"--unit-rows={_UNIT_ROWS}"]
        shared.append(f"--batch-size={config.batch_size}")
        rows = 0
        for percent in config.percents:
            if not rows:
                plan = _plan(folder, [*shared, "--no-measure"])
                rows = sum(table["rows"] for table in plan["tables"])
            heads = rows * _HEAD_BYTES + _TABLE_BYTES * len(workload.cardinalities)
            most = heads + rows * _FLOAT_BYTES * percent // 100
            plan = _plan(folder, [*shared, f"--max-memory-bytes={most}", f"--spill-dir={spill}"])
            seen = _train(folder, spill, most, config)
            in_memory = _train(folder, spill, 0, config)
            found[str(percent)] = _compare(plan, seen, in_memory, most)
            print(f"{percent}%: {json.dumps(found[str(percent)])}", flush=True)
    return {"results": {"rows": rows, "cases": found}}


def _train(folder: Path, spill: str, max_bytes: int, config: Config) -> dict[str, Any]:
    made: dict[str, Any] = child.call(
        "benchmarks.tier_plan:train",
        data=str(folder),
        max_bytes=max_bytes,
        spill=spill if max_bytes else None,
        epochs=config.epochs,
        batch_size=config.batch_size,
    )
    return made


def _plan(folder: Path, flags: list[str]) -> dict[str, Any]:
    child.run("embedps.plan", *flags, f"--json={folder / 'plan.json'}")
    made: dict[str, Any] = json.loads((folder / "plan.json").read_text())
    return made


def _compare(
    plan: dict[str, Any], seen: dict[str, Any], in_memory: dict[str, Any], max_bytes: int
) -> dict[str, Any]:
    """Gives each planned figure, that of the run, and their ratio."""
    tier, name = plan["tiers"][0], name_of(0, 1)
    asked = sum(table["ids_per_step"] for table in plan["tables"])
    pairs = {
        "examples_per_sec": (plan["local_with_disk"][name], seen["examples_per_sec"]),
        "all_in_memory": (plan["local"][name], in_memory["examples_per_sec"]),
        "hits": (tier["hits"], 1 - seen["misses_per_step"] / asked),
        "misses_per_step": (tier["misses"], seen["misses_per_step"]),
        "rows_in_memory": (tier["rows"], seen["rows_in_memory"]),
    }
    return {
        "max_memory_bytes": max_bytes,
        "miss_us": round(1e6 * plan["miss"]["secs"], 2),
        **{what: _pair(*of) for what, of in pairs.items()},
    }


def _pair(told: float, found: float) -> dict[str, float]:
    return {"plan": round(told, 4), "run": round(found, 4), "ratio": round(told / found, 3)}


def layout(content: Content) -> list[Part]:
    """Lays each planned figure out beside the run's, by the share of the rows."""
    cases = content["results"]["cases"]
    percents = sorted(cases, key=int, reverse=True)

    def cell(percent: str, what: str) -> str:
        x = cases[percent][what]
        form = ".3f" if what == "hits" else ",.0f"
        return f"{x['ratio']:.3f} ({x['plan']:{form}} by {x['run']:{form}})"

    rows = [[what.replace("_", " "), *(cell(p, what) for p in percents)] for what in _FIGURES]
    rows.append(["a row on disk, us", *(f"{cases[p]['miss_us']:.1f}" for p in percents)])
    heads = ["plan by run", *(f"{p}% of the rows in memory" for p in percents)]
    return [Table(heads=heads, rows=rows)]


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)
