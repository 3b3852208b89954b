"""When to cut, and when to begin a new base: small objects that the saver and the trainer ask."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

from embedps.errors import UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavePolicy:
    """A cut is due after so many seconds or so many training steps, whichever comes first.

    Attributes:
      secs: from the beginning of one cut to the next.
      steps: since the last cut.
    """

    secs: float = math.inf
    steps: float = math.inf

    def __post_init__(self) -> None:
        for name in ("secs", "steps"):
            if not getattr(self, name) > 0:
                raise UsageError(f"a cut's {name} must be above 0 but got {getattr(self, name)}")

    def due(self, *, secs: float, steps: int) -> bool:
        """Whether to cut, so long and so many steps after the last cut."""
        return secs >= self.secs or steps >= self.steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class RebasePolicy:
    """When a new base is written, and whether a delta holds all that changed since the last base.

    The names are of Check-N-Run (Eisenman et al., NSDI 2022, section 5.1).

    Attributes:
      kind: what a flag calls it.
      cumulative: a delta replaces the one before it, so that a restore reads a base and one delta;
        otherwise each holds what changed since the one before, and a restore reads them all.
    """

    kind: ClassVar[str]
    cumulative: ClassVar[bool]

    def due(self, base_bytes: int, delta_bytes: Sequence[int]) -> bool:
        """Whether the next save begins with a new base.

        Args:
          base_bytes: of the newest base.
          delta_bytes: of each delta since, in order, those that were replaced too.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneShot(RebasePolicy):
    """One base for good; a delta holds all since."""

    kind: ClassVar[str] = "one-shot"
    cumulative: ClassVar[bool] = True

    def due(self, base_bytes: int, delta_bytes: Sequence[int]) -> bool:
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Consecutive(RebasePolicy):
    """Deltas one after the other; a new base once the next delta would make a restore too long.

    Attributes:
      max_read_cost: the most that a restore may read, in bases; the next delta is predicted to be
        as large as the last. Infinite: one base for good, as in Check-N-Run.
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
    """Deltas since the base, and a new base when going on is predicted to cost more.

    Check-N-Run's rule: with deltas of S_1..S_i bases' size, a new base and i deltas like the last
    ones cost 1 + S_1 + ... + S_i; going on, i + 1 deltas of S_i or more. The lesser is done.
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
    """The policy that a flag names."""
    if kind == Consecutive.kind:
        return Consecutive(max_read_cost=max_read_cost)
    return {OneShot.kind: OneShot, Intermittent.kind: Intermittent}[kind]()
