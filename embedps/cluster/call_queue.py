"""The calls that wait for a worker, in the order in which workers begin them."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from typing import TypeAlias

Attempt: TypeAlias = Callable[[int], None]
"""Runs a call on the worker of this index."""


class CallQueue:
    """Gives the call of the lowest order, of those the one that came first; thread-safe.

    A call that other calls wait for must have a lower order than these. Otherwise, if its worker is
    lost, each worker could begin one that waits for it, and none would be left for it.
    """

    def __init__(self) -> None:
        """Holds no call yet."""
        self._lock = threading.Lock()  # guards the two below
        self._waiting: list[tuple[int, int, Attempt]] = []
        self._numbers = itertools.count()

    def put(self, attempt: Attempt, *, order: int) -> None:
        """Adds an attempt at a call."""
        with self._lock:
            heapq.heappush(self._waiting, (order, next(self._numbers), attempt))

    def take(self) -> tuple[int, Attempt]:
        """Takes the next attempt out; returns its order too. There must be one."""
        with self._lock:
            order, _, attempt = heapq.heappop(self._waiting)
        return order, attempt
