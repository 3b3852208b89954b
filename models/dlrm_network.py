"""The dense network of DLRM, as Keras layers."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from embedps.layers.dense import MLP, dot_interaction


class DLRM(tf.keras.Model):
    """Computes logits from numeric features and embeddings of one dim."""

    def __init__(
        self,
        *,
        embedding_dim: int,
        top_mlp: Sequence[int],
        bottom_mlp: Sequence[int] | None = None,
        compute_dtype: str = "float32",
        **kwargs: Any,
    ) -> None:
        """Makes the layers.

        Args:
          embedding_dim: floats per embedding.
          top_mlp: widths of the top layers; a last layer of one logit is added.
          bottom_mlp: widths of the layers over the numeric features; a last layer of
            `embedding_dim` is added. None: the network reads no numeric features.
          compute_dtype: "float32" or "bfloat16", of the products; weights and logits are float32.
          kwargs: those of `tf.keras.Model`.
        """
        super().__init__(**kwargs)
        self._interaction_dtype = compute_dtype
        self._bottom: MLP | None = None
        if bottom_mlp is not None:
            self._bottom = MLP(
                [*bottom_mlp, embedding_dim],
                final_activation="relu",
                compute_dtype=compute_dtype,
            )
        self._top = MLP([*top_mlp, 1], compute_dtype=compute_dtype, out_dtype="float32")

    def call(self, numerics: tf.Tensor, embeddings: dict[str, tf.Tensor]) -> tf.Tensor:
        """Scores a batch.

        Args:
          numerics: float32 [batch, num_numerics]; a missing value is NaN and counts as 0. Ignored
            without a bottom MLP.
          embeddings: by feature name, float32 [batch, embedding_dim].

        Returns:
          float32 [batch, 1], the logits.
        """
        vectors = list(embeddings.values())
        direct = vectors  # what the top MLP takes besides the dot products
        if self._bottom is not None:
            numerics = tf.where(tf.math.is_nan(numerics), tf.zeros_like(numerics), numerics)
            direct = [self._bottom(numerics)]
            vectors = [*direct, *vectors]
        if len(vectors) == 1:
            return self._top(direct)
        return self._top([*direct, dot_interaction(vectors, self._interaction_dtype)])
