"""What a model gets for a feature's ids: vectors, or rows per position with a mask."""

from typing import TypeAlias

import tensorflow as tf

from embedps.tables.specs import FeatureSpec

Ids: TypeAlias = tf.Tensor | tf.RaggedTensor
Activation: TypeAlias = tf.Tensor | tf.RaggedTensor


def mask(feature: FeatureSpec, ids: tf.RaggedTensor) -> tf.Tensor:
    """Tells which positions of a padded activation have an id.

    Args:
      feature: has a max_length.
      ids: of a batch, ragged int64 [batch, None].

    Returns:
      bool [batch, max_length].
    """
    splits = ids.row_splits
    return tf.sequence_mask(splits[1:] - splits[:-1], feature.max_length)


def samples(feature: FeatureSpec, ids: Ids, *, dim: int, value: float) -> dict[str, Activation]:
    """Makes what `EmbeddingCollection.combine` gives for a feature, by name; see `sample`."""
    made = {feature.name: sample(feature, ids, dim=dim, value=value)}
    if feature.rate_as is None:
        return made
    if isinstance(ids, tf.RaggedTensor) and feature.max_length is None:
        return made | {feature.rate_as: ids.with_values(tf.fill([tf.size(ids.values)], 0.5))}
    shape = tf.shape(made[feature.name])[:-1]
    return made | {feature.rate_as: tf.ones(shape) / 2}


def sample(feature: FeatureSpec, ids: Ids, *, dim: int, value: float) -> Activation:
    """Makes an activation of the shape that `EmbeddingCollection.combine` gives.

    Args:
      feature: whose activation it is.
      ids: int64 [batch], or ragged int64 [batch, None] for a ragged feature.
      dim: of the feature's table.
      value: of all its floats.
    """
    if isinstance(ids, tf.RaggedTensor) and feature.keeps_rows and feature.max_length is None:
        return ids.with_values(tf.fill([tf.size(ids.values), dim], value))
    batch = ids.nrows() if isinstance(ids, tf.RaggedTensor) else tf.size(ids)
    lengths = [] if feature.max_length is None else [feature.max_length]
    return tf.fill([batch, *lengths, dim], value)
