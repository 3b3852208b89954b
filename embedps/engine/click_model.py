"""Models that predict clicks from a logit, trained by log loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_recommenders as tfrs

from embedps.layers.embeddings import Embeddings
from embedps.metrics import ClickMetrics
from embedps.tables.groups import group_tables


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
        """
        labels = features[self.label]
        logits = self.logits(features, training=training)
        self._scores.update_state(labels, logits)
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.reduce_mean(losses * features[self.weight] if self.weight else losses)

    def train_step(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Trains on a batch; `fit` calls it."""
        return _flat(super().train_step(inputs))

    def test_step(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Scores a batch; `evaluate` calls it."""
        return _flat(super().test_step(inputs))


class NetworkModel(ClickModel):
    """Predicts a click by a dense network that is called as `network(numerics, embeddings)`.

    The network returns logits, float32 [batch] or [batch, 1].
    """

    def __init__(self, network: tf.keras.Model, embeddings: Embeddings, *, label: str) -> None:
        """Takes the parts.

        Args:
          network: the dense network.
          embeddings: looks up its embeddings.
          label: the column of 0 and 1.
        """
        super().__init__(label=label)
        self.network = network
        self.embeddings = embeddings
        # The order in which such networks have always got them.
        groups = group_tables(embeddings.tables, embeddings.features)
        self._order = [feature.name for group in groups for feature in group.features]

    def look_up(self, features: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Gives the embeddings as the network takes them: by group of tables."""
        found = self.embeddings(features)
        return {name: found[name] for name in self._order if name in found}

    def logits(self, features: Mapping[str, Any], *, training: bool) -> tf.Tensor:
        """Computes the logits of a batch, float32 [batch]."""
        logits = self.network(features["numerics"], self.look_up(features), training=training)
        return tf.reshape(logits, [-1])


def _flat(scores: dict[str, Any]) -> dict[str, Any]:
    """Replaces the click metrics by what they contain: Keras shows numbers only."""
    flat: dict[str, Any] = {}
    for name, value in scores.items():
        flat |= value if isinstance(value, dict) else {name: value}
    return flat
