r"""The declared schema of a table: its file format, its columns and the features made of them.

    format = "csv"            # or "jsonl", "parquet", "orc"
    delimiter = "\t"          # one character, or several such as "::"
    encoding = "utf-8"        # of text files: as Python names it, such as "latin-1"
    header = false            # true: the first line names the columns; "auto": if it does
    quote = '"'               # fields may be quoted; "": quotes are plain characters
    missing = [""]            # texts that mean a missing value

    [[column]]                # in the order of the file; `names = [...]` declares several
    name = "I1"
    as = "numeric"            # label, categorical, list, float_list, weight, timestamp, key, ignore
    type = "integer"
    transform = ["log1p", { clip = [0, 10] }]
    path = "device.age"       # not of csv: keys to a value in objects, lists of them or maps

    [[feature]]               # another feature of a column, or a cross of several
    name = "C1xC2"
    cross = ["C1", "C2"]
    transform = [{ hash = 100000 }]

The fitted form of the same table is `_transforms.json` (embedps/features/transforms.py).
"""

from __future__ import annotations

import codecs
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from embedps.config_fields import shown
from embedps.data.dataset_metadata import LABEL_KINDS
from embedps.errors import UsageError
from embedps.features.transform_steps import TransformStep, finite_number, parse_step

SCHEMAS = Path(__file__).parent / "schemas"
"""The folder of the schemas that the package ships."""

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
TEXT_FORMATS = ("csv", "jsonl")
FORMATS = (*TEXT_FORMATS, "parquet", "orc")
_ID_TYPES = ("hex", "integer", "string")
_TYPES = {
    "label": ("number",),
    "numeric": ("float", "integer"),
    "categorical": _ID_TYPES,
    "list": _ID_TYPES,
    "float_list": ("float",),
    "weight": ("float",),
    "timestamp": ("seconds", "milliseconds", "text"),
    "key": _ID_TYPES,
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
_KINDS = {str: "a text", bool: "true or false"}
_SETTINGS = dict.fromkeys(("name", "format", "delimiter", "quote", "encoding"), str)
_COLUMN_SETTINGS = {
    **dict.fromkeys(("type", "separator", "format", "task"), str),
    **dict.fromkeys(("keep", "flatten"), bool),
}
_WRITTEN = ("label", "float_list", "weight", "timestamp")
_SOURCES = ("numeric", "categorical", "list", "timestamp")


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
    positive_from: float | None = None
    """The smallest value of a positive label; None if labels are 0 and 1."""
    task: str = "binary"
    """Of a label: binary, classes or number."""
    classes: int | tuple[str, ...] = 0
    """Of a label of classes: how many integers from 0 there are, or the texts in their order."""
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

    def __post_init__(self) -> None:
        if (not self.name or self.name.startswith("_")) and self.role != "ignore":
            raise UsageError(
                f"a column's name must not be empty or begin with _, got {self.name!r}: only a "
                'column of as = "ignore" may have such a name'
            )
        if self.role not in ROLES:
            raise UsageError(f"column {self.name!r}: as must be one of {ROLES}, got {self.role!r}")
        if self.type not in _TYPES[self.role]:
            raise UsageError(
                f"column {self.name!r}: type of a {self.role} column must be one of "
                f"{_TYPES[self.role]}, got {self.type!r}"
            )
        if (self.type == "text") != bool(self.format):
            raise UsageError(f"column {self.name!r}: format belongs to a timestamp of type text")
        if not self.separator:
            raise UsageError(f"column {self.name!r}: separator must not be empty")
        if self.flatten and self.role not in ("list", "float_list"):
            raise UsageError(f"column {self.name!r}: flatten belongs to a list or float_list")
        if self.keep and self.role != "key":
            raise UsageError(f"column {self.name!r}: keep belongs to a key")
        self._check_label()

    def _check_label(self) -> None:
        where = f"column {self.name!r}"
        if self.task not in LABEL_KINDS:
            raise UsageError(f"{where}: task must be one of {LABEL_KINDS}, got {self.task!r}")
        if self.role != "label" and (self.task != "binary" or self.classes):
            raise UsageError(f"{where}: task and classes belong to a label")
        if (self.task == "classes") != bool(self.classes):
            raise UsageError(
                f"{where}: a label of task classes must have classes, their number or a list of "
                "their texts, and no other label has"
            )
        if isinstance(self.classes, tuple):
            _check_unique("class", list(self.classes))
        if self.task != "binary" and self.positive_from is not None:
            raise UsageError(f"{where}: positive_from belongs to a label of task binary")

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that lead to the value; the first is of the file."""
        return self.path or (self.name,)

    @property
    def num_classes(self) -> int:
        """The number of a label's classes."""
        return self.classes if isinstance(self.classes, int) else len(self.classes)

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
        if self.positive_from is not None:
            node["positive_from"] = self.positive_from
        if self.task != "binary":
            node["task"] = self.task
        if self.classes:
            node["classes"] = self.classes if isinstance(self.classes, int) else [*self.classes]
        if self.keep:
            node["keep"] = True
        if self.path:
            node["path"] = [*self.path]
        if self.flatten:
            node["flatten"] = True
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


@dataclass(frozen=True, kw_only=True)
class Table:
    """A declared table."""

    columns: tuple[Column, ...]
    features: tuple[Feature, ...]
    name: str = "table"
    format: str = "csv"
    delimiter: str = ","
    header: bool | str = True
    quote: str = '"'
    encoding: str = "utf-8"
    missing: tuple[str, ...] = ("",)

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise UsageError(f"format must be one of {FORMATS}, got {self.format!r}")
        if not self.delimiter.isascii() or not self.delimiter or {*self.delimiter} & {*"\r\n"}:
            raise UsageError(
                f"delimiter must be ASCII characters but no line break, got {self.delimiter!r}"
            )
        if self.quote not in ("", '"', "'"):
            raise UsageError(f"quote must be empty, \" or ', got {self.quote!r}")
        if self.quote and len(self.delimiter) > 1:
            raise UsageError(
                f'quote must be "" with a delimiter of several characters, {self.delimiter!r}'
            )
        if self.quote == self.delimiter:
            raise UsageError(f"quote and delimiter must differ, both are {self.quote!r}")
        try:
            codecs.getincrementaldecoder(self.encoding)
            b"text".decode(self.encoding)
        except UnicodeDecodeError:
            pass  # it is known, and these bytes are none of its texts
        except (LookupError, ValueError):
            raise UsageError(
                "encoding must be one that Python knows of texts, such as latin-1, got "
                f"{self.encoding!r}"
            ) from None
        if not isinstance(self.header, bool) and self.header != "auto":
            raise UsageError(f'header must be true, false or "auto", got {shown(self.header)}')
        if self.format not in TEXT_FORMATS and self.encoding != "utf-8":
            raise UsageError(f"encoding belongs to a format of {TEXT_FORMATS}, not {self.format!r}")
        _check_unique("column", [column.name for column in self.columns])
        if self.format == "csv" and (paths := [c.name for c in self.columns if c.path]):
            raise UsageError(f"path belongs to another format than csv, {paths} have one")
        for role in ("weight", "timestamp"):
            found = [column.name for column in self.columns if column.role == role]
            if len(found) > 1:
                raise UsageError(f"a table must have at most one {role} column, got {found}")
        written = [feature.name for feature in self.features]
        written += [column.name for column in self.columns if column.is_written]
        _check_unique("feature", written)
        if not self.features:
            raise UsageError("a table must have a numeric, categorical or list column")
        for feature in self.features:
            self._check_feature(feature)

    def _check_feature(self, feature: Feature) -> None:
        where = f"feature {feature.name!r}"
        role = "categorical" if feature.is_cross else self.column(feature.sources[0]).role
        kind = {"numeric": "numbers", "timestamp": "times"}.get(role, "ids")
        for step in feature.steps:
            if step.takes != kind:
                raise UsageError(f"{where}: {step.op} is a step of {step.takes}, here are {kind}")
            kind = step.gives
        if kind == "times":
            raise UsageError(f"{where}: a time must have a step of hour, weekday or age")
        ops = [step.op for step in feature.steps]
        if "standardize" in ops and "bucketize" in ops:
            raise UsageError(f"{where}: bucketize has bounds of its own, leave out standardize")
        if sum(op in ("standardize", "min_count") for op in ops) > 1:
            raise UsageError(f"{where}: must have at most one of standardize and min_count, once")

    def column(self, name: str) -> Column:
        """Finds a column by name; raises UsageError if it is not declared."""
        for column in self.columns:
            if column.name == name:
                return column
        raise UsageError(f"there is no column {name!r}: {[c.name for c in self.columns]}")

    def role(self, role: str) -> Column | None:
        """Finds the first column of a role; the only one, if it is no label."""
        return next((column for column in self.columns if column.role == role), None)

    def keeps_fingerprints(self, name: str) -> bool:
        """Tells whether a dataset has fingerprints of a column's texts as ids; a hash has others.

        Raises:
          UsageError: there is no such column.
        """
        column = self.column(name)
        made = (feature for feature in self.features if feature.sources == (name,))
        as_they_are = (all(step.op != "hash" for step in feature.steps) for feature in made)
        return column.type == "string" and (column.keep or any(as_they_are))

    @property
    def read_columns(self) -> tuple[Column, ...]:
        """The columns that are not ignored."""
        return tuple(column for column in self.columns if column.role != "ignore")

    @property
    def row_schema(self) -> pa.Schema:
        """The Arrow schema of decoded rows: missing numbers are NaN, missing ids MISSING_ID."""
        return pa.schema([pa.field(c.name, c.row_type, nullable=False) for c in self.read_columns])

    @property
    def output_schema(self) -> pa.Schema:
        """The Arrow schema of the shards: labels, numbers, ids, lists, then the other columns."""
        fields = [(c.name, c.row_type) for c in self.columns if c.role == "label"]
        for kind in ("numeric", "categorical", "list"):
            fields += [(f.name, f.arrow_type) for f in self.features if f.kind == kind]
        for role in ("float_list", "key", "weight", "timestamp"):
            mine = [c for c in self.columns if c.role == role and c.is_written]
            fields += [(c.name, c.row_type) for c in mine]
        return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])

    def with_features(self, features: tuple[Feature, ...]) -> Table:
        """Returns the table with its features replaced, such as by fitted ones."""
        return replace(self, features=features)

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON form that `parse` reads."""
        return {
            "name": self.name,
            "format": self.format,
            "delimiter": self.delimiter,
            "header": self.header,
            "quote": self.quote,
            **({"encoding": self.encoding} if self.encoding != "utf-8" else {}),
            "missing": list(self.missing),
            "column": [column.to_json() for column in self.columns],
            "feature": [feature.to_json() for feature in self.features],
        }

    @classmethod
    def load(cls, name_or_path: str) -> Table:
        """Reads a TOML schema: a file, or the name of one that the package ships.

        Raises:
          UsageError: the schema is absent, is not TOML, or is not valid.
        """
        path = Path(name_or_path)
        if not path.suffix and not path.exists():
            path = SCHEMAS / f"{name_or_path}.toml"
        try:
            node = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            known = ", ".join(sorted(file.stem for file in SCHEMAS.glob("*.toml")))
            raise UsageError(
                f"--schema {name_or_path}: {error.strerror}: give a TOML file, or one of {known}"
            ) from None
        except (ValueError, RecursionError) as error:  # ValueError: not TOML, or not UTF-8
            raise UsageError(f"--schema {name_or_path}: must be TOML: {error}") from None
        try:
            return cls.parse({"name": path.stem} | node)
        except UsageError as error:
            raise UsageError(f"--schema {name_or_path}: {error}") from None

    @classmethod
    def parse(cls, node: Mapping[str, Any]) -> Table:
        """Parses a table from its TOML or JSON form; raises UsageError if it is not valid."""
        if not isinstance(node, Mapping):
            raise UsageError(f"a schema must be a table of settings, got {shown(node)}")
        _check_texts(node)
        settings = dict(node)
        _check_kinds("a schema", settings, _SETTINGS)
        columns: list[Column] = []
        features: list[Feature] = []
        explicit = [dict(entry) for entry in _entries(settings.pop("feature", []), "feature")]
        for declared in explicit:
            _check_kinds("a feature", declared, {"name": str, "from": str})
        own = {entry.get("name") for entry in explicit}
        for entry in _entries(settings.pop("column", []), "column"):
            entry = dict(entry)
            names = entry.pop("names", None) or [entry.pop("name", "")]
            if not _are_texts(names):
                raise UsageError(
                    f"a column must have a name, or a list of names, got {shown(names)}"
                )
            transform = entry.pop("transform", [])
            for name in names:
                column = _column(name, entry)
                columns.append(column)
                if column.role in ("numeric", "categorical", "list"):
                    # A stored table lists every feature, including those that columns declare.
                    if name not in own:
                        features.append(_feature(column.name, (column,), transform))
                elif transform:
                    raise UsageError(f"column {name!r}: a {column.role} column has no transform")
        by_name = {column.name: column for column in columns}
        for entry in explicit:
            features.append(_declared_feature(entry, by_name))
        missing = settings.get("missing", [""])
        if not _are_texts(missing):
            raise UsageError(f"missing must be a list of texts, got {shown(missing)}")
        settings["missing"] = tuple(missing)
        unknown = set(settings) - {*_SETTINGS, "header", "missing"}
        if unknown:
            raise UsageError(f"a schema has no {', '.join(sorted(unknown))}")
        return cls(columns=tuple(columns), features=tuple(features), **settings)


def _entries(node: Any, what: str) -> list[Mapping[str, Any]]:
    if not isinstance(node, list) or not all(isinstance(entry, Mapping) for entry in node):
        raise UsageError(f"{what} must be [[{what}]] tables, got {shown(node)}")
    return node


def _are_texts(node: Any) -> bool:
    return isinstance(node, list) and all(isinstance(each, str) for each in node)


def _check_texts(node: Any) -> None:
    """Raises UsageError if a text holds half of a surrogate pair, as JSON may."""
    if isinstance(node, Mapping):
        _check_texts([*node, *node.values()])
    elif isinstance(node, list):
        for each in node:
            _check_texts(each)
    elif isinstance(node, str):
        try:
            node.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"a schema's texts must be UTF-8: {error}") from None


def _check_kinds(where: str, node: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    """Checks of which kind the settings are; raises UsageError if one is of another."""
    for key, kind in kinds.items():
        if key in node and not isinstance(node[key], kind):
            raise UsageError(f"{where}: {key} must be {_KINDS[kind]}, got {shown(node[key])}")


def _column(name: str, entry: Mapping[str, Any]) -> Column:
    settings = dict(entry)
    role = settings.pop("as", None)
    unknown = set(settings) - {
        "type", "separator", "format", "positive_from", "task", "classes", "keep", "path",
        "flatten",
    }  # fmt: skip
    if unknown:
        raise UsageError(f"column {name!r} has no setting {', '.join(sorted(unknown))}")
    if role not in ROLES:
        raise UsageError(f"column {name!r}: as must be one of {ROLES}, got {shown(role)}")
    _check_kinds(f"column {name!r}", settings, _COLUMN_SETTINGS)
    if "positive_from" in settings:
        finite_number(f"column {name!r}: positive_from", settings["positive_from"])
    default = "text" if "format" in settings else _TYPES[role][0]
    if "classes" in settings:
        settings["classes"] = _classes(name, settings["classes"])
        settings.setdefault("task", "classes")
    if "path" in settings:
        settings["path"] = _path(name, settings["path"])
    if role in ("categorical", "list", "key") and "type" not in settings:
        raise UsageError(f"column {name!r}: type must be given, one of {_ID_TYPES}")
    return Column(name=name, role=role, type=settings.pop("type", default), **settings)


def _path(name: str, node: Any) -> tuple[str, ...]:
    keys = node.split(".") if isinstance(node, str) else node
    if not _are_texts(keys) or not keys or not all(keys):
        raise UsageError(
            f'column {name!r}: path must be keys with a "." between, or a list of them if a key '
            f"has one, got {shown(node)}"
        )
    return tuple(keys)


def _classes(name: str, node: Any) -> int | tuple[str, ...]:
    if isinstance(node, int) and not isinstance(node, bool) and 2 <= node < 1 << 31:
        return node
    if _are_texts(node) and len(node) >= 2:
        return tuple(node)
    raise UsageError(
        f"column {name!r}: classes must be a number from 2 to below 2**31, or a list of texts, got "
        f"{shown(node)}"
    )


def _feature(name: str, sources: tuple[Column, ...], transform: Any) -> Feature:
    if not isinstance(transform, list):
        raise UsageError(f"feature {name!r}: transform must be a list, got {shown(transform)}")
    try:
        parsed = tuple(parse_step(step) for step in transform)
    except UsageError as error:
        raise UsageError(f"feature {name!r}: {error}") from None
    kind = "categorical" if len(sources) > 1 else sources[0].role
    if kind in ("numeric", "timestamp") and parsed:
        kind = "categorical" if parsed[-1].gives == "ids" else "numeric"
    return Feature(name=name, sources=tuple(c.name for c in sources), kind=kind, steps=parsed)


def _declared_feature(entry: Mapping[str, Any], columns: Mapping[str, Column]) -> Feature:
    name = entry.get("name", "")
    unknown = set(entry) - {"name", "from", "cross", "transform"}
    if not name or unknown or ("from" in entry) == ("cross" in entry):
        raise UsageError(
            f"a feature must have a name, from = column or cross = [columns], and transform, "
            f"got {shown(dict(entry))}"
        )
    sources = entry["cross"] if "cross" in entry else [entry["from"]]
    if not _are_texts(sources) or ("cross" in entry and len(sources) < 2):
        raise UsageError(
            f"feature {name!r}: cross must list two or more columns, got {shown(sources)}"
        )
    allowed = ("categorical",) if "cross" in entry else _SOURCES
    for source in sources:
        if source not in columns or columns[source].role not in allowed:
            raise UsageError(
                f"feature {name!r} must be made of {' or '.join(allowed)} columns, got {source!r}"
            )
    return _feature(name, tuple(columns[s] for s in sources), entry.get("transform", []))


def _check_unique(what: str, names: list[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UsageError(f"{what} names must differ, {repeated} are repeated")
