"""A model whose units end the process that runs them, for test_local.py."""

import dataclasses
from typing import Any

import tensorflow as tf

from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.tables import FeatureSpec, TableSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Which units are deadly."""

    deadly: str = dataclasses.field(default="train", metadata={"help": "train or eval"})


class Network(tf.keras.Model):
    """A layer; while it is trained, or while it is not, it aborts."""

    def __init__(self, deadly: str) -> None:
        super().__init__()
        self._deadly = deadly
        self._out = tf.keras.layers.Dense(1)

    def call(
        self, numerics: tf.Tensor, embeddings: dict[str, tf.Tensor], training: Any = None
    ) -> tf.Tensor:
        x = tf.concat(list(embeddings.values()), axis=1)
        batch = tf.shape(x)[0]
        # The evaluator's batches are larger, and a trainer tries the network on a few rows.
        if tf.inside_function():
            wanted = batch > 64 if self._deadly == "eval" else (batch > 8) & (batch <= 64)
            with tf.control_dependencies([tf.cond(wanted, _abort, lambda: tf.constant(0))]):
                x = tf.identity(x)
        return self._out(x)


def _abort() -> tf.Tensor:
    with tf.control_dependencies([tf.raw_ops.Abort(error_msg="this unit is deadly")]):
        return tf.constant(0)


def make(config: Config, dataset: Dataset) -> Recommender:
    """Of the first categorical column."""
    name = dataset.categorical[0].name
    return Recommender(
        tables=(TableSpec(name=name, dim=2),),
        features=(FeatureSpec(name=name, table=name),),
        label=dataset.label,
        build=lambda: Network(config.deadly),
        missing_id=dataset.missing_id,
        model="tests.deadly",
        config=config,
    )
