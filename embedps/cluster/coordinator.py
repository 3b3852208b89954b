"""Runs units on the workers of a TensorFlow cluster: each has a thread that takes calls.

TensorFlow's ClusterCoordinator does so too, for a cluster that does not change (see membership.py).
It takes tf.functions only, does not tell which worker runs one, or how often, and a worker that
stops answering can block all others.

A call to a process that died fails within 0.1 s, but for a few that never do. So a worker that
comes back gets another thread, and the call is given to another worker.
"""

from __future__ import annotations

import concurrent.futures
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager import cancellation

from embedps import kernels
from embedps.cluster.bind_address import check_listening, listen_at
from embedps.cluster.call_queue import Attempt, CallQueue
from embedps.cluster.call_tracker import CallTracker
from embedps.cluster.connection import ServerStrategy
from embedps.cluster.health import HealthMonitor, use_own_executor
from embedps.cluster.interface import Cluster, LostServer, OnDeath, ScheduledCall
from embedps.cluster.local_processes import LocalProcesses
from embedps.cluster.membership import Membership
from embedps.cluster.server_replacement import ServerReplacement
from embedps.cluster.variable_placement import VariablePlacement
from embedps.cluster.worker_losses import WorkerLosses, WorkerNews
from embedps.console import tf_logging
from embedps.engine.steps.ways import Place
from embedps.errors import ClusterError, ServerLostError, UsageError
from embedps.kernels.tasks import TaskId, check_task, device_of

_TICK_SECS = 0.2
_STUCK_SECS = 5.0  # a call may need that long to fail, or to be counted, once its worker is gone


class CoordinatorCluster(Cluster):
    """A cluster of workers and parameter servers over gRPC; workers come and go.

    Every task must load the kernels before it starts to serve, as `embedps.server` does.
    """

    place: Place = "servers"
    strategy: ServerStrategy
    shares_machine = False
    why_fixed = (
        "who starts the tasks of TF_CONFIG scales them: with --min-workers, workers that it names "
        "may come and go (on Kubernetes, the replicas of StatefulSet worker); for other parameter "
        "servers, stop the run and start all tasks with another TF_CONFIG: it goes on from its "
        "checkpoint"
    )

    def __init__(
        self,
        resolver: tf.distribute.cluster_resolver.ClusterResolver,
        *,
        server_timeout_secs: float,
        wait_secs: float,
        num_shards: int = 0,
        workers: Mapping[int, str] | None = None,
        processes: LocalProcesses | None = None,
        first: int = 0,
        on_lost: Callable[[ClusterError], None] = lambda error: None,
    ) -> None:
        """Connects to a cluster; all its tasks must serve already.

        Args:
          resolver: names the tasks; this process is the chief.
          workers: the address by index of each worker that may be there, now or later; by default
            those of the resolver.
          server_timeout_secs: a server that does not answer for this long counts as dead. A dead
            worker is skipped, or killed if this process started it. A dead parameter server means
            that the cluster is lost.
          wait_secs: the cluster is lost if no function ends for this long.
          num_shards: of the tables; 0 means one per parameter server.
          processes: the tasks' processes, if this process started them: a dead worker is restarted.
          first: as `device_of` takes it.
          on_lost: called on another thread if the cluster cannot continue. The calling thread may
            still wait then for a server that does not answer.

        Raises:
          UsageError: the cluster has no worker or no parameter server, or its chief's address is a
            wildcard.
          ClusterError: a task has no kernels, or other versions than this process.
        """
        spec = resolver.cluster_spec()
        jobs = {job: spec.num_tasks(job) for job in spec.jobs}
        if not jobs.get("ps") or not jobs.get("worker"):
            raise UsageError(f"a cluster must have at least a ps and a worker but has {jobs}")
        kernels.load()
        tf_logging.silence_python_logging()
        # The client serves too: workers and parameter servers call it back.
        own = spec.task_address("chief", 0) if "chief" in jobs else None
        if own is not None:
            listen_at(own)
        self.strategy = ServerStrategy(resolver, first)
        if own is not None:
            check_listening(own)
        # With ClusterCoordinator, it would be set.
        self.strategy.extended._used_with_coordinator = True
        known = spec.task_indices("worker")
        there: list[TaskId] = [("ps", index) for index in spec.task_indices("ps")]
        tasks = {task: spec.task_address(*task) for task in there}
        for task in [*there, *(("worker", index) for index in known)]:
            with suppress(tf.errors.OpError):  # it is lost: if it comes back, it is checked then
                check_task(task, first)
        places = workers or {index: spec.task_address("worker", index) for index in known}
        tasks.update({("worker", index): address for index, address in places.items()})
        self.num_ps = jobs["ps"]
        self.num_workers = len(places)
        self.can_lose_workers = True
        self.shard_devices: Sequence[str] = [
            device_of(("ps", shard % jobs["ps"]), first)
            for shard in range(num_shards or jobs["ps"])
        ]
        self._schedule_lock = threading.Lock()  # a function's first call traces it
        self._queue = CallQueue()
        self.server_timeout_secs = server_timeout_secs
        self._first = first
        self._processes = processes
        self._on_lost = on_lost
        self._calls = CallTracker(wait_secs=wait_secs)
        self._losses = WorkerLosses()
        self._closed = threading.Event()
        self._news: list[str] = []
        self._health = HealthMonitor(
            tasks,
            timeout_secs=server_timeout_secs,
            first=first,
            is_known=lambda task: task[0] == "ps" or self._members.number(task[1]) is not None,
        )
        self._taken: dict[tuple[int, int], tuple[int, Attempt]] = {}  # by worker and membership
        self._members = Membership(
            self._health, places, known=known, first=first, on_join=self._joined
        )
        self._placement = VariablePlacement(self.num_ps)
        self._traced: weakref.WeakSet[Any] = weakref.WeakSet()
        self._replacement = ServerReplacement(
            [tasks[each] for each in there],
            runs=lambda index: processes is None or processes.runs(("ps", index)),
            refresh=self._members.refresh,
            serve_secs=wait_secs,
            first=first,
        )
        for worker in known:
            self._start_thread(worker, 0)
        if processes is not None:
            processes.on_place = self._place
            processes.on_end = self._members.lost
            processes.replaces = self._replacement.take
        self._watcher = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._watcher.start()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Enters the strategy's scope; a variable goes to the server that holds the least."""
        self._placement = VariablePlacement(self.num_ps)
        with self.strategy.scope(), tf.variable_creator_scope(self._placement.create):
            yield

    def trace(self, function: Any, args: tuple[Any, ...]) -> Any:
        """Traces a function; returns it for these arguments."""
        with self._schedule_lock, self.strategy.scope():
            concrete = function.get_concrete_function(*args)
        self._traced.add(concrete)
        return concrete

    def run_everywhere(self, function: Any, args: tuple[Any, ...]) -> None:
        """Runs a function on each worker that is there, and waits for all.

        Raises:
          OpError: it failed on one.
        """
        concrete = self.trace(function, args)

        def run(worker: int) -> None:
            use_own_executor()
            with tf.device(device_of(("worker", worker), self._first)):
                concrete(*args)

        workers = self._members.members()
        with concurrent.futures.ThreadPoolExecutor(len(workers) or 1, "everywhere") as pool:
            list(pool.map(run, workers))

    def schedule(
        self,
        function: Any,
        args: tuple[Any, ...],
        *,
        on_start: Callable[[], None] = lambda: None,
        on_death: OnDeath | None = None,
        order: int = 0,
    ) -> ScheduledCall:
        """Queues a function for any worker."""
        call = ScheduledCall()
        call.on_death = on_death
        self._calls.add(call)
        try:
            concrete = self.trace(function, args)
        except BaseException:
            call.cancel()
            raise

        def attempt(worker: int, number: int) -> None:
            cancellations = cancellation.CancellationManager()
            call.begin(worker, cancellations.start_cancel)
            if call.done():  # only now, so that an interruption meets this or the function
                return
            if self._replacement.is_due:
                call.end(error=ServerLostError("a parameter server is lost"))
                return
            self._calls.started((worker, number), call)
            if self._processes is not None:
                self._processes.unit_started(worker, call)
            on_start()
            try:
                values = cancellations.get_cancelable_function(concrete)(*args)
                call.end(tf.nest.map_structure(lambda t: t.numpy(), values))
            except BaseException as error:
                if (worker, number) not in self._taken:
                    raise  # another worker attempts it
                call.worker, call.started_at = None, math.inf
                if call.cancelled() and isinstance(error, tf.errors.CancelledError):
                    return  # it was interrupted, and its worker is not lost
                if self._is_of_server():
                    lost = ServerLostError("a parameter server is lost")  # whatever the error says
                    lost.__cause__ = error
                    call.end(error=lost)
                    return
                if self._members.number(worker) != number or _is_of_worker(error):
                    self._calls.count_lost_attempt()
                    self._losses.lost(worker)
                    cause = None if on_death is None or self._is_closed else on_death()
                    if cause is not None:  # no worker is to try it again
                        call.end(error=cause)
                        if self._processes is not None:
                            self._processes.unit_set_aside(worker)
                    raise
                call.end(error=error)
            finally:
                self._calls.stopped((worker, number))
            if (worker, number) not in self._taken:
                return
            self._losses.works(worker)
            if self._processes is not None:
                self._processes.unit_ended(worker)

        self._queue.put(attempt, order=order)
        return call

    def _is_of_server(self) -> bool:
        """Tells whether a call failed as a parameter server is lost that is replaced."""
        if self._processes is None and self._replacement.allowed:  # nobody told of it yet
            for index in range(self.num_ps):
                silent = ("ps", index) in self._health.unresponsive()
                if not (silent or self._replacement.is_due or self._health.answers(("ps", index))):
                    self._replacement.find(index, f"parameter server {index} cannot be reached")
        return self._replacement.is_due

    def _start_thread(self, worker: int, number: int) -> None:
        threading.Thread(
            target=self._run_calls, args=(worker, number), name=f"worker {worker}", daemon=True
        ).start()

    def _run_calls(self, worker: int, number: int) -> None:
        """Runs one call after the other on a worker, for as long as a membership of it lasts."""
        use_own_executor()
        task: TaskId = ("worker", worker)
        while self._members.number(worker) == number:
            if task in self._health.draining():
                self._health.allow_shutdown(task)
                while task in self._health.draining():
                    time.sleep(_TICK_SECS)
                self._members.lost(worker, number)
                break
            taken = self._queue.take(partial(self._takes_calls, worker, number))
            if taken is None:
                continue
            self._taken[worker, number] = taken
            try:
                with tf.device(device_of(task, self._first)):
                    taken[1](worker, number)
            except BaseException as error:
                self._give_back(worker, number)
                if not isinstance(error, tf.errors.CancelledError):
                    self._members.lost(worker, number)
            else:
                if self._taken.pop((worker, number), None) is not None:
                    self._queue.ended()
            finally:
                # The last holder of a function tells every worker that it is gone. That is now, not
                # when it takes another call, when a worker may be stopped.
                del taken

    def _give_back(self, worker: int, number: int) -> bool:
        """Has another worker attempt a worker's call, if none does; tells whether none did."""
        taken = self._taken.pop((worker, number), None)
        if taken is None:
            return False
        self._queue.put(taken[1], order=taken[0])
        self._queue.ended()
        return True

    def _give_back_stuck(self, gone: dict[tuple[int, int], float]) -> None:
        """Gives calls back that do not end although their worker is gone.

        Args:
          gone: since when the workers of calls are, by time.monotonic(); it is kept here.
        """
        now = time.monotonic()
        for worker, number in [*self._taken]:
            if self._members.number(worker) == number:
                continue
            since = gone.setdefault((worker, number), now)
            if now - since > _STUCK_SECS and self._give_back(worker, number):
                self._calls.stopped((worker, number))
                self._calls.count_lost_attempt()
        for each in gone.keys() - self._taken.keys():
            del gone[each]

    def _takes_calls(self, worker: int, number: int) -> bool:
        """Tells whether a worker is there, as of a number of its membership, and stays."""
        is_member = self._members.number(worker) == number
        return is_member and ("worker", worker) not in self._health.draining()

    def _place(self, worker: int, address: str | None) -> None:
        """Takes where a worker may be from now on; None if it left for good."""
        self._members.place(worker, address)
        if address is None:
            self._health.remove(("worker", worker))
            self.num_workers -= 1
            self._news.append(f"worker {worker} left: {self._describe_workers()}")
        else:
            self._health.add(("worker", worker), address)
            self.num_workers += 1

    def _joined(self, worker: int, number: int, is_new: bool) -> None:
        self._start_thread(worker, number)
        if is_new:
            self._news.append(f"worker {worker} joined: {self._describe_workers()}")

    def _describe_workers(self) -> str:
        return f"{self.present_workers} of {self.num_workers} workers are there"

    @property
    def present_workers(self) -> int:
        """How many workers are there now; at least 1."""
        return max(1, len(self._members.members()))

    def fetch(self, result: ScheduledCall) -> Any:
        """Waits for a function's values and returns them."""
        return result.result()

    def replace_servers(self, replaces: bool) -> LostServer | None:
        """Says whether the run goes on beside a parameter server that dies and serves again."""
        return self._replacement.allow(replaces)

    def lost_server(self, secs: float = 0.0) -> LostServer | None:
        """Waits up to so long for a server to be found dead; gives it until `await_workers`."""
        deadline = time.monotonic() + (secs if self._replacement.allowed else 0.0)
        while self._processes is None and not self._is_of_server():
            if time.monotonic() >= deadline:
                break
            time.sleep(_TICK_SECS)
        return self._replacement.lost(max(0.0, deadline - time.monotonic()))

    def await_server(self, lost: LostServer) -> None:
        """Waits until a server that died serves again, empty."""
        self._replacement.await_server(
            lost,
            is_idle=self._queue.is_idle,
            end_calls=self._end_calls,
            settle_secs=self.server_timeout_secs,
        )
        self._health.forgive(("ps", lost.number))

    def _end_calls(self) -> None:
        """Kills the local processes of workers that do not end a call; they are started again.

        TensorFlow's cancellation does not end a call.
        """
        if self._processes is not None:
            for worker in self._calls.busy():
                self._processes.kill(("worker", worker))

    def await_workers(self, lost: LostServer) -> None:
        """Waits until all workers reach a server that serves again."""
        self._replacement.await_workers(lost, self._members.members())

    def give_up(self, error: ServerLostError) -> None:
        """Ends the processes: the cluster cannot go on."""
        if self._processes is not None:
            self._processes.close()
        self._on_lost(error)

    def traced_functions(self) -> list[Any]:
        """Lists the functions that were scheduled."""
        return list(self._traced)

    def variables_on(self, device: str) -> list[tf.Variable]:
        """Lists the variables that were made on a server."""
        return self._placement.made_on(device)

    def unresponsive_workers(self) -> Set[int]:
        """Returns the workers that have not answered for too long."""
        return {index for job, index in self._health.unresponsive() if job == "worker"}

    def lost_workers(self) -> Set[int]:
        """Returns the workers that cannot be reached or do not answer."""
        tasks = self._health.unresponsive() | self._health.unreachable()
        return self._members.gone() | {index for job, index in tasks if job == "worker"}

    def worker_news(self) -> list[WorkerNews]:
        """Returns which workers were lost, or work again, since the last call."""
        for worker in self.lost_workers():
            self._losses.lost(worker)
        return self._losses.take()

    def news(self) -> list[str]:
        """Returns lines, since the last call: which workers joined or left."""
        news, self._news = self._news, []
        return news

    def draining(self) -> Set[TaskId]:
        """Returns the servers that got a shutdown notice and wait for `allow_shutdown`."""
        return self._health.draining()

    def allow_shutdown(self, task: TaskId) -> None:
        """Lets a draining server shut down."""
        self._health.allow_shutdown(task)

    @property
    def worker_restarts(self) -> int:
        """Returns how often a worker's process was restarted."""
        return self._processes.restarts if self._processes else 0

    def done(self) -> bool:
        """Tells whether every scheduled function has ended."""
        return self._queue.is_idle()

    def join(self) -> None:
        """Waits until every scheduled function has ended."""
        self._queue.join()

    def close(self) -> None:
        """Stops watching the servers, and ends the local processes if there are any."""
        self._closed.set()
        self._health.close()
        self._members.close()
        self.strategy.close()
        if self._processes is not None:
            self._processes.close()

    @property
    def _is_closed(self) -> bool:
        """Whether this process itself ends the servers."""
        is_closed = self._processes is not None and self._processes.is_closed
        return is_closed or self._closed.is_set()

    def _watch(self) -> None:
        gone: dict[tuple[int, int], float] = {}
        while not self._closed.wait(_TICK_SECS):
            self._give_back_stuck(gone)
            lost = self._check_servers()
            if lost is not None and not self._closed.is_set():
                self._on_lost(lost)
                return

    def _check_servers(self) -> ClusterError | None:
        """Lets idle workers drain, kills dead workers; returns why the cluster is lost, if so."""
        foreign = self._health.foreign()
        if foreign is not None:
            return foreign
        draining = self._health.draining()
        for job, index in draining:
            if job == "worker" and not self._calls.is_busy(index):
                self._health.allow_shutdown((job, index))
        for job, index in self._health.unresponsive():
            if self._processes is not None:
                self._processes.kill((job, index))
            elif job == "ps":
                return ServerLostError(
                    f"parameter server {index} has not answered for "
                    f"{self.server_timeout_secs:.0f} s"
                )
        stall = self._calls.describe_stall(self._health.unresponsive())
        if stall:
            return ServerLostError(stall)
        for job, index in self._health.unreachable() - draining:
            if job == "ps" and self._processes is None:
                why = f"parameter server {index} cannot be reached"
                if not self._replacement.find(index, why):
                    return ServerLostError(why)
        return None


def _is_of_worker(error: BaseException) -> bool:
    """Tells whether the coordinator treats an error as the loss of a worker, and retries."""
    if isinstance(error, tf.errors.CancelledError) and "/job:" in str(error):
        return True
    return bool(cluster_coordinator._is_worker_failure(error))
