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

    [[join]]                  # a side table: columns that a row gets by the value of one
    file = "items.csv"        # beside the schema; a pattern or a list too; CSV settings as above
    on = "C1"                 # the row's column
    key = "id"                # the side table's
    column = [{ name = "year", as = "numeric" }]

The fitted form of the same table is `_transforms.json` (embedps/features/transforms.py).
"""

from __future__ import annotations

import codecs
import os
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from embedps.config_fields import shown
from embedps.errors import UsageError
from embedps.features.declarations import (
    are_texts,
    check_kinds,
    declared_feature,
    parse_columns,
)
from embedps.features.table_columns import Column, Feature, check_unique

SCHEMAS = Path(__file__).parent / "schemas"
"""The folder of the schemas that the package ships."""

TEXT_FORMATS = ("csv", "jsonl")
FORMATS = (*TEXT_FORMATS, "parquet", "orc", "tfrecord", "avro")
_SETTINGS = dict.fromkeys(("name", "format", "delimiter", "quote", "encoding"), str)
_CSV_SETTINGS = ("delimiter", "header", "quote")
_JOIN_SETTINGS = {"on": str, "key": str, "required": bool}


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
    joins: tuple[Join, ...] = ()
    """The side tables, whose columns are among the table's."""

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
        self._check_weights()
        self._check_histories()
        for place, join in enumerate(self.joins):
            self._check_join(join, {c.name for j in self.joins[place:] for c in j.columns})
        if len(found := [c.name for c in self.columns if c.role == "timestamp"]) > 1:
            raise UsageError(f"a table must have at most one timestamp column, got {found}")
        written = [feature.name for feature in self.features]
        written += [column.name for column in self.columns if column.is_written]
        check_unique("feature", written)
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

    def _check_join(self, join: Join, later: set[str]) -> None:
        on = self.column(join.on)
        if on.role not in ("key", "categorical") or on.name in later:
            raise UsageError(
                f"{join.where}: on must be a key or categorical column of the input, or of a join "
                f"before this one, got {on.name!r}"
            )
        key = join.declared_key
        if key is None and join.source.format == "csv" and join.source.header is not True:
            raise UsageError(
                f"{join.where}: key {join.key!r} must be among its columns, in the order of the "
                "file, where no header names them"
            )
        if key is not None and (key.role, key.type) not in (("ignore", "string"), ("key", on.type)):
            raise UsageError(
                f'{join.where}: its key {join.key!r} must be declared as = "key" with the type '
                f"{on.type!r} of {on.name!r}, got {key.role!r} with {key.type!r}"
            )
        for column in join.columns:
            has_missing = column.role not in ("label", "weight", "timestamp") or column.optional
            if not has_missing or column.value:
                raise UsageError(
                    f"{join.where}: column {column.name!r} must be one that may be missing, as "
                    "some rows may have no row there: a feature, a key or an optional label"
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
        """The table of what the input and its side tables have: without histories."""
        return self._without({c.name for c in self.columns if c.history is not None})

    @property
    def joined(self) -> dict[str, Join]:
        """The columns of side tables, by name."""
        return {column.name: join for join in self.joins for column in join.columns}

    @property
    def of_input(self) -> Table:
        """The table of what the input's files have: without histories and side tables."""
        return replace(self.as_read, joins=())._without(set(self.joined))

    def _without(self, names: Collection[str]) -> Table:
        """Returns the table without some columns and what is made of them."""
        if not names:
            return self
        columns = tuple(column for column in self.columns if column.name not in names)
        features = tuple(f for f in self.features if not {*names}.intersection(f.sources))
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
        joined = self.joined
        return {
            "name": self.name,
            "format": self.format,
            "delimiter": self.delimiter,
            "header": self.header,
            "quote": self.quote,
            **({"encoding": self.encoding} if self.encoding != "utf-8" else {}),
            "missing": list(self.missing),
            "column": [c.to_json() for c in self.columns if c.name not in joined],
            **({"join": [join.to_json() for join in self.joins]} if self.joins else {}),
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
            # Not in `parse`: the stored form has them, whatever the format.
            _check_csv_settings(node)
            table = cls.parse({"name": path.stem} | node)
            joins = tuple(replace(join, folder=str(path.parent)) for join in table.joins)
            return replace(table, joins=joins)
        except UsageError as error:
            raise UsageError(f"--schema {name_or_path}: {error}") from None

    @classmethod
    def parse(cls, node: Mapping[str, Any]) -> Table:
        """Parses a table from its TOML or JSON form; raises UsageError if it is not valid."""
        if not isinstance(node, Mapping):
            raise UsageError(f"a schema must be a table of settings, got {shown(node)}")
        _check_texts(node)
        settings = dict(node)
        check_kinds("a schema", settings, _SETTINGS)
        explicit = [dict(entry) for entry in _entries(settings.pop("feature", []), "feature")]
        for declared in explicit:
            check_kinds("a feature", declared, {"name": str, "from": str})
        entries = _entries(settings.pop("column", []), "column")
        parts = [parse_columns(entries)]
        joins: list[Join] = []
        for entry in _entries(settings.pop("join", []), "join"):
            join, features = _join({"missing": settings.get("missing", [""]), **entry})
            joins.append(join)
            parts.append(([*join.columns], features))
        columns = [column for found, _ in parts for column in found]
        # A stored table lists every feature, including those that columns declare.
        own = {entry.get("name") for entry in explicit}
        made = [each for _, found in parts for each in found if each.name not in own]
        by_name = {column.name: column for column in columns}
        made += [declared_feature(entry, by_name) for entry in explicit]
        table = cls(
            columns=tuple(columns),
            features=tuple(made),
            joins=tuple(joins),
            **_table_settings(settings),
        )
        paths = [c.name for c in parts[0][0] if c.path]
        if table.format == "csv" and paths:
            raise UsageError(f"path belongs to another format than csv, {paths} have one")
        if not table.features:
            raise UsageError("a table must have a numeric, categorical or list column")
        return table


@dataclass(frozen=True, kw_only=True)
class Join:
    """A side table: each row gets the columns of that row of it that has its key.

    Attributes:
      files: paths and patterns.
      on: the column of the rows.
      source: what the files have.
      key: the column of the files.
      required: whether each row must have one there.
      folder: where relative paths begin; not declared.
    """

    files: tuple[str, ...]
    on: str
    key: str
    source: Table
    required: bool = False
    folder: str = field(default="", compare=False)

    @property
    def where(self) -> str:
        """Names the join in messages."""
        return f"join of {', '.join(self.files)}"

    @property
    def declared_key(self) -> Column | None:
        """The key as the files' columns declare it; None if it is not among them."""
        return next((c for c in self.source.columns if c.name == self.key), None)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that rows get."""
        return tuple(c for c in self.source.read_columns if c.name != self.key)

    @property
    def patterns(self) -> list[str]:
        """The files' paths and patterns, from the working directory or absolute."""
        return [f if "://" in f else os.path.join(self.folder, f) for f in self.files]

    def table(self, on: Column) -> Table:
        """Returns the table to read the files by: keys as `on` declares them, the file's names."""
        declared = self.declared_key
        path = () if declared is None else declared.path
        key = Column(name=self.key, role="key", type=on.type, path=path)
        columns = [key if c.name == self.key else c for c in self.source.columns]
        columns += [key] if declared is None else []
        return replace(self.source, columns=tuple(_as_in_file(c, self.source) for c in columns))

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON form that `Table.parse` reads."""
        source = self.source.to_json()
        left = {"name", "feature", *(() if self.source.format == "csv" else _CSV_SETTINGS)}
        return {
            "file": [*self.files],
            "on": self.on,
            "key": self.key,
            **({"required": True} if self.required else {}),
            **{name: value for name, value in source.items() if name not in left},
        }


def _as_in_file(column: Column, source: Table) -> Column:
    """Names a column of CSV as its header does, which `path` may say."""
    if source.format != "csv" or not column.path:
        return column
    return replace(column, name=".".join(column.path), path=())


def _join(node: Mapping[str, Any]) -> tuple[Join, list[Feature]]:
    """Parses a join; returns the features of its columns too."""
    settings = dict(node)
    files = settings.pop("file", None)
    files = [files] if isinstance(files, str) else files
    if not are_texts(files) or not files or not all(files):
        raise UsageError(f"a join must have file = a path, or a list of paths, got {shown(files)}")
    where = f"join of {', '.join(files)}"
    try:
        check_kinds("it", settings, _JOIN_SETTINGS | _SETTINGS)
        own = {name: settings.pop(name) for name in _JOIN_SETTINGS if name in settings}
        if not own.get("on"):
            raise UsageError("on must be the column of the rows by which they get theirs")
        _check_csv_settings(settings)
        columns, features = parse_columns(_entries(settings.pop("column", []), "join.column"))
        if found := [column.name for column in columns if column.history is not None]:
            raise UsageError(f"a history is a [[column]] of the schema, {found} are of the join")
        if "name" in settings or "feature" in settings:
            raise UsageError(
                "a join has no name and no feature: declare a [[feature]] of the schema"
            )
        source = Table(columns=tuple(columns), features=(), **_table_settings(settings))
        join = Join(files=tuple(files), source=source, **{"key": own["on"], **own})
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    if not join.columns:
        raise UsageError(f"{where}: it must have columns besides its key {join.key!r}")
    return join, features


def _table_settings(node: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the settings of a table's files, with `missing` as a tuple."""
    if unknown := {*node} - {*_SETTINGS, "header", "missing"}:
        raise UsageError(f"a schema has no {', '.join(sorted(unknown))}")
    missing = node.get("missing", [""])
    if not are_texts(missing):
        raise UsageError(f"missing must be a list of texts, got {shown(missing)}")
    return {**node, "missing": tuple(missing)}


def _check_csv_settings(node: Mapping[str, Any]) -> None:
    format_ = node.get("format", "csv")
    if format_ in FORMATS[1:] and (own := [n for n in _CSV_SETTINGS if n in node]):
        raise UsageError(
            f"{', '.join(own)} must not be there for format = {format_!r}, as only csv has "
            "such a setting: leave it out"
        )


def _entries(node: Any, what: str) -> list[Mapping[str, Any]]:
    if not isinstance(node, list) or not all(isinstance(entry, Mapping) for entry in node):
        raise UsageError(f"{what} must be [[{what}]] tables, got {shown(node)}")
    return node


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
