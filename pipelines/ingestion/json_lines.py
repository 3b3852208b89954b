"""Parses lines that are JSON objects (JSON Lines) into rows; says of each other line why not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from embedps.errors import DatasetError
from embedps.features.arrow_kinds import NESTED
from embedps.features.decode import decode_column
from embedps.features.nested_lists import cut_values, flat_values
from embedps.features.table_columns import Column
from embedps.features.table_schema import Table

from .bad_lines import BadLine
from .line_blocks import LineBlock
from .line_parser import drop_rows
from .path_columns import given_columns

NAMED_LINES = 1000  # of a file: their keys are compared with the declared ones
_MOST_NAMES = 100
_LISTS = ("list", "float_list")
_NAMES = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
_ARROW: dict[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
}
_ABSENT: Any = object()
Makers = Mapping[type, Callable[[Sequence[Any]], pa.Array]]


class JsonLineParser:
    """Parses the blocks of one file in order, as `LineParser` does those of delimited text.

    A value is found by its column's keys, one after the other; of a list, each element's. A value
    that no line of the input has is a mistake of the schema: `absent` tells of this file's.
    """

    num_header_lines = 0

    def __init__(self, table: Table, file_name: str = "") -> None:
        self._table, self._file_name = table, file_name
        self._columns = table.read_columns
        self._keys = {column.name: column.keys for column in self._columns}
        self._declared = {column.keys[0] for column in table.columns}
        is_flat = len(self._keys) > 1 and all(len(keys) == 1 for keys in self._keys.values())
        self._all_of: Callable[[Any], tuple[Any, ...]] | None = (
            itemgetter(*(first for first, *_ in self._keys.values())) if is_flat else None
        )
        self._in_path = given_columns(table, file_name)
        self._others: dict[str, None] = {}
        self.absent: set[str] = self._keys.keys() - self._in_path.keys()
        self._records: list[bytes] = []
        self._parsed: tuple[dict[str, Sequence[Any]], list[int]] = dict.fromkeys(self._keys, ()), []

    @property
    def undeclared(self) -> tuple[str, ...]:
        """Lists keys of the first objects that the table does not declare; 100 at most."""
        return tuple(self._others)

    def parse(self, block: LineBlock) -> tuple[pa.RecordBatch, list[BadLine]]:
        """Parses a block's lines, in order.

        Returns:
          rows of the table's `row_schema`, and the bad lines.
        """
        bad: list[BadLine] = []
        numbers: list[int] = []
        lines: list[bytes] = []
        found: list[Sequence[Any]] = []
        for number, line in enumerate(block.data.split(b"\n")[:-1], block.first_line):
            try:
                found.append(self._values(line, is_named=number <= NAMED_LINES))
            except ValueError as error:
                bad.append(BadLine(line=number, reason=str(error), raw=line))
                continue
            numbers.append(number)
            lines.append(line)
        by_column = zip(*found, strict=True) if found else [()] * len(self._columns)
        columns: dict[str, Sequence[Any]] = dict(zip(self._keys, by_column, strict=True))
        rows, reasons = decode_columns(self._table, columns)
        self._parsed = columns, numbers
        self._records = [line for row, line in enumerate(lines) if row not in reasons]
        bad += [BadLine(line=numbers[r], reason=reasons[r], raw=lines[r]) for r in reasons]
        return (drop_rows(rows, reasons) if reasons else rows), sorted(bad, key=_number)

    def texts(self, names: Sequence[str]) -> list[tuple[pa.RecordBatch, Sequence[int]]]:
        """Returns columns of the last block's objects as texts, and their lines."""
        columns, numbers = self._parsed
        texts = [pa.array([*map(_text, columns[name])], pa.string()) for name in names]
        return [(pa.record_batch(texts, names=list(names)), numbers)]

    def records(self) -> list[bytes]:
        """Returns the last block's lines that are rows, in order."""
        return self._records

    def _values(self, line: bytes, *, is_named: bool) -> Sequence[Any]:
        """Finds the columns' values; raises ValueError if the line is no object, or a path none."""
        try:
            found = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            if not line.strip():
                raise ValueError("must not be empty") from None
            what = f"{error.msg} at character {error.pos + 1}"
            raise ValueError(f"must be a JSON object: {what}") from None
        if type(found) is not dict:
            raise ValueError(f"must be a JSON object, got {_shown(found)}")
        return self._values_of(found, is_named=is_named)

    def _values_of(self, found: dict[str, Any], *, is_named: bool) -> Sequence[Any]:
        if is_named and len(self._others) < _MOST_NAMES and found.keys() - self._declared:
            others = [name for name in found if name not in self._declared]
            self._others |= dict.fromkeys(others[: _MOST_NAMES - len(self._others)])
        if not self.absent and self._all_of is not None:
            with contextlib.suppress(KeyError):  # most often each object has each
                return self._all_of(found)
        values = []
        for name, keys in self._keys.items():
            try:
                value = found.get(keys[0], _ABSENT) if len(keys) == 1 else _find(found, keys, name)
            except RecursionError:
                raise ValueError(f"{name} must not be nested so deeply") from None
            if value is _ABSENT:
                value = self._in_path.get(name)
            elif name in self.absent:
                self.absent.discard(name)
            values.append(value)
        return values


def _find(node: Any, keys: Sequence[str], name: str) -> Any:
    for place, key in enumerate(keys):
        if type(node) is list:
            found = [_find(each, keys[place:], name) for each in node]
            return [None if each is _ABSENT else each for each in found]
        if node is None:
            return None
        if type(node) is not dict:
            raise ValueError(f"{name} must be in an object with {key!r}, got {_shown(node)}")
        node = node.get(key, _ABSENT)
        if node is _ABSENT:
            return node
    return node


def decode_columns(
    table: Table,
    columns: Mapping[str, Sequence[Any]],
    makers: Mapping[str, Makers] | None = None,
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Decodes the values of each column; returns the rows, and the reason for each bad one."""
    makers = makers or {}
    reasons: dict[int, str] = {}
    arrays = []
    for column in table.read_columns:
        array, wrong = decode_values(
            column, columns[column.name], table.missing, makers.get(column.name, {})
        )
        arrays.append(array)
        for row, reason in wrong.items():
            reasons.setdefault(row, f"{column.name} {reason}")
    return pa.record_batch(arrays, schema=table.row_schema), reasons


def decode_values(
    column: Column,
    values: Sequence[Any],
    missing: tuple[str, ...],
    makers: Makers = MappingProxyType({}),
) -> tuple[pa.Array, dict[int, str]]:
    """Decodes values of JSON to the column's row type: those of each kind by `decode_column`.

    So what a value gives does not depend on the values beside it. `makers` make arrays of values
    of a type that are not what they seem, such as the integers of times.

    Returns:
      the decoded values, arbitrary where they are bad, and the reason for each bad row.
    """
    bad: dict[int, str] = {}
    if len(column.cut) > 1:
        values = [_cut(column, value, row, bad) for row, value in enumerate(values)]
        column = replace(column, cut=())
    if column.flatten:
        values = [[*flat_values(value)] if type(value) is list else value for value in values]
    types = {*map(type, values)} - {type(None)}
    if list in types and column.role not in _LISTS:
        values = [_only(value, row, bad) for row, value in enumerate(values)]
        types.discard(list)
        types |= {*map(type, values)} - {type(None)}
    rows_of: dict[Any, list[int]] = {}
    if len(types) <= 1 and list not in types:
        rows_of[types.pop() if types else str] = [*range(len(values))]
    else:
        for row, value in enumerate(values):
            rows_of.setdefault(_kind(value), []).append(row)

    def made(kind: Any, rows: list[int]) -> pa.Array:
        mine = values if len(rows) == len(values) else [values[row] for row in rows]
        return _array(kind, mine, makers)

    groups = [(rows, partial(made, kind, rows)) for kind, rows in rows_of.items()]
    present = np.fromiter((value is not None for value in values), np.bool_, len(values))
    return decode_groups(column, groups, present, missing, bad)


def decode_groups(
    column: Column,
    groups: Sequence[tuple[Sequence[int] | NDArray[np.int64], Callable[[], pa.Array]]],
    present: NDArray[np.bool_],
    missing: tuple[str, ...],
    bad: dict[int, str],
) -> tuple[pa.Array, dict[int, str]]:
    """Decodes a column whose rows have values of several kinds, each row in one group.

    Args:
      groups: rows, and what makes their values.
      present: which rows have a value.
      bad: what is known to be bad.
    """
    parts: list[pa.Array] = []
    for rows, make in groups:
        try:
            array, wrong = decode_column(column, make(), missing)
        except DatasetError as error:
            array = _blank(column, len(rows))
            reason = f"cannot be read: {error}"
            wrong = {at: reason for at, row in enumerate(rows) if present[row]}
        parts.append(array)
        bad = {int(rows[at]): reason for at, reason in wrong.items()} | bad
    if len(parts) == 1:
        return parts[0], bad
    of_parts = [np.asarray(rows, np.int64) for rows, _ in groups]
    places = np.argsort(np.concatenate([np.zeros(0, np.int64), *of_parts]))
    return pa.concat_arrays([_blank(column, 0), *parts]).take(pa.array(places)), bad


def _only(value: Any, row: int, bad: dict[int, str]) -> Any:
    """Returns the one element of a list, and None for an empty one."""
    if type(value) is not list:
        return value
    if len(value) > 1:
        bad[row] = several_reason(len(value))
    return value[0] if value and type(value[0]) is not list else None


def _cut(column: Column, value: Any, row: int, bad: dict[int, str]) -> Any:
    try:
        return cut_values(value, column.cut)
    except ValueError as error:
        bad[row] = str(error)
        return None


def _kind(value: Any) -> Any:
    """Tells which values are decoded together: of a list, its elements' type with it."""
    if value is None:
        return str
    if type(value) is not list:
        return type(value)
    types = {*map(type, value)} - {type(None)}
    if not types:
        return list, str
    if types == {int, float}:
        return list, float
    if len(types) == 1:
        return list, types.pop()
    return list, dict if types & {dict, list} else None


def several_reason(count: int) -> str:
    """Says why a list is not one value."""
    return f"must be one value or a list of one, got a list of {count}"


def _array(kind: Any, values: Sequence[Any], makers: Makers) -> pa.Array:
    """Makes an array of values of one kind; raises DatasetError if no column holds such."""
    of, element = kind if isinstance(kind, tuple) else (None, kind)
    if element in (dict, list):
        raise DatasetError(
            "must be a value or a list of values, got objects or lists of lists: declare the path "
            f"of a value in objects; of lists, {NESTED}"
        )
    flat: Sequence[Any] = [*chain.from_iterable(each or () for each in values)] if of else values
    try:
        make = makers.get(element)
        array = pa.array(flat, _ARROW[element]) if make is None else make(flat)
    except (KeyError, OverflowError, pa.ArrowInvalid):
        # Of several types, or beyond 64 bits: as a text file has them.
        array = pa.array([*map(_text, flat)], pa.string())
    if not of:
        return array
    offsets = np.cumsum([0, *(len(each) if each else 0 for each in values)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), array)


def _blank(column: Column, num_rows: int) -> pa.Array:
    value: Any = [] if pa.types.is_list(column.row_type) else 0
    return pa.array([value] * num_rows, column.row_type)


def _text(value: Any) -> str | None:
    """Writes a value as a text file has it; lists and objects as JSON."""
    if value is None or type(value) is str:
        return value
    if type(value) is bool:
        return str(int(value))
    return json_text(value) if type(value) in (list, dict) else str(value)


def json_text(value: Any) -> str:
    """Writes a value as JSON; one that is nested too deeply for that, as three dots."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return "…"


def _shown(value: Any) -> str:
    return _NAMES.get(type(value), "a number") if value is not None else "null"


def _number(line: BadLine) -> int:
    return line.line
