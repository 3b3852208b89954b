"""The columns of a declared table, and the features that are made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from embedps.config_fields import shown
from embedps.data.dataset_metadata import LABEL_KINDS
from embedps.errors import UsageError
from embedps.features.transform_steps import TransformStep, finite_number

ROLES = (
    "label",
    "numeric",
    "categorical",
    "list",
    "float_list",
    "weight",
    "timestamp",
    "key",
    "ignore",
)
ID_TYPES = ("hex", "integer", "string")
COLUMN_TYPES = {
    "label": ("number",),
    "numeric": ("float", "integer"),
    "categorical": ID_TYPES,
    "list": ID_TYPES,
    "float_list": ("float",),
    "weight": ("float",),
    "timestamp": ("seconds", "milliseconds", "text"),
    "key": ID_TYPES,
    "ignore": ("string",),
}
_FLOAT, _INT = pa.float64(), pa.int64()
_ROW_TYPES = {
    "label": pa.float32(),
    "numeric": _FLOAT,
    "categorical": _INT,
    "list": pa.list_(pa.field("element", _INT, nullable=False)),
    "float_list": pa.list_(pa.field("element", pa.float32(), nullable=False)),
    "weight": pa.float32(),
    "timestamp": _INT,
    "key": _INT,
}
LIST_TYPE = _ROW_TYPES["list"]
_NUMBERS = ("label", "numeric", "float_list", "weight")
_WRITTEN = ("label", "float_list", "weight", "timestamp")


MAX_HISTORY = 1000
MAX_HISTORY_DAYS = 36_500


@dataclass(frozen=True, kw_only=True)
class History:
    """How a list is made of the rows of one user before a row.

    Attributes:
      of: the column whose ids it has, the latest last.
      by: the user's column.
      length: the most ids, the latest.
      days: the most days before the row; 0 if any.
      positives: whether only rows whose first label is positive are in it.
    """

    of: str
    by: str
    length: int = 50
    days: float = 0
    positives: bool = False

    def __post_init__(self) -> None:
        if not (type(self.length) is int and 1 <= self.length <= MAX_HISTORY):
            raise UsageError(f"length must be 1 to {MAX_HISTORY}, got {shown(self.length)}")
        if finite_number("days", self.days) < 0 or self.days > MAX_HISTORY_DAYS:
            raise UsageError(f"days must be 0 to {MAX_HISTORY_DAYS}, got {self.days}")


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the input.

    `type` is how the values are written. Numbers: float or integer. Ids: hex, integer, or string
    (stored as a 64-bit fingerprint). Timestamps: seconds, milliseconds, or text of a strptime
    `format`, or of ISO 8601 if that is "iso".
    """

    name: str
    role: str
    type: str
    separator: str = " "
    """The text between the elements of a list."""
    format: str = ""
    decimal: str = "."
    """What numbers that are texts have before their fraction."""
    thousands: str = ""
    """What they have between groups of three digits, if anything."""
    positive_from: float | None = None
    """The smallest value of a positive label; None if labels are 0 and 1."""
    task: str = "binary"
    """Of a label: binary, classes or number."""
    classes: int | tuple[str, ...] = 0
    """Of a label of classes: how many integers from 0 there are, or the texts in their order. Of a
    binary one: the text of a negative and that of a positive, instead of 0 and 1."""
    optional: bool = False
    """Whether a label may be missing, which leaves its row out of its loss and scores."""
    soft: bool = False
    """Whether a binary label is any number from 0 to 1."""
    weight: str = ""
    """Of a label: the column of its own weights."""
    keep: bool = False
    """Whether the dataset has the values of a key."""
    path: tuple[str, ...] = ()
    """The keys of the value: a column, then fields, or keys of a map. Empty: the name is the key.

    Where a list is, each element's value is meant: a list of objects has parallel lists.
    """
    on_text: Callable[[str, int], None] | None = field(default=None, compare=False, repr=False)
    """Called with each text that is decoded to its fingerprint, and this; not declared."""
    flatten: bool = False
    """Whether the values of a list's lists are one list."""
    cut: tuple[int, ...] = ()
    """How many elements a list keeps: its first, or if below 0 its last. Several numbers are of the
    levels of lists of lists, from the outer one, which become one list; 0 keeps all."""
    value: str = ""
    """Of a label: that of every row, where the input has no such column."""
    history: History | None = None
    """How ingestion makes a list that the input does not have."""

    def __post_init__(self) -> None:
        if (not self.name or self.name.startswith("_")) and self.role != "ignore":
            raise UsageError(
                f"a column's name must not be empty or begin with _, got {self.name!r}: only a "
                'column of as = "ignore" may have such a name'
            )
        if self.role not in ROLES:
            raise UsageError(f"column {self.name!r}: as must be one of {ROLES}, got {self.role!r}")
        if self.type not in COLUMN_TYPES[self.role]:
            raise UsageError(
                f"column {self.name!r}: type of a {self.role} column must be one of "
                f"{COLUMN_TYPES[self.role]}, got {self.type!r}"
            )
        if (self.type == "text") != bool(self.format):
            raise UsageError(f"column {self.name!r}: format belongs to a timestamp of type text")
        if not self.separator:
            raise UsageError(f"column {self.name!r}: separator must not be empty")
        if self.flatten and self.role not in ("list", "float_list"):
            raise UsageError(f"column {self.name!r}: flatten belongs to a list or float_list")
        if self.cut and self.role not in ("list", "float_list"):
            raise UsageError(f"column {self.name!r}: cut belongs to a list or float_list")
        shaped = bool(self.path or self.flatten or self.cut)
        if self.history is not None and (self.role != "list" or shaped):
            raise UsageError(f"column {self.name!r}: history belongs to a plain list")
        self._check_marks()
        if self.keep and self.role != "key":
            raise UsageError(f"column {self.name!r}: keep belongs to a key")
        self._check_label()

    def _check_marks(self) -> None:
        where = f"column {self.name!r}"
        if not self.has_marks:
            return
        is_text = self.role == "label" and (self.task == "classes" or bool(self.classes))
        if is_text or self.role not in _NUMBERS:
            raise UsageError(f"{where}: decimal and thousands belong to numbers")
        if len(self.decimal) != 1 or len(self.thousands) > 1 or self.decimal == self.thousands:
            raise UsageError(
                f"{where}: decimal must be a character, and thousands another one or empty, got "
                f"{self.decimal!r} and {self.thousands!r}"
            )
        if any(mark.isalnum() or mark in "+-" for mark in (self.decimal, *self.thousands)):
            raise UsageError(
                f"{where}: decimal and thousands must be no letters, digits or signs, got "
                f"{self.decimal!r} and {self.thousands!r}"
            )

    def _check_label(self) -> None:
        where = f"column {self.name!r}"
        if self.task not in LABEL_KINDS:
            raise UsageError(f"{where}: task must be one of {LABEL_KINDS}, got {self.task!r}")
        if self.role != "label" and (self.task != "binary" or self.classes):
            raise UsageError(f"{where}: task and classes belong to a label")
        if self.role != "label" and (self.optional or self.soft or self.weight or self.value):
            raise UsageError(f"{where}: optional, soft, weight and value belong to a label")
        if self.soft and (self.task != "binary" or self.positive_from is not None):
            raise UsageError(
                f"{where}: soft belongs to a label of task binary without positive_from"
            )
        two = self.task == "binary" and isinstance(self.classes, tuple) and len(self.classes) == 2
        if (self.task == "classes") != bool(self.classes) and not two:
            raise UsageError(
                f"{where}: a label of task classes must have classes, their number or a list of "
                "their texts; one of task binary may have two texts, and no other label has any"
            )
        if two and (self.soft or self.positive_from is not None):
            raise UsageError(f"{where}: a label has either classes, or soft or positive_from")
        if isinstance(self.classes, tuple):
            check_unique("class", list(self.classes))
        if self.task != "binary" and self.positive_from is not None:
            raise UsageError(f"{where}: positive_from belongs to a label of task binary")

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that lead to the value; the first is of the file."""
        return self.path or (self.name,)

    @property
    def num_classes(self) -> int:
        """The number of a label's classes; 0 if it has another task."""
        if self.task != "classes":
            return 0
        return self.classes if isinstance(self.classes, int) else len(self.classes)

    @property
    def has_marks(self) -> bool:
        """Whether numbers that are texts are written in another way than Python does."""
        return self.decimal != "." or bool(self.thousands)

    @property
    def row_type(self) -> pa.DataType:
        """The Arrow type of the decoded values."""
        return _INT if self.task == "classes" else _ROW_TYPES[self.role]

    @property
    def is_written(self) -> bool:
        """Whether the dataset has the column as it is, besides the features made of it."""
        return self.role in _WRITTEN or self.keep

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON form that `Table.parse` reads."""
        node: dict[str, Any] = {"name": self.name, "as": self.role, "type": self.type}
        if self.role in ("list", "float_list"):
            node["separator"] = self.separator
        if self.format:
            node["format"] = self.format
        if self.decimal != ".":
            node["decimal"] = self.decimal
        if self.thousands:
            node["thousands"] = self.thousands
        if self.positive_from is not None:
            node["positive_from"] = self.positive_from
        if self.task != "binary" or self.classes:
            node["task"] = self.task
        if self.classes:
            node["classes"] = self.classes if isinstance(self.classes, int) else [*self.classes]
        node |= {name: True for name in ("optional", "soft", "keep") if getattr(self, name)}
        if self.weight:
            node["weight"] = self.weight
        if self.path:
            node["path"] = [*self.path]
        if self.flatten:
            node["flatten"] = True
        if self.cut:
            node["cut"] = [*self.cut]
        if self.value:
            node["value"] = self.value
        if self.history is not None:
            node["history"] = asdict(self.history)
        return node


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A column of the dataset: a column of the input, or a cross of several, and its steps."""

    name: str
    sources: tuple[str, ...]
    kind: str
    """numeric, categorical or list, after all steps."""
    steps: tuple[TransformStep, ...] = ()

    @property
    def is_cross(self) -> bool:
        return len(self.sources) > 1

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of its column in the shards."""
        return {"numeric": pa.float32(), "categorical": _INT, "list": LIST_TYPE}[self.kind]

    @property
    def first_unfitted(self) -> int | None:
        """The index of the step that the first pass must fit."""
        return next((i for i, step in enumerate(self.steps) if not step.fitted), None)

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON form that `Table.parse` reads."""
        node: dict[str, Any] = {"name": self.name}
        node |= {"cross": list(self.sources)} if self.is_cross else {"from": self.sources[0]}
        return node | {"transform": [step.to_json() for step in self.steps]}


def check_unique(what: str, names: list[str]) -> None:
    """Raises UsageError if a name is there twice."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UsageError(f"{what} names must differ, {repeated} are repeated")
