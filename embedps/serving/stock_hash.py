"""The values of new rows (kernels/store/initializers.h) in stock ops."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from embedps import constants
from embedps.layers.id_hash import mixed, unsigned
from embedps.serving.cuckoo import mix64, table_salt
from embedps.tables.specs import TableSpec

_WORD = 1 << 64


def signed(word: int) -> int:
    """Gives the int64 of the bits of a word in [0, 2^64)."""
    return word - (word >> 63 << 64)


def initial_rows(table: TableSpec, ids: tf.Tensor) -> tf.Tensor:
    """Computes the values with which ids' rows would start.

    Constant and uniform values have the kernels' bits; a normal value may differ in its last.

    Args:
      table: has an initializer.
      ids: int64 [n].

    Returns:
      float32 [n, dim].
    """
    made = table.initializer
    if made is None or made.kind == "constant":
        return tf.fill([tf.size(ids), table.embedding_dim], made.low if made is not None else 0.0)
    of_table = mix64(np.array([(table.seed % _WORD) ^ table_salt(table.name)], np.uint64))
    base = mixed(tf.bitwise.bitwise_xor(tf.bitcast(ids, tf.uint64), tf.constant(of_table)))
    dim = table.embedding_dim
    width = dim + dim % 2
    steps = [i * constants.SPLITMIX_INCREMENT % _WORD for i in range(width)]
    words = mixed(base[:, None] + tf.constant(np.array(steps, np.uint64)))
    if made.kind == "uniform":
        bits = tf.bitcast(tf.bitwise.right_shift(words, unsigned(40)), tf.int64)
        least, most = np.float32(made.low), np.float32(made.high)
        return (least + (most - least) * (tf.cast(bits, tf.float32) * 2.0**-24))[:, :dim]
    bits = tf.cast(tf.bitcast(tf.bitwise.right_shift(words, unsigned(11)), tf.int64), tf.float64)
    radius = tf.sqrt(-2 * tf.math.log((bits[:, 0::2] + 1) * 2.0**-53))
    angle = 2 * math.pi * (bits[:, 1::2] * 2.0**-53)
    pairs = tf.stack([tf.cos(angle), tf.sin(angle)], axis=2) * radius[:, :, None]
    low, high = float(np.float32(made.low)), float(np.float32(made.high))
    values = low + high * tf.reshape(pairs, [-1, width])
    return tf.cast(values, tf.float32)[:, :dim]
