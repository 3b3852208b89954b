"""Ids as Keras' models have them: of other dtypes, in columns, padded or sparse."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from embedps.layers.own_tables import mistake
from embedps.tables.activations import Activation, Ids
from embedps.tables.specs import FeatureSpec


class Padded(NamedTuple):
    """Where a dense list's ids are.

    Attributes:
      has_id: bool [batch, length]; False where the padding id is.
    """

    has_id: tf.Tensor


def refuse_keras_3(inputs: Sequence[Any]) -> None:
    """Refuses to be part of a model of Keras 3, which knows nothing of the layer's rows.

    Raises:
      UsageError: an input is symbolic in Keras 3, or a layer of Keras 3 is being called.
    """
    state = sys.modules.get("keras.src.backend.common.global_state")
    called = state is not None and state.get_global_attribute("current_call_ctx") is not None
    if called or any(type(each).__module__.startswith("keras.") for each in inputs):
        raise mistake(
            "embedps.Embeddings is a layer of Keras 2, but this model is one of Keras 3: build it "
            "with tf.keras after `import embedps`, instead of `import keras`"
        )


def as_ids(feature: FeatureSpec, value: Any, padding_id: int | None) -> tuple[Ids, Padded | None]:
    """Makes the ids that tables look up.

    Args:
      feature: whose ids they are.
      value: integers [batch] or [batch, 1]; of a ragged feature [batch, length], ragged
        [batch, None] or sparse [batch, length].
      padding_id: stands where a dense list has no id; None if all are ids.

    Returns:
      int64 [batch], or ragged int64 [batch, None] for a ragged feature; and, if rows are to stay
      where the ids are in a dense list, where that is.

    Raises:
      UsageError: the value has another dtype or shape.
    """
    name = feature.name
    if not isinstance(value, tf.Tensor | tf.Variable | tf.RaggedTensor | tf.SparseTensor):
        raise mistake(f"feature {name!r} must have a tensor of ids but got {type(value).__name__}")
    dtype = value.dtype
    if dtype == tf.string:
        raise mistake(
            f"feature {name!r} must have integer ids but got texts: use embedps.fingerprint, "
            "tf.keras.layers.Hashing or StringLookup before embedps.Embeddings, or write the data "
            "by embedps.pipelines.ingest, which makes ids of texts"
        )
    if not dtype.is_integer or dtype == tf.uint64 or dtype.is_quantized:
        raise mistake(
            f"feature {name!r} must have integer ids of at most 63 bits but got {dtype.name}: "
            "tf.cast(ids, tf.int64) if they are whole numbers"
        )
    value = value if dtype == tf.int64 else tf.cast(value, tf.int64)
    return _lists(feature, value, padding_id) if feature.ragged else (_single(feature, value), None)


def _single(feature: FeatureSpec, value: Any) -> tf.Tensor:
    shape = value.shape
    if isinstance(value, tf.Tensor) and shape.rank is None:  # a traced batch of several shapes
        return tf.reshape(value, tf.shape(value)[:1])  # which fails if an example has several ids
    if isinstance(value, tf.Tensor) and shape.rank == 1:
        return value
    if not isinstance(value, tf.Tensor) or shape.rank != 2 or shape[1] != 1:
        kind = "" if isinstance(value, tf.Tensor) else f"{type(value).__name__} "
        raise mistake(
            f"feature {feature.name!r} has one id per example, [batch] or [batch, 1], but got "
            f"{kind}{_shown(shape)}: declare FeatureSpec(..., ragged=True) if an example has "
            "several ids"
        )
    return tf.squeeze(value, axis=1)


def _lists(
    feature: FeatureSpec, value: Any, padding_id: int | None
) -> tuple[tf.RaggedTensor, Padded | None]:
    if value.shape.rank != 2 or (isinstance(value, tf.RaggedTensor) and value.ragged_rank != 1):
        raise mistake(
            f"feature {feature.name!r} has a list of ids per example, [batch, length], but got "
            f"{_shown(value.shape)}: declare FeatureSpec(..., ragged=False) if an example has one "
            "id"
        )
    if isinstance(value, tf.RaggedTensor):
        return value, None
    if isinstance(value, tf.SparseTensor):
        ordered = tf.sparse.reorder(value)
        rows, batch = ordered.indices[:, 0], ordered.dense_shape[0]
        return tf.RaggedTensor.from_value_rowids(ordered.values, rows, nrows=batch), None
    if padding_id is None:
        has_id = tf.ones_like(value, tf.bool)
    else:
        has_id = tf.not_equal(value, tf.constant(padding_id, tf.int64))
    stays = feature.keeps_rows and feature.max_length is None
    return tf.ragged.boolean_mask(value, has_id), Padded(has_id) if stays else None


def in_place(
    made: Mapping[str, Activation], feature: FeatureSpec, padded: Padded
) -> dict[str, Activation]:
    """Puts the rows of a dense list, and their rates, where their ids are; zeros elsewhere."""
    names = [feature.name] + ([feature.rate_as] if feature.rate_as is not None else [])
    where = tf.where(padded.has_id)
    shape = tf.shape(padded.has_id, out_type=tf.int64)
    placed = {}
    for name in names:
        values = made[name].values
        whole = tf.scatter_nd(
            where, values, tf.concat([shape, tf.shape(values, tf.int64)[1:]], axis=0)
        )
        placed[name] = tf.ensure_shape(whole, [*padded.has_id.shape, *values.shape[1:]])
    return placed


def _shown(shape: tf.TensorShape) -> str:
    return "an unknown shape" if shape.rank is None else str(shape.as_list())
