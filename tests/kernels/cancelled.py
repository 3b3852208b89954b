"""A function that is cancelled as it waits."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.eager import cancellation


def check_cancelled(function: Any, *, after_secs: float = 0) -> None:
    """Calls a `tf.function` and cancels that call, which must end it."""
    manager = cancellation.CancellationManager()
    call = manager.get_cancelable_function(function.get_concrete_function())
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(call)
        time.sleep(after_secs)
        manager.start_cancel()
        with pytest.raises(tf.errors.CancelledError):
            waiting.result()
