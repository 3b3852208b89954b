"""Policies of eviction: which rows of a table go."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from embedps.config_fields import check_types
from embedps.errors import UsageError

__all__ = ["MinNorm", "SizeLimit", "TimeToLive"]

Order = Literal["least_recent", "least_frequent"]
_MAX_STEPS = 2**32 - 1
_MAX_SECS = 10**10
_MAX_INT64 = 2**63 - 1
_MAX_FLOAT32 = 3.4028234e38


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvictionPolicy:
    """Decides which rows of a table go. kernels/store/eviction.h says how."""

    def __post_init__(self) -> None:
        check_types(self, f"{type(self).__name__}.")

    def to_json(self) -> dict[str, Any]:
        """Returns what a checkpoint stores."""
        return {"kind": type(self).__name__, **dataclasses.asdict(self)}

    def of_shard(self, num_shards: int) -> "EvictionPolicy":
        """Returns the policy of one of so many shards, of which each has its part of a limit."""
        return self

    def store_settings(self) -> dict[str, Any]:
        """Returns what a row store is told."""
        name = type(self).__name__
        return {f"{name}.{field}": value for field, value in dataclasses.asdict(self).items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimeToLive(EvictionPolicy):
    """A row goes if its last update is too old; a row without one counts from its creation.

    Attributes:
      steps: a row goes once more steps than this have been applied on its shard since its last
        update. 0 is no limit.
      event_secs: a row goes once the event clock has advanced by more than this since its last
        update (`embedps.scheduling.event_clock`). 0 is no limit.
    """

    steps: int = 0
    event_secs: int = 0

    def __post_init__(self) -> None:
        _check_whole("TimeToLive.steps", self.steps, least=0, most=_MAX_STEPS)
        _check_whole("TimeToLive.event_secs", self.event_secs, least=0, most=_MAX_SECS)
        if not self.steps and not self.event_secs:
            raise UsageError("a TimeToLive must have steps or event_secs above 0")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SizeLimit(EvictionPolicy):
    """At a limit, a new row displaces the worst of 16 candidates in its part of the table.

    Attributes:
      max_rows: the most rows of the table; each shard has an equal part. 0 is no limit.
      max_bytes: the most bytes of the table, index and bookkeeping included; each shard has an
        equal part, of at least 73,728 bytes and 1,024 rows with 40 bytes each (and 262,144 with
        MinCount), and the table's part of 3 MiB if evicted rows are kept. 0 is no limit.
      order: the worst row is the one "least_recent"ly updated, or the "least_frequent"ly.
    """

    max_rows: int = 0
    max_bytes: int = 0
    order: Order = "least_recent"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_whole("SizeLimit.max_rows", self.max_rows, least=0, most=_MAX_INT64)
        _check_whole("SizeLimit.max_bytes", self.max_bytes, least=0, most=_MAX_INT64)
        if not self.max_rows and not self.max_bytes:
            raise UsageError("a SizeLimit must have max_rows or max_bytes above 0")

    def of_shard(self, num_shards: int) -> "SizeLimit":
        return dataclasses.replace(  # the hash spreads rows evenly
            self,
            max_rows=-(-self.max_rows // num_shards),
            max_bytes=max(self.max_bytes // num_shards, min(self.max_bytes, 1)),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinNorm(EvictionPolicy):
    """A row that was updated goes if the L2 norm of its embedding is too small.

    Attributes:
      norm: rows below it go.
    """

    norm: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.norm) and 0 < self.norm <= _MAX_FLOAT32):
            raise UsageError(f"MinNorm.norm must be above 0 and finite but got {self.norm}")


BY_NAME: dict[str, type[EvictionPolicy]] = {
    cls.__name__: cls for cls in EvictionPolicy.__subclasses__()
}

_P = TypeVar("_P")


def check(table: str, policies: Sequence[EvictionPolicy], *, capacity: int) -> None:
    """Checks that a table's policies go together.

    Raises:
      UsageError: two are of one kind, or one could never have an effect.
    """
    for policy in policies:
        if not isinstance(policy, EvictionPolicy):
            raise UsageError(
                f"table {table!r}: eviction must have policies ({', '.join(BY_NAME)}) but got "
                f"{policy!r:.60}"
            )
    kinds = [type(policy).__name__ for policy in policies]
    if repeated := sorted({kind for kind in kinds if kinds.count(kind) > 1}):
        raise UsageError(f"table {table!r}: eviction must have one {repeated[0]} but has several")
    limit = find(policies, SizeLimit)
    if capacity and limit is not None and limit.max_rows:
        raise UsageError(
            f"table {table!r}: capacity {capacity} refuses new ids and max_rows {limit.max_rows} "
            "displaces rows for them: give one of the two"
        )


def find(policies: Sequence[EvictionPolicy], kind: type[_P]) -> _P | None:
    """Returns the policy of a kind, if there is one."""
    return next((policy for policy in policies if isinstance(policy, kind)), None)


def _check_whole(name: str, value: int, *, most: int, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UsageError(f"{name} must be a whole number in [{least}, {most}] but got {value!r}")
