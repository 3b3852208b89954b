"""Transform steps turn a column into a feature; each is a pure function of NumPy arrays.

Numbers are float64 with NaN for missing values. Ids are int64 with MISSING_ID for missing values.
Times are int64 milliseconds since 1970, never missing.
A step that learns from data (standardize, min_count) is fitted once, on the rows to train on, and
stored fitted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from embedps.config_fields import shown
from embedps.data.dataset import MISSING_ID, RARE_ID
from embedps.errors import UsageError
from embedps.splitmix import mix

Kind = Literal["numbers", "ids", "times"]
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
_MOST = 1 << 62  # of buckets and of counts
FIRST_WEEKDAY = 3  # 1970 began on a Thursday


@dataclass(frozen=True, kw_only=True)
class TransformStep:
    """One step; `takes` and `gives` are the kinds of its input and output."""

    op: ClassVar[str]
    takes: ClassVar[Kind]
    gives: ClassVar[Kind]

    @property
    def fitted(self) -> bool:
        """Whether the step can be applied."""
        return True

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        """Applies the step; does not change `values`."""
        raise NotImplementedError

    def to_json(self) -> Any:
        """Returns the JSON form that `parse_step` reads: its name, if it has no setting."""
        return self.op


@dataclass(frozen=True, kw_only=True)
class Log1p(TransformStep):
    """Computes log(1 + max(x, 0))."""

    op: ClassVar[str] = "log1p"
    takes: ClassVar[Kind] = "numbers"
    gives: ClassVar[Kind] = "numbers"

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        clipped = np.maximum(values, 0.0)
        return np.asarray(np.log1p(clipped, out=clipped))


@dataclass(frozen=True, kw_only=True)
class Clip(TransformStep):
    """Replaces numbers below `low` by `low`, and those above `high` by `high`."""

    op: ClassVar[str] = "clip"
    takes: ClassVar[Kind] = "numbers"
    gives: ClassVar[Kind] = "numbers"
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise UsageError(f"clip must have low < high, got [{self.low}, {self.high}]")

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(np.clip(values, self.low, self.high))

    def to_json(self) -> Any:
        return {"clip": [self.low, self.high]}


@dataclass(frozen=True, kw_only=True)
class Standardize(TransformStep):
    """Computes (x - mean) / std of the rows to train on; a std of 0 counts as 1."""

    op: ClassVar[str] = "standardize"
    takes: ClassVar[Kind] = "numbers"
    gives: ClassVar[Kind] = "numbers"
    mean: float | None = None
    std: float | None = None

    @property
    def fitted(self) -> bool:
        return self.mean is not None and self.std is not None

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        if self.mean is None or self.std is None:
            raise UsageError("standardize must be fitted before it is applied")
        return np.asarray((values - self.mean) / (self.std or 1.0))

    def to_json(self) -> Any:
        return {"standardize": {"mean": self.mean, "std": self.std}} if self.fitted else self.op


@dataclass(frozen=True, kw_only=True)
class Bucketize(TransformStep):
    """Counts the ascending bounds that are at most x: ids 0..len(bounds)."""

    op: ClassVar[str] = "bucketize"
    takes: ClassVar[Kind] = "numbers"
    gives: ClassVar[Kind] = "ids"
    bounds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.bounds or any(np.diff(self.bounds) <= 0):
            raise UsageError(f"bucketize must have ascending bounds, got {list(self.bounds)}")

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        ids = np.searchsorted(np.array(self.bounds), values, side="right").astype(np.int64)
        ids[np.isnan(values)] = MISSING_ID
        return ids

    def to_json(self) -> Any:
        return {"bucketize": list(self.bounds)}


@dataclass(frozen=True, kw_only=True)
class Hash(TransformStep):
    """Hashes ids to 0..buckets-1; a missing id stays missing."""

    op: ClassVar[str] = "hash"
    takes: ClassVar[Kind] = "ids"
    gives: ClassVar[Kind] = "ids"
    buckets: int

    def __post_init__(self) -> None:
        if not 1 <= self.buckets < _MOST:
            raise UsageError(f"hash must have 1 to 2**62 buckets, got {shown(self.buckets)}")

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        hashes = mix(values.astype(np.uint64)) % np.uint64(self.buckets)
        return np.where(values == MISSING_ID, MISSING_ID, hashes.astype(np.int64))

    def to_json(self) -> Any:
        return {"hash": self.buckets}


@dataclass(frozen=True, kw_only=True, eq=False)
class RareIds(TransformStep):
    """Replaces ids seen fewer than `count` times in the rows to train on by RARE_ID."""

    op: ClassVar[str] = "min_count"
    takes: ClassVar[Kind] = "ids"
    gives: ClassVar[Kind] = "ids"
    count: int
    file: str = ""
    """The file of the ids to keep, relative to `_transforms.json`; empty before the fit."""
    kept: NDArray[np.int64] | None = field(default=None, repr=False)
    """The ids to keep, ascending; None before they are fitted or loaded."""

    def __post_init__(self) -> None:
        if not 2 <= self.count < _MOST:
            raise UsageError(f"min_count must be from 2 to below 2**62, got {shown(self.count)}")
        if Path(self.file).is_absolute() or ".." in Path(self.file).parts or "\0" in self.file:
            raise UsageError(f"min_count's file must be inside the dataset, got {self.file!r:.80}")

    @property
    def fitted(self) -> bool:
        return self.kept is not None

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        if self.kept is None:
            raise UsageError("min_count must be fitted before it is applied")
        if not len(self.kept):
            return np.where(values == MISSING_ID, MISSING_ID, RARE_ID)
        at = np.minimum(np.searchsorted(self.kept, values), len(self.kept) - 1)
        return np.where((self.kept[at] == values) | (values == MISSING_ID), values, RARE_ID)

    def to_json(self) -> Any:
        return {"min_count": {"count": self.count, "file": self.file} if self.file else self.count}


@dataclass(frozen=True, kw_only=True)
class Hour(TransformStep):
    """Gives the hour of the day in UTC: ids 0..23."""

    op: ClassVar[str] = "hour"
    takes: ClassVar[Kind] = "times"
    gives: ClassVar[Kind] = "ids"

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(values // HOUR_MS % 24)


@dataclass(frozen=True, kw_only=True)
class Weekday(TransformStep):
    """Gives the day of the week in UTC: ids 0 (Monday) to 6."""

    op: ClassVar[str] = "weekday"
    takes: ClassVar[Kind] = "times"
    gives: ClassVar[Kind] = "ids"

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.asarray((values // DAY_MS + FIRST_WEEKDAY) % 7)


@dataclass(frozen=True, kw_only=True)
class Age(TransformStep):
    """Gives the days from a time until a fixed one, which serving then uses too."""

    op: ClassVar[str] = "age"
    takes: ClassVar[Kind] = "times"
    gives: ClassVar[Kind] = "numbers"
    until: datetime

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        return np.asarray((self.until.timestamp() * 1000 - values) / DAY_MS)

    def to_json(self) -> Any:
        return {"age": self.until.isoformat()}


def parse_step(node: Any) -> TransformStep:
    """Parses a step from its TOML or JSON form; raises UsageError if it is malformed."""
    if isinstance(node, str):
        node = {node: True}
    if not isinstance(node, Mapping) or len(node) != 1:
        raise UsageError(f"a step must be a name or one name = value, got {shown(node)}")
    ((op, value),) = node.items()
    if op == "log1p" and value is True:
        return Log1p()
    if op == "standardize" and value is True:
        return Standardize()
    if op == "standardize" and isinstance(value, Mapping) and set(value) == {"mean", "std"}:
        return Standardize(
            mean=finite_number(op, value["mean"]), std=finite_number(op, value["std"])
        )
    if op == "clip" and isinstance(value, list) and len(value) == 2:
        return Clip(low=finite_number(op, value[0]), high=finite_number(op, value[1]))
    if op == "bucketize" and isinstance(value, list):
        return Bucketize(bounds=tuple(finite_number(op, bound) for bound in value))
    if op == "hash" and _is_int(value):
        return Hash(buckets=value)
    if op == "min_count" and _is_int(value):
        return RareIds(count=value)
    if op == "min_count" and isinstance(value, Mapping) and set(value) == {"count", "file"}:
        return _loaded(value["count"], value["file"])
    if op == "hour" and value is True:
        return Hour()
    if op == "weekday" and value is True:
        return Weekday()
    if op == "age":
        return Age(until=_instant(value))
    raise UsageError(
        "a step must be log1p, standardize, clip = [low, high], bucketize = [bounds], "
        "hash = buckets, min_count = times, hour, weekday or age = time, "
        f"got {op} = {shown(value)}"
    )


def _loaded(count: Any, file: Any) -> RareIds:
    if not _is_int(count) or not isinstance(file, str):
        raise UsageError(
            f"min_count must have a number and a file's name, got {shown(count)} and {shown(file)}"
        )
    return RareIds(count=count, file=file)


def _instant(value: Any) -> datetime:
    """Reads a time of TOML, or a text of ISO 8601; UTC if it has no zone."""
    try:
        text = value.isoformat() if isinstance(value, date) else value
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise UsageError(
            f"age must be a time such as 2026-01-31 or 2026-01-31T12:00:00Z, got {shown(value)}"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def finite_number(what: str, value: Any) -> float:
    """Reads a finite number; raises UsageError if it is something else."""
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    except OverflowError:  # a whole number that no float has
        pass
    raise UsageError(f"{what} must be a finite number, got {shown(value)}")
