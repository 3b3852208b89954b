"""Writes rows to files that other systems read, part by part: Parquet, NumPy and SafeTensors."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embedps import constants
from embedps.errors import UsageError
from embedps.storage import file_io

KINDS = (".parquet", ".npz", ".safetensors")
BESIDES_SLOTS = ("id", "embedding", "last_step", "frequency")
"""A table's columns that are no optimizer slots."""
SAFE_DTYPES = {
    np.dtype(name): safe
    for name, safe in {
        "int32": "I32",
        "int64": "I64",
        "uint32": "U32",
        "uint64": "U64",
        "float16": "F16",
        "float32": "F32",
        "float64": "F64",
    }.items()
}


def check_kind(path: Path) -> None:
    """Checks that `write_rows` knows the kind of a file.

    Raises:
      UsageError: it does not.
    """
    if path.suffix not in KINDS:
        raise UsageError(f"--output must be a file of {', '.join(KINDS)} but is {path}")


def write_rows(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Writes batches to a file of the kind that its suffix names; returns the number of rows.

    .npz and .safetensors files have an array per column, [num_rows] or [num_rows, width]. Memory is
    that of a batch: such arrays grow in temporary files beside the file.
    """
    if path.suffix == ".parquet":
        return write_parquet(path, schema, batches)
    with file_io.write_atomically(path) as file:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            num_rows, columns = _columns(Path(folder), schema, batches)
            if path.suffix == ".npz":
                np.savez(file, allow_pickle=False, **columns)
            else:
                _write_safetensors(file, columns)
        return num_rows


def write_parquet(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Writes batches to a Parquet file; returns the number of rows."""
    num_rows = 0
    with (
        file_io.write_atomically(path) as file,
        pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
            num_rows += batch.num_rows
    return num_rows


def _columns(
    folder: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> tuple[int, dict[str, np.ndarray]]:
    """Writes each column's values to a file, and maps these."""
    num_rows = 0
    with ExitStack() as stack:
        files = [stack.enter_context((folder / f"{i}").open("wb")) for i in range(len(schema))]
        for batch in batches:
            num_rows += batch.num_rows
            for file, column in zip(files, batch.columns, strict=True):
                file.write(np.ascontiguousarray(_flat(column)).data)
    found = {}
    for i, field in enumerate(schema):
        is_list = pa.types.is_fixed_size_list(field.type)
        shape = (num_rows, field.type.list_size) if is_list else (num_rows,)
        dtype = _flat(pa.array([], field.type)).dtype
        found[field.name] = (
            np.memmap(folder / f"{i}", dtype, "r", shape=shape)
            if num_rows
            else np.zeros(shape, dtype)  # an empty file cannot be mapped
        )
    return num_rows, found


def _flat(column: pa.Array) -> np.ndarray:
    values = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
    flat: np.ndarray = values.to_numpy(zero_copy_only=False)
    return flat


def _write_safetensors(file: file_io.ChecksummedFile, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes what `safetensors.numpy.save_file` does, which has all arrays in memory."""
    header, end = {}, 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        offsets = [begin, end]
        dtype = SAFE_DTYPES[array.dtype]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    step = constants.MAX_ROW_FILE_BATCH_ROWS
    for array in arrays.values():
        for first in range(0, len(array), step):
            file.write(array[first : first + step].tobytes())
