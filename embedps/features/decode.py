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
from embedps.data.dataset_metadata import MISSING_CLASS
from embedps.errors import DatasetError
from embedps.features.arrow_kinds import is_list, reduce_kind, whole_times, wrong_type
from embedps.features.nested_lists import cut_levels, cut_lists, flatten, plain_lists
from embedps.features.table_columns import Column
from embedps.features.table_schema import Table
from embedps.features.text_lists import split_lists
from embedps.features.text_values import (
    MAX_INT,
    MAX_UNSIGNED_ID,
    MIN_INT,
    fits_float32,
    marked_number,
    marked_reason,
    text_decoder,
)

_ID_DIGITS = 8
_MAX_FLOAT32 = float(np.finfo(np.float32).max)
_EXACT_BITS = {16: 11, 32: 24, 64: 53}
"""Up to which power of two a float of so many bits holds every whole number."""

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
    array, bad_texts = reduce_kind(array)
    if column.role in ("list", "float_list"):
        if not pa.types.is_string(array.type) and not is_list(array.type):
            array = _lists_of_one(column, array)
        if len(column.cut) > 1 and array.null_count < len(array):
            levels = cut_levels(array, column.cut)
            if levels is None:
                raise DatasetError(
                    f"column {column.name!r}: cut must have one number for each level of lists, it "
                    f"has {len(column.cut)} for {array.type}"
                )
            array = levels
        while column.flatten and is_list(array.type) and is_list(array.type.value_type):
            array = flatten(array)
        if is_list(array.type) and pa.types.is_nested(array.type.value_type):
            raise wrong_type(column, array.type, "lists of values")
        lists, bad = _decode_list(column, array, missing)
        return lists, bad | bad_texts
    if is_list(array.type):
        return _decode_lists_of_one(column, array, missing)
    if _is_read_as_text(column, array.type):
        array = array.cast(pa.string())
    if pa.types.is_string(array.type):
        array = _without_missing(array, missing)
        array, unmarked = _without_marks(column, array)
        values, bad = _decode_texts(column, array)
        bad |= unmarked
    else:
        values, bad = _decode_typed(column, array)
    return pa.array(values, column.row_type, from_pandas=False), bad | bad_texts


def _is_read_as_text(column: Column, kind: pa.DataType) -> bool:
    """Tells whether whole numbers are read as their decimal texts, which text files have."""
    is_whole = pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0)
    return is_whole and (column.type == "string" or isinstance(column.classes, tuple))


def _lists_of_one(column: Column, array: pa.Array) -> pa.Array:
    """Makes a list of each value; an empty one of a null or NaN."""
    if pa.types.is_nested(array.type):
        raise wrong_type(column, array.type, "lists")
    present = ~_absent(array)
    offsets = np.concatenate([[0], np.cumsum(present)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), array.filter(pa.array(present)))


def _decode_lists_of_one(
    column: Column, array: pa.Array, missing: tuple[str, ...]
) -> tuple[pa.Array, BadRows]:
    """Decodes lists of one value each to that value; a null or empty one is a missing value."""
    kind = array.type
    of_other_size = pa.types.is_fixed_size_list(kind) and kind.list_size != 1
    if of_other_size or pa.types.is_nested(kind.value_type):
        raise wrong_type(column, kind, "one value per row, or lists of one")
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    places = pa.array(np.cumsum(lengths) - lengths, mask=lengths != 1)
    values, bad = decode_column(column, array.flatten().take(places), missing)
    reasons = {
        int(row): f"must be one value or a list of one, got a list of {lengths[row]}"
        for row in np.flatnonzero(lengths > 1)
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


def _without_marks(column: Column, array: pa.Array) -> tuple[pa.Array, BadRows]:
    """Writes numbers as Python does; those that are not written as declared are bad."""
    if not column.has_marks:
        return array, {}
    good = pc.match_substring_regex(array, f"^({marked_number(column)})$")
    rows = np.flatnonzero(~pc.fill_null(good, True).to_numpy(zero_copy_only=False))
    bad = {int(row): marked_reason(column, array[int(row)].as_py()) for row in rows}
    array = pc.if_else(pc.fill_null(good, True), array, "0")
    if column.thousands:
        array = pc.replace_substring(array, column.thousands, "")
    return pc.replace_substring(array, column.decimal, "."), bad


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
    if column.optional:
        return MISSING_CLASS if column.task == "classes" else math.nan
    return MISSING_ID if column.role in ("categorical", "list", "key") else None


def _decode_distinct(
    array: pa.Array, missing: float | int | None, decode: Callable[[Any], float | int]
) -> tuple[NDArray[Any], BadRows]:
    """Decodes each distinct value once."""
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
    if values is None:
        return None
    numbers = np.asarray(values.to_numpy(zero_copy_only=False))
    # A missing value is NaN.
    return None if (np.abs(numbers) > _MAX_FLOAT32).any() else numbers


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
    bad: BadRows = {}
    if not is_list(array.type):
        array, bad = split_lists(column, _without_missing(array.cast(pa.string()), missing))
    array = plain_lists(array)
    if len(column.cut) == 1:
        array = cut_lists(array, column.cut[0])
    starts = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
    role = "categorical" if column.role == "list" else "numeric"
    element = Column(
        name=column.name,
        role=role,
        type=column.type,
        decimal=column.decimal,
        thousands=column.thousands,
        on_text=column.on_text,
    )
    missing = ("",) if role == "numeric" else ()
    values, bad_values = decode_column(element, array.flatten(), missing)
    offsets = starts - starts[0]
    if role == "numeric":
        absent = np.isnan(values.to_numpy())
        values = values.cast(pa.float32())
        bad_values = {
            **_reasons(absent, "must have no missing number", None),
            **bad_values,
        }
    for at, reason in bad_values.items():
        bad.setdefault(int(np.searchsorted(offsets, at, side="right")) - 1, reason)
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=column.row_type)
    return lists, bad


def _decode_typed(column: Column, array: pa.Array) -> tuple[NDArray[Any], BadRows]:
    """Decodes numbers, booleans, dates and times."""
    kind = array.type
    if column.classes:
        return _decode_typed_classes(column, array)
    if column.role in ("label", "numeric", "weight"):
        if pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
            array = array.cast(pa.float64())
        if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
            raise wrong_type(column, kind, "numbers")
        values, bad = _check_numbers(column, floats := _to_floats(array))
        if column.role == "numeric":
            return values, bad
        absent = np.isnan(floats)
        if not column.optional:
            return values, bad | _reasons(absent, "must not be missing", None)
        present = {row: reason for row, reason in bad.items() if not absent[row]}
        return np.where(absent, math.nan, values), present
    if column.role == "timestamp":
        return _decode_typed_times(column, array)
    if column.type == "string":
        raise wrong_type(column, kind, "texts or whole numbers")
    if column.type == "hex" and not pa.types.is_integer(kind):
        raise wrong_type(column, kind, "integers")
    values, bad = _decode_whole(column, array)
    return np.where(_absent(array), MISSING_ID, values), bad


def _absent(array: pa.Array) -> NDArray[np.bool_]:
    """Tells which values are missing: null, or NaN, as pandas writes it."""
    if pa.types.is_floating(array.type):
        return np.isnan(_to_floats(array))
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False))


def _decode_typed_classes(column: Column, array: pa.Array) -> tuple[NDArray[Any], BadRows]:
    if isinstance(column.classes, tuple):
        raise wrong_type(column, array.type, "texts")
    values, bad = _decode_whole(column, array)
    rule = f"must be a class from 0 to {column.num_classes - 1}"
    wrong = (values < 0) | (values >= column.num_classes)
    bad = _reasons(wrong, rule, values) | bad
    values = np.where(wrong, 0, values).astype(np.int64)
    if column.optional:
        return np.where(_absent(array), MISSING_CLASS, values), bad
    return values, bad | _reasons(_absent(array), "must not be missing", None)


def _decode_whole(column: Column, array: pa.Array) -> tuple[NDArray[np.int64], BadRows]:
    """Decodes whole numbers to int64, those from 2^63 on to the same bits; 0 if missing."""
    kind = array.type
    if pa.types.is_boolean(kind):
        array = array.cast(pa.int64())
    elif pa.types.is_decimal(kind):
        return _decode_distinct(array.fill_null(0), None, _whole_decimal)
    elif pa.types.is_floating(kind):
        return _whole_floats(_to_floats(array), _EXACT_BITS[kind.bit_width])
    elif not pa.types.is_integer(kind):
        raise wrong_type(column, kind, "integers")
    values = array.fill_null(0).to_numpy(zero_copy_only=False)
    bad: BadRows = {}
    if values.dtype == np.uint64:
        rule = f"must be at most {MAX_UNSIGNED_ID}, as the two above mean missing and rare"
        bad = _reasons(values > MAX_UNSIGNED_ID, rule, values)
    return values.astype(np.int64), bad


def _whole_floats(values: NDArray[np.float64], bits: int) -> tuple[NDArray[np.int64], BadRows]:
    present = np.where(np.isnan(values), 0, values)
    with np.errstate(invalid="ignore"):
        wrong = ~np.isfinite(present) | (present != np.trunc(present))
    bad = _reasons(wrong, "must be a whole number", values)
    inexact = ~wrong & (np.abs(present) > 2.0**bits)
    bad |= _reasons(inexact, f"must be within 2^{bits}, beyond which floats lose digits", values)
    return np.where(wrong | inexact, 0, present).astype(np.int64), bad


def _whole_decimal(value: Any) -> int:
    if value != value.to_integral_value() or not MIN_INT <= value <= MAX_UNSIGNED_ID:
        raise ValueError(f"must be a whole number from -2^63 to {MAX_UNSIGNED_ID}, got {value}")
    return int(value) - (1 << 64) if value > MAX_INT else int(value)


def _decode_typed_times(column: Column, array: pa.Array) -> tuple[NDArray[Any], BadRows]:
    """Decodes dates, times and numbers of seconds or milliseconds, whole or not."""
    kind, scale = array.type, 1000 if column.type == "seconds" else 1
    if pa.types.is_date(kind):
        array, scale = array.cast(pa.timestamp("ms")).cast(pa.int64()), 1
    elif pa.types.is_timestamp(kind):
        array, scale = whole_times(array)
    elif column.type == "text":
        raise wrong_type(column, kind, "texts")
    elif pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        values = _to_floats(array.cast(pa.float64()))
        wrong = ~(np.abs(values) <= MAX_INT // 1000)
        bad = _reasons(wrong, "must be a time", values)
        bad |= _reasons(np.isnan(values), "must not be missing", None)
        return np.rint(np.where(wrong, 0, values) * scale).astype(np.int64), bad
    elif not pa.types.is_integer(kind):
        raise wrong_type(column, kind, "times, or numbers of seconds or milliseconds")
    values = array.fill_null(0).to_numpy(zero_copy_only=False)
    wrong = _beyond_milliseconds(values)
    bad = _reasons(wrong, "must be a time", values)
    bad |= _reasons(_absent(array), "must not be missing", None)
    return np.where(wrong, 0, values).astype(np.int64) * scale, bad


def _to_floats(array: pa.Array) -> NDArray[np.float64]:
    values = array.to_numpy(zero_copy_only=False)
    return np.asarray(values, np.float64)  # a null is NaN


def _check_numbers(column: Column, values: NDArray[np.float64]) -> tuple[NDArray[Any], BadRows]:
    large = np.isfinite(values) & ~fits_float32(values)
    bad = _reasons(large, "must be a number that fits in 32 bits", values)
    wrong = np.isinf(values)
    rule = "must be a finite number"
    if column.role == "weight":
        wrong, rule = ~((values >= 0) & (values < math.inf)), "must be a number of 0 or more"
    elif column.role == "label" and column.task == "number":
        wrong, rule = ~np.isfinite(values) | large, "must be a finite number of 32 bits"
    elif column.soft:
        wrong, rule = ~((values >= 0) & (values <= 1)), "must be a number from 0 to 1"
    elif column.role == "label" and column.positive_from is None:
        wrong, rule = (values != 0) & (values != 1), "must be 0 or 1"
    elif column.role == "label" and column.positive_from is not None:
        wrong = ~np.isfinite(values)
        positive = (values >= column.positive_from).astype(np.float64)
        return positive, bad | _reasons(wrong, rule, values)
    return values, bad | _reasons(wrong, rule, values)


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
