"""The record of a run's recoveries from lost servers, for checkpoints and summary.json."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from embedps.checkpoint.format.manifest import Manifest
from embedps.training.lost_progress import LostProgress
from embedps.training.run_events import RecoveryEnd


class RecoveryRecord:
    """Lists the recoveries of a run, and times the one that this process is in."""

    def __init__(self, recovered_from: LostProgress | None, last: Manifest | None) -> None:
        """Takes the recoveries of before.

        Args:
          recovered_from: the progress that an earlier process lost. It also has the recoveries
            since the last checkpoint.
          last: the checkpoint that the run resumes from.
        """
        self._current = recovered_from
        if recovered_from is not None:
            self._records = list(recovered_from.earlier)
        else:
            self._records = list(last.progress.get("recoveries", [])) if last is not None else []

    @property
    def completed(self) -> list[dict[str, Any]]:
        """The recoveries that reached a first unit."""
        return list(self._records)

    def all(self) -> list[dict[str, Any]]:
        """Lists the recoveries, the one included that has not reached a first unit yet."""
        current = [self._current.record(None)] if self._current else []
        return [*self._records, *current]

    def begin(self, loss: LostProgress) -> None:
        """Takes that this process goes on after a loss."""
        if self._current is not None:
            self._records.append(self._current.record(None))
        self._current = loss

    def note_unit(self, say: Callable[[str], None]) -> RecoveryEnd | None:
        """Takes that a unit is done: the first one completes the recovery, which `say` shows.

        Returns that recovery; None if there is none to complete.
        """
        if self._current is None:
            return None
        loss, self._current = self._current, None
        secs = round(time.time() - loss.noticed_at, 1)
        self._records.append(loss.record(secs))
        say(f"recovered: the first unit is done {secs} s after {loss.why}")
        return RecoveryEnd(why=loss.why, secs=secs, steps=loss.steps, examples=loss.examples)
