"""Notices that ask a run to stop: a signal to this process, or servers that were told to end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Set

from embedps.cluster.interface import Cluster
from embedps.errors import ServerLostError
from embedps.kernels.tasks import TaskId

_TICK_SECS = 0.2
_RELEASE_SECS = 5.0


class StopNotices:
    """Collects the notices, says each once, and lets leaving parameter servers go.

    Attributes:
      stop: set when a signal came or a parameter server leaves: units finish, then a save.
      told_to_end: a signal asked for the end of the run.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.stop = threading.Event()
        self.told_to_end = False
        self._said_end = False
        self._noticed: Set[TaskId] = frozenset()
        self._leaving: set[TaskId] = set()

    def follow(self, cluster: Cluster) -> None:
        """Takes that another cluster serves in place of the one before."""
        self._cluster = cluster
        self.forget_servers()

    def end(self) -> None:
        """Takes a signal."""
        self.told_to_end = True
        self.stop.set()

    def poll(self, *, say: Callable[[str], None], save_now: Callable[[], None]) -> None:
        """Acts on new notices.

        Args:
          say: shows a line.
          save_now: makes the next checkpoint due at once.
        """
        leaving = self._cluster.draining()
        if leaving - self._noticed:
            say(f"{_names(leaving - self._noticed)} was told to end: saving a checkpoint")
            save_now()
            self._leaving = {task for task in leaving if task[0] == "ps"}
            if self._leaving:
                self.stop.set()
        self._noticed = leaving
        if self.told_to_end and not self._said_end:  # a signal's handler may not print
            self._said_end = True
            say("told to end: finishing and saving what was begun; Ctrl-C again ends now")

    def forget_servers(self) -> None:
        """Forgets which servers were said to leave: each training phase says it anew."""
        self._noticed = frozenset()

    def go_on(self) -> None:
        """Takes that others serve in place of the servers that left."""
        self._leaving = set()
        self.stop.clear()
        if self.told_to_end:  # a signal may have come just now
            self.stop.set()

    def release_servers(self, *, finished: bool) -> None:
        """Lets the leaving parameter servers end: all that they held is saved.

        Args:
          finished: no unit is left to train.

        Raises:
          ServerLostError: units are left to train, and a parameter server is gone.
        """
        for task in self._leaving:
            self._cluster.allow_shutdown(task)
        deadline = time.monotonic() + _RELEASE_SECS
        while self._leaving & self._cluster.draining() and time.monotonic() < deadline:
            time.sleep(_TICK_SECS)
        if self._leaving and not finished and not self.told_to_end:
            raise ServerLostError(f"{_names(self._leaving)} was told to end, after a checkpoint")


def _names(tasks: Set[TaskId]) -> str:
    return ", ".join(f"{job} {index}" for job, index in sorted(tasks))
