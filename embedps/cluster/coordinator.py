"""Runs units on the workers of a TensorFlow cluster, by its ClusterCoordinator."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator

from embedps import kernels
from embedps.cluster.bind_address import check_listening, listen_at
from embedps.cluster.health import HealthMonitor, TaskId, use_own_executor
from embedps.cluster.interface import ScheduledCall
from embedps.cluster.local_processes import LocalProcesses
from embedps.cluster.variable_placement import VariablePlacement
from embedps.console import tf_logging
from embedps.errors import ClusterError, ServerLostError, UsageError

_TICK_SECS = 0.2


class _WorkerClosure(cluster_coordinator.Closure):
    """A function that the coordinator's thread of a worker calls with its index, in each attempt.

    A coordinator's public `schedule` takes tf.functions only, and tells nobody who runs one, how
    often. And the closures of its own have a thread wait, after each, for all that is under way on
    the executor that threads share. That a worker's tensors are not needed any more is said there:
    a worker that was stopped just then, and never answered, held up all the others.
    """

    def __init__(self, run: Callable[[int], None]) -> None:
        super().__init__(run, cancellation_mgr=None)

    def execute_on(self, worker: Any) -> None:
        """Runs one attempt."""
        use_own_executor()
        with tf.device(worker.device_name):
            self._function(worker.worker_index)


class CoordinatorCluster:
    """Workers and parameter servers over gRPC, through TensorFlow's ClusterCoordinator.

    Every task must have loaded the kernels before it started to serve, as `embedps.server` does.
    """

    def __init__(
        self,
        resolver: tf.distribute.cluster_resolver.ClusterResolver,
        *,
        server_timeout_secs: float,
        wait_secs: float,
        num_shards: int = 0,
        processes: LocalProcesses | None = None,
        on_lost: Callable[[ClusterError], None] = lambda error: None,
    ) -> None:
        """Connects to the cluster, whose tasks must all serve by now.

        Args:
          resolver: names its tasks; this process is its chief.
          server_timeout_secs: a server that does not answer for so long is taken as dead: a worker
            is passed over, or killed where its process is ours; a parameter server is lost.
          wait_secs: the cluster is lost where no function ends for so long.
          num_shards: of the tables; 0 is one a parameter server.
          processes: its tasks' processes, where they are ours: a dead worker is started again.
          on_lost: told, on another thread, that the cluster cannot go on, while this one may still
            wait for what does not answer any more.

        Raises:
          UsageError: the cluster has no worker or no parameter server, or a wildcard for its chief.
        """
        spec = resolver.cluster_spec()
        jobs = {job: spec.num_tasks(job) for job in spec.jobs}
        if not jobs.get("ps") or not jobs.get("worker"):
            raise UsageError(f"a cluster must have a ps and a worker at least but has {jobs}")
        kernels.load()
        tf_logging.own_errors_alone()
        # The client serves too: workers and parameter servers call it back.
        own = spec.task_address("chief", 0) if "chief" in jobs else None
        if own is not None:
            listen_at(own)
        self.strategy = tf.distribute.ParameterServerStrategy(resolver)
        if own is not None:
            check_listening(own)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
        self.num_ps = jobs["ps"]
        self.num_workers = jobs["worker"]
        self.can_lose_workers = True
        self.shard_devices: Sequence[str] = [
            f"/job:ps/replica:0/task:{shard % jobs['ps']}/device:CPU:0"
            for shard in range(num_shards or jobs["ps"])
        ]
        self._schedule_lock = threading.Lock()  # the first call of a function traces it
        self.server_timeout_secs = server_timeout_secs
        self._wait_secs = wait_secs
        self._lock = threading.Lock()  # guards the three below
        self._open = 0
        self._last_end = 0.0
        self._lost_since = 0  # attempts, with their workers, since the last end
        self._processes = processes
        self._on_lost = on_lost
        self._busy: dict[int, ScheduledCall] = {}
        self._health = HealthMonitor(
            [(job, index) for job in ("ps", "worker") for index in range(jobs[job])],
            timeout_secs=server_timeout_secs,
        )
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._watcher.start()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """The strategy's; a variable is placed where the least of this scope's are by then."""
        placement = VariablePlacement(self.num_ps)
        with self.strategy.scope(), tf.variable_creator_scope(placement.create):
            yield

    def schedule(
        self,
        function: Any,
        args: tuple[Any, ...],
        *,
        on_start: Callable[[], None] = lambda: None,
    ) -> ScheduledCall:
        """Queues a function for any worker."""
        running = ScheduledCall()
        with self._lock:
            if not self._open:
                self._last_end = time.monotonic()
            self._open += 1
        running.add_done_callback(self._count_end)
        try:  # every server is told of a function that is traced, and must answer
            with self._schedule_lock, self.strategy.scope():
                concrete = function.get_concrete_function(*args)
        except BaseException:
            running.cancel()
            raise

        def run(worker: int) -> None:
            if running.cancelled():
                return
            if ("worker", worker) in self._health.draining():
                self._health.allow_shutdown(("worker", worker))
                raise tf.errors.UnavailableError(None, None, f"/job:worker/task:{worker} leaves")
            self._busy[worker] = running
            running.worker, running.started_at = worker, time.monotonic()
            if self._processes is not None:
                self._processes.unit_started(worker, running)
            on_start()
            try:
                running.end(tf.nest.map_structure(lambda t: t.numpy(), concrete(*args)))
            except BaseException as error:
                running.worker, running.started_at = None, math.inf
                if _is_of_worker(error):
                    with self._lock:
                        self._lost_since += 1
                    raise  # the coordinator waits for the worker, and has another run this
                running.end(error=error)
            finally:
                self._busy.pop(worker, None)
            if self._processes is not None:
                self._processes.unit_ended(worker)

        self._coordinator._cluster.closure_queue.put(_WorkerClosure(run))
        return running

    def fetch(self, result: ScheduledCall) -> Any:
        """Waits for a function's values."""
        return result.result()

    def unresponsive_workers(self) -> Set[int]:
        """The workers that have not answered for too long."""
        return {index for job, index in self._health.unresponsive() if job == "worker"}

    def draining(self) -> Set[TaskId]:
        """The servers that were told to end and wait for `release`."""
        return self._health.draining()

    def allow_shutdown(self, task: TaskId) -> None:
        """Lets a server end that is leaving."""
        self._health.allow_shutdown(task)

    @property
    def worker_restarts(self) -> int:
        """How often a worker's process was started again."""
        return self._processes.restarts if self._processes else 0

    def done(self) -> bool:
        """Whether every scheduled function has run."""
        return bool(self._coordinator.done())

    def join(self) -> None:
        """Waits until every scheduled function has run."""
        self._coordinator.join()

    def close(self) -> None:
        """Ends the local processes, if any."""
        self._closed.set()
        self._health.close()
        if self._processes is not None:
            self._processes.close()

    def _count_end(self, _: Any) -> None:
        with self._lock:
            self._open -= 1
            self._last_end = time.monotonic()
            self._lost_since = 0

    def _watch(self) -> None:
        while not self._closed.wait(_TICK_SECS):
            lost = self._look_after()
            if lost is not None and not self._closed.is_set():
                self._on_lost(lost)
                return

    def _look_after(self) -> ClusterError | None:
        """Does what there is to do about servers that are not well; returns what it cannot."""
        leaving = self._health.draining()
        for job, index in leaving:
            if job == "worker" and index not in self._busy:
                self._health.allow_shutdown((job, index))
        for job, index in self._health.unresponsive():
            if self._processes is not None:
                self._processes.kill((job, index))
            elif job == "ps":
                return ServerLostError(
                    f"parameter server {index} has not answered for "
                    f"{self.server_timeout_secs:.0f} s"
                )
        with self._lock:
            stuck = self._open and time.monotonic() > self._last_end + self._wait_secs
            lost = self._lost_since
        if stuck:
            silent = ", ".join(
                f"{job} {index}" for job, index in sorted(self._health.unresponsive())
            )
            return ServerLostError(
                f"waited {self._wait_secs:.0f} s for any unit to end, "
                + (f"while {silent} did not answer" if silent else "though every server answers")
                + f"; {self._describe_busy()}"
                + (f"; {lost} attempts ended with their workers: see these' logs" if lost else "")
            )
        for job, index in self._health.unreachable() - leaving:
            if job == "ps" and self._processes is None:
                return ServerLostError(f"parameter server {index} cannot be reached")
        return None

    def _describe_busy(self) -> str:
        """Says which workers run a unit, and since when."""
        now = time.monotonic()
        busy = [f"worker {w} for {now - r.started_at:.0f} s" for w, r in sorted(self._busy.items())]
        return f"running one: {', '.join(busy)}" if busy else "no worker runs one"


def _is_of_worker(error: BaseException) -> bool:
    """Whether the coordinator takes an error as a worker's loss, which it repairs by itself."""
    if isinstance(error, tf.errors.CancelledError) and "/job:" in str(error):
        return True
    return bool(cluster_coordinator._is_worker_failure(error))
