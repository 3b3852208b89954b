"""Calls a graph: by the calling thread alone, if others would gain nothing."""

from __future__ import annotations

import os
import threading
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
        self._cores = len(os.sched_getaffinity(0))
        self._lock = threading.Lock()
        self._running = 0  # calls; guarded by the lock
        self._may_run_alone = True
        try:
            self(small, rows=1)
        except tf.errors.FailedPreconditionError:
            self._may_run_alone = False

    def __call__(self, arguments: Sequence[Any], *, rows: int) -> Any:
        """Calls it; thread-safe.

        A call gets one thread if its batch is small, or if there are cores for one each only.

        Args:
          arguments: of the function.
          rows: of the batch.
        """
        tensors = [*map(tf.constant, arguments), *self._captured]
        with self._lock:
            self._running += 1
            is_full = 2 * self._running > self._cores
        try:
            is_alone = self._may_run_alone and (is_full or rows <= _MAX_ROWS_ALONE)
            return self._run(tensors, is_alone)
        finally:
            with self._lock:
                self._running -= 1

    def _run(self, tensors: Sequence[Any], is_alone: bool) -> Any:
        if not is_alone:
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
