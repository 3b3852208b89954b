"""Runs units in this process: threads are workers, and its memory holds the tables."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from embedps import kernels
from embedps.cluster.interface import Cluster, OnDeath, ScheduledCall
from embedps.console import tf_logging
from embedps.engine.steps.ways import Place


class EmbeddedCluster(Cluster):
    """A cluster in this process: threads are workers, memory holds the shards, no port is open."""

    place: Place = "process"

    def __init__(self, *, num_workers: int = 1, num_shards: int = 1) -> None:
        kernels.load()
        tf_logging.silence_python_logging()
        self.strategy = tf.distribute.get_strategy()
        self.shard_devices: Sequence[str] = ["/device:CPU:0"] * num_shards
        self.num_workers = num_workers
        self.num_ps = 0
        self.server_timeout_secs = 0.0
        self.can_lose_workers = False
        self._pool = concurrent.futures.ThreadPoolExecutor(num_workers, "worker")
        self._lock = threading.Lock()
        self._running: set[concurrent.futures.Future[Any]] = set()

    def scope(self) -> AbstractContextManager[Any]:
        """Enters TensorFlow's default scope."""
        return nullcontext()

    def schedule(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        on_start: Callable[[], None] = lambda: None,
        on_death: OnDeath | None = None,
        order: int = 0,
    ) -> ScheduledCall:
        """Queues a function for a thread; all are begun in the order in which they came.

        No thread dies alone, so nothing calls `on_death`.
        """
        call = ScheduledCall()

        def run() -> None:
            if call.cancelled():
                return
            call.begin(0)
            on_start()
            try:
                call.end(tf.nest.map_structure(lambda t: t.numpy(), function(*args)))
            except BaseException as error:
                call.end(error=error)

        future = self._pool.submit(run)
        with self._lock:
            self._running.add(future)
        future.add_done_callback(self._forget)
        return call

    def fetch(self, result: ScheduledCall) -> Any:
        """Waits for a function's values and returns them."""
        return result.result()

    def done(self) -> bool:
        """Tells whether the threads are idle."""
        with self._lock:
            return not self._running

    def join(self) -> None:
        """Waits until the threads are idle."""
        with self._lock:
            running = set(self._running)
        concurrent.futures.wait(running)

    def close(self) -> None:
        """Ends the threads, each after the function that it runs."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _forget(self, future: concurrent.futures.Future[Any]) -> None:
        with self._lock:
            self._running.discard(future)
