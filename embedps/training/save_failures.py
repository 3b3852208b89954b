"""Failing saves: training goes on, says so, and stops after a time limit."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from embedps.cluster.health import use_own_executor
from embedps.errors import CheckpointError, DirectoryTakenError

_T = TypeVar("_T")

EXIT_CODE = 74  # EX_IOERR of sysexits.h
_REPEAT_SECS = 60.0


def in_background(function: Callable[[], _T]) -> concurrent.futures.Future[_T]:
    """Runs a function on a daemon thread: a disk may hang, and the process must still end."""
    future: concurrent.futures.Future[_T] = concurrent.futures.Future()

    def run() -> None:
        try:
            use_own_executor()
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="saver", daemon=True).start()
    return future


class CheckpointsStalledError(CheckpointError):
    """No checkpoint could be written within the time limit."""

    exit_code = EXIT_CODE


class SaveFailures:
    """Tracks how long saves have failed or hung, and says so.

    The time counts from the start of the first save that was not committed.

    Attributes:
      problem: why the last save failed; empty if it did not.
    """

    def __init__(
        self,
        *,
        max_secs: float,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts without a failure.

        Args:
          max_secs: the time limit, from the start of the first save that was not committed.
          say: shows a line.
          clock: in seconds.
        """
        self._max_secs = max_secs
        self._say = say
        self._clock = clock
        self.since: float | None = None
        self._since_text = ""
        self._told: float | None = None
        self.problem = ""

    @property
    def secs(self) -> float:
        """Since the start of the first save that was not committed; 0 if there is none."""
        since = self.since
        return 0.0 if since is None else self._clock() - since

    def began(self) -> None:
        """Notes that a save begins."""
        if self.since is None:
            self.since = self._clock()
            self._since_text = time.strftime("%H:%M:%S")

    def committed(self) -> None:
        """Notes that the save was committed."""
        if self._told is not None and self.since is not None:
            self._say(f"checkpoints are written again, after {self._clock() - self.since:.0f} s")
        self.since = self._told = None
        self.problem = ""

    def failed(self, error: CheckpointError) -> None:
        """Notes that the save failed.

        Raises:
          DirectoryTakenError: the error is one: no later save can succeed.
          CheckpointsStalledError: saves have failed for too long.
        """
        if isinstance(error, DirectoryTakenError):
            raise error
        self.problem = str(error)
        self.check()

    @property
    def retry_secs(self) -> float:
        """How long to wait before the next try."""
        return min(_REPEAT_SECS, self._max_secs / 10)

    def check(self) -> None:
        """Says once a minute that saves are failing.

        Raises:
          CheckpointsStalledError: it has lasted too long.
        """
        if self.since is None:
            return
        now, secs = self._clock(), self.secs
        hangs = not self.problem
        problem = self.problem or "the save that was begun then has not ended"
        if secs >= self._max_secs:
            raise CheckpointsStalledError(
                f"no checkpoint could be written since {self._since_text}, {secs:.0f} s, which is "
                f"longer than --max-secs-without-checkpoint: {problem}; what was written "
                "before is whole: run the same command again to resume from it"
            )
        if hangs and secs < _REPEAT_SECS:
            return  # a save may take its time
        if self._told is None or now - self._told >= _REPEAT_SECS:
            self._told = now
            self._say(
                f"checkpoints are failing since {self._since_text}, {secs:.0f} s: {problem}; "
                f"training goes on for {self._max_secs - secs:.0f} s more without one"
            )
