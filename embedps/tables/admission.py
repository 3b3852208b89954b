"""Policies of admission: which ids of a table get a row."""

import dataclasses
from typing import Any

from embedps.config_fields import check_types
from embedps.constants import MAX_MIN_COUNT
from embedps.errors import UsageError

_MAX_STEPS = 2**32 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinCount:
    """Admits an id by the `count`-th example that shows it; exact.

    An example that shows an id several times, in one feature or in several of the table's, counts
    once. Each step counts once, however often its unit is attempted. The example that admits the id
    reads and trains its new row, and so do all examples of its step. Each id without a row takes at
    most 18 bytes. After its eviction an id is counted anew.

    DeepRec names this `CounterFilter(filter_freq)`, Monolith `occurrence_threshold`.

    Attributes:
      count: from 2 to 256.
      expire_steps: forgets an id that no example has shown for so many steps, rounded up to a
        multiple of 1024; 0 never does.
    """

    count: int
    expire_steps: int = 0

    def __post_init__(self) -> None:
        check_types(self, "MinCount.")
        if not 2 <= self.count <= MAX_MIN_COUNT:
            raise UsageError(f"MinCount.count must be in [2, {MAX_MIN_COUNT}] but got {self.count}")
        if not 0 <= self.expire_steps <= _MAX_STEPS:
            raise UsageError(
                f"MinCount.expire_steps must be in [0, {_MAX_STEPS}] but got {self.expire_steps}"
            )

    def to_json(self) -> dict[str, Any]:
        """Returns what a checkpoint stores."""
        return {"kind": "min_count", **dataclasses.asdict(self)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chance:
    """Admits an id by each example that shows it with a probability, without any memory.

    Whether it does is a function of (seed, table name, id, occurrence). An occurrence is the number
    of the training step and the number of the example among those of the step that show the id. So
    every attempt at a step decides the same.

    PERSIA names this `admit_probability`.

    Attributes:
      probability: above 0 and below 1; in steps of 2^-32.
    """

    probability: float

    def __post_init__(self) -> None:
        check_types(self, "Chance.")
        if not 2**-32 <= self.probability < 1:
            raise UsageError(f"Chance.probability must be in [2^-32, 1) but got {self.probability}")

    @property
    def threshold(self) -> int:
        """2^32 times the probability, rounded down."""
        return int(self.probability * 2**32)

    def to_json(self) -> dict[str, Any]:
        """Returns what a checkpoint stores."""
        return {"kind": "chance", **dataclasses.asdict(self)}


Admission = MinCount | Chance


def store_attributes(policies: list[Admission | None]) -> dict[str, Any]:
    """Makes the attributes of a row store that describe its tables' policies."""
    counts = [p if isinstance(p, MinCount) else None for p in policies]
    return {
        "admission_min_counts": [p.count if p else 0 for p in counts],
        "admission_expire_steps": [p.expire_steps if p else 0 for p in counts],
        "admission_thresholds": [p.threshold if isinstance(p, Chance) else 0 for p in policies],
    }
