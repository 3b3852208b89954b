"""Batches of whole lanes: predictions whose bits do not depend on how rows are batched.

TensorFlow computes most of an elementwise operation with vector instructions, and the values at the
end of a tensor with scalar ones, which round otherwise. A product of one row has a function of its
own. So a batch is padded to a multiple of the widest vector. `batch_free` does the rest.
"""

from typing import Any, Final

import tensorflow as tf

_LANES: Final = 16  # float32 in a register of AVX-512


def padded_size(rows: int) -> int:
    """Gives the rows of a padded batch, before it is a tensor."""
    return -(-rows // _LANES) * _LANES


def padded_rows(rows: tf.Tensor) -> tf.Tensor:
    """Gives the rows of a padded batch, int64."""
    return (tf.cast(rows, tf.int64) + _LANES - 1) // _LANES * _LANES


def pad(value: Any, rows: tf.Tensor) -> Any:
    """Repeats the last row of a batch up to `padded_rows`; a single row counts as all rows.

    Args:
      value: a tensor or ragged tensor of `rows` rows, or of one.
      rows: of the batch, int64.
    """
    return _at(value, tf.minimum(tf.range(padded_rows(rows)), rows - 1))


def repeated(value: Any, rows: tf.Tensor) -> Any:
    """Gives a single row `rows` times, and as many rows as they are; see `pad`."""
    return _at(value, tf.range(rows))


def _at(value: Any, places: tf.Tensor) -> Any:
    is_ragged = isinstance(value, tf.RaggedTensor)
    own = value.nrows(tf.int64) if is_ragged else tf.shape(value, tf.int64)[0]
    return tf.gather(value, tf.where(tf.equal(own, 1), tf.zeros_like(places), places))
