"""A model as a TFRS user writes it, with all that has state: `--model=tests.two_tasks`.

Two tasks with weights, BatchNormalization, Dropout, an added loss and Keras metrics. It reads the
columns of `benchmarks.row_visits`, which count how often each row was visited.
"""

import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_recommenders as tfrs

import embedps
from benchmarks.row_visits import CARDINALITIES
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """The widths of the network and the tables."""

    embedding_dim: int = dataclasses.field(default=4, metadata={"help": "floats per row"})
    hidden: int = dataclasses.field(default=8, metadata={"help": "width of the hidden layer"})
    dropout: float = dataclasses.field(default=0.1, metadata={"help": "share of dropped units"})


class TwoTasks(tfrs.Model):
    """Predicts the click, and the number that the row has."""

    def __init__(self, config: Config, label: str) -> None:
        super().__init__()
        self._label = label
        dims = dict.fromkeys(CARDINALITIES, config.embedding_dim) | {"row": 1}
        self.embeddings = embedps.Embeddings(
            [
                embedps.FeatureSpec(
                    name=name, table=embedps.TableSpec(name=name, embedding_dim=dim)
                )
                for name, dim in dims.items()
            ]
        )
        layers = tf.keras.layers
        self.shared = tf.keras.Sequential(
            [
                layers.Dense(config.hidden, kernel_regularizer=tf.keras.regularizers.L2(1e-4)),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.Dropout(config.dropout),
            ]
        )
        self.click, self.number = layers.Dense(1), layers.Dense(1)
        self.click_task = tfrs.tasks.Ranking(
            loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
            metrics=[tf.keras.metrics.AUC(from_logits=True, name="click_auc")],
        )
        self.number_task = tfrs.tasks.Ranking(
            loss=tf.keras.losses.MeanSquaredError(),
            metrics=[tf.keras.metrics.RootMeanSquaredError(name="number_rmse")],
        )

    def call(self, features: dict[str, Any], training: bool = False) -> dict[str, tf.Tensor]:
        found = self.embeddings(features)
        x = self.shared(tf.concat([found[n] for n in CARDINALITIES], axis=1), training=training)
        # The table "row" counts visits, and does not matter otherwise.
        return {"click": self.click(x) + 0.0 * found["row"], "number": self.number(x)}

    def compute_loss(self, features: dict[str, Any], training: bool = False) -> tf.Tensor:
        predicted = self(features, training=training)
        clicks = self.click_task(labels=features[self._label], predictions=predicted["click"])
        numbers = self.number_task(labels=features["I1"], predictions=predicted["number"])
        return clicks + 0.1 * numbers


def make(config: Config, dataset: Dataset) -> Recommender:
    """Makes the model of the columns of `benchmarks.row_visits.write_dataset`."""
    return Recommender(
        build=lambda: TwoTasks(config, dataset.label), model="tests.two_tasks", config=config
    )
