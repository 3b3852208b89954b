"""Models that are linear in their features, or in pairs of these: logistic regression and FM."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from embedps.engine.click_model import ClickModel
from embedps.layers.embeddings import Embeddings

from .parts import Numerics, pairwise_sum, stacked


class Linear(tf.keras.layers.Layer):
    """Adds a weight per id, a weight per number and a bias."""

    def __init__(self, penalty: float = 0.0, bias: float = 0.0) -> None:
        """Takes what multiplies the sum of the squares of the numbers' weights in the loss.

        Args:
          penalty: that.
          bias: with which the bias begins.
        """
        super().__init__()
        self._bias = bias
        self._regularizer = tf.keras.regularizers.L2(penalty) if penalty else None

    def build(self, input_shape: Any) -> None:
        """Makes the weights of the numbers."""
        _, numerics = input_shape
        self.bias = self.add_weight("bias", [], initializer=tf.constant_initializer(self._bias))
        self.kernel = None
        if numerics[-1]:
            self.kernel = self.add_weight(
                "kernel", [numerics[-1], 1], initializer="zeros", regularizer=self._regularizer
            )
        super().build(input_shape)

    def call(self, inputs: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        """Computes the sum, float32 [batch].

        Args:
          inputs: the ids' weights, float32 [batch, features]; the numbers, float32 [batch, n].
        """
        weights, numerics = inputs
        # TensorFlow's graph optimizer may reorder sums with a scalar, and compute a product with a
        # vector otherwise, where it can. These operations have one order, so one result.
        logits = tf.reduce_sum(weights, axis=1, keepdims=True)
        if self.kernel is not None:
            logits += tf.reduce_sum(numerics * tf.transpose(self.kernel), axis=1, keepdims=True)
        return tf.reshape(tf.nn.bias_add(logits, tf.reshape(self.bias, [1])), [-1])


class LogisticRegression(ClickModel):
    """Predicts a click from a weight per id and per number."""

    def __init__(
        self, embeddings: Embeddings, *, label: str, numerics: Numerics, linear: Linear
    ) -> None:
        """Takes the layer that looks up the weights, of dim 1, and those of numbers."""
        super().__init__(label=label)
        self.embeddings = embeddings
        self.numerics = numerics
        self.linear = linear

    def logits(self, features: Mapping[str, Any], *, training: bool) -> tf.Tensor:
        """Computes the logits of a batch, float32 [batch]."""
        weights = tf.concat(list(self.embeddings(features).values()), axis=1)
        return self.linear((weights, self.numerics(features)))


class FactorizationMachine(ClickModel):
    """Adds the dot products of all pairs of ids' vectors to a linear model."""

    def __init__(self, embeddings: Embeddings, *, label: str, numerics: Numerics) -> None:
        """Takes the layers that look up a weight and a vector per id, and encode numbers."""
        super().__init__(label=label)
        self.embeddings = embeddings
        self.numerics = numerics
        self.linear = Linear()

    def logits(self, features: Mapping[str, Any], *, training: bool) -> tf.Tensor:
        """Computes the logits of a batch, float32 [batch]."""
        rows = stacked(self.embeddings(features))
        linear = self.linear((rows[:, :, 0], self.numerics(features)))
        return linear + pairwise_sum(rows[:, :, 1:])
