"""Trains a model day by day, in ways to go on: `python -m benchmarks.daily`.

The first days of `benchmarks.drifting_stream` are one dataset each. A model is trained in one
process, once over each example that it is given, and scored on the day after:

- continue: each day, the run goes on with the day's data;
- scratch: each day, a new run trains on all days so far;
- added: as continue, but the data has the feature "segment" only from --new-feature-day on. On that
  day a new run begins with the rows and the network of the one before (--from), and goes on;
- weekly: a run per week, on its days; each begins with the one before. It is scored on each day
  until the next run. Its first week has no "segment".

The processor time of a day is from the making of the trainer to the end of the run: restoring,
tracing and saving are in it, the import of TensorFlow and the scoring are not. What a command costs
before that is told apart. A factorization machine takes two microseconds per example, so
restoring and saving rows is much of its day; of DLRM's it is as small a part as in most models.

The benchmark fails unless "continue" reaches the AUC of "scratch" within 0.001 on average, and on
the last day at a tenth of its processor time.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import embedps  # noqa: F401  before TensorFlow: it has it start quietly

# isort: split
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import child
from benchmarks.drifting_stream import DAYS, DriftingStream, Floats, save_dataset
from benchmarks.harness import Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table, figures
from embedps.config_fields import option
from embedps.data.dataset import ROW_GROUP_ROWS, Dataset, describe_file
from embedps.data.dataset_metadata import Split
from embedps.errors import UsageError
from embedps.evaluate import EvaluateConfig, evaluate
from embedps.run.config import TrainConfig
from embedps.run.summary import read_evaluations

RUNS = ("continue", "scratch", "added", "weekly")
MAX_AUC_DIFFERENCE, MAX_COST = 0.001, 0.1
NEW = "segment"
_WEEK = 7


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The days, and how they are trained."""

    model: Literal["fm", "dlrm"] = option("fm", "a factorization machine, or DLRM")
    days: int = option(14, "trained; each is scored on the next", least=2, most=DAYS - 1)
    rows: int = option(2_000_000, "examples of a day", least=100)
    new_feature_day: int = option(8, "the first with the new feature", least=2)
    batch_size: int = option(1024, "examples per step", least=1)
    sparse_learning_rate: float = option(0.1, "of the rows", above=0)
    seed: int = option(1, "of the stream", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.new_feature_day > self.days:
            raise UsageError(
                f"--new-feature-day must be one of the {self.days} days but is "
                f"{self.new_feature_day}"
            )


def write_days(config: Config, folder: Path) -> float:
    """Writes FOLDER/NN.parquet for each day and for the one after the last.

    Returns:
      The AUC of the planted logits of the days that are scored.
    """
    wanted, found = (config.days + 1) * config.rows, 0
    parts: list[tuple[pa.Table, Floats]] = []
    for part in DriftingStream(config.rows * DAYS, config.seed).chunks():
        parts.append(part)
        found += len(part[1])
        if found >= wanted:
            break
    events = pa.concat_tables(table for table, _ in parts)
    for day in range(config.days + 1):
        part_of_day = events.slice(day * config.rows, config.rows)
        path = folder / f"{day + 1:02d}.parquet"
        pq.write_table(part_of_day, path, row_group_size=ROW_GROUP_ROWS, compression="lz4")
    scored = slice(config.rows, wanted)
    clicked = events["click"].to_numpy()[scored] > 0
    ranks = np.empty(len(clicked))
    ranks[np.argsort(np.concatenate([logits for _, logits in parts])[scored])] = np.arange(
        len(clicked)
    )
    clicks = int(clicked.sum())
    pairs = ranks[clicked].sum() - clicks * (clicks - 1) / 2
    return float(pairs / (clicks * (len(clicked) - clicks)))


def make_dataset(folder: Path, first: int, last: int, *, has_new: bool = True) -> Dataset:
    """Makes a dataset of some days, with or without the new feature; its eval split is the next."""
    directory = folder / f"{first:02d}-{last:02d}-{'with' if has_new else 'without'}"
    splits = {}
    for name, days in (("train", range(first, last + 1)), ("eval", (last + 1,))):
        (directory / name).mkdir(parents=True, exist_ok=True)
        paths = [directory / name / f"{day:02d}.parquet" for day in days]
        for path in paths:
            if not path.exists():
                os.link(folder / path.name, path)
        clicks = [pq.read_table(path, columns=["click"])["click"].to_numpy() for path in paths]
        splits[name] = Split(
            rows=sum(map(len, clicks)),
            positives=int(sum(each.sum() for each in clicks)),
            files=tuple(describe_file(directory, path) for path in paths),
        )
    schema = pq.read_schema(paths[0])
    rows = splits["train"].rows
    save_dataset(directory, splits, schema, items=rows, without=() if has_new else (NEW,))
    return Dataset.open(directory)


def train(config: Config, dataset: Dataset, model_dir: Path, begin_with: Path | None) -> Content:
    """Trains an epoch of a dataset in this process; returns what it took."""
    # TensorFlow's import is not of the day.
    from benchmarks.lifetime_round import EMBEDDING_DIM, MODELS
    from embedps.training.trainer import Trainer

    module, _, dense_rate = MODELS[config.model]

    began = time.process_time()
    of_run = TrainConfig.from_options(
        model=config.model,
        data=str(dataset.directory),
        model_dir=str(model_dir),
        batch_size=config.batch_size,
        sparse_learning_rate=config.sparse_learning_rate,
        dense_learning_rate=dense_rate,
        eval="none",
        **({} if begin_with is None else {"from": str(begin_with)}),
    )
    trainer = Trainer.from_config(of_run, module.Config(embedding_dim=EMBEDDING_DIM))
    result = trainer.fit()
    cpu_secs = round(time.process_time() - began, 2)
    trainer.collection.drop()  # a command's end would free the rows
    return {
        "examples": dataset.split("train").rows,
        "cpu_secs": cpu_secs,
        "rows": sum(result.summary["tables"].values()),
    }


def score(model_dir: Path, dataset: Dataset) -> float:
    """Gives the AUC of a run's last checkpoint on a dataset's eval split."""
    evaluate(EvaluateConfig(model_dir=str(model_dir), data=str(dataset.directory), once=True))
    return float(read_evaluations(model_dir)[-1]["auc"])


def run_days(name: str, folder: str, config: dict[str, Any]) -> Content:
    """Trains the days of one of RUNS in this process; returns what each took, and its AUC."""
    import embedps.training.trainer  # noqa: F401

    start_cpu_secs = time.process_time()
    days = list(_days(name, Path(folder), Config(**config)))
    return {"start_cpu_secs": round(start_cpu_secs, 2), "days": days}


def _days(name: str, folder: Path, config: Config) -> Iterator[Content]:
    model_dir: Path | None = None
    before: Path | None = None
    for day in range(1, config.days + 1):
        is_week_over = name == "weekly" and (day % _WEEK == 0 or day == config.days)
        first = {"scratch": 1, "weekly": day - (day - 1) % _WEEK}.get(name, day)
        has_new = name in ("continue", "scratch") or first >= config.new_feature_day
        dataset = make_dataset(folder, first, day, has_new=has_new)
        took: Content = {"day": day, "examples": 0, "cpu_secs": 0.0}
        if name != "weekly" or is_week_over:
            begins = name in ("scratch", "weekly")
            if model_dir is None or begins or (name == "added" and day == config.new_feature_day):
                before = None if name == "scratch" else model_dir
                model_dir = folder / f"{name}-{day:02d}"
            took |= train(config, dataset, model_dir, before)
        auc = None if model_dir is None else round(score(model_dir, dataset), 5)
        yield {**took, "auc": auc}


def measure(
    config: Config, folder: Path, call: Callable[..., Content] = child.call
) -> dict[str, Any]:
    """Trains the days in each of the ways, each in a process of its own."""
    results: Content = {"planted_auc": round(write_days(config, folder), 5)}
    asked = {"folder": str(folder), "config": dataclasses.asdict(config)}
    runs = {name: call("benchmarks.daily:run_days", name=name, **asked) for name in RUNS}
    days = {name: runs[name]["days"] for name in ("continue", "scratch")}
    lags = [b["auc"] - a["auc"] for a, b in zip(*days.values(), strict=True)]
    costs = {name: [each["cpu_secs"] for each in found] for name, found in days.items()}
    return results | {
        "runs": runs,
        "auc_behind_scratch": {
            "mean": round(statistics.mean(lags), 5),
            "last_day": round(lags[-1], 5),
            "max": round(max(lags), 5),
        },
        "cost_of_scratch": {
            "last_day": round(costs["continue"][-1] / costs["scratch"][-1], 4),
            "all_days": round(sum(costs["continue"]) / sum(costs["scratch"]), 4),
        },
    }


def layout(content: Content) -> list[Part]:
    """Lays out the AUC of each next day, what each day cost, and whether the limits hold."""
    results, config = content["results"], content["config"]
    runs = {name: found["days"] for name, found in results["runs"].items()}
    rows = [
        [
            str(of_day[0]["day"]),
            *("" if each["auc"] is None else f"{each['auc']:.4f}" for each in of_day),
            *(f"{each['cpu_secs']:.1f}" for each in of_day),
        ]
        for of_day in zip(*runs.values(), strict=True)
    ]
    totals = [f"{sum(each['cpu_secs'] for each in of_run):.1f}" for of_run in runs.values()]
    rows.append(["all", *("" for _ in runs), *totals])
    heads = ["day", *(f"{n}: AUC of the next day" for n in runs), *(f"{n}: CPU s" for n in runs)]
    title = f"{config['rows']:,} examples a day; the planted AUC is {results['planted_auc']:.4f}"
    behind, cost = results["auc_behind_scratch"], results["cost_of_scratch"]
    limits = [
        ["AUC of continue behind scratch: mean", f"{behind['mean']:.4f}", f"{MAX_AUC_DIFFERENCE}"],
        ["the last day; the worst", f"{behind['last_day']:.4f}; {behind['max']:.4f}"],
        ["CPU of continue by scratch: the last day", f"{cost['last_day']:.3f}", f"{MAX_COST}"],
        ["all days", f"{cost['all_days']:.3f}"],
        ["CPU s until a command trains", f"{_start(results):.1f}"],
    ]
    return [Table(heads=heads, rows=rows, title=title), figures("go on or begin again", limits)]


def _start(results: Content) -> float:
    return float(statistics.median(each["start_cpu_secs"] for each in results["runs"].values()))


def failure(content: Content) -> str | None:
    """Tells which limit does not hold."""
    results = content["results"]
    behind = results["auc_behind_scratch"]["mean"]
    if behind > MAX_AUC_DIFFERENCE:
        return f"continue is {behind} behind the AUC of scratch, must be {MAX_AUC_DIFFERENCE}"
    cost = results["cost_of_scratch"]["last_day"]
    return f"continue costs {cost} of scratch, must be {MAX_COST}" if cost > MAX_COST else None


def _measure(config: Config, run: Run) -> Content:
    with tempfile.TemporaryDirectory(prefix="embedps-daily-") as folder:
        return {"results": measure(config, Path(folder))}


BENCHMARK = Benchmark(config=Config, measure=_measure, layout=layout, failure=failure)


if __name__ == "__main__":
    main(BENCHMARK)
