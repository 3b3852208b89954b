"""Tells a user whom the workers of a run wait for."""

from __future__ import annotations

import time

from embedps.scheduling.unit_threads import Wait

_AFTER_SECS = 3.0  # that a wait lasts before it is told


class WaitReport:
    """Tells each wait that lasts once."""

    def __init__(self) -> None:
        """Knows of no wait yet."""
        self._where: str | None = None
        self._since = 0.0
        self._told = False

    def news(self, wait: Wait | None) -> list[str]:
        """Gives the line to show, if a wait has just lasted for long enough.

        Args:
          wait: the present one; None if the workers wait for nobody.
        """
        now, where = time.monotonic(), None if wait is None else wait.where
        if where != self._where:
            self._where, self._since, self._told = where, now, False
        if wait is None or self._told or now < self._since + _AFTER_SECS:
            return []
        self._told = True
        return [f"{wait.where}: {wait.why}"]
