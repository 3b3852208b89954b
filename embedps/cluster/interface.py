"""Declares the interface of a cluster, which runs units."""

from __future__ import annotations

import abc
import concurrent.futures
import math
import time
from collections.abc import Callable, Sequence, Set
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from embedps.cluster.worker_losses import WorkerNews
from embedps.engine.steps.interface import UnitFunction
from embedps.engine.steps.step_workers import StepWorkers
from embedps.engine.steps.ways import Place
from embedps.errors import ClusterError, ServerLostError, UsageError
from embedps.kernels.tasks import TaskId
from embedps.tables.collection import EmbeddingCollection

OnDeath: TypeAlias = Callable[[], BaseException | None]


class LostServer(NamedTuple):
    """A parameter server that died.

    Attributes:
      number: of its task.
      device: where its ops run.
      why: how it ended.
      noticed_at: seconds since 1970.
    """

    number: int
    device: str
    why: str
    noticed_at: float


class ScheduledCall(concurrent.futures.Future[Any]):
    """A scheduled function: a future of its values, as NumPy.

    If it is cancelled, it does not begin any more; if it has begun, its values are dropped, but its
    worker goes on with it, unless it is interrupted.

    Attributes:
      worker: the index of the worker that runs it; None if none does.
      started_at: when that worker began, by time.monotonic().
      on_death: called when a worker was lost while it ran it; gives the error that ends it, or None
        if another worker is to try it. If it is None, nobody counts.
      deaths: how many local worker processes died while they ran it.
    """

    worker: int | None = None
    started_at: float = math.inf
    on_death: OnDeath | None = None
    deaths: int = 0
    _stop_running: Callable[[], None] | None = None

    def begin(self, worker: int, stop_running: Callable[[], None] | None = None) -> None:
        """Records that a worker begins it now.

        Args:
          worker: its index.
          stop_running: frees the worker before the function ends, if that is possible.
        """
        self.worker, self.started_at = worker, time.monotonic()
        self._stop_running = stop_running

    def interrupt(self) -> None:
        """Cancels it and, if a worker runs it, frees that worker."""
        if self.cancel() and self._stop_running is not None:
            self._stop_running()

    def end(self, values: Any = None, error: BaseException | None = None) -> None:
        """Sets its values or its error, unless it was cancelled in the meantime."""
        try:
            if error is not None:
                self.set_exception(error)
            else:
                self.set_result(values)
        except concurrent.futures.InvalidStateError:
            return


class Cluster(abc.ABC):
    """Runs functions on workers, and says where tables and variables are.

    What only some clusters do has a default here: that of threads of one process.

    Attributes:
      place: where tables and variables are.
      leads: whether this process has the ledger; others do their part of what it tells them.
      why_fixed: why `scale` refuses, and what to do instead; empty if it does not.
      step_workers: the workers, if they exchange by collectives.
      shares_machine: whether all tables are on this machine.
      strategy: its `run` calls a step.
      shard_devices: a device per shard of the tables.
      num_workers: how many functions run at once, if all workers are there.
      num_ps: the number of parameter servers; 0 if this process holds the tables.
      server_timeout_secs: a server that does not answer for this long counts as dead; 0 if there
        are no servers.
      can_lose_workers: whether a worker can be slow or lost while others are not.
    """

    place: Place
    leads: bool = True
    why_fixed: str = (
        "only a local cluster (--num-ps) gets other tasks while it trains: stop the run, and run "
        "it again as it is to be"
    )
    step_workers: StepWorkers | None = None
    shares_machine: bool = True
    strategy: tf.distribute.Strategy
    shard_devices: Sequence[str]
    num_workers: int
    num_ps: int
    server_timeout_secs: float
    can_lose_workers: bool

    @abc.abstractmethod
    def scope(self) -> AbstractContextManager[Any]:
        """Enters the scope in which variables must be made."""

    @property
    def present_workers(self) -> int:
        """How many of the workers are there now; at least 1."""
        return self.num_workers

    def scale(self, num_workers: int) -> None:
        """Has another number of workers from now on; returns at once.

        Raises:
          UsageError: this cluster cannot.
        """
        raise UsageError(self.why_fixed)

    def news(self) -> list[str]:
        """Returns lines, since the last call: which workers joined or left."""
        return []

    def check_same(self, number: int) -> None:
        """Checks that all clients see the same last checkpoint.

        Raises:
          UsageError: they do not.
        """
        return

    def seed_steps(self, seed: int) -> None:
        """Seeds what a network draws in steps, once it is made."""
        return

    def make_tables(self, *args: Any, **options: Any) -> EmbeddingCollection:
        """Makes tables with a shard on each of `shard_devices`; see `EmbeddingCollection`."""
        return EmbeddingCollection(*args, devices=self.shard_devices, **options)

    def rate_setter(self, set_rate: Callable[[float], Any]) -> Callable[[float], Any]:
        """Makes a function that sets the network's learning rate wherever it is."""
        return set_rate

    def replace_servers(self, replaces: bool) -> LostServer | None:
        """Says whether a parameter server that dies is started again without this client's end.

        If so, `lost_server` tells of it, and `await_server` and `await_workers` must follow. Only
        some clusters do it.

        Returns:
          A server that is lost now.
        """
        return None

    def lost_server(self, secs: float = 0.0) -> LostServer | None:
        """Waits up to so long for a server to be found dead; gives it until `await_workers`."""
        return None

    def await_server(self, lost: LostServer) -> None:
        """Waits until a server that died serves again, empty; no call may be under way.

        Raises:
          ServerLostError: it does not, or more was lost meanwhile.
        """
        return

    def await_workers(self, lost: LostServer) -> None:
        """Waits until all workers reach a server that serves again; it is not lost any more.

        Raises:
          ServerLostError: one does not, or more was lost meanwhile.
        """
        return

    def give_up(self, error: ServerLostError) -> None:
        """Takes that the cluster cannot go on, after what follows a loss failed."""
        return

    def traced_functions(self) -> list[Any]:
        """Lists the functions that were scheduled, which hold handles of what is on servers."""
        return []

    def variables_on(self, device: str) -> list[tf.Variable]:
        """Lists the variables that were made on a server."""
        return []

    def led(self, name: str, function: UnitFunction) -> UnitFunction:
        """Makes a unit's function one that runs on all workers which must run it; `name` is its."""
        return function

    def call_on_loss(self, on_lost: Callable[[ClusterError], None] | None) -> None:
        """Replaces the function that is called on another thread if the cluster cannot go on."""
        return

    def trace(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:  # noqa: B027
        """Traces a tf.function before it is scheduled.

        TensorFlow tells all servers of a new function, and until all have answered, this process
        runs no Python: nobody would find and end one that is silent. So what a run needs later is
        traced at its start, when all have just answered.

        Args:
          args: tensors, or `TensorSpec`s.
        """

    @abc.abstractmethod
    def schedule(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        on_start: Callable[[], None] = lambda: None,
        on_death: OnDeath | None = None,
        order: int = 0,
    ) -> ScheduledCall:
        """Queues a tf.function for any worker; returns at once.

        Args:
          function: what to run; if its worker dies, it runs again on another.
          on_start: called each time a worker begins it, on that worker's thread.
          on_death: as a ScheduledCall has it.
          order: workers begin calls of a lower order first.
        """

    @abc.abstractmethod
    def fetch(self, result: ScheduledCall) -> Any:
        """Waits for a scheduled function and returns its values as NumPy, or raises its error."""

    def unresponsive_workers(self) -> Set[int]:
        """Returns the workers that have not answered for too long."""
        return frozenset()

    def lost_workers(self) -> Set[int]:
        """Returns the workers that cannot be reached or do not answer."""
        return frozenset()

    def worker_news(self) -> list[WorkerNews]:
        """Returns which workers were lost, or work again, since the last call."""
        return []

    def draining(self) -> Set[TaskId]:
        """Returns the servers that got a shutdown notice and wait for `allow_shutdown`."""
        return frozenset()

    def allow_shutdown(self, task: TaskId) -> None:
        """Lets a draining server shut down."""
        return

    @property
    def worker_restarts(self) -> int:
        """Returns how often a worker's process was restarted."""
        return 0

    @abc.abstractmethod
    def done(self) -> bool:
        """Tells whether every scheduled function has ended."""

    @abc.abstractmethod
    def join(self) -> None:
        """Waits until every scheduled function has ended."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the threads and processes that this object started."""
