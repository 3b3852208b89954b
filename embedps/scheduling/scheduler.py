"""Keeps the units of a ledger running on a cluster."""

from __future__ import annotations

import concurrent.futures
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

_UNITS_IN_FLIGHT = 2  # a worker: one running, one queued behind it
_TICK_SECS = 0.2
_STRAGGLER_SECS = 1.0  # no unit is a straggler's before so long
_STRAGGLER_TIMES = 2.0  # what as many rows usually take
_STUCK_SECS = 600.0  # a unit that runs for longer, and for that many times the usual, is stuck
_STUCK_TIMES = 20.0


class Scheduler:
    """Slots that take one unit after the other, until none is left or the run stops.

    Use as a context manager: its end waits for the units in progress. A unit that fails is given
    back to the ledger, and stops all slots. A unit whose worker does not answer is attempted once
    more on another; so is, once, a straggler's where nothing is left to hand out and a worker is
    idle. The first attempt that ends is recorded, the others' counts are dropped; a step that they
    have in common is applied once (`exchange`).
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
    ) -> None:
        """Starts the slots.

        Args:
          cluster: where units run.
          ledger: whose units; a unit that is recorded is done.
          function: what runs of a unit.
          arguments: what it is called with.
          record: told of each unit's counts, before the unit is done; may refuse them by raising.
          stop: no unit is begun once it is set; `end` is the same for this schedule alone.
          finish_secs: from then on, after which units in progress are given back.
        """
        self._cluster = cluster
        self._ledger = ledger
        self._function = function
        self._arguments = arguments
        self._record = record
        self._stop = stop
        self._over = threading.Event()  # of this schedule alone
        self._finish_secs = finish_secs
        self._order = threading.Lock()
        self._lock = threading.Lock()  # guards the four below
        self._error: BaseException | None = None
        self._stopped_at: float | None = None
        self._in_progress = 0
        self._rows_done = 0
        self._secs_done = 0.0
        slots = _UNITS_IN_FLIGHT * cluster.num_workers
        self._pool = concurrent.futures.ThreadPoolExecutor(slots, "slot")
        self._slots = [self._pool.submit(self._run_slot) for _ in range(slots)]

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
        """Why a unit failed."""
        with self._lock:
            return self._error

    def wait(self, secs: float) -> bool:
        """Waits so long, or until no slot has anything left to do; tells whether one has."""
        return bool(concurrent.futures.wait(self._slots, timeout=secs).not_done)

    def end(self) -> None:
        """Begins no unit any more."""
        self._over.set()

    @property
    def _is_stopped(self) -> bool:
        return self._stop.is_set() or self._over.is_set()

    def abandon(self) -> None:
        """Stops, and gives the units in progress back."""
        with self._lock:
            self._stopped_at = -math.inf
        self.end()

    def _run_slot(self) -> None:
        """Takes one unit after the other."""
        while not self._is_stopped:
            with self._order:  # so that units are scheduled in the ledger's order
                unit = self._ledger.take()
                if unit is None:
                    return
                try:
                    attempts = [self._attempt(unit)]
                except BaseException as error:
                    self._fail(unit, error)
                    return
            with self._lock:
                self._in_progress += 1
            try:
                counts = self._see_through(unit, attempts)
                for attempt in attempts:  # what waits in a queue need not run any more
                    attempt.cancel()
                if counts is None:
                    self._ledger.give_back(unit)
                    return
                self._record(unit, counts)
                self._ledger.done(unit)
            except BaseException as error:
                self._fail(unit, error)
                return
            finally:
                with self._lock:
                    self._in_progress -= 1

    def _attempt(self, unit: Unit) -> ScheduledCall:
        return self._cluster.schedule(
            self._function, self._arguments(unit), on_start=lambda: self._ledger.begin(unit)
        )

    def _see_through(self, unit: Unit, attempts: list[ScheduledCall]) -> Counts | None:
        """Waits for a unit's first attempt to end; None where the time to finish is over."""
        helped = False
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
            if lost or (not helped and self._is_straggler(unit, attempts)):
                helped |= not lost
                attempts.append(self._attempt(unit))

    def _is_over(self) -> bool:
        """Whether the run was stopped longer ago than units have to finish."""
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
        """Whether its worker does not answer, or has been at it for far too long."""
        worker = attempt.worker
        if worker is None or not self._cluster.can_lose_workers:
            return False
        limit = max(_STUCK_SECS, _STUCK_TIMES * self._usual_secs(unit))
        return (
            worker in self._cluster.unresponsive_workers()
            or time.monotonic() > attempt.started_at + limit
        )

    def _is_straggler(self, unit: Unit, attempts: list[ScheduledCall]) -> bool:
        """Whether a worker is idle that could do what this one is slow at."""
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
        """By its rows: the last unit of a file may have few."""
        with self._lock:
            return self._secs_done / max(1, self._rows_done) * unit.num_rows

    def _fail(self, unit: Unit, error: BaseException) -> None:
        self._ledger.give_back(unit)
        with self._lock:
            # A coordinator cancels what runs beside the unit that failed: that is no cause.
            if self._error is None or isinstance(self._error, tf.errors.CancelledError):
                self._error = error
        self.end()
