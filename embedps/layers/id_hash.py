"""The hash of ids (kernels/runtime/hash.h) in stock ops, and ids of combinations of ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from embedps import constants
from embedps.data.dataset import MISSING_ID
from embedps.data.unit_reader import NUMERICS

_WORD = 1 << 64
_MOST_BINS = 2.0**31
"""To each side of 0; what is beyond is in the last one."""


class Bins(NamedTuple):
    """Bins of a number, as ids.

    Attributes:
      place: of the number among a batch's.
      width: of each bin; one begins at 0.
    """

    place: int
    width: float

    def ids(self, features: Mapping[str, Any]) -> tf.Tensor:
        """Gives the bins of a batch: int64 [n], even; MISSING_ID where the number is NaN."""
        numbers = features[NUMERICS][:, self.place]
        # A product, as TensorFlow makes one of some quotients, which has other bits.
        at = tf.floor(numbers * tf.constant(1 / self.width, tf.float32))
        bins = 2 * tf.cast(tf.clip_by_value(at, -_MOST_BINS, _MOST_BINS), tf.int64)
        return tf.where(tf.math.is_nan(numbers), tf.constant(MISSING_ID, tf.int64), bins)


def mixed(x: tf.Tensor) -> tf.Tensor:
    """Mixes uint64 words, as Mix64 does."""
    first, second = constants.SPLITMIX_MULTIPLIERS
    xor, shift = tf.bitwise.bitwise_xor, tf.bitwise.right_shift
    x += unsigned(constants.SPLITMIX_INCREMENT)
    x = xor(x, shift(x, unsigned(30))) * unsigned(first)
    x = xor(x, shift(x, unsigned(27))) * unsigned(second)
    return xor(x, shift(x, unsigned(31)))


def finalized(words: tf.Tensor) -> tf.Tensor:
    """Computes `embedps.splitmix.mix`, which is Mix64 without its increment."""
    return mixed(words - unsigned(constants.SPLITMIX_INCREMENT))


def crossed(columns: Sequence[tf.Tensor]) -> tf.Tensor:
    """Makes an id of each combination of ids, as a schema's `cross` does.

    Args:
      columns: int64 [n] each.

    Returns:
      int64 [n], at least 0; MISSING_ID if any of the ids is missing.
    """
    hashes: Any = unsigned(0)
    is_missing: Any = tf.constant(False)
    for ids in columns:
        is_missing = tf.logical_or(is_missing, tf.equal(ids, MISSING_ID))
        increment = unsigned(constants.SPLITMIX_INCREMENT)
        hashes = finalized(hashes * increment + tf.bitcast(ids, tf.uint64))
    made = tf.bitcast(tf.bitwise.right_shift(hashes, unsigned(1)), tf.int64)
    return tf.where(is_missing, tf.constant(MISSING_ID, tf.int64), made)


def unsigned(value: int) -> tf.Tensor:
    """Makes a uint64 scalar of an integer, modulo 2^64."""
    return tf.constant(np.uint64(value % _WORD), tf.uint64)
