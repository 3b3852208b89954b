"""Notes which workers were lost, and which of them ended a unit again."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple


class WorkerNews(NamedTuple):
    """A worker was lost, or works again.

    Attributes:
      worker: its index.
      lost_secs: for how long it was lost; None if it has just been lost.
    """

    worker: int
    lost_secs: float | None


class WorkerLosses:
    """Collects the losses of workers; thread-safe.

    Its call fails and its probes fail when a worker is lost. Both are one loss: the worker counts
    as lost until it ends a unit.
    """

    def __init__(self) -> None:
        """Knows of no loss yet."""
        self._lock = threading.Lock()  # guards the two below
        self._lost_since: dict[int, float] = {}
        self._news: list[WorkerNews] = []

    def lost(self, worker: int) -> None:
        """Notes that a worker was lost."""
        with self._lock:
            if worker not in self._lost_since:
                self._lost_since[worker] = time.monotonic()
                self._news.append(WorkerNews(worker, None))

    def works(self, worker: int) -> None:
        """Notes that a worker ended a unit."""
        with self._lock:
            since = self._lost_since.pop(worker, None)
            if since is not None:
                self._news.append(WorkerNews(worker, time.monotonic() - since))

    def take(self) -> list[WorkerNews]:
        """Gives what was noted since the last call, in order."""
        with self._lock:
            news, self._news = self._news, []
        return news
