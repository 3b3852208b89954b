"""DCN-v2: cross layers beside or below a deep network."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_recommenders as tfrs

from embedps.engine.click_model import ClickModel
from embedps.layers.dense import MLP
from embedps.layers.embeddings import Embeddings

from .parts import HiddenLayers, Numerics


class DCNv2(ClickModel):
    """Predicts a click from explicit crosses of all features, and from a deep network."""

    def __init__(
        self,
        embeddings: Embeddings,
        *,
        label: str,
        cross_layers: int,
        deep_mlp: Sequence[int],
        bottom_mlp: Sequence[int] = (),
        rank: int | None = None,
        parallel: bool = False,
        dropout: float = 0.0,
        numerics: Numerics,
    ) -> None:
        """Makes the layers.

        Args:
          label: the column of 0 and 1.
          cross_layers: how many cross layers.
          deep_mlp: widths of the deep layers.
          bottom_mlp: widths of layers over the numbers; none: the crosses take these themselves.
          rank: of the cross layers' matrices; None is full.
          parallel: the deep layers take the features, not the crosses; the logit takes both.
          dropout: share of a deep layer's outputs that a training step drops.
          numerics: encodes the numbers.
        """
        super().__init__(label=label)
        self.embeddings = embeddings
        self.numerics = numerics
        self.bottom = MLP(bottom_mlp, final_activation="relu") if bottom_mlp else None
        self.crosses = [tfrs.layers.dcn.Cross(projection_dim=rank) for _ in range(cross_layers)]
        self.hidden = HiddenLayers(deep_mlp, dropout=dropout)
        self.out = MLP([1])
        self._parallel = parallel

    def logits(self, features: Mapping[str, Any], *, training: bool) -> tf.Tensor:
        """Computes the logits of a batch, float32 [batch]."""
        numbers = self.numerics(features)
        if self.bottom is not None:
            numbers = self.bottom(numbers)
        first = tf.concat([numbers, *self.embeddings(features).values()], axis=1)
        crossed = first
        for cross in self.crosses:
            crossed = cross(first, crossed)
        deep = self.hidden(first if self._parallel else crossed, training=training)
        out = tf.concat([crossed, deep], axis=1) if self._parallel else deep
        return tf.reshape(self.out(out), [-1])
