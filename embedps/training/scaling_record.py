"""The record of what `embedps scale` changed in a run, for checkpoints and summary.json."""

from __future__ import annotations

import time
from typing import Any

from embedps.checkpoint.format.manifest import Manifest
from embedps.scheduling.ledger import Ledger
from embedps.training.lost_progress import LostProgress
from embedps.training.scale_requests import ClusterChange


class ScalingRecord:
    """Lists the clusters that took the place of others, and times the last change."""

    def __init__(self, recovered_from: LostProgress | None, last: Manifest | None) -> None:
        """Takes the changes of before.

        Args:
          recovered_from: the progress that an earlier process lost; it has them all.
          last: the checkpoint that the run resumes from.
        """
        if recovered_from is not None:
            self._records = list(recovered_from.scalings)
        else:
            self._records = list(last.progress.get("scalings", [])) if last is not None else []
        self._change: ClusterChange | None = None
        self._current: dict[str, Any] = {}

    @property
    def completed(self) -> list[dict[str, Any]]:
        """The records of the changes after which a unit was done, in order."""
        return list(self._records)

    @property
    def under_way(self) -> ClusterChange | None:
        """The change after which no unit is done yet."""
        return self._change

    def begin(self, change: ClusterChange, trained: Ledger, *, last_unit_at: float) -> None:
        """Takes that a change begins: all that was trained is saved.

        Args:
          trained: on the cluster that ends.
          last_unit_at: when its last unit ended, in seconds since 1970.
        """
        self._change = change
        self._current = {
            "last_unit_at": last_unit_at,
            "num_ps": list(change.servers),
            "num_workers": list(change.workers),
            "units": trained.num_done,
            "steps": trained.steps_done(),
            "saved_secs": round(time.time() - last_unit_at, 2),
        }

    def restored(self, checkpoint: Manifest, loaded: int) -> None:
        """Takes that the other cluster has what the checkpoint has.

        Args:
          loaded: how many records it read for that: few if it had the others already.
        """
        record, ledger = self._current, checkpoint.ledger
        record["units_lost"] = record["units"] - ledger["prefix"] - len(ledger["beyond"])
        record["steps_lost"] = record["steps"] - checkpoint.step
        since = time.time() - record["last_unit_at"] - record["saved_secs"]
        record["restored_secs"] = round(since, 2)
        record["loaded"] = loaded

    def note_unit(self) -> str | None:
        """Takes that a unit is done: the first one ends the pause of a change under way.

        Returns a line that says what the change cost; None if there is none to complete.
        """
        if self._change is None:
            return None
        change, record = self._change, self._current
        record["pause_secs"] = round(time.time() - record["last_unit_at"], 2)
        self._records.append(record)
        self._change = None
        return (
            f"the run has {change.describe()}: {record['pause_secs']} s from the last unit to the "
            f"next one ({record['saved_secs']} s to save, {record['restored_secs']} s to load "
            f"{record['loaded']:,} records), "
            f"{record['units_lost']} units and {record['steps_lost']} steps lost"
        )
