"""Policies of eviction: which rows of a table go."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from embedps.config_fields import check_types
from embedps.constants import EVICTION_ORDERS
from embedps.errors import UsageError

_MAX_STEPS = 2**32 - 1
_MAX_SECS = 10**10
_MAX_INT64 = 2**63 - 1
_MAX_FLOAT32 = 3.4028234e38


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimeToLive:
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
class SizeLimit:
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
    order: Literal["least_recent", "least_frequent"] = "least_recent"

    def __post_init__(self) -> None:
        _check_whole("SizeLimit.max_rows", self.max_rows, least=0, most=_MAX_INT64)
        _check_whole("SizeLimit.max_bytes", self.max_bytes, least=0, most=_MAX_INT64)
        if not self.max_rows and not self.max_bytes:
            raise UsageError("a SizeLimit must have max_rows or max_bytes above 0")
        if self.order not in EVICTION_ORDERS:
            raise UsageError(
                f"SizeLimit.order must be {' or '.join(EVICTION_ORDERS)} but got {self.order!r}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MinNorm:
    """A row that was updated goes if the L2 norm of its embedding is too small.

    Attributes:
      norm: rows below it go.
    """

    norm: float

    def __post_init__(self) -> None:
        check_types(self, "MinNorm.")
        if not (math.isfinite(self.norm) and 0 < self.norm <= _MAX_FLOAT32):
            raise UsageError(f"MinNorm.norm must be above 0 and finite but got {self.norm}")


EvictionPolicy: TypeAlias = TimeToLive | SizeLimit | MinNorm

_P = TypeVar("_P")


def check(table: str, policies: Sequence[EvictionPolicy], *, capacity: int) -> None:
    """Checks that a table's policies go together.

    Raises:
      UsageError: two are of one kind, or one could never have an effect.
    """
    for policy in policies:
        if not isinstance(policy, TimeToLive | SizeLimit | MinNorm):
            raise UsageError(
                f"table {table!r}: eviction must have policies (TimeToLive, SizeLimit, MinNorm) "
                f"but got {policy!r:.60}"
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


def to_json(policies: Sequence[EvictionPolicy]) -> list[dict[str, Any]]:
    """Returns the policies as a checkpoint stores them."""
    return [{"kind": type(p).__name__, **dataclasses.asdict(p)} for p in policies]


def store_attributes(
    eviction: Sequence[Sequence[EvictionPolicy]],
    *,
    num_shards: int,
    order: str = EVICTION_ORDERS[0],
) -> dict[str, Any]:
    """Returns the attributes of a store by the policies of each of its tables.

    The hash spreads rows evenly, so each shard has its part of a limit. `order` is of the tables
    without a limit of their own, under one of the server.
    """
    ages = [find(policies, TimeToLive) for policies in eviction]
    norms = [find(policies, MinNorm) for policies in eviction]
    limits = [find(policies, SizeLimit) for policies in eviction]
    return {
        "ttl_steps": [age.steps if age else 0 for age in ages],
        "have_oldest_step": [bool(age and age.event_secs) for age in ages],
        "min_norms": [norm.norm if norm else 0.0 for norm in norms],
        "limit_rows": [-(-limit.max_rows // num_shards) if limit else 0 for limit in limits],
        "limit_bytes": [limit.max_bytes // num_shards if limit else 0 for limit in limits],
        "eviction_orders": [limit.order if limit else order for limit in limits],
    }


def _check_whole(name: str, value: int, *, most: int, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UsageError(f"{name} must be a whole number in [{least}, {most}] but got {value!r}")
