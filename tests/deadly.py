"""A model whose units end the process that runs them."""

import dataclasses
import os
import signal
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

import embedps
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Which units are deadly."""

    deadly: str = dataclasses.field(
        default="train",
        metadata={"help": "train, eval, or number: to train one whose first number is above 1e6"},
    )
    cause: str = dataclasses.field(
        default="abort", metadata={"help": "abort, nothing or, in one process, kill or error"}
    )


class Deadly(embedps.ClickModel):
    """A layer; while it is trained, or while it is not, it aborts."""

    def __init__(self, config: Config, dataset: Dataset) -> None:
        super().__init__(label=dataset.label)
        self._deadly, self._cause = config.deadly, config.cause
        self._id, *self._numbers = _inputs(config, dataset)
        self.embeddings = embedps.Embeddings({self._id: 2})
        self.out = tf.keras.layers.Dense(1)

    def logits(self, features: Mapping[str, Any], *, training: bool) -> tf.Tensor:
        x = self.embeddings(features)[self._id]
        batch = tf.shape(x)[0]
        # The evaluator's batches are larger, and a trainer tries the network on a few rows.
        if tf.inside_function():
            wanted = batch > 64 if self._deadly == "eval" else (batch > 8) & (batch <= 64)
            for name in self._numbers:
                wanted &= tf.reduce_any(features[name] > 1e6)
            with tf.control_dependencies([tf.cond(wanted, self._die, lambda: tf.constant(0))]):
                x = tf.identity(x)
        return self.out(x)[:, 0]

    def _die(self) -> tf.Tensor:
        if self._cause == "abort":
            die = tf.raw_ops.Abort(error_msg="this unit is deadly")
        elif self._cause == "kill":
            die = tf.py_function(lambda: os.kill(os.getpid(), signal.SIGKILL), [], [])
        elif self._cause == "nothing":
            return tf.constant(0)
        else:
            die = tf.debugging.Assert(False, ["this unit is deadly"])
        with tf.control_dependencies([die]):
            return tf.constant(0)


def _inputs(config: Config, dataset: Dataset) -> list[str]:
    """Names the column of ids, and the one of numbers if that kills."""
    numbers = dataset.numeric[:1] if config.deadly == "number" else ()
    return [dataset.categorical[0].name, *(each.name for each in numbers)]


def make(config: Config, dataset: Dataset) -> Recommender:
    """Of the first categorical column."""
    return Recommender(
        build=lambda: Deadly(config, dataset),
        columns=(dataset.label, *_inputs(config, dataset)),
        missing_id=dataset.missing_id,
        model="tests.deadly",
        config=config,
    )
