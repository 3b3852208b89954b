"""The scheduler: keeps the units of a ledger running on a cluster."""

from __future__ import annotations

import concurrent.futures
import enum
import math
import threading
import time
from collections.abc import Callable
from types import TracebackType

import tensorflow as tf

from embedps.cluster.interface import Cluster, ScheduledCall
from embedps.engine.unit_functions import UnitFunction
from embedps.metrics import Counts
from embedps.scheduling.ledger import Ledger, Unit

_UNITS_PER_WORKER = 2  # one running, one queued behind it
_TICK_SECS = 0.2
_IDLE_SECS = 0.05  # from one look for new units to the next
_RETRY_SECS = 1.0  # from a unit's failure to its next attempt
# A unit is a straggler after this time, and this multiple of the usual time for its rows.
_STRAGGLER_SECS = 1.0
_STRAGGLER_TIMES = 2.0
# A unit is stuck after this time, and this multiple of the usual time for its rows.
_STUCK_SECS = 600.0
_STUCK_TIMES = 20.0


class OnFailure(enum.Enum):
    """What follows from a unit's failure."""

    STOP = enum.auto()
    LEAVE_OUT = enum.auto()
    TRY_AGAIN = enum.auto()


class Scheduler:
    """Runs units on threads, one unit after the other each, until none is left or the run stops.

    If the ledger grows, they wait for more units instead.

    Use it as a context manager; its exit waits for the units in progress. A unit that fails is
    given back to the ledger, and stops all threads unless `on_failure` tells otherwise. A unit
    whose worker does not answer gets another attempt on another worker. A straggler gets one more
    attempt if no unit is left to hand out and a worker is idle. The first attempt that ends is
    recorded, and the counts of the others are dropped. Servers apply each step
    only once: see engine/step_exchange.py.
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
        finish_secs: float = math.inf,
        on_failure: Callable[[Unit, BaseException], OnFailure] = lambda *_: OnFailure.STOP,
    ) -> None:
        """Starts the threads.

        Args:
          cluster: where units run.
          ledger: hands out the units; a unit is done after its counts are recorded.
          function: runs a unit.
          arguments: makes the function's arguments from a unit.
          record: called with each unit's counts before the unit is done; may raise to refuse them.
          stop: once set, no unit begins; `end` does the same for this scheduler alone.
          finish_secs: the time after a stop before units in progress are given back.
          on_failure: tells what follows when a unit fails.
        """
        self._cluster = cluster
        self._ledger = ledger
        self._function = function
        self._arguments = arguments
        self._record = record
        self._stop = stop
        self._ending = threading.Event()  # stops this scheduler alone
        self._finish_secs = finish_secs
        self._on_failure = on_failure
        self._order = threading.Lock()
        self._lock = threading.Lock()  # guards the four below
        self._error: BaseException | None = None
        self._stopped_at: float | None = None
        self._in_progress = 0
        self._rows_done = 0
        self._secs_done = 0.0
        num_threads = _UNITS_PER_WORKER * cluster.num_workers
        self._pool = concurrent.futures.ThreadPoolExecutor(num_threads, "units")
        self._threads = [self._pool.submit(self._run_units) for _ in range(num_threads)]

    def __enter__(self) -> Scheduler:
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

    def wait(self, secs: float) -> bool:
        """Waits until all threads are finished, or for so long; tells whether any still runs."""
        return bool(concurrent.futures.wait(self._threads, timeout=secs).not_done)

    def end(self) -> None:
        """Stops beginning units."""
        self._ending.set()

    @property
    def _is_stopped(self) -> bool:
        return self._stop.is_set() or self._ending.is_set()

    def abandon(self) -> None:
        """Stops, and gives back the units in progress."""
        with self._lock:
            self._stopped_at = -math.inf
        self.end()

    def _run_units(self) -> None:
        """Runs one unit after the other."""
        while not self._is_stopped:
            with self._order:  # so that units are scheduled in the ledger's order
                unit = self._ledger.take()
                if unit is not None:
                    try:
                        attempts = [self._start_attempt(unit)]
                    except BaseException as error:
                        self._fail(unit, error)
                        return
            if unit is None:
                if not self._ledger.grows:
                    return
                self._ending.wait(_IDLE_SECS)
                continue
            with self._lock:
                self._in_progress += 1
            try:
                counts = self._await_counts(unit, attempts)
                for attempt in attempts:  # those still queued need not run
                    attempt.cancel()
                if counts is None:
                    self._ledger.give_back(unit)
                    return
                self._record(unit, counts)
                self._ledger.done(unit)
            except BaseException as error:
                if not self._goes_on(unit, error):
                    self._fail(unit, error)
                    return
            finally:
                with self._lock:
                    self._in_progress -= 1

    def _goes_on(self, unit: Unit, error: BaseException) -> bool:
        """Leaves a unit that failed out, or gives it back to be tried again; tells if it did."""
        if self._is_stopped:
            return False
        outcome = self._on_failure(unit, error)
        if outcome is OnFailure.LEAVE_OUT:
            self._ledger.leave_out(unit)
        elif outcome is OnFailure.TRY_AGAIN:
            self._ledger.give_back(unit)
            self._ending.wait(_RETRY_SECS)
        return outcome is not OnFailure.STOP

    def _start_attempt(self, unit: Unit) -> ScheduledCall:
        return self._cluster.schedule(
            self._function, self._arguments(unit), on_start=lambda: self._ledger.begin(unit)
        )

    def _await_counts(self, unit: Unit, attempts: list[ScheduledCall]) -> Counts | None:
        """Waits until an attempt at a unit ends; returns None if the time to finish is over."""
        has_backup = False
        while True:
            concurrent.futures.wait(
                attempts, timeout=_TICK_SECS, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for attempt in filter(ScheduledCall.done, attempts):
                counts: Counts = self._cluster.fetch(attempt)
                with self._lock:
                    self._rows_done += unit.num_rows
                    self._secs_done += time.monotonic() - attempt.started_at
                return counts
            if self._is_over():
                return None
            lost = all(self._is_stuck(unit, attempt) for attempt in attempts)
            if lost or (not has_backup and self._is_straggler(unit, attempts)):
                has_backup |= not lost
                attempts.append(self._start_attempt(unit))

    def _is_over(self) -> bool:
        """Tells whether the time to finish after a stop is over."""
        if not self._is_stopped:
            return False
        now = time.monotonic()
        with self._lock:
            if self._error is not None:
                return True
            if self._stopped_at is None:
                self._stopped_at = now
            return now - self._stopped_at >= self._finish_secs  # both are infinite once abandoned

    def _is_stuck(self, unit: Unit, attempt: ScheduledCall) -> bool:
        """Tells whether an attempt's worker does not answer, or takes far too long."""
        worker = attempt.worker
        if worker is None or not self._cluster.can_lose_workers:
            return False
        limit = max(_STUCK_SECS, _STUCK_TIMES * self._usual_secs(unit))
        return (
            worker in self._cluster.unresponsive_workers()
            or time.monotonic() > attempt.started_at + limit
        )

    def _is_straggler(self, unit: Unit, attempts: list[ScheduledCall]) -> bool:
        """Tells whether a unit is slow while another worker is idle."""
        if not self._cluster.can_lose_workers or not self._ledger.exhausted:
            return False
        (attempt,) = attempts[:1]
        if attempt.worker is None or len(attempts) > 1:
            return False
        with self._lock:
            idle = self._in_progress < (
                self._cluster.num_workers - len(self._cluster.unresponsive_workers())
            )
        limit = max(_STRAGGLER_SECS, _STRAGGLER_TIMES * self._usual_secs(unit))
        return idle and time.monotonic() > attempt.started_at + limit

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
