"""Tells a user whom the workers of a run wait for."""

from __future__ import annotations

import time
from collections.abc import Sequence

from embedps.scheduling.unit_threads import Wait

_AFTER_SECS = 10.0  # that a wait lasts before it is told
_AGAIN_SECS = 60.0  # before the same is told again, of this wait or of another


class WaitReport:
    """Tells the waits that last, and rarely the same again."""

    def __init__(self) -> None:
        """Knows of no wait yet."""
        self._since: dict[str, float] = {}  # when a wait began, by where
        self._told: dict[str, float] = {}  # when, by what was told of the cause

    def news(self, waits: Sequence[Wait]) -> list[str]:
        """Gives the lines to show of the present waits that last, if there is news of them."""
        now = time.monotonic()
        self._since = {each.where: self._since.get(each.where, now) for each in waits}
        self._told = {why: at for why, at in self._told.items() if now < at + _AGAIN_SECS}
        lines = []
        for where, why in waits:
            secs = now - self._since[where]
            if secs >= _AFTER_SECS and why not in self._told:
                self._told[why] = now
                lines.append(f"{where}: {why}, for {secs:.0f} s now")
        return lines
