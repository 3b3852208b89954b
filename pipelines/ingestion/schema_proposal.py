"""Proposes the schema of a file from its first rows: TOML with comments, for a person to edit."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from embedps.errors import UsageError
from embedps.features.arrow_kinds import is_list, reduce_kind
from embedps.features.table_columns import Column

from .sample_columns import Sample
from .written_texts import all_match, marks_of, share_with, time_formats, two_words

_MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "\\N", "-", "?")
_LABELS = {"label", "labels", "target", "y", "click", "clicks", "clicked", "like", "liked"}
_LABELS |= {"buy", "bought", "purchase", "purchased", "conversion", "converted", "rating", "stars"}
_IDS = {"id", "ids", "user", "item", "ad", "campaign", "sku", "session", "device", "ip", "code"}
_IDS |= {"cookie", "zip", "site", "app", "product", "movie", "track", "category", "cat", "shop"}
_TIMES = {"time", "timestamp", "ts", "date", "datetime", "hour", "day", "at", "when"}
_SEPARATORS = ("|", ";", ",", " ")
_WITH_UNIT = r"[^\w+-]{1,3}\s?[-+]?\d[\d.,]*|[-+]?\d[\d.,]*\s?[^\d\s.,]{1,3}"
_INTERVAL = r"[\[(][-+]?[\d.einf+-]+, ?[-+]?[\d.einf+-]+[\])]"  # as pandas.cut gives
_SECONDS = (631_152_000, 4_102_444_800)  # from 1990 to 2100
_MOST_EXACT = 1 << 53  # integers up to here are exact as float64
_FEW = 20  # distinct whole numbers: more like kinds than like amounts
_SHOWN = 30
_TOLD = 8  # columns of a role
_NOT_READ = "not read"


@dataclass(kw_only=True)
class _Column:
    """A column of the sample: what it holds, and what it is declared as."""

    keys: tuple[str, ...]
    name: str
    values: pa.Array
    num_rows: int
    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def num_equal(self) -> int:
        """How many values are there before."""
        if pa.types.is_nested(self.values.type):
            return len(self.values)
        return int(len(self.values) - pc.count_distinct(self.values).as_py())

    @property
    def words(self) -> set[str]:
        text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", ".".join(self.keys))
        return {*re.split(r"[^a-z0-9]+", text.lower())}


def propose(
    sample: Sample, label: str | None = None, *, join: tuple[str, str] | None = None
) -> str:
    """Writes a schema of a sample's columns; the comments say why, and what looks wrong.

    Args:
      sample: of the file.
      label: the column to declare as the label; None: the one that looks like it.
      join: the file, and the column of the rows by which it is joined: a `[[join]]` is written
        instead.

    Raises:
      UsageError: there is no such column, or it has no numbers; or the file has no key.
    """
    texts = [a for a in sample.columns.values() if pa.types.is_string(a.type)]
    missing = [each for each in _MISSING[1:] if any(_has(array, each) for array in texts)]
    columns = _columns(sample, ("", *missing))
    for column in columns:
        _declare(column)
    settings = [f"{key} = {_toml(value)}" for key, value in sample.settings.items()]
    if missing:
        settings.append(f"missing = {_toml(['', *missing])}")
    skipped = [f"# {_line(text)}" for text in sample.skipped]
    if join is not None:
        file, on = join
        own = {"file": file, "on": on, "key": _declare_key(columns, on)}
        lines = [
            f"# Proposed from {sample.num_rows:,} rows: check each column, then add to a schema.",
            *skipped,
            "[[join]]",
            *(f"{name} = {_toml(value)}" for name, value in own.items()),
            *settings,
        ]
        return _with_columns(lines, columns, "join.column")
    _choose_label(columns, label)
    _keep_one_time(columns)
    written = {column.settings["as"] for column in columns}
    lines = [f"# Proposed from {sample.num_rows:,} rows: check each column, then give --schema."]
    if "label" not in written:
        lines.append('# No label was found: declare one of the columns as = "label".')
    if written <= {"label", "ignore", "timestamp"}:
        lines.append("# No feature was found: declare columns as numeric, categorical or list.")
    if sample.settings.get("header") is False:
        lines.append("# The file has no header: name its columns, in their order.")
    users = [column.name for column in columns if column.words & {"user", "visitor", "cookie"}]
    if users:
        lines.append(f"# To hold out whole users, ingest with --split-key {users[0]}.")
    return _with_columns([*lines, *skipped, *settings], columns, "column")


def in_short(proposed: str) -> str:
    """Says in one line what `propose` declared, and what it left out and why."""
    by_role: dict[str, list[str]] = {}
    reason = ""
    for line in proposed.splitlines():
        if line.startswith(f"# {_NOT_READ}: "):
            reason = f" ({line.partition(': ')[2]})"
        elif line == "[[column]]":
            name = ""
        elif line.startswith("name = "):
            (name,) = tomllib.loads(line).values()
        elif line.startswith("as = "):
            (role,) = tomllib.loads(line).values()
            is_out = role == "ignore"
            by_role.setdefault("left out" if is_out else role, []).append(name + reason * is_out)
            reason = ""
    parts = []
    for role, names in by_role.items():
        more = f" and {len(names) - _TOLD:,} more" if len(names) > _TOLD else ""
        parts.append(f"{role} {', '.join(names[:_TOLD])}{more}")
    return "; ".join(parts)


def _with_columns(lines: Sequence[str], columns: Sequence[_Column], what: str) -> str:
    text = "\n".join(lines) + "\n"
    for column in columns:
        notes = (f"# {_line(note)}" for note in column.notes)
        settings = (f"{key} = {_toml(value)}" for key, value in column.settings.items())
        text += "\n".join(["", *notes, f"[[{what}]]", *settings]) + "\n"
    return text


def _declare_key(columns: Sequence[_Column], on: str) -> str:
    """Declares the key of a side table, and nothing that one may not have; returns its name.

    Raises:
      UsageError: no column is named as that of the rows, and none has another value in each row.
    """
    differing = (c for c in columns if not c.num_equal and len(c.values) == c.num_rows)
    named = (c for c in columns if on in (c.name, ".".join(c.keys)))
    key = next(named, next(differing, None))
    if key is None or pa.types.is_nested(key.values.type):
        names = ", ".join(".".join(column.keys) for column in columns)
        raise UsageError(
            f"--join-on {on}: the file must have a column of this name, or one with another value "
            f"in each row, it has {names}"
        )
    for column in columns:
        if column.settings["as"] == "timestamp":
            _ignore(column, "a side table has no times")
    kept = {name: key.settings[name] for name in ("name", "path") if name in key.settings}
    key.settings = kept | {"as": "key", "type": _id_type(key.values)}
    key.notes = [note for note in key.notes if not note.startswith(_NOT_READ)]
    key.notes.append("the key: its type must be that of the rows' column")
    if key.num_equal:
        key.notes.append(f"{key.num_equal:,} rows have the key of another: each must be there once")
    return key.name


def _columns(sample: Sample, missing: Sequence[str]) -> list[_Column]:
    columns: list[_Column] = []
    for keys, array in sample.columns.items():
        values, _ = reduce_kind(array)
        if pa.types.is_float16(values.type):
            values = values.cast(pa.float32())  # Arrow counts no values of 16 bits
        if pa.types.is_string(values.type):
            is_missing = pc.is_in(values, value_set=pa.array(missing, pa.string()))
            values = values.filter(pc.invert(is_missing))
        values = values.drop_null()
        name, number = "_".join(keys), 2
        if sample.settings["format"] != "csv":
            name = name.strip("_") or "column"
        while any(column.name == name for column in columns):
            name, number = f"{name}_{number}", number + 1
        columns.append(_Column(keys=keys, name=name, values=values, num_rows=sample.num_rows))
    return columns


def _declare(column: _Column) -> None:
    column.settings["name"] = column.name
    if column.keys != (column.name,):
        has_dot = any("." in key for key in column.keys)
        column.settings["path"] = [*column.keys] if has_dot else ".".join(column.keys)
    values = column.values
    absent = 1 - len(values) / column.num_rows
    nested = pa.types.is_nested(values.type)
    if not column.name or column.name.startswith("_"):
        _ignore(column, "a feature's name must not be empty or begin with _: rename it in the file")
    elif not len(values):
        _ignore(column, "it has no value in these rows")
    elif is_list(values.type):
        _declare_list(column)
    elif nested:
        _ignore(column, f"no declaration reads values of {values.type}")
    else:
        _declare_values(column, values)
    shown = (
        [_text(each)[:_SHOWN] for each in pc.unique(values).to_pylist()[:3]] if not nested else []
    )
    distinct = "" if nested else f"{pc.count_distinct(values).as_py():,} distinct, "
    examples = f", such as {', '.join(json.dumps(each) for each in shown)}" if shown else ""
    column.notes.insert(0, f"{column.name}: {distinct}{absent:.1%} missing{examples}")
    if absent > 0.5 and len(values):
        column.notes.append("more than half of the values are missing")


def _declare_list(column: _Column) -> None:
    inner, depth = column.values, 0
    while is_list(inner.type):
        inner, depth = inner.flatten(), depth + 1
    inner, _ = reduce_kind(inner.drop_null())
    if pa.types.is_nested(inner.type):
        _ignore(column, f"no declaration reads lists of {inner.type}")
        return
    if pa.types.is_floating(inner.type):
        column.settings |= {"as": "float_list"}
    else:
        column.settings |= {"as": "list", "type": _id_type(inner)}
    if depth > 1:
        column.settings["flatten"] = True


def _declare_values(column: _Column, values: pa.Array) -> None:
    kind = values.type
    distinct = pc.count_distinct(values).as_py()
    if distinct == 1 and column.num_rows > 1:
        _ignore(column, "it has one value, which tells a model nothing")
    elif pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        column.settings["as"] = "timestamp"
    elif pa.types.is_time(kind) or pa.types.is_duration(kind) or pa.types.is_interval(kind):
        _ignore(column, f"no declaration reads values of {kind}")
    elif (time := _time(column, values)) is not None:
        column.settings |= {"as": "timestamp", **time}
    elif _is_numeric(values):
        _declare_numbers(column, values, distinct)
    elif (marks := marks_of(values)) is not None:
        _declare_marked(column, values, marks)
    elif distinct == len(values) > 100 and column.words & {"id", "uuid", "guid", "key"}:
        _ignore(column, "each row has its own value, as the id of a row has")
    elif distinct > _FEW and all_match(values, _WITH_UNIT):
        column.settings |= {"as": "categorical", "type": "string"}
        column.notes.append("numbers with a sign or a unit: to be numeric, they must be alone")
    elif (separator := _separator(values)) is not None:
        element = pc.list_flatten(pc.split_pattern(values, separator))
        column.settings |= {"as": "list", "type": _id_type(element), "separator": separator}
    else:
        column.settings |= {"as": "categorical", "type": _id_type(values)}


def _declare_marked(column: _Column, values: pa.Array, marks: Column) -> None:
    """Declares texts that are numbers in another way of writing."""
    column.settings["as"] = "numeric"
    column.settings |= {"decimal": marks.decimal} if marks.decimal != "." else {}
    column.settings |= {"thousands": marks.thousands} if marks.thousands else {}
    column.settings["transform"] = ["standardize"]
    if marks.decimal == "," and not marks.thousands:
        column.notes.append('as = "list", separator = ",", if these are lists')
    elif all_match(values, r"[-+]?\d{1,3}([.,]\d{3})?"):
        column.notes.append(f'decimal = "{marks.thousands}", if that is no thousands separator')


def _declare_numbers(column: _Column, values: pa.Array, distinct: int) -> None:
    numbers = _floats(values)
    whole = pc.all(pc.equal(numbers, pc.trunc(numbers))).as_py()
    low, high = pc.min_max(numbers).as_py().values()
    is_hash = pa.types.is_integer(values.type) and max(-low, high) > _MOST_EXACT
    if is_hash or (whole and column.words & _IDS):
        if distinct == len(values) > 100 and column.words & {"id", "uuid"}:
            column.notes.append('each row has its own value: as = "ignore", if it is a row\'s id')
        column.settings |= {"as": "categorical", "type": "string" if _merges(values) else "integer"}
        if low < 0:
            column.notes.append("the ids -1 and -2 mean missing and rare")
    elif whole and 2 < distinct <= _FEW and len(values) >= _FEW * distinct:
        column.settings |= {"as": "categorical", "type": "string" if _merges(values) else "integer"}
        column.notes.append(f'{distinct} whole numbers: as = "numeric", if they are amounts')
    else:
        column.settings["as"] = "numeric"
        if whole and low >= 0 and high > 100:
            column.settings["transform"] = ["log1p", "standardize"]
        else:
            column.settings["transform"] = ["standardize"]
        if whole and distinct > _FEW and _SECONDS[0] <= low and high <= 1000 * _SECONDS[1]:
            column.notes.append('as = "timestamp", if these are seconds (or milliseconds)')
        elif whole and distinct > _FEW:
            column.notes.append('as = "categorical", type = "integer", if these are ids')


def _choose_label(columns: Sequence[_Column], label: str | None) -> None:
    """Declares the given column; else the one named as labels are; else the only one of 0 and 1."""
    named = [c for c in columns if c.words & _LABELS and (_may_be_label(c) or two_words(c.values))]
    if label is not None:
        named = [_given_label(columns, label)]
    binary = [c for c in columns if _is_binary(c)]
    chosen = min(named, key=lambda c: not _is_binary(c), default=None)
    if chosen is None and len(binary) == 1:
        (chosen,) = binary
    if chosen is None:
        for column in binary:
            words = two_words(column.values)
            values = f"{words[0]} and {words[1]}" if words else "0 and 1"
            more = f', task = "binary", classes = {_toml(words)}' if words else ""
            column.notes.append(
                f'its values are {values}: as = "label"{more}, if it is what is predicted'
            )
        return
    kept = {key: chosen.settings[key] for key in ("name", "path") if key in chosen.settings}
    chosen.settings = kept | {"as": "label"}
    chosen.notes = [note for note in chosen.notes if not note.startswith(_NOT_READ)]
    if pa.types.is_string(chosen.values.type) and not _is_numeric(chosen.values):
        chosen.settings |= {"task": "binary", "classes": _two_texts(chosen)}
        chosen.notes.append("the last one is the positive: swap them if it is not")
    elif not {*_numbers(chosen)} <= {0, 1}:
        high = pc.max(_floats(chosen.values)).as_py()
        positive = round(0.8 * high, 2)
        chosen.settings["positive_from"] = int(positive) if positive == int(positive) else positive
        chosen.notes.append('a click from this number on; task = "number" predicts the number')
    if len(chosen.values) < chosen.num_rows:
        chosen.notes.append("optional = true, to keep the rows without it")
    for column in binary:
        if column is not chosen and two_words(column.values) is None:
            column.notes.append('its values are 0 and 1: known before the label, or as = "ignore"?')


def _given_label(columns: Sequence[_Column], label: str) -> _Column:
    found = [c for c in columns if label in (c.name, ".".join(c.keys))]
    if not found:
        names = ", ".join(".".join(column.keys) for column in columns)
        raise UsageError(f"label {label!r} must be one of the columns {names}")
    if not _may_be_label(found[0]) and not _two_texts(found[0]):
        kind = found[0].values.type if len(found[0].values) else "no value"
        raise UsageError(
            f"label {label!r} must hold numbers or two texts, it holds {kind}: write 0 and 1, or "
            "declare its classes in a schema of your own"
        )
    return found[0]


def _two_texts(column: _Column) -> list[str]:
    """Gives the two texts of a column, that of the positives last; empty if they are not two."""
    values = column.values
    if not pa.types.is_string(values.type) or _is_numeric(values):
        return []
    counts = sorted(pc.value_counts(values).to_pylist(), key=lambda each: -each["counts"])
    if len(counts) != 2:
        return []
    return two_words(values) or [each["values"] for each in counts]  # positives are the rarer ones


def _keep_one_time(columns: Sequence[_Column]) -> None:
    times = [column for column in columns if column.settings["as"] == "timestamp"]
    for column in times[1:]:
        _ignore(column, f"a table has one timestamp, here {times[0].name}")


def _ignore(column: _Column, why: str) -> None:
    column.settings = {"name": column.name, "as": "ignore"}
    column.notes.append(f"{_NOT_READ}: {why}")


def _may_be_label(column: _Column) -> bool:
    return not is_list(column.values.type) and len(column.values) > 0 and _is_numeric(column.values)


def _is_binary(column: _Column) -> bool:
    if two_words(column.values) is not None:
        return True
    return _may_be_label(column) and sorted(_numbers(column)) == [0, 1]


def _numbers(column: _Column) -> list[float]:
    found: list[float] = pc.unique(_floats(column.values)).to_pylist()
    return found


def _floats(values: pa.Array) -> pa.Array:
    return pc.cast(values, pa.float64(), safe=False)


def _is_numeric(values: pa.Array) -> bool:
    if not pa.types.is_string(values.type):
        kind = values.type
        return bool(
            pa.types.is_integer(kind)
            or pa.types.is_floating(kind)
            or pa.types.is_decimal(kind)
            or pa.types.is_boolean(kind)
        )
    return all_match(values, r"[-+]?(\d{1,15}|\d*\.\d+|\d+\.\d*)([eE][-+]?\d{1,2})?")


def _time(column: _Column, values: pa.Array) -> dict[str, Any] | None:
    """Returns the settings of a timestamp; None if the values are no times."""
    if pa.types.is_string(values.type) and not _is_numeric(values):
        fit = time_formats(values)
        if len(fit) > 1:
            column.notes.append(f'format = "{fit[1]}", if the day is after the month')
        return {"format": fit[0]} if fit else None
    if not column.words & _TIMES or not _is_numeric(values) or pa.types.is_boolean(values.type):
        return None
    low, high = pc.min_max(_floats(values)).as_py().values()
    if _SECONDS[0] <= low and high <= _SECONDS[1]:
        return {"type": "seconds"}
    if 1000 * _SECONDS[0] <= low and high <= 1000 * _SECONDS[1]:
        return {"type": "milliseconds"}
    fit = time_formats(values) if pa.types.is_string(values.type) else []
    return {"format": fit[0]} if fit else None


def _separator(values: pa.Array) -> str | None:
    """Finds what separates the elements of texts that are lists; None if they are none."""
    if all_match(values, r"\s*\[.*\]\s*"):
        return ","
    if all_match(values, _INTERVAL):
        return None
    for each in _SEPARATORS[:3]:
        share = share_with(values, each)
        elements = pc.list_flatten(pc.split_pattern(values, each))
        # Elements come again; sentences do not.
        if share > 0.3 and pc.count_distinct(elements).as_py() < 0.5 * len(elements):
            return each
    return None


def _id_type(values: pa.Array) -> str:
    values, _ = reduce_kind(values)
    if not pa.types.is_string(values.type):
        return "integer"
    if all_match(values, r"-?\d{1,18}"):
        return "string" if _merges(values) else "integer"
    return "hex" if all_match(values, r"[0-9a-fA-F]{8}|[0-9a-fA-F]{16}") else "string"


def _merges(values: pa.Array) -> bool:
    """Tells whether texts that differ are one integer, such as "07" and "7"."""
    if not pa.types.is_string(values.type) or not all_match(values, r"-?\d{1,18}"):
        return False
    merged = pc.count_distinct(values.cast(pa.int64())).as_py()
    return bool(merged < pc.count_distinct(values).as_py())


def _has(array: pa.Array, text: str) -> bool:
    return bool(pc.any(pc.equal(array, text)).as_py())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _line(text: str) -> str:
    """Keeps a text of a file on one line of a comment, without characters that steer a terminal."""
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return "".join(
            c if c.isprintable() else f"\\U{ord(c):08x}" if ord(c) > 0xFFFF else f"\\u{ord(c):04x}"
            for c in json.dumps(value, ensure_ascii=False)
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)
