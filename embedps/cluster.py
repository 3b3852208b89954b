"""Where units run: in this process, or on workers and parameter servers, behind one interface."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from embedps import kernels
from embedps.errors import UsageError
from embedps.listen import check_listening, listen_at


class Cluster(Protocol):
    """Runs functions on workers, tables and variables being elsewhere.

    Attributes:
      strategy: whose scope variables are made in, and whose `run` a step is called by.
      shard_devices: a device for each shard of the tables.
      num_workers: functions that run at once.
    """

    strategy: tf.distribute.Strategy
    shard_devices: Sequence[str]
    num_workers: int

    def schedule(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Queues a tf.function for any worker; returns at once with what `fetch` takes.

        If its worker dies, it runs again on another. Once a function has failed, `schedule` and
        `join` may raise its error too, and what is queued may be cancelled.
        """

    def fetch(self, result: Any) -> Any:
        """Waits for a scheduled function and returns its values as NumPy, or raises its error."""

    def done(self) -> bool:
        """Whether nothing scheduled is left to run."""

    def join(self) -> None:
        """Waits until nothing scheduled is left to run."""

    def close(self) -> None:
        """Ends what this object started."""


class EmbeddedCluster:
    """This process alone: threads are the workers, its memory holds the shards; no ports."""

    def __init__(self, *, num_workers: int = 1, num_shards: int = 1) -> None:
        kernels.load()
        self.strategy = tf.distribute.get_strategy()
        self.shard_devices: Sequence[str] = ["/device:CPU:0"] * num_shards
        self.num_workers = num_workers
        self._pool = concurrent.futures.ThreadPoolExecutor(num_workers, "worker")
        self._lock = threading.Lock()
        self._running: set[concurrent.futures.Future[Any]] = set()

    def schedule(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Queues a function for a thread."""
        future = self._pool.submit(function, *args)
        with self._lock:
            self._running.add(future)
        future.add_done_callback(self._forget)
        return future

    def fetch(self, result: Any) -> Any:
        """Waits for a function's values."""
        return tf.nest.map_structure(lambda t: t.numpy(), result.result())

    def done(self) -> bool:
        """Whether the threads are idle."""
        with self._lock:
            return not self._running

    def join(self) -> None:
        """Waits until the threads are idle."""
        with self._lock:
            running = set(self._running)
        concurrent.futures.wait(running)

    def close(self) -> None:
        """Ends the threads, after what they run."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _forget(self, future: concurrent.futures.Future[Any]) -> None:
        with self._lock:
            self._running.discard(future)


class CoordinatorCluster:
    """Workers and parameter servers over gRPC, through TensorFlow's ClusterCoordinator.

    Every task must have loaded the kernels before it started to serve, as `embedps.server` does.
    """

    def __init__(
        self,
        resolver: tf.distribute.cluster_resolver.ClusterResolver,
        *,
        num_shards: int = 0,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """Connects to the cluster.

        Args:
          resolver: names its tasks; this process is its chief.
          num_shards: of the tables; 0 is one a parameter server.
          on_close: called last by `close`.

        Raises:
          UsageError: the cluster has no worker or no parameter server, or a wildcard for its chief.
        """
        spec = resolver.cluster_spec()
        jobs = {job: spec.num_tasks(job) for job in spec.jobs}
        if not jobs.get("ps") or not jobs.get("worker"):
            raise UsageError(f"a cluster must have a ps and a worker at least but has {jobs}")
        kernels.load()
        # The client serves too: workers and parameter servers call it back.
        own = spec.task_address("chief", 0) if "chief" in jobs else None
        if own is not None:
            listen_at(own)
        self.strategy = tf.distribute.ParameterServerStrategy(resolver)
        if own is not None:
            check_listening(own)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
        self.num_workers = jobs["worker"]
        self.shard_devices: Sequence[str] = [
            f"/job:ps/replica:0/task:{shard % jobs['ps']}/device:CPU:0"
            for shard in range(num_shards or jobs["ps"])
        ]
        self._schedule_lock = threading.Lock()  # the first call of a function traces it
        self._on_close = on_close

    def schedule(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Queues a function for any worker."""
        with self._schedule_lock:
            return self._coordinator.schedule(function, args=args)

    def fetch(self, result: Any) -> Any:
        """Waits for a function's values."""
        return result.fetch()

    def done(self) -> bool:
        """Whether every scheduled function has run."""
        return bool(self._coordinator.done())

    def join(self) -> None:
        """Waits until every scheduled function has run."""
        self._coordinator.join()

    def close(self) -> None:
        """Ends the local processes, if any."""
        self._on_close()
