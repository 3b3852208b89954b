"""The scheduler: keeps the units of a ledger running on a cluster, each on one worker."""

from __future__ import annotations

import concurrent.futures
import time

from embedps.cluster.interface import ScheduledCall
from embedps.engine.steps.step_logs import StepLogs
from embedps.metrics import Counts
from embedps.scheduling.ledger import Unit
from embedps.scheduling.unit_threads import TICK_SECS, UnitInProgress, UnitThreads, Wait

_UNITS_PER_WORKER = 2  # one running, one queued behind it
# A unit is a straggler after this time, and this multiple of the usual time for its rows.
_STRAGGLER_SECS = 1.0
_STRAGGLER_TIMES = 2.0
# A unit is stuck after this time, and this multiple of the usual time for its rows.
_STUCK_SECS = 600.0
_STUCK_TIMES = 20.0


class Scheduler(UnitThreads):
    """Runs units, each on one worker; workers do not wait for each other.

    A unit whose worker does not answer gets another attempt on another worker. A straggler gets one
    more attempt if no unit is left to hand out and a worker is idle. The first attempt that ends is
    recorded, and the counts of the others are dropped. Servers apply each step
    only once: see engine/steps/servers.py.
    """

    def awaited(self, logs: StepLogs) -> list[Wait]:
        """Tells which workers the others wait for, if steps are applied in groups."""
        if logs.groups is None:
            return []
        index, workers = logs.groups.awaited()
        if not workers:
            return []
        lost = self._cluster.lost_workers()
        whys = ("does not answer" if each in lost else "has not sent its part" for each in workers)
        told = (f"worker {each} {why}" for each, why in zip(workers, whys, strict=True))
        return [Wait(f"joint step {index} waits", " and ".join(told))]

    def _max_units(self) -> int:
        return _UNITS_PER_WORKER * self._cluster.present_workers

    def _start(self, unit: Unit) -> UnitInProgress:
        def attempt(_: int) -> ScheduledCall:
            return self._cluster.schedule(
                self._function,
                self._arguments(unit),
                on_start=lambda: self._begin(unit),
                on_death=self._death_of(unit),
            )

        return UnitInProgress(unit, [attempt(0)], attempt)

    def _await_counts(self, started: UnitInProgress) -> Counts | None:
        """Waits until an attempt at a unit ends; returns None if the time to finish is over."""
        unit, calls, attempt_again = started
        has_backup = False
        while True:
            concurrent.futures.wait(
                calls, timeout=TICK_SECS, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for attempt in filter(ScheduledCall.done, calls):
                counts: Counts = self._cluster.fetch(attempt)
                with self._lock:
                    self._rows_done += unit.num_rows
                    self._secs_done += time.monotonic() - attempt.started_at
                return counts
            if self._is_over():
                return None
            lost = all(self._is_stuck(unit, attempt) for attempt in calls)
            if lost or (not has_backup and self._is_straggler(unit, calls)):
                has_backup |= not lost
                calls.append(attempt_again(0))

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
            idle = len(self._in_progress) < (
                self._cluster.present_workers - len(self._cluster.unresponsive_workers())
            )
        limit = max(_STRAGGLER_SECS, _STRAGGLER_TIMES * self._usual_secs(unit))
        return idle and time.monotonic() > attempt.started_at + limit
