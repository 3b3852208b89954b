"""Reduces the Arrow types of files to a few kinds; names the declarations that a type fits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from embedps.errors import DatasetError
from embedps.features.table_columns import Column

BadTexts = dict[int, str]
"""The reason for each row whose text cannot be read."""


def is_list(kind: pa.DataType) -> bool:
    """Tells whether a type is a list of any kind."""
    types = pa.types
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def reduce_kind(array: pa.Array) -> tuple[pa.Array, BadTexts]:
    """Gives a dictionary's values; texts, bytes, UUIDs as `string`, null where not UTF-8."""
    if array.type == pa.uuid():
        return pa.array([None if each is None else str(each) for each in array.to_pylist()]), {}
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if pa.types.is_dictionary(kind):
        return reduce_kind(array.dictionary_decode())
    if pa.types.is_null(kind):
        return array.cast(pa.string()), {}
    return _read_utf8(array) if _is_text(kind) else (array, {})


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    )


def _read_utf8(array: pa.Array) -> tuple[pa.Array, BadTexts]:
    data = array.cast(pa.binary())
    try:
        return data.cast(pa.string()), {}
    except pa.ArrowInvalid:
        pass
    bad: BadTexts = {}
    for row, value in enumerate(data.to_pylist()):
        try:
            (value or b"").decode("utf-8")
        except UnicodeDecodeError as error:
            bad[row] = f"must be UTF-8: {error.reason} at byte {error.start}"
    is_bad = np.zeros(len(data), np.bool_)
    is_bad[list(bad)] = True
    return pc.if_else(pa.array(is_bad), pa.scalar(None, pa.binary()), data).cast(pa.string()), bad


def whole_times(array: pa.Array) -> tuple[pa.Array, int]:
    """Gives int64 times, and the milliseconds of each; finer ones are rounded down, as texts are.

    Arrow's own cast rounds to 1970, and seconds beyond 64 bits of milliseconds become others.
    """
    values = array.cast(pa.int64())
    if array.type.unit in ("s", "ms"):
        return values, 1000 if array.type.unit == "s" else 1
    finer = 1000 if array.type.unit == "us" else 1_000_000
    is_null = values.is_null().to_numpy(zero_copy_only=False)
    return pa.array(values.fill_null(0).to_numpy() // finer, mask=is_null), 1


def wrong_type(column: Column, kind: pa.DataType, wanted: str) -> DatasetError:
    """Makes the error of a column that holds another type than its declaration can read."""
    return DatasetError(
        f"column {column.name!r}, a {column.role} of type {column.type}, must hold {wanted}, "
        f"it holds {kind}: {_remedy(column, kind)}"
    )


def _remedy(column: Column, kind: Any) -> str:
    types = pa.types
    if is_list(kind) and not types.is_nested(kind.value_type):
        return 'declare it as = "list" (ids) or "float_list" (numbers)'
    inner = kind
    while is_list(inner):
        inner = inner.value_type
    if is_list(kind) and not types.is_nested(inner):
        return NESTED
    if types.is_struct(inner) or types.is_map(inner):
        keys = inner.field(0).name if types.is_struct(inner) and inner.num_fields else "KEY"
        path = ".".join((*column.keys, keys))
        return f'declare the path of a value in it, such as path = "{path}"'
    if types.is_date(kind) or types.is_timestamp(kind):
        return 'declare it as = "timestamp"'
    if types.is_integer(kind) and column.role == "timestamp":
        return 'declare type = "seconds" or "milliseconds", without a format'
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    if column.task == "classes":
        return "declare classes as the number of integers from 0" if number else _NO_DECLARATION
    if number or types.is_boolean(kind):
        if column.role in ("categorical", "list", "key"):
            return 'declare type = "integer"'
        return 'declare it as = "numeric", or as = "categorical" with type = "integer"'
    return _NO_DECLARATION


NESTED = (
    "declare a list with flatten = true for one list of all values, or with cut = [3, 5] for the "
    "first 3 lists and the first 5 values of each (-3: the last)"
)
_NO_DECLARATION = (
    "no declaration reads this type: leave the column out of the schema, or write its values as "
    "numbers, texts or lists of them"
)
