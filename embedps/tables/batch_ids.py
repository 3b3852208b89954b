"""The ids of a batch by feature: as a lookup wants them, and values in their form."""

from collections.abc import Mapping

import tensorflow as tf

from embedps.errors import UsageError
from embedps.tables import ops
from embedps.tables.activations import Activation, Ids
from embedps.tables.specs import FeatureSpec


def flatten_ids(feature: FeatureSpec, ids: Mapping[str, Ids]) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a feature's ids and their row splits, which are empty if examples have one id.

    Ids beyond the feature's max_length are left out, so their rows are neither read nor updated.
    """
    if feature.name not in ids:
        raise UsageError(f"feature {feature.name!r} is not among the batch's: {sorted(ids)}")
    value = ids[feature.name]
    if isinstance(value, tf.RaggedTensor) != feature.ragged:
        raise UsageError(
            f"feature {feature.name!r} is declared with ragged={feature.ragged} but the batch has "
            f"a {'ragged' if isinstance(value, tf.RaggedTensor) else 'dense'} tensor"
        )
    if value.dtype != tf.int64:
        raise UsageError(f"feature {feature.name!r} must have int64 ids but got {value.dtype.name}")
    rank = value.shape.rank
    if rank is not None and rank != 1 + feature.ragged:
        raise UsageError(
            f"feature {feature.name!r} must have ids of shape "
            f"{'[batch, None]' if feature.ragged else '[batch]'} but got {value.shape}"
        )
    if isinstance(value, tf.RaggedTensor):
        splits = tf.cast(value.row_splits, tf.int64)
        if feature.max_length is None:
            return value.values, splits
        return ops.keep_last(value.values, splits, max_length=feature.max_length)
    return value, tf.zeros([0], tf.int64)


def like_ids(feature: FeatureSpec, values: tf.Tensor, row_splits: tf.Tensor) -> Activation:
    """Gives a value per id the form of the feature's activation."""
    if not feature.ragged:
        return values
    lists = tf.RaggedTensor.from_row_splits(values, row_splits, validate=False)
    if feature.max_length is None:
        return lists
    return lists.to_tensor(shape=[None, feature.max_length])
