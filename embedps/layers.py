"""Layers of a dense network whose plain-TensorFlow twins spend most of their time moving bytes."""

from collections.abc import Sequence

import tensorflow as tf

from embedps import kernels


def dot_interaction(features: Sequence[tf.Tensor]) -> tf.Tensor:
    """Dot products of every pair of an example's vectors; differentiable.

    The same values in the same order as tfrs.layers.feature_interaction.DotInteraction(), without
    its batched square matrix, mask and gather.

    Args:
      features: n >= 2 tensors, each float32 [batch, dim].

    Returns:
      float32 [batch, n (n - 1) / 2]: vector i . vector j for each j < i, row by row.
    """
    return kernels.load().embedps_dot_interaction(features=list(features))


@tf.RegisterGradient("EmbedpsDotInteraction")
def _dot_interaction_gradient(op: tf.Operation, upstream: tf.Tensor) -> list[tf.Tensor]:
    return list(
        kernels.load().embedps_dot_interaction_grad(features=list(op.inputs), upstream=upstream)
    )
