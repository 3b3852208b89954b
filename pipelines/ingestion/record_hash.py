"""Hashes the records that rows are read of, whatever columns the schema declares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from embedps.splitmix import mix, seed_hashes


def hash_lines(lines: Sequence[bytes], seed: int) -> NDArray[np.uint64]:
    """Hashes the bytes of each line."""
    hashes = (xxhash.xxh3_64_intdigest(line, seed) for line in lines)
    return np.fromiter(hashes, np.uint64, len(lines))


def hash_records(batch: pa.RecordBatch, seed: int) -> NDArray[np.uint64]:
    """Hashes the plain values of each row of a file: numbers, times, booleans and texts.

    The order of the columns, their widths and their dictionaries do not matter, and a null adds
    nothing. Bytes and nested values are not hashed.
    """
    total = np.zeros(batch.num_rows, np.uint64)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if (values := _plain_values(column)) is not None:
            salt = np.uint64(xxhash.xxh3_64_intdigest(name.encode(), seed))
            present = column.is_valid().to_numpy(zero_copy_only=False)
            total += np.where(present, mix(mix(values) + salt), np.uint64(0))
    return mix(total ^ seed_hashes(seed, 1)[0])


def is_plain(kind: pa.DataType) -> bool:
    """Tells whether a column's values are numbers, times, booleans or texts."""
    if pa.types.is_dictionary(kind):
        return is_plain(kind.value_type)
    types = pa.types
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    is_time = types.is_date(kind) or types.is_timestamp(kind) or types.is_time(kind)
    return bool(is_number or is_time or types.is_boolean(kind) or _is_text(kind))


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _plain_values(column: pa.Array) -> NDArray[np.uint64] | None:
    """Returns 64 bits of each value, arbitrary ones of a null; None if values are not plain."""
    if not is_plain(column.type):
        return None
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if _is_text(kind):
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
