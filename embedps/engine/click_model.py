"""Models that predict clicks from a logit, trained by log loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_recommenders as tfrs

from embedps.data.columns import is_present
from embedps.data.dataset_metadata import LabelColumn
from embedps.errors import UsageError
from embedps.layers.id_hash import Bins, crossed
from embedps.metrics import ClickMetrics


class ClickModel(tfrs.Model):
    """Predicts the probability of a click; a subclass computes `logits`.

    It is a `tfrs.Model`: an engine trains it, or `fit` over dicts of columns.

    Attributes:
      label: the column of 0 and 1, or what `declare` took.
      weight: the column of weights, which multiply the examples' losses; empty if there is none.
      combinations: by feature, the columns of ids, and bins of numbers, whose combinations are its
        ids.
    """

    def __init__(self, *, label: str, weight: str = "", **kwargs: Any) -> None:
        """Declares the label.

        Args:
          label: the column of 0 and 1.
          weight: the column of weights; empty if there is none.
          kwargs: those of `tf.keras.Model`.
        """
        super().__init__(**kwargs)
        self.weight = weight
        self.combinations: Mapping[str, Sequence[str | Bins]] = {}
        self.declare(LabelColumn(name=label))

    def declare(self, column: LabelColumn) -> None:
        """Takes what a dataset says of the label: soft, or missing in some rows, or weighed."""
        self.label, self.optional, self.soft = column.name, column.optional, column.soft
        self.weight = column.weight or self.weight
        self._scores: ClickMetrics | None = None  # Keras keeps those that others replace

    def logits(self, features: Mapping[str, Any], *, training: bool) -> tf.Tensor:
        """Computes the logits of a batch, float32 [batch]."""
        raise NotImplementedError

    def prepare(self, features: Mapping[str, Any], *, training: bool) -> dict[str, tf.Tensor]:
        """Makes the ids of `combinations` that are not there."""
        return self._combined(features)

    def _combined(self, features: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        made = {name: of for name, of in self.combinations.items() if name not in features}
        return {
            name: crossed([c.ids(features) if isinstance(c, Bins) else features[c] for c in of])
            for name, of in made.items()
        }

    def call(self, features: Mapping[str, Any], training: bool = False) -> dict[str, tf.Tensor]:
        """Computes the probability of a click: `score`, float32 [batch]."""
        features = {**features, **self._combined(features)}
        return {"score": tf.sigmoid(self.logits(features, training=bool(training)))}

    def compute_loss(self, features: Mapping[str, Any], training: bool = False) -> tf.Tensor:
        """Computes the mean log loss of a batch, of examples times their weights.

        As in Keras, the mean is over all examples. One without a label has a loss of 0.

        Raises:
          UsageError: `logits` returned something else than float32 [batch].
        """
        features = {**features, **self._combined(features)}
        labels = features[self.label]
        logits = self.logits(features, training=training)
        _check_logits(logits, labels)
        weights = features[self.weight] if self.weight else None
        present = None
        if self.optional:
            present = is_present(labels)
            labels = tf.where(present, labels, tf.zeros_like(labels))
        if self._scores is None:
            self._scores = ClickMetrics(soft=self.soft, weighted=bool(self.weight))
        self._scores.update_state(labels, logits, weights, present)
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
        if present is not None:
            losses = tf.where(present, losses, tf.zeros_like(losses))
        return tf.reduce_mean(losses if weights is None else losses * weights)

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
