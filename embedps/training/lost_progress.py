"""The progress that a run lost with its cluster, for the process that resumes it."""

from __future__ import annotations

import dataclasses
from typing import Any

MAX_FRUITLESS = 3  # recoveries in a row that came to no new checkpoint


@dataclasses.dataclass(frozen=True, kw_only=True)
class LostProgress:
    """The progress that a run lost.

    Attributes:
      why: what was lost.
      noticed_at: seconds since 1970.
      checkpoint: number of the checkpoint that is restored; None where there is none.
      units: units done since that checkpoint, which are done again.
      steps: steps done since then.
      examples: examples visited since then.
      repeated: units of which some rows may be visited again, since a server may have applied them:
        those in progress at the checkpoint and, if a server stayed as it was, at the loss.
      set_aside: how many units were set aside by then, because who trained them died.
      workers: how many a local cluster had, which `embedps scale` may have changed.
      servers: how many parameter servers it had, in the same way.
      fruitless: losses in a row, this one included, without a new checkpoint or a unit set aside.
      in_place: only the lost server goes back to the checkpoint; the client and others go on.
      served_secs: until it served again, and what was under way had ended.
      restored_secs: from then on until it had what the checkpoint has.
      earlier: records of the recoveries before.
      scalings: records of what `embedps scale` changed before.
    """

    why: str
    noticed_at: float
    checkpoint: int | None
    units: int
    steps: int
    examples: int
    repeated: int = 0
    set_aside: int = 0
    workers: int | None = None
    servers: int | None = None
    fruitless: int = 1
    in_place: bool = False
    served_secs: float | None = None
    restored_secs: float | None = None
    earlier: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    scalings: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def record(self, secs: float | None) -> dict[str, Any]:
        """Makes the record for summary.json; `secs` is the time to the end of the first unit."""
        fields = ["why", "noticed_at", "checkpoint", "units", "steps", "examples"]
        fields += ["repeated", "in_place"]
        fields += ["served_secs", "restored_secs"] if self.in_place else []
        return {**{name: getattr(self, name) for name in fields}, "secs": secs}

    def describe(self) -> str:
        """Describes the loss in one line."""
        where = "the beginning" if self.checkpoint is None else f"checkpoint {self.checkpoint}"
        became = "are trained again" if self.in_place else "are lost"
        return (
            f"{self.why}: going on from {where}; {self.units} units done since ({self.steps} "
            f"steps, {self.examples:,} examples) {became}"
        )
