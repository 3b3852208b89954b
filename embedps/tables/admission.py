"""Policies of admission: which ids of a table get a row."""

import dataclasses
from typing import Any, ClassVar

from embedps.config_fields import check_types
from embedps.constants import MAX_MIN_COUNT
from embedps.errors import UsageError

__all__ = ["Chance", "MinCount"]

_MAX_STEPS = 2**32 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Admission:
    """Decides which ids of a table get a row. kernels/store/admission.h says how."""

    kind: ClassVar[str]
    counts: ClassVar[bool] = False  # ids without a row have counters

    def to_json(self) -> dict[str, Any]:
        """Returns what a checkpoint stores."""
        return {"kind": self.kind, **dataclasses.asdict(self)}

    def store_settings(self) -> dict[str, Any]:
        """Returns what a row store is told."""
        fields = {f"admission.{name}": value for name, value in dataclasses.asdict(self).items()}
        return {"admission": self.kind, **fields}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinCount(Admission):
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

    kind: ClassVar[str] = "min_count"
    counts: ClassVar[bool] = True
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chance(Admission):
    """Admits an id by each example that shows it with a probability, without any memory.

    Whether it does is a function of (seed, table name, id, occurrence). An occurrence is the number
    of the training step and the number of the example among those of the step that show the id. So
    every attempt at a step decides the same.

    PERSIA names this `admit_probability`.

    Attributes:
      probability: above 0 and below 1; in steps of 2^-32.
    """

    kind: ClassVar[str] = "chance"
    probability: float

    def __post_init__(self) -> None:
        check_types(self, "Chance.")
        if not 2**-32 <= self.probability < 1:
            raise UsageError(f"Chance.probability must be in [2^-32, 1) but got {self.probability}")


BY_KIND: dict[str, type[Admission]] = {cls.kind: cls for cls in Admission.__subclasses__()}
