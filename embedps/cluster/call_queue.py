"""The calls that wait for a worker, in the order in which workers begin them."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from typing import TypeAlias

_TICK_SECS = 0.2

Attempt: TypeAlias = Callable[[int, int], None]
"""Runs a call on the worker of this index, in its membership of this number."""


class CallQueue:
    """Gives the call of the lowest order, of those the one that came first; thread-safe.

    A call that other calls wait for must have a lower order than these. Otherwise, if its worker is
    lost, each worker could begin one that waits for it, and none would be left for it.
    """

    def __init__(self) -> None:
        """Holds no call yet."""
        self._changed = threading.Condition()  # guards the three below
        self._waiting: list[tuple[int, int, Attempt]] = []
        self._numbers = itertools.count()
        self._num_taken = 0

    def put(self, attempt: Attempt, *, order: int) -> None:
        """Adds an attempt at a call."""
        with self._changed:
            heapq.heappush(self._waiting, (order, next(self._numbers), attempt))
            self._changed.notify_all()

    def take(self, is_wanted: Callable[[], bool]) -> tuple[int, Attempt] | None:
        """Waits for an attempt and takes it out, with its order; `ended` must follow.

        Args:
          is_wanted: if it becomes false before there is one, the wait ends with None.
        """
        with self._changed:
            while is_wanted():
                if self._waiting:
                    order, _, attempt = heapq.heappop(self._waiting)
                    self._num_taken += 1
                    return order, attempt
                self._changed.wait(_TICK_SECS)
        return None

    def ended(self) -> None:
        """Takes that an attempt that was taken out has ended, or was put in again."""
        with self._changed:
            self._num_taken -= 1
            self._changed.notify_all()

    def is_idle(self) -> bool:
        """Tells whether no attempt waits or runs."""
        with self._changed:
            return self._is_idle()

    def join(self) -> None:
        """Waits until no attempt waits or runs."""
        with self._changed:
            self._changed.wait_for(self._is_idle)

    def _is_idle(self) -> bool:
        return not self._waiting and not self._num_taken
