"""Models that predict clicks from a logit, trained by log loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_recommenders as tfrs

from embedps.errors import UsageError
from embedps.metrics import ClickMetrics


class ClickModel(tfrs.Model):
    """Predicts the probability of a click; a subclass computes `logits`.

    It is a `tfrs.Model`: an engine trains it, or `fit` over dicts of columns.

    Attributes:
      label: the column of 0 and 1.
      weight: the column of weights, which multiply the examples' losses; empty if there is none.
    """

    def __init__(self, *, label: str, weight: str = "", **kwargs: Any) -> None:
        """Declares the label.

        Args:
          label: the column of 0 and 1.
          weight: the column of weights; empty if there is none.
          kwargs: those of `tf.keras.Model`.
        """
        super().__init__(**kwargs)
        self.label, self.weight = label, weight
        self._scores = ClickMetrics()

    def logits(self, features: Mapping[str, Any], *, training: bool) -> tf.Tensor:
        """Computes the logits of a batch, float32 [batch]."""
        raise NotImplementedError

    def call(self, features: Mapping[str, Any], training: bool = False) -> dict[str, tf.Tensor]:
        """Computes the probability of a click: `score`, float32 [batch]."""
        return {"score": tf.sigmoid(self.logits(features, training=bool(training)))}

    def compute_loss(self, features: Mapping[str, Any], training: bool = False) -> tf.Tensor:
        """Computes the mean log loss of a batch, of examples times their weights.

        As in Keras, the mean is over the examples, and the scores count each example once.

        Raises:
          UsageError: `logits` returned something else than float32 [batch].
        """
        labels = features[self.label]
        logits = self.logits(features, training=training)
        _check_logits(logits, labels)
        self._scores.update_state(labels, logits)
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.reduce_mean(losses * features[self.weight] if self.weight else losses)

    def train_step(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Trains on a batch; `fit` calls it."""
        return _flat(super().train_step(inputs))

    def test_step(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Scores a batch; `evaluate` calls it."""
        return _flat(super().test_step(inputs))


def _check_logits(logits: Any, labels: Any) -> None:
    """Checks what `logits` returned for labels.

    Raises:
      UsageError: it is not float32 [batch].
    """
    came = f"a {type(logits).__name__}"
    if isinstance(logits, tf.Tensor):
        if logits.dtype == tf.float32 and logits.shape.is_compatible_with(labels.shape):
            return
        came = f"{logits.dtype.name} {list(logits.shape)} for labels {list(labels.shape)}"
    raise UsageError(
        f"logits must return float32 [batch] but returned {came}: end it with "
        "tf.reshape(tf.cast(x, tf.float32), [-1])"
    )


def _flat(scores: dict[str, Any]) -> dict[str, Any]:
    """Replaces the click metrics by what they contain: Keras shows numbers only."""
    flat: dict[str, Any] = {}
    for name, value in scores.items():
        flat |= value if isinstance(value, dict) else {name: value}
    return flat
