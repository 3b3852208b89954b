"""ESMM: the chance of a conversion is that of a click times that of a conversion after it."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from embedps.data.dataset_metadata import LabelColumn
from embedps.layers.dense import MLP
from embedps.layers.embeddings import Embeddings

from .parts import HiddenLayers, filled_numerics
from .tasks import MultiTask

AFTER_CLICK = "{}_after_click"
"""The prediction's name: the chance of a conversion after a click, by the conversion's label."""


def both(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Computes the logit of the product of two chances, from theirs.

    A chance's logit is -log(1 / p - 1), and 1 / p = (1 + exp(-first)) * (1 + exp(-second)).
    """
    return -tf.reduce_logsumexp(tf.stack([-first, -second, -first - second]), axis=0)


class ESMM(MultiTask):
    """Predicts a click, a conversion, and the conversion after a click."""

    def __init__(
        self,
        embeddings: Embeddings,
        labels: Sequence[LabelColumn],
        *,
        units: Sequence[int],
        dropout: float = 0.0,
    ) -> None:
        """Makes the layers.

        Args:
          embeddings: that both networks share.
          labels: the click, then the conversion.
          units: widths of each network's hidden layers.
          dropout: share of a hidden layer's outputs that a training step drops.
        """
        super().__init__(labels)
        self.embeddings = embeddings
        self.towers = [HiddenLayers(units, dropout=dropout) for _ in labels]
        self.heads = [MLP([1]) for _ in labels]

    def answers(self, features: Mapping[str, Any], *, training: bool) -> list[tf.Tensor]:
        """Computes the logits of the click and of the conversion, float32 [batch, 1]."""
        click, after = self._logits(features, training=training)
        return [click, both(click, after)]

    def call(self, features: Mapping[str, Any], training: bool = False) -> dict[str, tf.Tensor]:
        """Predicts both labels by name, and the conversion after a click."""
        click, after = self._logits(features, training=bool(training))
        names = [label.name for label in self.labels]
        logits = [click, both(click, after), after]
        names.append(AFTER_CLICK.format(names[1]))
        found = zip(names, logits, strict=True)
        return {name: tf.reshape(tf.sigmoid(logit), [-1]) for name, logit in found}

    def _logits(self, features: Mapping[str, Any], *, training: bool) -> list[tf.Tensor]:
        x = tf.concat([filled_numerics(features), *self.embeddings(features).values()], axis=1)
        towers = zip(self.towers, self.heads, strict=True)
        return [head(tower(x, training=training)) for tower, head in towers]
