"""Declares the interface of a cluster: where units run."""

from __future__ import annotations

import concurrent.futures
import math
from collections.abc import Callable, Sequence, Set
from contextlib import AbstractContextManager
from typing import Any, Protocol

import tensorflow as tf

from embedps.cluster.health import TaskId


class ScheduledCall(concurrent.futures.Future[Any]):
    """A scheduled function: a future of its values, as NumPy.

    Cancelled, it does not begin any more; if it has, its values are dropped.

    Attributes:
      worker: the index of the worker that runs it; None where none does yet.
      started_at: when that worker began, as time.monotonic() says.
      deaths: how many workers of ours have died while they ran it.
    """

    worker: int | None = None
    started_at: float = math.inf
    deaths: int = 0

    def end(self, values: Any = None, error: BaseException | None = None) -> None:
        """Takes its values or its error, unless it was cancelled meanwhile."""
        try:
            if error is not None:
                self.set_exception(error)
            else:
                self.set_result(values)
        except concurrent.futures.InvalidStateError:
            return


class Cluster(Protocol):
    """Runs functions on workers, tables and variables being elsewhere.

    Attributes:
      strategy: whose `run` a step is called by.
      shard_devices: a device for each shard of the tables.
      num_workers: functions that run at once.
      num_ps: parameter servers; 0 where this process holds the tables.
      server_timeout_secs: a server that does not answer for so long is taken as dead; 0 where there
        is none.
      can_lose_workers: a worker may be slow or gone while the others are well.
    """

    strategy: tf.distribute.Strategy
    shard_devices: Sequence[str]
    num_workers: int
    num_ps: int
    server_timeout_secs: float
    can_lose_workers: bool

    def scope(self) -> AbstractContextManager[Any]:
        """Where variables are made."""

    def schedule(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        on_start: Callable[[], None] = lambda: None,
    ) -> ScheduledCall:
        """Queues a tf.function for any worker; returns at once.

        Args:
          function: what to run; if its worker dies, it runs again on another.
          args: of it.
          on_start: called each time a worker begins it, on a thread of that worker's.
        """

    def fetch(self, result: ScheduledCall) -> Any:
        """Waits for a scheduled function and returns its values as NumPy, or raises its error."""

    def unresponsive_workers(self) -> Set[int]:
        """The workers that have not answered for too long."""

    def draining(self) -> Set[TaskId]:
        """The servers that were told to end and wait for `release`: a notice."""

    def allow_shutdown(self, task: TaskId) -> None:
        """Lets a server end that is leaving."""

    @property
    def worker_restarts(self) -> int:
        """How often a worker's process was started again."""

    def done(self) -> bool:
        """Whether nothing scheduled is left to run."""

    def join(self) -> None:
        """Waits until nothing scheduled is left to run."""

    def close(self) -> None:
        """Ends what this object started."""
