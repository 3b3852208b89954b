"""Calls a graph: small batches by the calling thread alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# To wake another thread takes longer than its part of the work on so few rows.
_MAX_ROWS_ALONE = 32


class GraphCall:
    """A concrete function of arrays. Its bits do not depend on how many threads run it."""

    def __init__(self, function: Any, small: Sequence[Any]) -> None:
        """Calls it once, to find whether one thread can run it: it cannot run loops.

        Args:
          small: its arguments of a small batch.
        """
        self._function = function  # which frees the graph when it goes
        self._captured = function.captured_inputs
        self._dtypes = [each.dtype for each in function.function_type.flat_outputs]
        self._may_run_alone = True
        try:
            self(small, rows=1)
        except tf.errors.FailedPreconditionError:
            self._may_run_alone = False

    def __call__(self, arguments: Sequence[Any], *, rows: int) -> Any:
        """Calls it.

        Args:
          arguments: of the function.
          rows: of the batch.
        """
        tensors = [*map(tf.constant, arguments), *self._captured]
        if rows > _MAX_ROWS_ALONE or not self._may_run_alone:
            # The function's own call would bind the arguments to its signature first.
            return self._function.inference_fn.call_preflattened(tensors)
        # TensorFlow runs an operation in the thread that asks, and a function in another.
        found = tf.raw_ops.StatefulPartitionedCall(
            args=tensors,
            Tout=self._dtypes,
            f=self._function,
            executor_type="SINGLE_THREADED_EXECUTOR",
        )
        return self._function.function_type.pack_output(found)
