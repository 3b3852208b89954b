"""DLRM as a Keras model."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from embedps.data.unit_reader import NUMERICS
from embedps.engine.click_model import ClickModel
from embedps.layers.dense import MLP, dot_interaction
from embedps.layers.embeddings import Embeddings

from .parts import Numerics


class DLRM(ClickModel):
    """Predicts a click from numeric features and embeddings of one dim."""

    def __init__(
        self,
        embeddings: Embeddings,
        *,
        label: str,
        embedding_dim: int,
        top_mlp: Sequence[int],
        bottom_mlp: Sequence[int] | None = None,
        compute_dtype: str = "float32",
        numerics: Numerics | None = None,
        **kwargs: Any,
    ) -> None:
        """Makes the layers.

        Args:
          embeddings: looks up the features, each of `embedding_dim`.
          label: the column of 0 and 1.
          embedding_dim: floats per embedding.
          top_mlp: widths of the top layers; a last layer of one logit is added.
          bottom_mlp: widths of the layers over the numeric features; a last layer of
            `embedding_dim` is added. None: the network reads no numeric features.
          compute_dtype: "float32" or "bfloat16", of the products; weights and logits are float32.
          numerics: encodes the numeric features; None gives them as they are, a missing one as 0.
          kwargs: those of `tf.keras.Model`.
        """
        super().__init__(label=label, **kwargs)
        self.embeddings = embeddings
        self._interaction_dtype = compute_dtype
        self.numerics = numerics
        self._bottom: MLP | None = None
        if bottom_mlp is not None:
            self._bottom = MLP(
                [*bottom_mlp, embedding_dim],
                final_activation="relu",
                compute_dtype=compute_dtype,
            )
        self._top = MLP([*top_mlp, 1], compute_dtype=compute_dtype, out_dtype="float32")

    def logits(self, features: Mapping[str, Any], *, training: bool) -> tf.Tensor:
        """Computes the logits of a batch, float32 [batch].

        Args:
          features: the batch. A missing number is NaN and counts as 0. Without a bottom MLP,
            numbers are ignored.
          training: has no effect.
        """
        return self.combine(list(self.embeddings(features).values()), features)

    def combine(self, vectors: Sequence[tf.Tensor], features: Mapping[str, Any]) -> tf.Tensor:
        """Computes the logits of a batch from its embeddings, float32 [batch, dim] each."""
        vectors = list(vectors)
        direct = vectors  # what the top MLP takes besides the dot products
        if self._bottom is not None:
            numerics = features[NUMERICS]
            if self.numerics is None:
                numerics = tf.where(tf.math.is_nan(numerics), tf.zeros_like(numerics), numerics)
            else:
                numerics = self.numerics(features)
            direct = [self._bottom(numerics)]
            vectors = [*direct, *vectors]
        if len(vectors) > 1:
            direct = [*direct, dot_interaction(vectors, self._interaction_dtype)]
        return tf.reshape(self._top(direct), [-1])
