"""The parts of a dataset's description: features, files, splits and input, and their JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from embedps.errors import DatasetError

_MIN_INT, _MAX_INT = -(1 << 63), (1 << 63) - 1

_T = TypeVar("_T")


LABEL_KINDS = ("binary", "classes", "number")
MISSING_CLASS = -1
"""A missing label of classes; one of another kind is NaN."""


@dataclass(frozen=True, kw_only=True)
class LabelColumn:
    """Describes a label.

    Attributes:
      name: the column's name.
      kind: "binary": float32, 0 or 1; "classes": int64 from 0 to below `classes`; "number": finite
        float32.
      classes: how many classes there are; 0 if the label has none.
      optional: whether it may be missing: NaN, or MISSING_CLASS.
      soft: whether a binary label is any number from 0 to 1.
      weight: the column of its own weights; empty if the dataset's count.
    """

    may_lack: ClassVar[tuple[str, ...]] = ("optional", "soft", "weight")

    name: str
    kind: str = "binary"
    classes: int = 0
    optional: bool = False
    soft: bool = False
    weight: str = ""

    def __post_init__(self) -> None:
        if self.kind not in LABEL_KINDS:
            raise DatasetError(
                f"label {self.name!r}: kind must be one of {', '.join(LABEL_KINDS)}, "
                f"got {self.kind!r}"
            )
        if (self.classes > 0) != (self.kind == "classes"):
            raise DatasetError(
                f"label {self.name!r}: classes must be above 0 for kind classes, and 0 for others, "
                f"got {self.classes} for {self.kind}"
            )
        if self.soft and self.kind != "binary":
            raise DatasetError(f"label {self.name!r}: soft must be of kind binary, got {self.kind}")

    @property
    def arrow_type(self) -> str:
        """The Arrow type of the column."""
        return "int64" if self.kind == "classes" else "float"


@dataclass(frozen=True, kw_only=True)
class NumericFeature:
    """Describes a float32 column; `missing` counts its NaN rows."""

    name: str
    transform: str = "log1p"
    missing: int = 0


@dataclass(frozen=True, kw_only=True)
class CategoricalFeature:
    """Describes a column of ids, or of lists of ids if `ragged`.

    Attributes:
      name: the column's name.
      cardinality: the number of distinct ids, without the missing id.
      cardinality_exact: whether `cardinality` was counted; otherwise it is estimated.
      missing: the number of missing ids; for a ragged feature, of empty lists.
      ragged: whether a row has a list of ids.
    """

    may_lack: ClassVar[tuple[str, ...]] = ("ragged",)

    name: str
    cardinality: int
    cardinality_exact: bool = True
    missing: int = 0
    ragged: bool = False


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """Describes a Parquet shard; `path` is relative to the dataset, `row_groups` has row counts."""

    path: str
    rows: int
    bytes: int
    xxh3_64: str
    row_groups: tuple[int, ...]

    def __post_init__(self) -> None:
        if os.path.isabs(self.path) or ".." in Path(self.path).parts:
            raise DatasetError(f"a shard's path must be inside the dataset, got {self.path!r}")
        if sum(self.row_groups) != self.rows:
            raise DatasetError(
                f"{self.path}: row groups must add up to its {self.rows} rows, "
                f"they give {sum(self.row_groups)}"
            )


@dataclass(frozen=True, kw_only=True)
class Split:
    """Describes the rows for one use (train, eval); shards differ by at most one row.

    `positives` counts those whose first label is 1 (above 0.5 if it is soft), if it is binary.
    """

    rows: int
    positives: int
    files: tuple[DataFile, ...]

    def __post_init__(self) -> None:
        rows = sum(file.rows for file in self.files)
        if rows != self.rows:
            raise DatasetError(f"a split's files must hold its {self.rows} rows, they hold {rows}")
        if not 0 <= self.positives <= self.rows:
            raise DatasetError(
                f"a split's positives must be within 0..{self.rows}, got {self.positives}"
            )


@dataclass(frozen=True, kw_only=True)
class KeptTexts:
    """Describes the texts of ids that lie beside a dataset (embedps/storage/id_texts.py).

    Attributes:
      columns: of the input, whose texts they are.
      kept: how many there are, as they were made.
      left: how many are not there, of the least frequent.
      shared: how many ids several texts have.
    """

    columns: tuple[str, ...] = ()
    kept: int = 0
    left: int = 0
    shared: int = 0


@dataclass(frozen=True, kw_only=True)
class InputFile:
    """Describes an input file: its name, size, and the checksum of its bytes."""

    path: str
    bytes: int
    xxh3_64: str
    lines: int = 0
    lines_bad: int = 0


@dataclass(frozen=True, kw_only=True)
class SideTable:
    """Describes a side table that rows were joined with.

    Attributes:
      on: the column of the rows that has the key.
      files: its files.
      rows: how many it has.
      unmatched: how many of the rows read have no row in it.
    """

    on: str
    files: tuple[InputFile, ...]
    rows: int
    unmatched: int = 0

    @property
    def name(self) -> str:
        """Names it in messages."""
        return ", ".join(file.path for file in self.files)


@dataclass(frozen=True, kw_only=True)
class InputSummary:
    """Describes a dataset's input: enough to tell whether a rerun would write the same bytes."""

    may_lack: ClassVar[tuple[str, ...]] = ("joins",)

    files: tuple[InputFile, ...] = ()
    lines_read: int = 0
    lines_bad: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    joins: tuple[SideTable, ...] = ()


def read_fields(kind: type, node: Any, where: str = "") -> dict[str, Any]:
    """Reads the fields of a dataclass from a JSON object, each by its declared type.

    Args:
      kind: the class. Its `may_lack` names the fields that older datasets do not have.
      node: the object; it need not have a field `directory`.
      where: its place in the document, for messages.

    Raises:
      DatasetError: a field is absent, or has another type than it must have.
    """
    absent = {"directory"}
    if isinstance(node, dict):
        absent |= {name for name in getattr(kind, "may_lack", ()) if name not in node}
    declared = get_type_hints(kind)
    names = [each.name for each in fields(kind) if each.name not in absent]
    return {name: _read(declared[name], node, name, where) for name in names}


def _read(declared: Any, node: Any, key: str, where: str) -> Any:
    """Reads node[key], a value or a collection."""
    origin, of = get_origin(declared), get_args(declared)
    if origin is tuple:
        items = {f"{key}[{i}]": each for i, each in enumerate(get_field(node, key, list, where))}
        return tuple(_read_item(of[0], items, at, where) for at in items)
    if origin is Mapping:
        items = get_field(node, key, dict, where)
        if not is_dataclass(of[1]):
            return items
        return {name: _read_item(of[1], items, name, f"{where}{key}.") for name in items}
    if is_dataclass(declared):
        get_field(node, key, dict, where)
    return _read_item(declared, node, key, where)


def _read_item(declared: Any, node: Any, key: str, where: str) -> Any:
    """Reads node[key], a value or one of these classes."""
    is_part = is_dataclass(declared)  # not in the `if`: mypy would take it for an instance
    if is_part:
        return declared(**read_fields(declared, node[key], f"{where}{key}."))
    return get_field(node, key, declared, where)


def get_field(node: Any, key: str, kind: type[_T], where: str) -> _T:
    """Returns node[key]; raises DatasetError if it is absent or has another type than `kind`."""
    if not isinstance(node, dict) or key not in node:
        raise DatasetError(f"{where}{key} must be there, it is absent")
    value = node[key]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise DatasetError(f"{where}{key} must be {kind.__name__}, got {value!r:.60}")
    if kind is int:
        least = _MIN_INT if key == "missing_id" else 0
        if not least <= value <= _MAX_INT:  # type: ignore[operator]
            raise DatasetError(
                f"{where}{key} must be within {least}..2**63-1, got {value!r:.60}: "
                "make the dataset again"
            )
    if kind is str and "\0" in value:  # type: ignore[operator]
        raise DatasetError(f"{where}{key} must be text without NUL, got {value!r:.60}")
    return value
