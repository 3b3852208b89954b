"""Measures how fast the models of clicks train: `python -m benchmarks.model_speed --data DIR`.

Each model trains by the engine in this process, on a local cluster of 2 parameter servers and 2
workers, and as the same Keras layers over tf.keras.layers.Embedding with `fit`. For Keras the
examples lie in memory, and ids are numbered from 0 already. The engine reads and shuffles Parquet,
and its tables grow. All use Adagrad. Rounds of both in this process alternate. DIR is a dataset,
such as that of `make train`.
"""

from __future__ import annotations

import glob
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import embedps  # noqa: F401  before TensorFlow: it chooses the Keras

# isort: split
import tensorflow as tf

from benchmarks import report
from embedps.console import command_line
from embedps.data.dataset import Dataset
from embedps.data.unit_reader import NUMERICS
from embedps.engine.dense_optimizer import make_dense_optimizer
from embedps.engine.step_model import StepModel
from embedps.engine.unit_functions import make_train_unit
from embedps.run.model_module import find_model
from embedps.tables.collection import EmbeddingCollection
from embedps.train import parse
from embedps.training.trainer import Trainer

MODELS = ("logistic_regression", "fm", "wide_deep", "deepfm", "dcn_v2", "mmoe", "ple", "dlrm")
BATCH, UNIT_ROWS = 2048, 32768
RATE = 0.02
PARTS = {
    "lookups": ("EmbedpsRoute", "EmbedpsLookup", "EmbedpsUpdate", "EmbedpsCombine", "EmbedpsUnit"),
    "products": ("MatMul", "EmbedpsMlp", "EmbedpsDot"),
}
Epoch = Callable[[], int]
"""Trains on some units; returns how many examples."""


class PlainEmbeddings(tf.keras.layers.Layer):
    """Keras' Embedding by feature, over ids from 0."""

    def __init__(self, dims: Mapping[str, int], sizes: Mapping[str, int]) -> None:
        super().__init__()
        self.layers = {n: tf.keras.layers.Embedding(sizes[n], dim) for n, dim in dims.items()}

    def call(self, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Looks up the rows of a batch."""
        return {name: layer(batch[name]) for name, layer in self.layers.items()}


def engine(name: str, dataset: Dataset, units: int) -> Epoch:
    """Trains by the engine's unit function."""
    module = find_model(name)
    options = {"sparse_optimizer": "adagrad"}
    model = StepModel(module.make(module.Config(**options), dataset), dataset)
    optimizer = make_dense_optimizer("adagrad", RATE, model.model)
    collection = EmbeddingCollection(
        model.tables, model.features, devices=["/device:CPU:0"], container=f"speed-{name}"
    )
    train = make_train_unit(
        model,
        optimizer,
        collection,
        tf.distribute.get_strategy(),
        model.input(batch_rows=BATCH, shuffle_rows=UNIT_ROWS),
        overlap=False,
    )
    path, rows = str(dataset.paths("train")[0]), dataset.split("train").files[0].rows
    step = 0

    def epoch() -> int:
        nonlocal step
        count = 0
        for first in range(0, min(units * UNIT_ROWS, rows), UNIT_ROWS):
            many = min(UNIT_ROWS, rows - first)
            numbers = (first, many, 7, step)
            train(path, *(tf.constant(n, tf.int64) for n in numbers), tf.constant(RATE))
            step += -(-many // BATCH)
            count += many
        return count

    return epoch


def plain(name: str, dataset: Dataset, units: int) -> Epoch:
    """Trains the same layers over Keras' embeddings by `fit`."""
    table = pq.read_table(dataset.paths("train")[0]).slice(0, units * UNIT_ROWS)
    columns: dict[str, Any] = {dataset.label: table[dataset.label].to_numpy()}
    numbers = [table[f.name].to_numpy() for f in dataset.numeric]
    columns[NUMERICS] = np.stack(numbers, 1).astype(np.float32)
    sizes = {}
    for feature in dataset.categorical:
        known, places = np.unique(table[feature.name].to_numpy(), return_inverse=True)
        columns[feature.name], sizes[feature.name] = places.astype(np.int64), len(known)
    module = find_model(name)
    model = module.make(module.Config(), dataset).build()
    dims = {t.name: t.dim for t in model.embeddings.tables}
    model.embeddings = PlainEmbeddings(dims, sizes)
    model.compile(tf.keras.optimizers.legacy.Adagrad(RATE), steps_per_execution=16)
    tensors = {key: tf.constant(value) for key, value in columns.items()}
    steps: int = table.num_rows // BATCH
    batches = tf.data.Dataset.range(steps).map(
        lambda i: {key: value[i * BATCH : (i + 1) * BATCH] for key, value in tensors.items()}
    )
    batches = batches.prefetch(4)

    def epoch() -> int:
        model.fit(batches, epochs=1, verbose=0)
        return int(steps) * BATCH

    return epoch


def cluster(name: str, dataset: Dataset, folder: Path) -> float:
    """Trains one epoch on 2 parameter servers and 2 workers; examples per second."""
    run = parse(
        [
            f"--model={name}",
            f"--data={dataset.directory}",
            f"--model-dir={folder / name}",
            "--num-ps=2",
            "--num-workers=2",
            "--eval=none",
            "--sparse-optimizer=adagrad",
            "--dense-optimizer=adagrad",
            "--epochs=3",
            f"--unit-rows={UNIT_ROWS // 2}",
            "--log-secs=1e6",
        ]
    )
    return float(Trainer(run.recommender(dataset), dataset, run.config).fit().examples_per_sec)


def shares(epoch: Epoch) -> dict[str, float]:
    """Gives the share of the time of ops that lookups, products and the rest take."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    sums = dict.fromkeys([*PARTS, "the rest"], 0.0)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        epoch()
        tf.profiler.experimental.stop()
        space = xplane_pb2.XSpace()
        path = glob.glob(f"{folder}/plugins/profile/*/*.xplane.pb")[0]
        space.ParseFromString(Path(path).read_bytes())
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                _, colon, kind = name.rpartition(":")
                if not colon or "::" in name or " " in name or kind in ("While", "FunctionRun"):
                    continue
                part = next((p for p, ks in PARTS.items() if any(k in kind for k in ks)), None)
                sums[part or "the rest"] += event.duration_ps
    total = sum(sums.values()) or 1.0
    return {part: round(value / total, 3) for part, value in sums.items()}


def measure(name: str, dataset: Dataset, units: int, rounds: int) -> dict[str, Any]:
    """Measures a model in this process."""
    programs = {"engine": engine(name, dataset, units), "keras": plain(name, dataset, units)}
    speeds: dict[str, list[float]] = {key: [] for key in programs}
    for epoch in programs.values():
        epoch()
    for number in range(rounds):
        order = list(programs) if number % 2 else list(programs)[::-1]
        for key in order:
            began = time.monotonic()
            count = programs[key]()
            speeds[key].append(count / (time.monotonic() - began))
    ratios = [a / b for a, b in zip(speeds["engine"], speeds["keras"], strict=True)]
    return {
        **{key: report.spread(values) for key, values in speeds.items()},
        "ratio": report.spread(ratios),
        "shares": shares(programs["engine"]),
    }


def main(arguments: Sequence[str]) -> int:
    """Runs the command line."""
    parser = command_line.Parser(prog="python -m benchmarks.model_speed", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", default=",".join(MODELS), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=7, help="default: 7")
    parser.add_argument("--units", type=int, default=3, help="of 32768 rows per round (default: 3)")
    parser.add_argument(
        "--output", type=report.output_file, default=report.RESULTS / "model_speed.json"
    )
    options = parser.parse_args(arguments)
    dataset, environment = Dataset.open(options.data), report.environment()
    results: dict[str, Any] = {}
    table = Table(title="Examples per second, batches of 2048")
    for column in ("", "engine", "Keras", "ratio", "2 PS + 2 workers", *PARTS, "the rest"):
        table.add_column(column, justify="right")
    for name in options.models.split(","):
        found = results[name] = measure(name, dataset, options.units, options.rounds)
        with tempfile.TemporaryDirectory() as folder:
            found["cluster"] = round(cluster(name, dataset, Path(folder)))
        medians = [found[key]["median"] for key in ("engine", "keras")]
        table.add_row(
            name,
            *(f"{value:,.0f}" for value in medians),
            f"{found['ratio']['median']:.2f}",
            f"{found['cluster']:,}",
            *(f"{share:.0%}" for share in found["shares"].values()),
        )
        content = {"benchmark": "model_speed", "environment": environment, "results": results}
        report.write(
            options.output, {"command": "python -m benchmarks.model_speed --data DIR", **content}
        )
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
