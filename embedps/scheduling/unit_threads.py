"""Runs the units of a ledger on threads: what all schedulers do."""

from __future__ import annotations

import abc
import concurrent.futures
import enum
import math
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

import tensorflow as tf

from embedps.cluster.interface import Cluster, OnDeath, ScheduledCall
from embedps.engine.steps.interface import UnitFunction
from embedps.engine.steps.step_logs import StepLogs
from embedps.engine.unit_functions import explain
from embedps.errors import EmbedpsError
from embedps.metrics import Counts
from embedps.scheduling.ledger import Ledger, Unit
from embedps.scheduling.unit_deaths import SetAsideError

TICK_SECS = 0.2
_IDLE_SECS = 0.05  # from one look for new units to the next
_MAX_THREADS = 1 << 20
_RETRY_SECS = 1.0  # from a unit's failure to its next attempt


class OnFailure(enum.Enum):
    """What follows from a unit's failure."""

    STOP = enum.auto()
    LEAVE_OUT = enum.auto()
    TRY_AGAIN = enum.auto()


class Wait(NamedTuple):
    """Whom the workers wait for.

    Attributes:
      where: the step, which stays the same as long as the wait lasts.
      why: what is known of the cause.
    """

    where: str
    why: str


class UnitInProgress(NamedTuple):
    """A unit that was handed out and is not done.

    Attributes:
      unit: what is trained.
      calls: the attempts at it, or the last attempt at each of its parts.
      attempt: schedules an attempt; takes the index of the part.
    """

    unit: Unit
    calls: list[ScheduledCall]
    attempt: Callable[[int], ScheduledCall]


class UnitThreads(abc.ABC):
    """Runs units on threads, one unit after the other each, until none is left or the run stops.

    If the ledger grows, they wait for more units instead.

    Use it as a context manager; its exit waits for the units in progress. A unit that fails is
    given back to the ledger, and stops all threads unless `on_failure` tells otherwise.
    """

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        function: UnitFunction,
        *,
        arguments: Callable[[Unit], tuple[tf.Tensor, ...]],
        record: Callable[[Unit, Counts], None],
        stop: threading.Event,
        on_begin: Callable[[Unit], None] = lambda _: None,
        group_size: int | None = None,
        finish_secs: float = math.inf,
        on_failure: Callable[[Unit, BaseException], OnFailure] = lambda *_: OnFailure.STOP,
        on_death: Callable[[Unit], BaseException | None] | None = None,
    ) -> None:
        """Starts the threads.

        Args:
          cluster: where units run.
          ledger: hands out the units; a unit is done after its counts are recorded.
          function: runs a unit.
          arguments: makes the function's arguments from a unit.
          record: called with each unit's counts before the unit is done; may raise to refuse them.
          on_begin: called on a worker's thread just before it runs a unit.
          stop: once set, no unit begins; `end` does the same for this scheduler alone.
          group_size: how many workers train a unit together, where it takes several; None is all.
          finish_secs: the time after a stop before units in progress are given back.
          on_failure: tells what follows when a unit fails.
          on_death: tells what follows when the worker that ran a unit was lost; see ScheduledCall.
        """
        self._cluster = cluster
        self._ledger = ledger
        self._function = function
        self._arguments = arguments
        self._record = record
        self._on_begin = on_begin
        self._stop = stop
        self._group_size = group_size or cluster.num_workers
        self._ending = threading.Event()  # stops this scheduler alone
        self._finish_secs = finish_secs
        self._on_failure = on_failure
        self._on_death = on_death
        self._order = threading.Lock()
        self._lock = threading.Lock()  # guards the six below
        self._error: BaseException | None = None
        self._stopped_at: float | None = None
        self._drains = False
        self._in_progress: list[UnitInProgress] = []  # in the order in which they were handed out
        self._rows_done = 0
        self._secs_done = 0.0
        self._num_threads = 0
        self._pool = concurrent.futures.ThreadPoolExecutor(_MAX_THREADS, "units")
        self._threads: list[concurrent.futures.Future[None]] = []
        self._start_threads()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.abandon()
        self.end()
        self._pool.shutdown()

    @property
    def error(self) -> BaseException | None:
        """Returns why a unit failed; None if none failed."""
        with self._lock:
            return self._error

    def _start_threads(self) -> None:
        """Starts a thread for each unit that may be handed out, as far as there is none."""
        with self._lock:
            missing = max(0, self._max_units() - self._num_threads)
            self._num_threads += missing
        self._threads += [self._pool.submit(self._run_units) for _ in range(missing)]

    def _leaves(self) -> bool:
        """Tells a thread whether it is one too many, and counts it off."""
        with self._lock:
            leaves = self._num_threads > self._max_units()
            self._num_threads -= leaves
        return leaves

    def wait(self, secs: float) -> bool:
        """Waits until all threads are finished, or for so long; tells whether any still runs.

        Workers may have come meanwhile: it starts threads for their units.
        """
        self._threads = [each for each in self._threads if not each.done()]
        if (
            self._threads
            and not self._is_stopped
            and (self._ledger.grows or not self._ledger.exhausted)
        ):
            self._start_threads()
        return bool(concurrent.futures.wait(self._threads, timeout=secs).not_done)

    def end(self) -> None:
        """Stops beginning units."""
        self._ending.set()

    def drain(self) -> None:
        """Stops beginning units; those in progress have all the time that they need."""
        with self._lock:
            self._drains = True
        self.end()

    @property
    def _is_stopped(self) -> bool:
        return self._stop.is_set() or self._ending.is_set()

    def abandon(self) -> None:
        """Stops, and gives back the units in progress."""
        with self._lock:
            self._stopped_at = -math.inf
        self.end()

    def _begin(self, unit: Unit) -> None:
        """Takes that a worker begins an attempt at a unit."""
        self._ledger.begin(unit)
        self._on_begin(unit)

    @abc.abstractmethod
    def awaited(self, logs: StepLogs) -> list[Wait]:
        """Tells whom workers wait for, if they do."""

    @abc.abstractmethod
    def _max_units(self) -> int:
        """Returns how many units may be handed out at once."""

    @abc.abstractmethod
    def _start(self, unit: Unit) -> UnitInProgress:
        """Schedules a unit."""

    @abc.abstractmethod
    def _await_counts(self, started: UnitInProgress) -> Counts | None:
        """Waits until a unit is trained; returns None if the time to finish is over.

        Raises:
          Exception: the unit failed.
        """

    def _run_units(self) -> None:
        """Runs one unit after the other."""
        while not self._is_stopped and not self._leaves():
            with self._order:  # so that units are scheduled in the ledger's order
                unit = self._ledger.take()
                if unit is not None:
                    try:
                        started = self._start(unit)
                    except BaseException as error:
                        self._fail(unit, error)
                        return
                    with self._lock:
                        self._in_progress.append(started)
            if unit is None:
                # Units are left if those at work must end first.
                if self._ledger.exhausted and not self._ledger.grows:
                    return
                self._ending.wait(_IDLE_SECS)
                continue
            try:
                counts = self._await_counts(started)
                self._leave(started)
                if counts is None:
                    self._ledger.give_back(unit)
                    return
                self._record(unit, counts)
                self._ledger.done(unit)
            except BaseException as error:
                self._leave(started)
                cause = self._cause(started, error)
                if cause is not None:
                    self._fail(unit, cause)
                    return
            finally:
                with self._lock:
                    self._in_progress.remove(started)

    def _leave(self, started: UnitInProgress) -> None:
        """Drops attempts that are still queued: they need not run."""
        for call in started.calls:
            call.cancel()

    def _cause(self, started: UnitInProgress, error: BaseException) -> BaseException | None:
        """Leaves a unit that failed out, or gives it back to be tried again.

        Returns the error that stops all threads; None if they go on.
        """
        unit = started.unit
        if isinstance(error, SetAsideError):
            self._ledger.put_aside(unit)
            return None
        if self._is_stopped:
            return error
        outcome = self._on_failure(unit, error)
        if outcome is OnFailure.LEAVE_OUT:
            self._ledger.leave_out(unit)
        elif outcome is OnFailure.TRY_AGAIN:
            self._ledger.give_back(unit)
            self._ending.wait(_RETRY_SECS)
        elif self._is_units_own(unit, error):
            cause = self._ledger.deaths.count_death(self._ledger.name_of(unit))
            if isinstance(cause, SetAsideError):
                self._ledger.put_aside(unit)
                return None
            self._ledger.deaths.end(unit.position)  # it is counted
            return cause or error
        return error if outcome is OnFailure.STOP else None

    def _is_units_own(self, unit: Unit, error: BaseException) -> bool:
        """Tells whether an error may come from a unit's rows, and not from the model or a server.

        A model of which no unit was done may be wrong itself.
        """
        is_known = isinstance(explain(error), EmbedpsError)
        is_unread = "://" in unit.path and unit.path in str(error)  # by an object store
        is_unexpected = isinstance(error, Exception) and not is_known and not is_unread
        return is_unexpected and self._ledger.num_done > 0

    def _death_of(self, unit: Unit) -> OnDeath | None:
        on_death = self._on_death
        return None if on_death is None else lambda: on_death(unit)

    def _is_over(self) -> bool:
        """Tells whether the time to finish after a stop is over."""
        if not self._is_stopped:
            return False
        now = time.monotonic()
        with self._lock:
            if self._error is not None:
                return True
            if self._drains and self._stopped_at is None and not self._stop.is_set():
                return False
            if self._stopped_at is None:
                self._stopped_at = now
            return now - self._stopped_at >= self._finish_secs  # both are infinite once abandoned

    def _usual_secs(self, unit: Unit) -> float:
        """Returns the usual time for a unit's rows; a file's last unit may have fewer rows."""
        with self._lock:
            return self._secs_done / max(1, self._rows_done) * unit.num_rows

    def _fail(self, unit: Unit, error: BaseException) -> None:
        self._ledger.give_back(unit)
        with self._lock:
            # The coordinator cancels the other units; their CancelledError is not the cause.
            if self._error is None or isinstance(self._error, tf.errors.CancelledError):
                self._error = error
        self.end()
