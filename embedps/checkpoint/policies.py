"""Save policies: when to save, and when to write a new base."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

from embedps.errors import UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavePolicy:
    """Says when to save: after some seconds or some training steps, whichever comes first.

    Attributes:
      secs: from the start of one save to the start of the next.
      steps: training steps since the last save.
    """

    secs: float = math.inf
    steps: float = math.inf

    def __post_init__(self) -> None:
        for name in ("secs", "steps"):
            if not getattr(self, name) > 0:
                raise UsageError(f"a save's {name} must be above 0 but got {getattr(self, name)}")

    def due(self, *, secs: float, steps: int) -> bool:
        """Tells whether to save, given the seconds and the steps since the last save."""
        return secs >= self.secs or steps >= self.steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class RebasePolicy:
    """Says when to write a new base, and whether a delta holds all changes since the last base.

    The names are those of Check-N-Run (Eisenman et al., NSDI 2022, section 5.1).

    Attributes:
      kind: the policy's name in flags.
      cumulative: if true, a delta replaces the one before it, and a restore reads a base and one
        delta. Otherwise each delta holds the changes since the one before, and a restore reads all.
    """

    kind: ClassVar[str]
    cumulative: ClassVar[bool]

    def due(self, base_bytes: int, delta_bytes: Sequence[int]) -> bool:
        """Tells whether the next save starts with a new base.

        Args:
          base_bytes: size of the newest base.
          delta_bytes: sizes of all deltas since, in order; includes replaced deltas.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneShot(RebasePolicy):
    """Writes one base, and deltas that hold all changes since."""

    kind: ClassVar[str] = "one-shot"
    cumulative: ClassVar[bool] = True

    def due(self, base_bytes: int, delta_bytes: Sequence[int]) -> bool:
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Consecutive(RebasePolicy):
    """Writes deltas since the one before, and a new base before a restore gets too long.

    Attributes:
      max_read_cost: the most that a restore may read, as a multiple of the base's bytes. The next
        delta is predicted to be as large as the last. If infinite, no new base is written, as in
        Check-N-Run.
    """

    kind: ClassVar[str] = "consecutive"
    cumulative: ClassVar[bool] = False
    max_read_cost: float = 2.0

    def __post_init__(self) -> None:
        if not self.max_read_cost > 1:
            raise UsageError(f"max_read_cost must be above 1 but got {self.max_read_cost}")

    def due(self, base_bytes: int, delta_bytes: Sequence[int]) -> bool:
        if not delta_bytes:
            return False
        predicted = base_bytes + sum(delta_bytes) + delta_bytes[-1]
        return predicted >= self.max_read_cost * base_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Intermittent(RebasePolicy):
    """Writes deltas since the base, and a new base when that is predicted to write fewer bytes.

    Check-N-Run's rule: let the deltas have sizes S_1..S_i, in bases. A new base and i deltas like
    the last ones cost 1 + S_1 + ... + S_i. Without a new base, the next i + 1 deltas have size S_i
    or more. The policy takes the smaller cost.
    """

    kind: ClassVar[str] = "intermittent"
    cumulative: ClassVar[bool] = True

    def due(self, base_bytes: int, delta_bytes: Sequence[int]) -> bool:
        if not delta_bytes:
            return False
        rebased = base_bytes + sum(delta_bytes)
        return rebased <= (len(delta_bytes) + 1) * delta_bytes[-1]


REBASE_KINDS = (OneShot.kind, Consecutive.kind, Intermittent.kind)


def make_rebase(kind: str, *, max_read_cost: float) -> RebasePolicy:
    """Makes the policy that a flag names."""
    if kind == Consecutive.kind:
        return Consecutive(max_read_cost=max_read_cost)
    return {OneShot.kind: OneShot, Intermittent.kind: Intermittent}[kind]()
