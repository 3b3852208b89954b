"""DLRM's dense network, apart from its flags, which do not wait for TensorFlow."""

from typing import Any, Protocol

import tensorflow as tf

from embedps.layers.dense import MLP, dot_interaction


class Shape(Protocol):
    """What the network needs to know; `models.dlrm.Config` has it."""

    @property
    def embedding_dim(self) -> int: ...
    @property
    def bottom_mlp(self) -> tuple[int, ...]: ...
    @property
    def top_mlp(self) -> tuple[int, ...]: ...
    @property
    def compute_dtype(self) -> str: ...


class DLRM(tf.keras.Model):
    """The dense network: logits from numeric features and embeddings of one dim."""

    def __init__(self, config: Shape, *, has_numerics: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._interaction_dtype = config.compute_dtype
        self._bottom: MLP | None = None
        if has_numerics:
            self._bottom = MLP(
                [*config.bottom_mlp, config.embedding_dim],
                final_activation="relu",
                compute_dtype=config.compute_dtype,
            )
        self._top = MLP(
            [*config.top_mlp, 1], compute_dtype=config.compute_dtype, out_dtype="float32"
        )

    def call(self, numerics: tf.Tensor, embeddings: dict[str, tf.Tensor]) -> tf.Tensor:
        """Scores a batch.

        Args:
          numerics: float32 [batch, n]; NaN, which is missing, counts as 0. Not read where the
            network has none.
          embeddings: by feature float32 [batch, embedding_dim].

        Returns:
          float32 [batch, 1], logits.
        """
        vectors = list(embeddings.values())
        direct = vectors
        if self._bottom is not None:
            numerics = tf.where(tf.math.is_nan(numerics), tf.zeros_like(numerics), numerics)
            direct = [self._bottom(numerics)]
            vectors = [*direct, *vectors]
        if len(vectors) == 1:
            return self._top(direct)
        return self._top([*direct, dot_interaction(vectors, self._interaction_dtype)])
