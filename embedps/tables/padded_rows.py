"""Rows as lists of one length, as workers exchange them by collectives."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from embedps.tables.collection import EmbeddingCollection
from embedps.tables.lookup_result import LookupResult, ShardRows

_MULTIPLE = 512


def padded_length(lengths: tf.Tensor) -> tf.Tensor:
    """Gives the length to pad lists to; few different ones, since TensorFlow keeps each.

    It is never 0: TensorFlow's all-to-all ends the process if there is nothing to send.

    Args:
      lengths: of the lists, whole numbers; any other dimension than the first stays.
    """
    most = tf.maximum(tf.reduce_max(lengths, axis=0), 1)
    return -(-most // _MULTIPLE) * _MULTIPLE


def pad(lists: Sequence[tf.Tensor], length: tf.Tensor) -> tf.Tensor:
    """Stacks lists of one dimension, each padded to a length."""
    return tf.stack([tf.pad(x, [[0, length - tf.size(x, length.dtype)]]) for x in lists])


def width_of(collection: EmbeddingCollection, group: int) -> int:
    """Gives how many floats a row has in a list: its values and, if asked for, its rate."""
    return collection.groups[group].dim + int(collection.groups[group].gives_rates)


def flat_rows(found: ShardRows) -> tf.Tensor:
    """Makes a list of rows."""
    rows = found.rows if found.rates is None else tf.concat([found.rows, found.rates[:, None]], 1)
    return tf.reshape(rows, [-1])


def add_group(
    result: LookupResult,
    collection: EmbeddingCollection,
    lists: tf.Tensor,
    first: tf.Tensor,
    lengths: Sequence[tf.Tensor],
) -> None:
    """Adds a group's rows to a result.

    Args:
      result: of the groups before.
      lists: float32 [num shards, n], the groups' lists one after the other; `pad` stacks a group's.
      first: where the group's lists begin.
      lengths: by shard, of how many rows; none if nothing was asked for.
    """
    g = len(result.rows)
    dim, width = collection.groups[g].dim, width_of(collection, g)
    shards = []
    for shard, length in enumerate(lengths):
        rows = tf.reshape(lists[shard, first : first + length * width], [-1, width])
        rates = rows[:, dim] if width > dim else None
        shards.append(ShardRows(rows[:, :dim], rates, result.routed[g].request(shard)))
    result.add(shards)
