"""Tracks scheduled calls: which workers run one, and whether any still ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from typing import Any

from embedps.cluster.interface import ScheduledCall
from embedps.kernels.tasks import TaskId


class CallTracker:
    """Counts open calls, and notices if none ends for too long; thread-safe."""

    def __init__(self, *, wait_secs: float) -> None:
        """Takes the longest time in which some call must end."""
        self._wait_secs = wait_secs
        # Maps each busy worker, and the number of its membership, to its call.
        self._busy: dict[tuple[int, int], ScheduledCall] = {}
        self._lock = threading.Lock()  # guards the three below
        self._num_open = 0  # calls that have not ended
        self._last_end = 0.0  # when a call ended last
        self._num_lost = 0  # attempts lost with their workers since then

    def add(self, call: ScheduledCall) -> None:
        """Tracks a call until it ends."""
        with self._lock:
            if not self._num_open:
                self._last_end = time.monotonic()
            self._num_open += 1
        call.add_done_callback(self._count_end)

    def started(self, worker: tuple[int, int], call: ScheduledCall) -> None:
        """Records that a worker, of the number of its membership, starts an attempt at a call."""
        self._busy[worker] = call

    def stopped(self, worker: tuple[int, int]) -> None:
        """Records that a worker's attempt has ended, in any way."""
        self._busy.pop(worker, None)

    def count_lost_attempt(self) -> None:
        """Counts an attempt that was lost with its worker."""
        with self._lock:
            self._num_lost += 1

    def busy(self) -> list[int]:
        """Lists the workers that run a call."""
        return [worker for worker, _ in [*self._busy]]

    def is_busy(self, worker: int) -> bool:
        """Tells whether a worker runs a call."""
        return worker in self.busy()

    def describe_stall(self, unresponsive: Collection[TaskId]) -> str:
        """Describes why calls are waited for in vain; returns an empty text if they are not.

        Args:
          unresponsive: the servers that do not answer.
        """
        with self._lock:
            if not self._num_open or time.monotonic() <= self._last_end + self._wait_secs:
                return ""
            num_lost = self._num_lost
        names = ", ".join(f"{job} {index}" for job, index in sorted(unresponsive))
        text = f"waited {self._wait_secs:.0f} s for any unit to end, "
        text += f"while {names} did not answer" if names else "though every server answers"
        text += f"; {self._describe_busy()}"
        if num_lost:
            text += f"; {num_lost} attempts were lost with their workers: see the workers' logs"
        return text

    def _describe_busy(self) -> str:
        """Describes which workers run a unit, and for how long."""
        now = time.monotonic()
        busy = [
            f"worker {worker} for {now - call.started_at:.0f} s"
            for (worker, _), call in sorted(self._busy.items(), key=lambda each: each[0])
        ]
        return f"running one: {', '.join(busy)}" if busy else "no worker runs one"

    def _count_end(self, _: Any) -> None:
        with self._lock:
            self._num_open -= 1
            self._last_end = time.monotonic()
            self._num_lost = 0
