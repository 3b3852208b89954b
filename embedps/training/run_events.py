"""What a run tells its callbacks: a unit ended, a checkpoint was saved, a worker was lost."""

from __future__ import annotations

import dataclasses

from embedps.checkpoint.format.manifest import Manifest
from embedps.scheduling.ledger import Unit


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnitEnd:
    """A unit was trained.

    Attributes:
      unit: which one: `unit.path`, `unit.first_row`, `unit.num_rows`, `unit.first_step`, …
      loss: the mean loss of its examples, each before its update.
    """

    unit: Unit
    loss: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint was committed.

    Attributes:
      number: the checkpoint's.
      step: training steps done by then.
      kind: "base" or "delta": what was written.
      bytes: the size of the rows that were written.
      final: whether none follows.
    """

    number: int
    step: int
    kind: str
    bytes: int
    final: bool

    @classmethod
    def of(cls, manifest: Manifest) -> SavedCheckpoint:
        """Describes what a manifest committed."""
        saved = manifest.chain[-1]
        return cls(
            number=manifest.number,
            step=manifest.step,
            kind=saved.kind,
            bytes=saved.bytes,
            final=manifest.final,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LostWorker:
    """A worker was lost. The units that it had begun are attempted again on others.

    Attributes:
      worker: its index.
    """

    worker: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecoveryEnd:
    """A lost worker has ended a unit again, or the run has after the loss of a server.

    Attributes:
      why: what was lost, such as "worker 1 was lost".
      secs: from the loss to the end of that unit.
      steps: that were lost with a server and are done again; 0 for a worker.
      examples: of these steps.
    """

    why: str
    secs: float
    steps: int = 0
    examples: int = 0
