"""Hashes the records that rows are read of, whatever columns the schema declares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from embedps.splitmix import GOLDEN, mix, seed_hashes


def hash_lines(lines: Sequence[bytes], seed: int) -> NDArray[np.uint64]:
    """Hashes the bytes of each line."""
    hashes = (xxhash.xxh3_64_intdigest(line, seed) for line in lines)
    return np.fromiter(hashes, np.uint64, len(lines))


def hash_records(batch: pa.RecordBatch, seed: int) -> NDArray[np.uint64]:
    """Hashes the values of each row of a file, also those in lists, structs and maps.

    The order of the columns, their widths and their dictionaries do not matter, and a null adds
    nothing. A text is its bytes.
    """
    total = _sum_of_columns(zip(batch.schema.names, batch.columns, strict=True), len(batch), seed)
    return mix(total ^ seed_hashes(seed, 1)[0])


def _sum_of_columns(
    columns: Iterable[tuple[str, pa.Array]], rows: int, seed: int
) -> NDArray[np.uint64]:
    total = np.zeros(rows, np.uint64)
    for name, column in columns:
        if (values := _values(column)) is not None:
            salt = np.uint64(xxhash.xxh3_64_intdigest(name.encode(), seed))
            present = column.is_valid().to_numpy(zero_copy_only=False)
            total += np.where(present, mix(mix(values) + salt), np.uint64(0))
    return total


def is_hashed(kind: pa.DataType) -> bool:
    """Tells whether something of a column is hashed: numbers, times, booleans, texts or bytes."""
    types = pa.types
    if types.is_struct(kind):
        return any(is_hashed(field.type) for field in kind)
    if types.is_map(kind):
        return is_hashed(kind.key_type) or is_hashed(kind.item_type)
    if types.is_dictionary(kind) or _is_list(kind):
        return is_hashed(kind.value_type)
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    is_time = types.is_date(kind) or types.is_timestamp(kind) or types.is_time(kind)
    return bool(is_number or is_time or types.is_boolean(kind) or _is_bytes(kind))


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return bool(
        is_text
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
        or kind == pa.uuid()
    )


def _values(column: pa.Array) -> NDArray[np.uint64] | None:
    """Returns 64 bits of each value, arbitrary ones of a null; None if nothing is hashed."""
    if not is_hashed(column.type):
        return None
    if _is_list(column.type) or pa.types.is_map(column.type):
        return _values_of_lists(column)
    if pa.types.is_struct(column.type):
        names = [field.name for field in column.type]
        return _sum_of_columns(zip(names, column.flatten(), strict=True), len(column), 0)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type == pa.uuid():
        column = column.storage
    kind = column.type
    if _is_bytes(kind):
        encoded = column.cast(pa.large_binary()).dictionary_encode()
        hashes = hash_lines(encoded.dictionary.to_pylist() or [b""], 0)
        return np.asarray(hashes[encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)])
    if pa.types.is_temporal(kind):
        column = column.cast(pa.int64() if kind.bit_width == 64 else pa.int32())
    elif pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    values = column.fill_null(0).to_numpy(zero_copy_only=False)
    wide = np.uint64 if values.dtype == np.uint64 else np.int64
    return np.asarray(values.astype(wide if values.dtype.kind in "iu" else np.float64)).view(
        np.uint64
    )


def _values_of_lists(column: pa.Array) -> NDArray[np.uint64]:
    """Adds up the values of each list by their places, and its length."""
    if pa.types.is_map(column.type):
        kinds = [("key", column.type.key_type), ("value", column.type.item_type)]
        column = column.cast(pa.list_(pa.struct(kinds)))
    lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths, dtype=np.int64)
    values = column.flatten()  # without those below a null
    place = np.arange(len(values)) - np.repeat(ends - lengths, lengths)
    sums = np.zeros(len(values) + 1, np.uint64)
    of_values = _sum_of_columns([("", values)], len(values), 0)
    np.cumsum(mix(of_values + np.uint64(GOLDEN) * (place + 1).astype(np.uint64)), out=sums[1:])
    return np.asarray(sums[ends] - sums[ends - lengths] + lengths.astype(np.uint64))
