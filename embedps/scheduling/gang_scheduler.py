"""The gang scheduler: keeps the units of a ledger running, each on a group of workers together.

In a group of N workers, a unit has N parts of ranks 0 to N - 1, which take each step together: a
rank's step waits on the servers until the step before has the gradients of all ranks. So all parts
of a unit must run at once, each on a worker of its own.

If all workers are one group, a worker that has trained its part begins its part of the next unit,
and waits there for the last step of the unit before. That is safe because workers take the parts of
the unit before first: if one of these loses its worker, the next worker that comes back attempts it
again, and all others wait for that. If parts were taken in the order in which they were queued,
that worker would begin a part of the next unit, and nobody would be left for the lost one.

Smaller groups do not wait for each other, so none begins a unit before it has ended one: else its
workers could begin parts that wait for another group. As all its workers end a unit at once, they
stay together, until one is lost: then the worker that is free first takes the lost part.
"""

from __future__ import annotations

import concurrent.futures
import math
import threading
import time
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

from embedps.cluster.interface import ScheduledCall
from embedps.engine.steps.step_logs import StepLogs
from embedps.engine.steps.unit_parts import last_step
from embedps.metrics import Counts
from embedps.scheduling.ledger import Unit
from embedps.scheduling.unit_threads import TICK_SECS, UnitInProgress, UnitThreads, Wait

_UNITS_AT_ONCE = 2  # one running, one queued behind it
# A unit is stuck if none of its parts began for this time, and this multiple of the usual time for
# its rows. That is less than the time after which the cluster counts as lost.
_STUCK_SECS = 300.0
_STUCK_TIMES = 20.0


class GangScheduler(UnitThreads):
    """Runs units, each on all workers of a group at once.

    A unit fails if one of its parts does. A part whose worker is lost, or does not answer, is
    attempted again by the next worker that is free, and the others wait for it. The parts of a unit
    that is stuck are all attempted again. Servers take only the first part of each rank and step.
    """

    _last_end = -math.inf  # when the unit before was done

    def awaited(self, logs: StepLogs) -> list[Wait]:
        """Tells by group which rank its others wait for."""
        with self._lock:
            units = list(self._in_progress)
        steps = sorted(logs.open_steps().items())
        groups = [units[:]] if self._is_one_group else [[each] for each in units]
        waits = [self._awaited_of(of_group, steps) for of_group in groups if of_group]
        return [each for each in waits if each is not None]

    def _awaited_of(
        self, units: Sequence[UnitInProgress], steps: Sequence[tuple[int, list[int | None]]]
    ) -> Wait | None:
        """Tells which rank the others of a group wait for.

        Args:
          units: of the group, in order.
          steps: all that wait for parts, in order: for each rank the worker that brought it.
        """
        first, end = units[0].unit.first_step, self._end_of(units[-1].unit)
        for step, workers in [each for each in steps if first <= each[0] < end][:1]:
            begun = [each for each in units if each.unit.first_step <= step]
            calls = begun[-1].calls
            before = [call for each in begun[:-1] for call in each.calls]
            for rank, (worker, call) in enumerate(zip(workers, calls, strict=False)):
                if worker is None:
                    why = self._why(call, before) or f"worker {call.worker} has not sent its part"
                    return Wait(f"step {step} waits for rank {rank}", why)
        calls = list(units[0].calls)
        is_begun = any(call.done() or call.worker is not None for call in calls)
        has_ended = any(call.done() for call in calls)
        for rank, call in enumerate(calls):
            late = f"worker {call.worker} has not ended its part" if has_ended else ""
            if is_begun and not call.done() and (why := self._why(call, []) or late):
                where = f"the unit from step {units[0].unit.first_step} on waits for rank {rank}"
                return Wait(where, why)
        return None

    def _why(self, call: ScheduledCall, before: Sequence[ScheduledCall]) -> str:
        """Tells why a part does not go on, as far as its worker is the cause.

        Args:
          call: the attempt at the part.
          before: those at the parts of the units before.
        """
        lost = self._cluster.lost_workers()
        if call.worker is not None:
            return f"worker {call.worker} does not answer" if call.worker in lost else ""
        busy = {each.worker for each in before if not each.done() and each.worker is not None}
        cause = "none is free"
        if lost:
            cause = f"{_names(lost)} cannot be reached"
        elif busy:
            cause = f"{_names(busy)} did not yet end the unit before"
        return f"it needs a worker, and {cause}"

    @property
    def _is_one_group(self) -> bool:
        return self._group_size == self._cluster.num_workers

    def _end_of(self, unit: Unit) -> int:
        """Gives the number after a unit's last batch."""
        return unit.first_step - (-unit.num_rows // self._ledger.batch_rows)

    def _max_units(self) -> int:
        if not self._is_one_group:
            return self._cluster.num_workers // self._group_size
        # A unit of a file that arrived may be left out; a unit behind it would wait for ever.
        return 1 if self._ledger.grows else _UNITS_AT_ONCE

    def _start(self, unit: Unit) -> UnitInProgress:
        """Schedules the parts of a unit, the first step after the last one of the unit before."""
        num_ranks = self._group_size
        batch_rows = self._ledger.batch_rows
        with self._lock:
            behind = self._in_progress[-1:] if self._is_one_group else []
        after = -1
        for each in behind:
            first, rows = each.unit.first_step, each.unit.num_rows
            after = last_step(first, rows, batch_rows=batch_rows, num_ranks=num_ranks)
        arguments = self._arguments(unit)  # once: the learning rate is the same for all ranks
        begun: set[int] = set()
        lock = threading.Lock()  # guards `begun` and `lost`

        def begin(rank: int) -> None:
            with lock:
                if not begun or rank in begun:  # all first attempts are one attempt at the unit
                    self._begin(unit)
                begun.add(rank)

        on_death, lost = self._death_of(unit), [0] * num_ranks

        def die(rank: int) -> BaseException | None:
            """Counts a death of the unit if its ranks were not lost as often before."""
            with lock:
                lost[rank] += 1
                is_more = lost[rank] == max(lost) and lost.count(lost[rank]) == 1
            return on_death() if is_more and on_death is not None else None

        def attempt(rank: int) -> ScheduledCall:
            numbers = (rank, num_ranks, after)
            return self._cluster.schedule(
                self._function,
                (*arguments, *(tf.constant(np.int64(n)) for n in numbers)),
                on_start=lambda: begin(rank),
                on_death=None if on_death is None else lambda: die(rank),
                order=unit.position,
            )

        started = UnitInProgress(unit, [], attempt)
        try:
            # A unit of fewer batches than ranks has no part for the last ranks.
            for rank in range(min(num_ranks, -(-unit.num_rows // batch_rows))):
                started.calls.append(attempt(rank))
        except BaseException:
            self._leave(started)
            raise
        return started

    def _cause(self, started: UnitInProgress, error: BaseException) -> BaseException | None:
        """Leaves a unit out, for one; then the units behind it are begun anew, by a new schedule.

        They wait for its last step, which does not come.
        """
        cause = super()._cause(started, error)
        if cause is None and self._is_one_group:
            with self._lock:
                is_last = self._in_progress[-1:] == [started]
            if not is_last:
                self.abandon()
        return cause

    def _leave(self, started: UnitInProgress) -> None:
        """Frees the workers that still run a part."""
        for call in started.calls:
            call.interrupt()

    def _await_counts(self, started: UnitInProgress) -> Counts | None:
        """Waits until all parts are trained; returns None if the time to finish is over."""
        while True:
            concurrent.futures.wait(
                started.calls,
                timeout=TICK_SECS,
                return_when=concurrent.futures.FIRST_EXCEPTION,
            )
            parts: list[Counts] = [
                self._cluster.fetch(call) for call in started.calls if call.done()
            ]
            if len(parts) == len(started.calls):
                self._count_time(started)
                return {name: sum(part[name] for part in parts) for name in parts[0]}
            if self._is_over():
                return None
            self._attempt_lost_parts_again(started)

    def _count_time(self, started: UnitInProgress) -> None:
        now = time.monotonic()
        with self._lock:
            began = max(self._last_end, min(call.started_at for call in started.calls))
            if self._is_one_group:
                self._last_end = now
            self._rows_done += started.unit.num_rows
            self._secs_done += now - began

    def _attempt_lost_parts_again(self, started: UnitInProgress) -> None:
        """Frees workers that do not answer, or all of a stuck unit, for further attempts."""
        silent = self._cluster.unresponsive_workers()
        is_stuck = self._is_stuck(started)
        before = time.monotonic() - self._cluster.server_timeout_secs
        for rank, call in enumerate(started.calls):
            is_silent = call.worker in silent and call.started_at < before
            if call.done() or not (is_silent or is_stuck):
                continue
            again = started.attempt(rank)
            call.interrupt()
            if call.cancelled():
                started.calls[rank] = again
            else:  # it has just ended
                again.cancel()

    def _is_stuck(self, started: UnitInProgress) -> bool:
        """Tells whether a unit takes far too long though each part has a worker.

        Which worker is the cause cannot be known: each part waits for all others.
        """
        with self._lock:
            last = max(self._last_end, *(call.started_at for call in started.calls))
            is_first = self._in_progress[:1] == [started] or not self._is_one_group
        limit = max(_STUCK_SECS, _STUCK_TIMES * self._usual_secs(started.unit))
        return is_first and time.monotonic() > last + limit


def _names(workers: Iterable[int]) -> str:
    return " and ".join(f"worker {each}" for each in sorted(workers))
