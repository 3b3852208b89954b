"""The DLRM of the TensorFlow peers, made of Keras and TensorFlow Recommenders layers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tensorflow_recommenders as tfrs

from benchmarks.peers import protocol


class Network:
    """The dense network; in bfloat16, the MLPs use Keras's mixed_bfloat16."""

    def __init__(self, work: protocol.Work, precision: str) -> None:
        policy = "mixed_bfloat16" if precision == "bfloat16" else "float32"
        self._bottom = _mlp(work.num_numerics, work.bottom_mlp, policy, last="relu")
        self._top = _mlp(work.num_interactions, work.top_mlp, policy, last=None)
        self._interaction = tfrs.layers.feature_interaction.DotInteraction(dtype=policy)

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables to train."""
        return [*self._bottom.trainable_variables, *self._top.trainable_variables]

    def logits(self, numerics: tf.Tensor, embeddings: list[tf.Tensor]) -> tf.Tensor:
        """Computes the logits, float32 [batch, 1]."""
        x = self._bottom(numerics)
        pairs = self._interaction([x, *(tf.cast(e, x.dtype) for e in embeddings)])
        return tf.cast(self._top(tf.concat([x, pairs], axis=1)), tf.float32)


def loss_of(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Computes the mean log loss."""
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))


def optimizer(kind: str) -> Any:
    """Makes one of Keras's legacy optimizers; ParameterServerStrategy supports no others.

    Raises:
      UnsupportedError: Keras has no such optimizer.
    """
    legacy = tf.keras.optimizers.legacy
    kinds = {"sgd": legacy.SGD, "adagrad": legacy.Adagrad}
    if kind not in kinds:
        raise protocol.UnsupportedError(f"Keras has no {kind.replace('_', ' ')}")
    return kinds[kind](0.01)


def _mlp(inputs: int, units: list[int], policy: str, *, last: str | None) -> tf.keras.Sequential:
    layers = tf.keras.layers
    activations = ["relu"] * (len(units) - 1) + [last]
    network = tf.keras.Sequential(
        [layers.Dense(n, a, dtype=policy) for n, a in zip(units, activations, strict=True)]
    )
    network.build((None, inputs))
    return network
