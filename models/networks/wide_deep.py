"""Wide & Deep and DeepFM: a linear part, an optional FM part and a deep part over the same rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from embedps.engine.click_model import ClickModel
from embedps.layers.dense import MLP
from embedps.layers.embeddings import Embeddings

from .linear import Linear
from .parts import HiddenLayers, Numerics, flat, pairwise_sum, stacked


class WideDeep(ClickModel):
    """Predicts a click by the sum of a linear part, a deep part and, for DeepFM, an FM part."""

    def __init__(
        self,
        embeddings: Embeddings,
        *,
        label: str,
        deep_mlp: Sequence[int],
        pairwise: bool,
        dropout: float = 0.0,
        compute_dtype: str = "float32",
        numerics: Numerics,
    ) -> None:
        """Makes the layers.

        Args:
          embeddings: looks up a weight, then a vector per id.
          label: the column of 0 and 1.
          deep_mlp: widths of the deep layers; a last layer of one logit is added.
          pairwise: add the dot products of all pairs of vectors (DeepFM).
          dropout: share of a deep layer's outputs that a training step drops.
          compute_dtype: "float32" or "bfloat16", of the deep part's products.
          numerics: encodes the numbers.
        """
        super().__init__(label=label)
        self.embeddings = embeddings
        self.numerics = numerics
        self.linear = Linear()
        self.hidden = HiddenLayers(deep_mlp, dropout=dropout, compute_dtype=compute_dtype)
        self.out = MLP([1], compute_dtype=compute_dtype, out_dtype="float32")
        self._pairwise = pairwise

    def logits(self, features: Mapping[str, Any], *, training: bool) -> tf.Tensor:
        """Computes the logits of a batch, float32 [batch]."""
        rows, numerics = stacked(self.embeddings(features)), self.numerics(features)
        vectors = rows[:, :, 1:]
        deep = self.hidden(tf.concat([flat(vectors), numerics], axis=1), training=training)
        logits = self.linear((rows[:, :, 0], numerics)) + tf.reshape(self.out(deep), [-1])
        return logits + pairwise_sum(vectors) if self._pairwise else logits
