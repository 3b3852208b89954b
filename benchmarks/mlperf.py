"""Trains MLPerf's DLRM-DCNv2, scaled to one machine: `python -m benchmarks.mlperf`.

The network, its widths, and how many ids a feature has per example are MLPerf Training's; tables
have at most --max-table-rows rows, and batches are smaller. The examples are generated, and their
clicks are planted. Each round trains on all of them once, in one process: ours, which reads
Parquet, then TorchRec's DLRM_DCN, MLPerf's reference, which has them in memory. Both use row-wise
Adagrad, Adagrad, float32, the mean of a bag, and weights that begin alike. The first batches are
not timed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import child, report
from benchmarks.environments import PEERS, PeerError, python_of
from benchmarks.harness import Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table, spread
from benchmarks.model_folds import auc
from embedps.config_fields import option

ROOT = Path(__file__).parent.parent
HOT = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
"""Ids per example of each feature."""
ROWS = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956),
    *(405_282, 10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152),
    *(12_973, 108, 36),
)
"""Rows of each feature's table."""
NETWORK: dict[str, Any] = {
    "dim": 128,
    "bottom_mlp": (512, 256, 128),
    "deep_mlp": (1024, 1024, 512, 256),
    "cross_layers": 3,
    "cross_rank": 512,
}
NUMERICS = 13
_UNIT_BATCHES = 4
_INITIAL = NETWORK["dim"] ** -0.5  # the default of ours: uniform in +-1/sqrt(dim)
_LIST = pa.list_(pa.field("element", pa.int64(), nullable=False))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The examples, and how they are trained."""

    batches: int = option(24, "to train in a round", least=2 * _UNIT_BATCHES, most=100_000)
    eval_batches: int = option(8, "to score", least=1, most=100_000)
    batch_size: int = option(2048, "examples per batch", least=1, most=65536)
    max_table_rows: int = option(100_000, "of each table", least=1000)
    rate: float = option(0.02, "the learning rate of all optimizers", above=0, most=10)
    rounds: int = option(3, "each trains both", least=1)


def draw(rng: np.random.Generator, rows: int, cardinalities: list[int]) -> dict[str, Any]:
    """Draws examples: ids by Zipf's law of exponent 1.05, and clicks of a planted model.

    Returns:
      numerics float32 [rows, NUMERICS], ids int64 [rows, sum of HOT], label float32 [rows], and
      chance float64 [rows], of a click.
    """
    numerics = rng.random([rows, NUMERICS], dtype=np.float32)
    columns, logit = [], 3 * (numerics[:, 0] - 0.5).astype(np.float64)
    for feature, (hot, cardinality) in enumerate(zip(HOT, cardinalities, strict=True)):
        drawn = 1 - rng.random([rows, hot]) * (1 - (cardinality + 1.0) ** -0.05)
        ids = np.clip(np.power(drawn, -20.0).astype(np.int64) - 1, 0, cardinality - 1)
        taste = np.random.default_rng(feature).normal(size=cardinality)
        logit += taste[ids].sum(1) / np.sqrt(hot * len(HOT))
        columns.append(ids)
    chance = 1 / (1 + np.exp(1.0 - 2 * logit))
    label = (rng.random(rows) < chance).astype(np.float32)
    return {"numerics": numerics, "ids": np.hstack(columns), "label": label, "chance": chance}


def write(folder: Path, split: str, examples: dict[str, Any]) -> None:
    """Writes examples as a Parquet file of lists, and as NumPy's arrays."""
    rows = len(examples["label"])
    made: dict[str, Any] = {"label": pa.array(examples["label"])}
    made |= {f"I{i + 1}": pa.array(examples["numerics"][:, i]) for i in range(NUMERICS)}
    for i, part in enumerate(np.split(examples["ids"], np.cumsum(HOT)[:-1], axis=1)):
        ends = pa.array(np.arange(rows + 1, dtype=np.int32) * HOT[i])
        made[f"C{i + 1}"] = pa.ListArray.from_arrays(ends, part.reshape(-1), type=_LIST)
    schema = pa.schema([pa.field(n, a.type, nullable=False) for n, a in made.items()])
    table = pa.table(list(made.values()), schema=schema)
    pq.write_table(table, folder / f"{split}.parquet", row_group_size=8192)
    np.savez(folder / f"{split}.npz", **{k: v for k, v in examples.items() if k != "chance"})


def ours(folder: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Trains and scores embedps' model, in this process."""
    import embedps  # noqa: F401  before TensorFlow: it chooses the Keras

    # isort: split
    import tensorflow as tf

    from benchmarks.unit_trainer import UnitTrainer
    from embedps.data.dataset import Dataset
    from embedps.data.dataset_metadata import CategoricalFeature, NumericFeature
    from embedps.engine.unit_functions import make_eval_unit
    from embedps.models import dcn_v2

    tf.keras.utils.set_random_seed(settings["seed"])
    schema = pq.read_schema(Path(folder) / "train.parquet")
    dataset = Dataset(
        directory=Path(folder),
        numeric=tuple(NumericFeature(name=f"I{i + 1}") for i in range(NUMERICS)),
        categorical=tuple(
            CategoricalFeature(name=f"C{i + 1}", cardinality=0, ragged=True)
            for i in range(len(HOT))
        ),
        schema={f.name: str(f.type) for f in schema},
        splits={},
    )
    config = dcn_v2.Config(
        embedding_dim=settings["dim"],
        bottom_mlp=tuple(settings["bottom_mlp"]),
        deep_mlp=tuple(settings["deep_mlp"]),
        cross_layers=settings["cross_layers"],
        cross_rank=settings["cross_rank"],
        sparse_optimizer="rowwise_adagrad",
    )
    batch, rate = settings["batch"], settings["rate"]
    trainer = UnitTrainer(
        dcn_v2.make(config, dataset),
        dataset,
        container="mlperf",
        batch=batch,
        dense="adagrad",
        dense_rate=rate,
    )
    rows, unit_rows = settings["rows"], _UNIT_BATCHES * batch
    began = time.perf_counter()
    for first in range(0, rows, unit_rows):
        if first == settings["warm_up_batches"] * batch:
            began = time.perf_counter()
        many = min(unit_rows, rows - first)
        path = Path(folder) / "train.parquet"
        trainer.train(path, first, many, seed=0, step=first // batch, rate=rate)
    secs = time.perf_counter() - began
    model = trainer.model
    unit = make_eval_unit(model, trainer.tables, model.input(batch_rows=batch, shuffle_rows=0))
    total = model.accumulator(training=False)
    numbers = (tf.constant(n, tf.int64) for n in (0, settings["eval_rows"]))
    total.add(unit(tf.constant(f"{folder}/eval.parquet"), *numbers))
    timed = rows - settings["warm_up_batches"] * batch
    return {"rate": timed / secs, "auc": total.result().values["auc"]}


def reference(folder: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Trains and scores TorchRec's model, in an environment of its own.

    Raises:
      PeerError: it cannot be installed, or it failed.
    """
    command = [str(python_of(PEERS["torchrec"])), "-m", "benchmarks.peers.torchrec_dcn", folder]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [*command, json.dumps(settings)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    if done.returncode:
        raise PeerError(f"TorchRec failed: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    labels = np.load(f"{folder}/eval.npz")["label"]
    return found | {"auc": auc(labels, np.load(f"{folder}/logits.npy"))}


def measure(config: Config, run: Run) -> Content:
    """Trains both, round after round."""
    cardinalities = [min(rows, config.max_table_rows) for rows in ROWS]
    settings = NETWORK | {
        "hot": HOT,
        "cardinalities": cardinalities,
        "numerics": NUMERICS,
        "batch": config.batch_size,
        "rows": config.batches * config.batch_size,
        "eval_rows": config.eval_batches * config.batch_size,
        "warm_up_batches": _UNIT_BATCHES,
        "rate": config.rate,
        "initial": _INITIAL,
    }
    found: dict[str, list[dict[str, Any]]] = {"embedps": [], "TorchRec": []}
    with tempfile.TemporaryDirectory(prefix="embedps-mlperf-") as folder:
        rng = np.random.default_rng(1)
        write(Path(folder), "train", draw(rng, settings["rows"], cardinalities))
        scored = draw(rng, settings["eval_rows"], cardinalities)
        write(Path(folder), "eval", scored)
        best = auc(scored["label"], scored["chance"])
        for seed in range(config.rounds):
            each = settings | {"seed": seed}
            found["embedps"].append(
                child.call("benchmarks.mlperf:ours", folder=folder, settings=each)
            )
            found["TorchRec"].append(reference(folder, each))
            print({name: rounds[-1] for name, rounds in found.items()}, flush=True)
    rates = {name: [each["rate"] for each in rounds] for name, rounds in found.items()}
    ratios = [a / b for a, b in zip(rates["embedps"], rates["TorchRec"], strict=True)]
    return {
        "rows_of_tables": sum(cardinalities),
        "best_auc": best,
        "versions": found["TorchRec"][-1]["versions"],
        "results": {
            name: {
                "rate": report.spread(rates[name]),
                "auc": report.spread([each["auc"] for each in rounds]),
            }
            for name, rounds in found.items()
        },
        "ratio": report.spread(ratios),
    }


def layout(content: Content) -> list[Part]:
    """Lays out both systems."""
    size = content["config"]["batch_size"]
    examples = content["config"]["batches"] * size
    title = (
        f"DLRM-DCNv2, {content['rows_of_tables']:,} rows of 128, {sum(HOT)} ids per example, "
        f"batch {size}"
    )
    rows = [
        [
            name,
            f"{of['rate']['median']:,.0f}",
            spread(content["ratio"]) if name == "embedps" else "",
            f"{of['auc']['median']:.4f}",
        ]
        for name, of in content["results"].items()
    ]
    heads = [
        title,
        "examples/s",
        "ratio",
        f"AUC after {examples:,} (planted: {content['best_auc']:.4f})",
    ]
    return [Table(heads=heads, rows=rows)]


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)
