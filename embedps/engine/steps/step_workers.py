"""The collectives by which workers in step exchange tensors, TensorFlow's own."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.ops import collective_ops

_GROUP_KEY = 74_001  # apart from those that tf.distribute counts up from 1
_MAX_COLUMNS = 2**27


class StepWorkers:
    """Workers that call the same functions in the same order.

    Attributes:
      rank: of this worker, in [0, size).
      size: how many workers there are.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def all_gather(self, value: tf.Tensor, *, key: int) -> tf.Tensor:
        """Gives all workers' values, by rank, one after the other along the first dimension.

        Args:
          value: of one dimension, and in all calls of one length.
          key: in [1, 15]: the same on all workers, another for each place of the program.
        """
        return collective_ops.all_gather_v2(value, self.size, _GROUP_KEY, key * _MAX_COLUMNS)

    def all_to_all(self, values: tf.Tensor, *, key: int) -> tf.Tensor:
        """Sends `values[r]` to worker r; gives what each sent to this one, by rank.

        Args:
          values: [size, n], n the same on all workers and less than 2^27.
          key: as in `all_gather`.
        """
        # TensorFlow keeps an entry for each key for ever, of one shape.
        of_shape = key * _MAX_COLUMNS + tf.shape(values)[1]
        return collective_ops.all_to_all_v2(values, self.size, _GROUP_KEY, of_shape)
