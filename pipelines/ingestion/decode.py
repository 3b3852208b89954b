"""Decodes columns of texts or typed values to rows without nulls; explains each bad row.

A column of plain texts is decoded at once. Any other column is decoded value by value, once per
distinct value. Both paths accept the same texts and give the same values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from embedps.data.dataset import MISSING_ID
from embedps.errors import DatasetError

from .table_schema import Column, Table
from .text_values import MAX_INT, text_decoder

_ID_DIGITS = 8

BadRows = dict[int, str]
"""The reason for each row that cannot be decoded."""


def _is_one_of(characters: bytes) -> NDArray[np.bool_]:
    table = np.zeros(256, np.bool_)
    table[list(characters)] = True
    return table


_INTEGER_BYTES = _is_one_of(b"0123456789-")
_FLOAT_BYTES = _is_one_of(b"0123456789-+.eE")


def _hex_pairs() -> NDArray[np.int16]:
    """Returns a table from two characters, as a little-endian uint16, to their value or -1."""
    digit = np.full(256, -1, np.int16)
    for i, character in enumerate(b"0123456789abcdef"):
        digit[character] = digit[ord(chr(character).upper())] = i
    first, second = digit[np.arange(1 << 16) & 0xFF], digit[np.arange(1 << 16) >> 8]
    return np.where((first < 0) | (second < 0), -1, first * 16 + second).astype(np.int16)


_HEX_PAIRS = _hex_pairs()


def decode_batch(
    table: Table, batch: pa.RecordBatch, *, has_nulls_for_missing: bool = False
) -> tuple[pa.RecordBatch, BadRows]:
    """Decodes a batch of texts or typed values to rows of `table.row_schema`.

    Args:
      table: declares the columns.
      batch: the table's columns by name; absent columns are skipped.
      has_nulls_for_missing: whether texts that mean missing are already nulls.

    Returns:
      the rows, in which bad rows have arbitrary values, and the reason for each bad row.

    Raises:
      DatasetError: a column's type cannot hold what the table declares.
    """
    bad: BadRows = {}
    names, arrays = [], []
    missing = () if has_nulls_for_missing else table.missing
    for column in table.read_columns:
        index = batch.schema.get_field_index(column.name)
        if index >= 0:
            array, reasons = decode_column(column, batch.column(index), missing)
            names.append(column.name)
            arrays.append(array)
            for row, reason in reasons.items():
                bad.setdefault(row, f"{column.name} {reason}")
    schema = table.row_schema
    return pa.record_batch(arrays, schema=pa.schema([schema.field(name) for name in names])), bad


def decode_column(
    column: Column, array: pa.Array, missing: tuple[str, ...]
) -> tuple[pa.Array, BadRows]:
    """Decodes one column to its row type, as `decode_batch` does."""
    if _is_list(array.type) and column.role not in ("list", "float_list"):
        return _decode_lists_of_one(column, array, missing)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if column.role in ("list", "float_list"):
        return _decode_list(column, array, missing)
    if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
        array = array.cast(pa.string())
    if pa.types.is_large_string(array.type) or pa.types.is_string_view(array.type):
        array = array.cast(pa.string())
    if pa.types.is_string(array.type):
        array = _without_missing(array, missing)
        values, bad = _decode_texts(column, array)
    else:
        values, bad = _decode_typed(column, array)
    return pa.array(values, column.row_type, from_pandas=False), bad


def _decode_lists_of_one(
    column: Column, array: pa.Array, missing: tuple[str, ...]
) -> tuple[pa.Array, BadRows]:
    """Decodes lists of one value each to that value; a null list is a missing value."""
    kind = array.type
    of_other_size = pa.types.is_fixed_size_list(kind) and kind.list_size != 1
    if of_other_size or pa.types.is_nested(kind.value_type):
        raise _wrong_type(column, kind, "one value per row, or lists of one")
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    places = pa.array(np.cumsum(lengths) - lengths, mask=lengths != 1)
    values, bad = decode_column(column, array.flatten().take(places), missing)
    wrong = (lengths != 1) & array.is_valid().to_numpy(zero_copy_only=False)
    reasons = {
        int(row): f"must be one value or a list of one, got a list of {lengths[row]}"
        for row in np.flatnonzero(wrong)
    }
    return values, bad | reasons


def _without_missing(array: pa.Array, missing: tuple[str, ...]) -> pa.Array:
    """Replaces texts that mean a missing value by nulls."""
    if not missing:
        return array
    absent = pc.is_in(array, value_set=pa.array(missing))
    return (
        pc.if_else(absent, pa.scalar(None, pa.string()), array) if pc.any(absent).as_py() else array
    )


def _decode_texts(column: Column, array: pa.Array) -> tuple[NDArray[Any], BadRows]:
    fast = {
        "hex": _fast_hex,
        "integer": _fast_integers,
        "float": _fast_floats,
        "seconds": _fast_integers,
        "milliseconds": _fast_integers,
    }.get(column.type)
    values = fast(array) if fast is not None else None
    if values is not None and column.role == "numeric" and column.type == "integer":
        values = _to_numbers(array, values)
    elif values is not None and column.type == "integer" and array.null_count:
        values = np.where(array.is_null().to_numpy(zero_copy_only=False), MISSING_ID, values)
    elif values is not None and column.role == "weight" and (~(values >= 0)).any():
        values = None
    elif values is not None and column.role == "timestamp":
        if array.null_count or _beyond_milliseconds(values).any():
            values = None
        elif column.type == "seconds":
            values = values * 1000
    if values is not None:
        return values, {}
    return _decode_distinct(array, _missing_value(column), text_decoder(column))


def _to_numbers(array: pa.Array, values: NDArray[Any]) -> NDArray[np.float64]:
    numbers = values.astype(np.float64)
    if array.null_count:
        numbers[array.is_null().to_numpy(zero_copy_only=False)] = np.nan
    return numbers


def _missing_value(column: Column) -> float | int | None:
    """Returns the value that replaces a missing one; None if a missing value makes the row bad."""
    if column.role == "numeric":
        return math.nan
    return MISSING_ID if column.role in ("categorical", "list", "key") else None


def _decode_distinct(
    array: pa.Array, missing: float | int | None, decode: Callable[[str], float | int]
) -> tuple[NDArray[Any], BadRows]:
    """Decodes each distinct text once."""
    encoded = array.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    decoded: list[float | int] = []
    reasons: dict[int, str] = {}
    for i, text in enumerate(texts):
        try:
            decoded.append(decode(text))
        except ValueError as error:
            decoded.append(0)
            reasons[i] = str(error)
    if missing is None:
        reasons[len(texts)] = "must not be missing"
    dtype = np.int64 if all(isinstance(v, int) for v in [*decoded, missing or 0]) else np.float64
    decoded.append(0 if missing is None else missing)
    codes = encoded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
    bad: BadRows = {}
    if reasons:
        is_bad = np.isin(codes, np.fromiter(reasons, np.int64))
        bad = {int(row): reasons[int(codes[row])] for row in np.flatnonzero(is_bad)}
    return np.array(decoded, dtype)[codes], bad


def _characters(array: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Returns a string array's offsets and its characters."""
    _, offset_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(array) + 1, array.offset * 4)
    if data_buffer is None:
        return offsets, np.empty(0, np.uint8)
    return offsets, np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]


def _fast_integers(array: pa.Array) -> NDArray[np.int64] | None:
    """Decodes plain integers; None if a text is not one. Missing values become arbitrary."""
    values = _fast_cast(array, _INTEGER_BYTES, pa.int64())
    if values is None:
        return None
    return np.frombuffer(values.buffers()[1], np.int64, len(values), values.offset * 8)


def _fast_floats(array: pa.Array) -> NDArray[np.float64] | None:
    values = _fast_cast(array, _FLOAT_BYTES, pa.float64())
    if values is None or not pc.all(pc.is_finite(values)).as_py():
        return None
    return np.asarray(values.to_numpy(zero_copy_only=False))


def _fast_cast(array: pa.Array, allowed: NDArray[np.bool_], kind: pa.DataType) -> pa.Array | None:
    if len(array) == 0 or not allowed[_characters(array)[1]].all():
        return None
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        return None


def _fast_hex(array: pa.Array) -> NDArray[np.int64] | None:
    """Decodes ids of 8 hexadecimal digits or none; None if a text is another."""
    offsets, characters = _characters(array)
    lengths = np.diff(offsets)
    present = lengths == _ID_DIGITS
    num_present = int(present.sum())
    if num_present * _ID_DIGITS != len(characters) or num_present + array.null_count != len(array):
        return None
    pairs = _HEX_PAIRS[characters.view(np.uint16)].reshape(-1, 4)
    if (pairs < 0).any():
        return None
    values = pairs[:, 0].astype(np.int64)
    for i in range(1, 4):
        values <<= 8
        values |= pairs[:, i]
    if num_present == len(array):
        return values
    full = np.full(len(array), MISSING_ID, np.int64)
    full[present] = values
    return full


def _decode_list(
    column: Column, array: pa.Array, missing: tuple[str, ...]
) -> tuple[pa.Array, BadRows]:
    if not _is_list(array.type):
        array = pc.split_pattern(
            _without_missing(array.cast(pa.string()), missing), column.separator
        )
    if not pa.types.is_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    if array.null_count:
        array = _empty_for_null(array)
    starts = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
    role = "categorical" if column.role == "list" else "numeric"
    element = Column(name=column.name, role=role, type=column.type)
    values, bad_values = decode_column(element, array.flatten(), ())
    offsets = starts - starts[0]
    bad: BadRows = {}
    if role == "numeric":
        absent = np.isnan(values.to_numpy())
        values = values.cast(pa.float32())
        large = np.isinf(values.to_numpy())
        bad_values = {
            **_reasons(absent, "must have no missing number", None),
            **_reasons(large, "must have numbers that fit in 32 bits", None),
            **bad_values,
        }
    for at, reason in bad_values.items():
        bad.setdefault(int(np.searchsorted(offsets, at, side="right")) - 1, reason)
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=column.row_type)
    return lists, bad


def _empty_for_null(array: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), array.flatten())


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _decode_typed(column: Column, array: pa.Array) -> tuple[NDArray[Any], BadRows]:
    """Decodes numbers, booleans and timestamps."""
    kind = array.type
    if column.task == "classes":
        return _decode_typed_classes(column, array)
    if column.role in ("label", "numeric", "weight"):
        if pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
            array = array.cast(pa.float64())
        if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
            raise _wrong_type(column, kind, "numbers")
        return _check_numbers(column, _to_floats(array))
    if column.role == "timestamp" and pa.types.is_timestamp(kind):
        array = array.cast(pa.timestamp("ms", kind.tz), safe=False).cast(pa.int64())
        scale = 1
    elif not pa.types.is_integer(kind) or column.type in ("string", "text"):
        wanted = "texts" if column.type in ("string", "text") else "integers"
        raise _wrong_type(column, kind, wanted)
    else:
        scale = 1000 if column.type == "seconds" else 1
    return _check_integers(column, array, scale)


def _decode_typed_classes(column: Column, array: pa.Array) -> tuple[NDArray[Any], BadRows]:
    if not pa.types.is_integer(array.type) or isinstance(column.classes, tuple):
        wanted = "texts" if isinstance(column.classes, tuple) else "integers"
        raise _wrong_type(column, array.type, wanted)
    values = array.fill_null(0).to_numpy(zero_copy_only=False)
    rule = f"must be a class from 0 to {column.num_classes - 1}"
    bad = _reasons(array.is_null().to_numpy(zero_copy_only=False), "must not be missing", None)
    wrong = (values < 0) | (values >= column.num_classes)
    return np.where(wrong, 0, values).astype(np.int64), _reasons(wrong, rule, values) | bad


def _wrong_type(column: Column, kind: pa.DataType, wanted: str) -> DatasetError:
    return DatasetError(
        f"column {column.name!r}, a {column.role} of type {column.type}, must hold {wanted}, "
        f"it holds {kind}: declare its real type"
    )


def _to_floats(array: pa.Array) -> NDArray[np.float64]:
    values = array.to_numpy(zero_copy_only=False)
    return np.asarray(values, np.float64)  # a null is NaN


def _check_numbers(column: Column, values: NDArray[np.float64]) -> tuple[NDArray[Any], BadRows]:
    wrong = np.isinf(values)
    rule = "must be a finite number"
    if column.role == "weight":
        wrong, rule = ~((values >= 0) & (values < math.inf)), "must be a number of 0 or more"
    elif column.role == "label" and column.task == "number":
        wrong = ~(np.abs(values) <= np.finfo(np.float32).max)
        rule = "must be a finite number of 32 bits"
    elif column.role == "label" and column.positive_from is None:
        wrong, rule = (values != 0) & (values != 1), "must be 0 or 1"
    elif column.role == "label" and column.positive_from is not None:
        positive = (values >= column.positive_from).astype(np.float64)
        return positive, _reasons(~np.isfinite(values), rule, values)
    return values, _reasons(wrong, rule, values)


def _check_integers(column: Column, array: pa.Array, scale: int) -> tuple[NDArray[Any], BadRows]:
    absent = array.is_null().to_numpy(zero_copy_only=False)
    filled = array.fill_null(0)
    values = filled.to_numpy(zero_copy_only=False)
    bad: BadRows = {}
    if values.dtype == np.uint64:
        bad = _reasons(values > MAX_INT, "must fit in 64 bits with a sign", values)
    values = values.astype(np.int64)
    if column.role == "timestamp":
        bad |= _reasons(absent, "must not be missing", None)
        bad |= _reasons(_beyond_milliseconds(values), "must be a time", values)
        return values * scale, bad
    values[absent] = MISSING_ID
    return values, bad


def _reasons(wrong: NDArray[np.bool_], rule: str, values: NDArray[Any] | None) -> BadRows:
    rows = np.flatnonzero(wrong)
    return {int(r): rule if values is None else f"{rule}, got {values[r]}" for r in rows}


def first_bad_row(bad: Mapping[int, str]) -> str:
    """Formats the first bad row and its reason, for an error message."""
    row = min(bad)
    return f"row {row}: {bad[row]}"


def _beyond_milliseconds(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Tells which int64 seconds overflow as milliseconds; no abs(), as that of -2^63 overflows."""
    limit = MAX_INT // 1000
    return (values > limit) | (values < -limit)
