"""Says what a lost cluster cost a run, which the process that goes on from it is told."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class LostProgress:
    """A loss that a run goes on from.

    Attributes:
      why: what was lost.
      noticed_at: seconds since 1970.
      checkpoint: the number of the one that is restored; None where there is none.
      units: done since that checkpoint, to be done again; so with steps and examples.
      fruitless: losses in a row, this one among them, that found the same checkpoint.
      earlier: the records of the recoveries before.
    """

    why: str
    noticed_at: float
    checkpoint: int | None
    units: int
    steps: int
    examples: int
    fruitless: int = 1
    earlier: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def record(self, secs: float | None) -> dict[str, Any]:
        """For summary.json: secs are to the end of the first unit, if it came to one."""
        fields = ("why", "noticed_at", "checkpoint", "units", "steps", "examples")
        return {**{name: getattr(self, name) for name in fields}, "secs": secs}

    def describe(self) -> str:
        """In one line."""
        where = "the beginning" if self.checkpoint is None else f"checkpoint {self.checkpoint}"
        return (
            f"{self.why}: going on from {where}; {self.units} units done since ({self.steps} "
            f"steps, {self.examples:,} examples) are lost"
        )
