"""Models that take any embeddings layer: ours, or one of plain Keras."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
import tensorflow_recommenders as tfrs

import embedps
from embedps.models.networks.dlrm import DLRM
from embedps.tables.optimizers import Adagrad

DIM = 4
FEATURES = ("C1", "C2", "C3")


def features() -> list[embedps.FeatureSpec]:
    return [
        embedps.FeatureSpec(
            name=name, table=embedps.TableSpec(name=name, embedding_dim=DIM, optimizer=Adagrad())
        )
        for name in FEATURES
    ]


class PlainEmbeddings(tf.keras.layers.Layer):
    """tf.keras.layers.Embedding by feature, over ids mapped to 0..n-1."""

    def __init__(self, ids: Mapping[str, npt.NDArray[np.int64]], rows: Mapping[str, Any]) -> None:
        super().__init__()
        self._ids = {name: tf.constant(np.sort(each)) for name, each in ids.items()}
        self.by_feature = {
            name: tf.keras.layers.Embedding(
                len(each), DIM, embeddings_initializer=tf.constant_initializer(rows[name])
            )
            for name, each in ids.items()
        }

    def call(self, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {
            name: layer(tf.searchsorted(self._ids[name], batch[name]))
            for name, layer in self.by_feature.items()
        }


class SameDropout(tf.keras.layers.Layer):
    """Dropout whose mask is a function of the batch, so that any engine drops the same."""

    def call(self, x: tf.Tensor, seed: tf.Tensor, training: bool = False) -> tf.Tensor:
        if not training:
            return x
        kept = tf.random.stateless_uniform(tf.shape(x), seed=tf.stack([seed, 1])) < 0.9
        return tf.where(kept, x / 0.9, 0.0)


class MMoE(tfrs.Model):
    """Multi-gate mixture of experts (Ma et al. 2018) of two tasks, with BatchNormalization."""

    def __init__(self, embeddings: Any) -> None:
        super().__init__()
        self.embeddings = embeddings
        layers = tf.keras.layers
        self.norm = layers.BatchNormalization()
        self.dropout = SameDropout()
        self.experts = [layers.Dense(6, activation="relu") for _ in range(3)]
        self.gates = [layers.Dense(3, activation="softmax") for _ in range(2)]
        self.towers = [layers.Dense(1) for _ in range(2)]
        self.click = tfrs.tasks.Ranking(loss=tf.keras.losses.BinaryCrossentropy(from_logits=True))
        self.number = tfrs.tasks.Ranking(loss=tf.keras.losses.MeanSquaredError())

    def call(self, batch: Mapping[str, tf.Tensor], training: bool = False) -> list[tf.Tensor]:
        found = self.embeddings(batch)
        x = self.norm(tf.concat([found[n] for n in FEATURES], axis=1), training=training)
        seed = tf.cast(tf.reduce_sum(batch["C1"]) % 1_000_003, tf.int32)
        experts = tf.stack([self.dropout(e(x), seed, training=training) for e in self.experts], 1)
        mixed = [tf.einsum("be,bed->bd", gate(x), experts) for gate in self.gates]
        return [tower(m) for tower, m in zip(self.towers, mixed, strict=True)]

    def compute_loss(self, batch: Mapping[str, tf.Tensor], training: bool = False) -> tf.Tensor:
        click, number = self(batch, training=training)
        wanted = tf.where(tf.math.is_nan(batch["I2"]), 0.0, batch["I2"])
        return self.click(labels=batch["label"][:, None], predictions=click) + 0.1 * self.number(
            labels=wanted[:, None], predictions=number
        )


def dlrm(embeddings: Any) -> DLRM:
    return DLRM(embeddings, label="label", embedding_dim=DIM, bottom_mlp=(8,), top_mlp=(8,))


MODELS: dict[str, Callable[[Any], tf.keras.Model]] = {
    "dlrm": dlrm,
    "mmoe": MMoE,
}
