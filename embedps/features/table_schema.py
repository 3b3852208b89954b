r"""The declared schema of a table: its file format, its columns and the features made of them.

    format = "csv"            # or "jsonl", "parquet", "orc", "avro", "tfrecord" (of tf.Example)
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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from embedps.config_fields import shown
from embedps.errors import UsageError
from embedps.features.table_columns import (
    COLUMN_TYPES,
    ID_TYPES,
    ROLES,
    Column,
    Feature,
    History,
    check_unique,
)
from embedps.features.transform_steps import finite_number, parse_step

SCHEMAS = Path(__file__).parent / "schemas"
"""The folder of the schemas that the package ships."""

TEXT_FORMATS = ("csv", "jsonl")
FORMATS = (*TEXT_FORMATS, "parquet", "orc", "tfrecord", "avro")
_KINDS = {str: "a text", bool: "true or false"}
_SETTINGS = dict.fromkeys(("name", "format", "delimiter", "quote", "encoding"), str)
_COLUMN_SETTINGS = {
    **dict.fromkeys(("type", "separator", "format", "task", "weight"), str),
    **dict.fromkeys(("keep", "flatten", "optional", "soft"), bool),
}
_CSV_SETTINGS = ("delimiter", "header", "quote")
_SOURCES = ("numeric", "categorical", "list", "timestamp")


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
        check_unique("column", [column.name for column in self.columns])
        if self.format == "csv" and (paths := [c.name for c in self.columns if c.path]):
            raise UsageError(f"path belongs to another format than csv, {paths} have one")
        self._check_weights()
        self._check_histories()
        if len(found := [c.name for c in self.columns if c.role == "timestamp"]) > 1:
            raise UsageError(f"a table must have at most one timestamp column, got {found}")
        written = [feature.name for feature in self.features]
        written += [column.name for column in self.columns if column.is_written]
        check_unique("feature", written)
        if not self.features:
            raise UsageError("a table must have a numeric, categorical or list column")
        for feature in self.features:
            self._check_feature(feature)

    def _check_weights(self) -> None:
        weights = [column.name for column in self.columns if column.role == "weight"]
        for column in self.columns:
            if column.weight and column.weight not in weights:
                raise UsageError(
                    f'column {column.name!r}: weight must name a column of as = "weight", got '
                    f"{column.weight!r}"
                )
        own = {column.weight for column in self.columns}
        if len(common := [name for name in weights if name not in own]) > 1:
            raise UsageError(
                "a table must have at most one weight column beside those that labels name by "
                f"weight, got {common}"
            )

    def _check_histories(self) -> None:
        made = [(column, column.history) for column in self.columns if column.history is not None]
        for column, history in made:
            where = f"column {column.name!r}: a history"
            of, by = self.column(history.of), self.column(history.by)
            if of.role != "categorical" or of.type != column.type:
                raise UsageError(
                    f"{where} must be of a categorical column of its type, {column.type}, and "
                    f"{of.name!r} is {of.role} of {of.type}"
                )
            if by.role not in ("key", "categorical"):
                raise UsageError(f"{where} must be by a key or categorical column, got {by.name!r}")
            if self.role("timestamp") is None:
                raise UsageError(f"{where} needs a timestamp column in the schema")
            label = self.role("label")
            if history.positives and (label is None or label.task != "binary"):
                raise UsageError(f"{where} of positives needs a binary label in the schema")
        if len({history.by for _, history in made}) > 1:
            raise UsageError(
                "histories must be by one column, they are by "
                f"{', '.join(history.by for _, history in made)}"
            )

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
    def histories_by(self) -> str:
        """The column of the users whose histories are made; empty without histories."""
        found = (column.history for column in self.columns if column.history is not None)
        return next((history.by for history in found), "")

    @property
    def as_read(self) -> Table:
        """The table of what the input has: without histories."""
        columns = tuple(column for column in self.columns if column.history is None)
        if len(columns) == len(self.columns):
            return self
        names = {column.name for column in columns}
        features = tuple(f for f in self.features if names.issuperset(f.sources))
        return replace(self, columns=columns, features=features)

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
            format_ = node.get("format", cls.format)
            # Not in `parse`: the stored form has them, whatever the format.
            if format_ in FORMATS[1:] and (own := [n for n in _CSV_SETTINGS if n in node]):
                raise UsageError(
                    f"{', '.join(own)} must not be there for format = {format_!r}, as only csv has "
                    "such a setting: leave it out"
                )
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
        "flatten", "optional", "soft", "weight", "history", "value",
    }  # fmt: skip
    if unknown:
        raise UsageError(f"column {name!r} has no setting {', '.join(sorted(unknown))}")
    if role not in ROLES:
        raise UsageError(f"column {name!r}: as must be one of {ROLES}, got {shown(role)}")
    _check_kinds(f"column {name!r}", settings, _COLUMN_SETTINGS)
    if "positive_from" in settings:
        finite_number(f"column {name!r}: positive_from", settings["positive_from"])
    default = "text" if "format" in settings else COLUMN_TYPES[role][0]
    if "classes" in settings:
        settings["classes"] = _classes(name, settings["classes"])
        settings.setdefault("task", "classes")
    if "value" in settings:
        settings["value"] = str(settings["value"])
    if "history" in settings:
        settings["history"] = _history(name, settings["history"])
    if "path" in settings:
        settings["path"] = _path(name, settings["path"])
    if role in ("categorical", "list", "key") and "type" not in settings:
        raise UsageError(f"column {name!r}: type must be given, one of {ID_TYPES}")
    return Column(name=name, role=role, type=settings.pop("type", default), **settings)


def _path(name: str, node: Any) -> tuple[str, ...]:
    keys = node.split(".") if isinstance(node, str) else node
    if not _are_texts(keys) or not keys or not all(keys):
        raise UsageError(
            f'column {name!r}: path must be keys with a "." between, or a list of them if a key '
            f"has one, got {shown(node)}"
        )
    return tuple(keys)


def _history(name: str, node: Any) -> History:
    kinds = {"of": str, "by": str, "positives": bool}
    if not isinstance(node, Mapping) or not {"of", "by"} <= {*node}:
        raise UsageError(
            f"column {name!r}: history must have of = column and by = the user's column, got "
            f"{shown(node)}"
        )
    if unknown := {*node} - {*kinds, "length", "days"}:
        raise UsageError(f"column {name!r}: history has no setting {', '.join(sorted(unknown))}")
    _check_kinds(f"column {name!r}: history", node, kinds)
    try:
        return History(**node)
    except UsageError as error:
        raise UsageError(f"column {name!r}: history: {error}") from None


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
