"""Tells a user whom the workers of a run wait for."""

from __future__ import annotations

import time

from embedps.scheduling.unit_threads import Wait

_AFTER_SECS = 10.0  # that a wait lasts before it is told
_AGAIN_SECS = 60.0  # before the same is told again, of this wait or of another


class WaitReport:
    """Tells the waits that last, and rarely the same again."""

    def __init__(self) -> None:
        """Knows of no wait yet."""
        self._where: str | None = None
        self._since = 0.0
        self._told: dict[str, float] = {}  # when, by what was told of the cause

    def news(self, wait: Wait | None) -> list[str]:
        """Gives the line to show, if a wait has lasted for long enough and there is news of it.

        Args:
          wait: the present one; None if the workers wait for nobody.
        """
        now, where = time.monotonic(), None if wait is None else wait.where
        if where != self._where:
            self._where, self._since = where, now
        secs = now - self._since
        if wait is None or secs < _AFTER_SECS:
            return []
        self._told = {why: at for why, at in self._told.items() if now < at + _AGAIN_SECS}
        if wait.why in self._told:
            return []
        self._told[wait.why] = now
        return [f"{wait.where}: {wait.why}, for {secs:.0f} s now"]
