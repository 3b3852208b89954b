"""Tells which call of a stock ClusterCoordinator runs, and which attempt of it."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator

from embedps.console.lines import say

_in_thread = threading.local()  # of a thread that runs a call: `numbers`, of the call and attempt
_counter = itertools.count()
_NO_CALL = (-1, -1)
_KEY = "embedps_call"


def watch() -> None:
    """Makes coordinators note which call they run, and say in a line that a dataset ended.

    TensorFlow runs a call again, on another worker, if its worker is lost. It does not tell the
    function so.
    """
    execute = cluster_coordinator.Closure.execute_on
    if getattr(execute, "is_watched", False):
        return

    def execute_on(self: Any, worker: Any) -> Any:
        attempt = next(_counter)
        call = vars(self).setdefault("_embedps_call", attempt)
        if call != attempt and not isinstance(self, cluster_coordinator.ResourceClosure):
            say(
                f"embedps: worker {worker.worker_index} repeats a call whose worker was lost: "
                "embedding rows learn once from each of its steps, other variables from both "
                "attempts",
                file=sys.stderr,
            )
        _in_thread.numbers = (call, attempt)
        try:
            return execute(self, worker)
        finally:
            _in_thread.numbers = _NO_CALL

    execute_on.is_watched = True  # type: ignore[attr-defined]
    cluster_coordinator.Closure.execute_on = execute_on
    queue = cluster_coordinator._CoordinatedClosureQueue
    fail = queue.mark_failed

    def mark_failed(self: Any, error: Exception) -> None:
        if isinstance(error, tf.errors.OutOfRangeError):
            error = tf.errors.OutOfRangeError(
                None,
                None,
                "a worker's dataset ended before the last scheduled step: repeat() it, or schedule "
                "fewer steps",
            )
        fail(self, error)

    queue.mark_failed = mark_failed


def numbers(value: Callable[[], float], key: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Gives what is known only when a function is called, in one tensor for each call.

    Args:
      value: gives a number.
      key: of the value, equal for all its uses.

    Returns:
      The numbers of the call and of the attempt, int64 [2]; -1 if no coordinator schedules it. And
      the value, float32 scalar.
    """

    def known() -> tf.Tensor:
        return tf.constant([*getattr(_in_thread, "numbers", _NO_CALL), value()], tf.float64)

    if tf.executing_eagerly():
        found = known()
    else:
        found = tf.compat.v1.get_default_graph().capture_call_time_value(
            known, tf.TensorSpec([3], tf.float64), key=(_KEY, key)
        )
    return tf.cast(found[:2], tf.int64), tf.cast(found[2], tf.float32)
