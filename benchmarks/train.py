"""Training throughput, embedded, beside the same DLRM as plain Keras: `python -m benchmarks.train`.

Both run in this process, in turn, on the same examples: ours through the trainer's own unit, which
reads Parquet and looks rows up in tables that grow; Keras from tensors in memory, with an Embedding
layer of each feature's full cardinality. Needs 8 GB of memory.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs
from rich.console import Console
from rich.table import Table

from benchmarks import report
from benchmarks.workload import CARDINALITIES, NUM_NUMERICS, Batches, make_batches, parquet_file
from embedps import flags
from embedps.cluster import EmbeddedCluster
from embedps.recommender import Recommender
from embedps.tables import FeatureSpec, TableSpec
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.optimizers import make as make_optimizer
from embedps.units import make_dense_optimizer, make_train_unit
from models.dlrm import DLRM, Config

Run = Callable[[], int]
"""Trains on all examples once; says how many they were."""


def embedps_run(
    path: Path, rows: int, *, batch: int, sparse: str, dense: str, compute_dtype: str = "float32"
) -> Run:
    """Ours: the trainer's unit on one thread of the embedded cluster."""
    cluster = EmbeddedCluster()
    config = Config(sparse_optimizer=sparse, compute_dtype=compute_dtype)
    names = [f"C{i + 1}" for i in range(len(CARDINALITIES))]
    optimizer = make_optimizer(sparse)
    recommender = Recommender(
        tables=tuple(
            TableSpec(name=n, dim=config.embedding_dim, optimizer=optimizer) for n in names
        ),
        features=tuple(FeatureSpec(name=n, table=n) for n in names),
        numerics=tuple(f"I{i + 1}" for i in range(NUM_NUMERICS)),
        build=lambda: DLRM(config),
    )
    collection = EmbeddingCollection(
        recommender.tables,
        recommender.features,
        devices=cluster.shard_devices,
        container=f"benchmark-{sparse}-{compute_dtype}",
    )
    network = recommender.build_network()
    unit_rows = 16 * batch
    train_unit = make_train_unit(
        recommender,
        network,
        make_dense_optimizer(dense, 0.01, network),
        collection,
        cluster.strategy,
        recommender.input(batch_rows=batch, shuffle_rows=unit_rows),
    )

    def run() -> int:
        for k, first in enumerate(range(0, rows, unit_rows)):
            numbers = (first, min(unit_rows, rows - first), k, k * 16)
            arguments = [tf.constant(n, tf.int64) for n in numbers]
            result = cluster.schedule(
                train_unit, (tf.constant(str(path)), *arguments, tf.constant(0.01))
            )
            cluster.fetch(result)
        return rows

    return run


class PlainDLRM(tf.keras.Model):
    """The same network of TensorFlow Recommenders' layers alone."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._bottom = tfrs.layers.blocks.MLP(
            units=[*config.bottom_mlp, config.embedding_dim], final_activation="relu"
        )
        self._interaction = tfrs.layers.feature_interaction.DotInteraction()
        self._top = tfrs.layers.blocks.MLP(units=[*config.top_mlp, 1], final_activation=None)

    def call(self, numerics: tf.Tensor, embeddings: list[tf.Tensor]) -> tf.Tensor:
        """Logits [batch, 1]."""
        bottom = self._bottom(numerics)
        interactions = self._interaction([bottom, *embeddings])
        return self._top(tf.concat([bottom, interactions], axis=1))


def keras_run(batches: Batches, *, batch: int, kind: str) -> Run:
    """Plain Keras: 26 Embedding layers of full cardinality, one tf.function a step."""
    config = Config()
    tables = [tf.keras.layers.Embedding(c, config.embedding_dim) for c in CARDINALITIES]
    network = PlainDLRM(config)
    legacy = tf.keras.optimizers.legacy
    optimizer = {"sgd": legacy.SGD, "adagrad": legacy.Adagrad}[kind](0.01)
    loss_of = tf.keras.losses.BinaryCrossentropy(from_logits=True)

    @tf.function
    def step(numerics: tf.Tensor, ids: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            embeddings = [table(ids[i]) for i, table in enumerate(tables)]
            loss = loss_of(labels, network(numerics, embeddings))
        variables = [v for t in tables for v in t.trainable_variables]
        variables += network.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    rows = len(batches.labels)
    data = [
        (
            tf.constant(batches.numerics[k : k + batch]),
            tf.constant(batches.ids[:, k : k + batch].astype(np.int32)),
            tf.constant(batches.labels[k : k + batch, None]),
        )
        for k in range(0, rows, batch)
    ]

    def run() -> int:
        for each in data:
            loss = step(*each)
        loss.numpy()
        return rows

    return run


def measure(runs: dict[str, Run], *, rounds: int) -> dict[str, list[float]]:
    """Examples a second of each, in turn, `rounds` times after one to warm up."""
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for name, run in runs.items():
        print(f"warming up {name}", flush=True)
        run()
    for k in range(rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            examples = run()
            rates[name].append(examples / (time.perf_counter() - began))
        latest = ", ".join(f"{name} {r[-1]:,.0f}/s" for name, r in rates.items())
        print(f"round {k + 1}/{rounds}: {latest}", flush=True)
    return rates


def main(arguments: Sequence[str]) -> int:
    """`python -m benchmarks.train`."""
    parser = flags.Parser(
        prog="python -m benchmarks.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--batches", type=int, default=64, help="distinct ones (default: 64)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--optimizers", nargs="+", default=["sgd", "adagrad"])
    parser.add_argument("--output", type=Path, default=report.RESULTS / "train.json")
    options = parser.parse_args(arguments)

    environment = report.environment()
    rows = options.batch_size * options.batches
    batches = make_batches(rows)
    results: dict[str, Any] = {}
    with parquet_file(batches, row_group_rows=16 * options.batch_size) as path:
        for kind in options.optimizers:
            size = {"batch": options.batch_size}
            runs = {
                f"embedps {kind}": embedps_run(path, rows, sparse=kind, dense=kind, **size),
                f"keras {kind}": keras_run(batches, kind=kind, **size),
            }
            if kind == "adagrad":
                runs["embedps rowwise_adagrad"] = embedps_run(
                    path, rows, sparse="rowwise_adagrad", dense=kind, **size
                )
            rates = measure(runs, rounds=options.rounds)
            keras = rates[f"keras {kind}"]
            for name, values in rates.items():
                ratios = [ours / theirs for ours, theirs in zip(values, keras, strict=True)]
                results[name] = {
                    "examples_per_sec": report.spread(values),
                    "ratio_to_keras": report.spread(ratios),
                }
            del runs
            tf.keras.backend.clear_session()
            gc.collect()

    table = Table(title=f"DLRM (Kaggle configuration), embedded, batch {options.batch_size}")
    for column in ("", "examples/s", "ratio to Keras", "spread of the ratio"):
        table.add_column(column, justify="right")
    for name, result in results.items():
        rate, ratio = result["examples_per_sec"], result["ratio_to_keras"]
        table.add_row(
            name,
            f"{rate['median']:,.0f}",
            f"{ratio['median']:.2f}",
            f"{ratio['min']:.2f} to {ratio['max']:.2f}",
        )
    Console().print(table)
    config = {k: v for k, v in vars(options).items() if k != "output"}
    report.write(
        options.output,
        {
            "benchmark": "train",
            "command": "python -m benchmarks.train",
            "environment": environment,
            "config": {**config, "cardinalities": list(CARDINALITIES), "warm_up_rounds": 1},
            "results": results,
        },
    )
    return 0


if __name__ == "__main__":
    flags.run(main)
