"""Keeps the units of a ledger running on a cluster."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import tensorflow as tf

from embedps.cluster import Cluster
from embedps.ledger import Ledger, Unit
from embedps.metrics import Counts
from embedps.units import UnitFunction

_UNITS_IN_FLIGHT = 2  # a worker: one running, one queued behind it


class Schedule:
    """Slots that take one unit after the other, until none is left or the run stops.

    Use as a context manager: its end waits for the units in progress. A unit that fails is given
    back to the ledger, and stops all slots.
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
    ) -> None:
        """Starts the slots.

        Args:
          cluster: where units run.
          ledger: whose units; a unit that is recorded is done.
          function: what runs of a unit.
          arguments: what it is called with.
          record: told of each unit's counts, before the unit is done; may refuse them by raising.
          stop: no unit is begun once it is set.
        """
        self._cluster = cluster
        self._ledger = ledger
        self._function = function
        self._arguments = arguments
        self._record = record
        self._stop = stop
        self._order = threading.Lock()
        self._lock = threading.Lock()  # guards the error
        self._error: BaseException | None = None
        slots = _UNITS_IN_FLIGHT * cluster.num_workers
        self._pool = concurrent.futures.ThreadPoolExecutor(slots, "slot")
        self._slots = [self._pool.submit(self._run_slot) for _ in range(slots)]

    def __enter__(self) -> Schedule:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._pool.shutdown()

    @property
    def error(self) -> BaseException | None:
        """Why a unit failed."""
        with self._lock:
            return self._error

    def wait(self, secs: float) -> bool:
        """Waits so long, or until no slot has anything left to do; tells whether one has."""
        return bool(concurrent.futures.wait(self._slots, timeout=secs).not_done)

    def _run_slot(self) -> None:
        """Takes one unit after the other."""
        while not self._stop.is_set():
            with self._order:  # so that units are scheduled in the ledger's order
                unit = self._ledger.take()
                if unit is None:
                    return
                try:
                    result: Any = self._cluster.schedule(self._function, self._arguments(unit))
                except BaseException as error:
                    self._fail(unit, error)
                    return
            try:
                self._record(unit, self._cluster.fetch(result))
                self._ledger.done(unit)
            except BaseException as error:
                self._fail(unit, error)
                return

    def _fail(self, unit: Unit, error: BaseException) -> None:
        self._ledger.give_back(unit)
        with self._lock:
            # A coordinator cancels what is queued behind the unit that failed: that is no cause.
            if self._error is None or isinstance(self._error, tf.errors.CancelledError):
                self._error = error
        self._stop.set()
