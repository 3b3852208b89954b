"""Measures the lag of a checkpoint follower in a training run: `python -m benchmarks.lag`.

Trains DLRM embedded on generated examples of the Kaggle configuration. Each example has one more id
of its own, so that every row of that id's table is updated once. A second process follows the
checkpoints and records when each row arrives. The lag of a row counts from the start of its unit,
so it is slightly longer than the time since its update.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import child
from benchmarks.harness import Benchmark, Content, Options, main
from benchmarks.layout import Part, figures
from benchmarks.workload import W1, make_batches
from embedps.checkpoint import Reached, Rows, follow
from embedps.config_fields import option
from embedps.data.dataset import Dataset, describe_file
from embedps.data.dataset_metadata import CategoricalFeature, NumericFeature, Split
from embedps.errors import EmbedpsError

TABLE = "row"
BATCH_ROWS, UNIT_ROWS, NUM_FILES = 2048, 8192, 4


def write_dataset(folder: Path, num_rows: int) -> Dataset:
    """Writes the examples of a workload; each has an extra id, its position in the dataset."""
    files = []
    (folder / "train").mkdir(parents=True)
    per_file = num_rows // NUM_FILES
    positives = 0
    numerics = [f"I{k + 1}" for k in range(W1.num_numerics)]
    categorical = [f"C{k + 1}" for k in range(len(W1.cardinalities))]
    for i in range(NUM_FILES):
        examples = make_batches(W1, per_file, seed=i + 1)
        positives += int(examples.labels.sum())
        columns = {
            "label": pa.array(examples.labels),
            **{name: pa.array(examples.numerics[:, k]) for k, name in enumerate(numerics)},
            **{name: pa.array(examples.ids[k]) for k, name in enumerate(categorical)},
            TABLE: pa.array(np.arange(i * per_file, (i + 1) * per_file)),
        }
        table = pa.table(columns)
        path = folder / "train" / f"shard-{i:05d}-of-{NUM_FILES:05d}.parquet"
        pq.write_table(table, path, row_group_size=UNIT_ROWS, compression="zstd")
        files.append(describe_file(folder, path))
    Dataset(
        directory=folder,
        numeric=tuple(NumericFeature(name=name) for name in numerics),
        categorical=(
            *(
                CategoricalFeature(name=name, cardinality=count)
                for name, count in zip(categorical, W1.cardinalities, strict=True)
            ),
            CategoricalFeature(name=TABLE, cardinality=per_file * NUM_FILES),
        ),
        schema={field.name: str(field.type) for field in table.schema},
        splits={"train": Split(rows=per_file * NUM_FILES, positives=positives, files=tuple(files))},
    ).save()
    return Dataset.open(folder)


def train(dataset: Dataset, model_dir: Path, delta_secs: float) -> tuple[dict[str, Any], Any]:
    """Trains one epoch; returns its summary and the start time of each unit (file, first row)."""
    from embedps.cluster.embedded import EmbeddedCluster
    from embedps.cluster.interface import OnDeath, ScheduledCall
    from embedps.models import dlrm
    from embedps.run.config import TrainConfig
    from embedps.training.trainer import Trainer

    moments: dict[tuple[str, int], float] = {}

    class TimedCluster(EmbeddedCluster):
        def schedule(
            self,
            function: Callable[..., Any],
            args: tuple[Any, ...],
            *,
            on_start: Callable[[], None] = lambda: None,
            on_death: OnDeath | None = None,
            order: int = 0,
        ) -> ScheduledCall:
            def noted() -> None:
                path, first_row = args[:2]
                moments[Path(path.numpy().decode()).name, int(first_row)] = time.time()
                on_start()

            return super().schedule(function, args, on_start=noted, on_death=on_death, order=order)

    config = TrainConfig.from_options(
        data=str(dataset.directory),
        model_dir=str(model_dir),
        batch_size=BATCH_ROWS,
        unit_rows=UNIT_ROWS,
        delta_secs=delta_secs,
        eval="none",
    )
    cluster = TimedCluster(num_shards=2)
    recommender = dlrm.make(dlrm.Config(), dataset)
    summary = Trainer(recommender, dataset, config, cluster).fit().summary
    cluster.close()
    return summary, moments


def follow_rows(model_dir: str, output: str) -> None:
    """Follows a run to its end; records when each id arrived, and the number of saves."""
    ids: list[npt.NDArray[np.int64]] = []
    times: list[float] = []
    saves = 0
    for change in follow(Path(model_dir)):
        if isinstance(change, Rows):
            codes = change.batch["table"].indices.to_numpy()
            names = change.batch["table"].dictionary.to_pylist()
            if TABLE in names:
                ids.append(change.batch["id"].to_numpy()[codes == names.index(TABLE)])
                times.append(time.time())
        saves += isinstance(change, Reached)
    counts = [len(some) for some in ids]
    np.savez(output, ids=np.concatenate(ids), times=np.repeat(times, counts), saves=saves)


def measure(num_rows: int, delta_secs: float) -> dict[str, Any]:
    """Measures the lags of one run, in seconds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset = write_dataset(folder / "data", num_rows)
        (folder / "model").mkdir()
        paths = {"model_dir": str(folder / "model"), "output": str(folder / "seen.npz")}
        follower = subprocess.Popen(child.command("benchmarks.lag:follow_rows", **paths))
        try:
            summary, began = train(dataset, folder / "model", delta_secs)
            if follower.wait(timeout=120) != 0:
                raise EmbedpsError(f"the follower ended with code {follower.returncode}")
        finally:
            follower.kill()
        seen = np.load(folder / "seen.npz")
    total = dataset.split("train").rows
    first_seen = np.full(total, np.inf)
    np.minimum.at(first_seen, seen["ids"], seen["times"])
    updated = np.empty(total)
    per_file = total // NUM_FILES
    for (file, first_row), moment in began.items():
        at = int(file.split("-")[1]) * per_file + first_row
        updated[at : min(at + UNIT_ROWS, at - first_row + per_file)] = moment
    lags = first_seen - updated
    quantiles = {f"p{q}": round(float(np.quantile(lags, q / 100)), 3) for q in (50, 90, 99)}
    return {
        "rows": total,
        "never_seen": int(np.isinf(first_seen).sum()),
        "delta_secs": delta_secs,
        "saves_followed": int(seen["saves"]),
        "lag_secs": {**quantiles, "max": round(float(lags.max()), 3)},
        "p99_over_delta_secs": round(float(np.quantile(lags, 0.99)) / delta_secs, 3),
        "examples_per_sec": summary["examples_per_sec"],
        "training_secs": summary["wall_secs"],
        "checkpoint": summary["checkpoint"],
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The run that is followed."""

    rows: int = option(3_000_000, "examples of the run", least=UNIT_ROWS)
    delta_secs: float = option(2.0, "between two deltas of the run", above=0)


def layout(content: Content) -> list[Part]:
    """Lays out the lags."""
    r = content["results"]
    rows = [
        ["an update until a follower has it: median", f"{r['lag_secs']['p50']:.1f} s"],
        ["p99", f"{r['lag_secs']['p99']:.1f} s"],
        ["longest", f"{r['lag_secs']['max']:.1f} s"],
        ["p99 over the interval", f"{r['p99_over_delta_secs']:.2f} x", "2 x"],
        ["updates that were never seen", f"{r['never_seen']:,} of {r['rows']:,}", "0"],
        ["saves followed", f"{r['saves_followed']:,}"],
    ]
    return [figures(f"DLRM trains on all cores, a delta every {r['delta_secs']:g} s", rows)]


BENCHMARK = Benchmark(
    config=Config,
    measure=lambda config, run: {
        "config": {"batch_rows": BATCH_ROWS, "unit_rows": UNIT_ROWS, "shards": 2},
        "results": measure(config.rows, config.delta_secs),
    },
    layout=layout,
)


if __name__ == "__main__":
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    main(BENCHMARK)
