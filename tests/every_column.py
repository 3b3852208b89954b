"""A dataset with columns of every kind, and a model that reads them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf
import tensorflow_recommenders as tfrs

import embedps
from embedps.data.dataset import Dataset, describe_file
from embedps.data.dataset_metadata import (
    CategoricalFeature,
    LabelColumn,
    NumericFeature,
    Split,
)

LABELS = (
    LabelColumn(name="stars", kind="classes", classes=5),
    LabelColumn(name="seconds", kind="number"),
    LabelColumn(name="bought", kind="binary"),
)
VECTOR = 4
"""The most numbers of a list that the models read."""


def make_rows(rows: int, *, seed: int) -> pa.Table:
    """Makes rows whose labels follow from the item, the hour, the vector and the user's parity."""
    rng = np.random.default_rng(seed)
    item, user = rng.integers(0, 50, rows), rng.integers(0, 2**62, rows)
    hour = rng.integers(0, 24, rows)
    vector = [rng.normal(size=n).astype(np.float32) for n in rng.integers(0, VECTOR + 1, rows)]
    signal = item / 25 + (hour >= 12) + (user % 2) + np.array([v.sum() for v in vector]) / 4
    columns = {
        "stars": pa.array(np.clip(signal.astype(np.int64), 0, 4)),
        "seconds": pa.array(signal + 0.1 * rng.normal(size=rows), pa.float32()),
        "bought": pa.array(signal > 2, pa.bool_()).cast(pa.float32()),
        "weight": pa.array(rng.integers(0, 3, rows), pa.float32()),
        "I1": pa.array(rng.normal(size=rows), pa.float32()),
        "user": pa.array(user),
        "request": pa.array(np.arange(rows)),
        "time": pa.array(1_700_006_400_000 + hour * 3_600_000 + rng.integers(0, 3_600_000, rows)),
        "item": pa.array(item),
        "tags": pa.array([rng.integers(0, 9, n).tolist() for n in rng.integers(0, 4, rows)]),
        "vector": pa.array(vector, pa.list_(pa.float32())),
    }
    lists = {"tags": pa.int64(), "vector": pa.float32()}
    for name, kind in lists.items():
        columns[name] = columns[name].cast(pa.list_(pa.field("element", kind, nullable=False)))
    fields = [pa.field(name, array.type, nullable=False) for name, array in columns.items()]
    return pa.table(columns, pa.schema(fields))


def write_dataset(directory: Path, *, train: int = 2000, evaluation: int = 700) -> Dataset:
    """Writes a dataset of one shard per split."""
    splits = {}
    for name, rows in (("train", train), ("eval", evaluation)):
        path = directory / name / "shard-00000-of-00001.parquet"
        path.parent.mkdir(parents=True)
        table = make_rows(rows, seed=rows)
        pq.write_table(table, path)
        file = describe_file(directory, path)
        splits[name] = Split(rows=rows, positives=0, files=(file,))
    Dataset(
        directory=directory,
        label=LABELS[0].name,
        labels=LABELS,
        weight="weight",
        timestamp="time",
        keys=("user", "request"),
        float_lists=("vector",),
        numeric=(NumericFeature(name="I1"),),
        categorical=(
            CategoricalFeature(name="item", cardinality=50),
            CategoricalFeature(name="tags", cardinality=9, ragged=True),
        ),
        schema={field.name: str(field.type) for field in table.schema},
        splits=splits,
    ).save()
    return Dataset.open(directory)


class EveryColumn(tfrs.Model):
    """Predicts the stars and the seconds from a column of each kind."""

    def __init__(self) -> None:
        super().__init__()
        tables = [embedps.TableSpec(name=name, embedding_dim=4) for name in ("item", "tags")]
        self.embeddings = embedps.Embeddings(
            [
                embedps.FeatureSpec(name="item", table=tables[0]),
                embedps.FeatureSpec(name="tags", table=tables[1], ragged=True, combiner="mean"),
            ]
        )
        layers = tf.keras.layers
        self.shared = layers.Dense(16, "relu")
        self.stars, self.seconds = layers.Dense(5), layers.Dense(1)
        losses = tf.keras.losses
        self.stars_task = tfrs.tasks.Ranking(
            loss=losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[tf.keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        )
        self.seconds_task = tfrs.tasks.Ranking(loss=losses.MeanSquaredError())

    def call(self, features: dict[str, Any]) -> dict[str, tf.Tensor]:
        found = self.embeddings(features)
        hour = features["time"] // 3_600_000 % 24
        numbers = [features["I1"], tf.cast(hour, tf.float32) / 24]
        numbers += [tf.cast(features["user"] % 2, tf.float32)]
        vector = features["vector"].to_tensor(shape=[None, VECTOR])
        x = self.shared(tf.concat([*found.values(), tf.stack(numbers, axis=1), vector], axis=1))
        return {"stars": self.stars(x), "seconds": self.seconds(x)[:, 0]}

    def compute_loss(self, features: dict[str, Any], training: bool = False) -> tf.Tensor:
        predicted = self(features)
        weights = features["weight"]
        stars = self.stars_task(
            labels=features["stars"], predictions=predicted["stars"], sample_weight=weights
        )
        seconds = self.seconds_task(
            labels=features["seconds"][:, None],
            predictions=predicted["seconds"][:, None],
            sample_weight=weights,
        )
        return stars + 0.1 * seconds


def plain_losses(table: pa.Table, predicted: dict[str, np.ndarray]) -> dict[str, float]:
    """Computes the mean of each task's weighted losses, in float64."""
    weight = table["weight"].to_numpy().astype(np.float64)
    logits = predicted["stars"].astype(np.float64)
    top = logits.max(axis=1)
    log_sum = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
    stars = log_sum - logits[np.arange(len(logits)), table["stars"].to_numpy()]
    errors = predicted["seconds"].reshape(-1).astype(np.float64) - table["seconds"].to_numpy()
    return {
        "stars": float(np.mean(weight * stars)),
        "seconds": float(np.mean(weight * errors**2)),
    }
