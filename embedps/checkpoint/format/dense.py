"""The dense variables' file: Arrow IPC, one record batch per variable, in the given order.

Columns: name and dtype (utf8), shape (list<int64>), data (large_binary: little-endian, C order).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from embedps.checkpoint.format import lengths
from embedps.checkpoint.format.manifest import FileEntry
from embedps.errors import CheckpointError, CorruptCheckpointError
from embedps.storage import file_io

SCHEMA = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("dtype", pa.string(), nullable=False),
        pa.field("shape", pa.list_(pa.field("item", pa.int64(), nullable=False)), nullable=False),
        pa.field("data", pa.large_binary(), nullable=False),
    ],
    metadata={"embedps.dense_file": "1"},
)
_STANDARD_KINDS = "biufc"
_MAX_RANK = 64  # of a NumPy array; longer products take long
# Looked up by name: np.dtype() would parse any text that a file holds.
_STANDARD = {np.dtype(code).name: np.dtype(code) for code in "?bBhHiIlLqQefdFD"}


def write_dense(path: Path, arrays: Mapping[str, np.ndarray], *, root: Path) -> FileEntry:
    """Writes variables of any numeric dtype, including those of ml_dtypes (bfloat16, float8…).

    Args:
      path: where to write, below `root`.
      arrays: the variables by name; their order is kept.
      root: the checkpoint directory; the entry's path is relative to it.

    Raises:
      CheckpointError: a dtype is not numeric, or the file cannot be written.
    """
    with file_io.write_atomically(path) as file:
        with pa.ipc.new_file(file, SCHEMA) as writer:
            for name, array in arrays.items():
                writer.write_batch(_encode(name, np.asarray(array)))
        return FileEntry.of(path.relative_to(root).as_posix(), file.digest, rows=len(arrays))


def read_named(path: Path, names: Collection[str]) -> tuple[list[str], dict[str, np.ndarray]]:
    """Reads the names of a dense file's variables, in order, and the arrays of those in `names`.

    Raises:
      CorruptCheckpointError: as `read_dense` does.
    """
    found = _read(path, names)
    return [name for name, _ in found], {n: array for n, array in found if array is not None}


def read_dense(path: Path, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Reads a dense file: writable arrays by name, in order.

    Args:
      names: of the variables to read; all by default.

    Raises:
      CorruptCheckpointError: it is absent, or not a dense file; names path, variable, expected and
        found.
    """
    return {name: array for name, array in _read(path, names) if array is not None}


def _read(path: Path, names: Collection[str] | None) -> list[tuple[str, np.ndarray | None]]:
    """Reads all names, and the arrays of those in `names`."""
    arrays: dict[str, np.ndarray | None] = {}
    try:
        with file_io.store_of(path).open_arrow(path) as source, pa.ipc.open_file(source) as reader:
            if not reader.schema.equals(SCHEMA):
                raise CorruptCheckpointError(
                    f"{path}: expected the columns of a dense file ({', '.join(SCHEMA.names)}), "
                    f"found {', '.join(reader.schema.names) or 'none'}"
                )
            blocks = lengths.Blocks(source)
            for i in range(reader.num_record_batches):
                if blocks.decompressed_bytes(blocks.batches[i]):
                    raise CorruptCheckpointError(
                        f"{path}: record batch {i}: expected buffers that are not compressed"
                    )
                batch = reader.get_batch(i)
                batch.validate(full=True)
                for row in range(batch.num_rows):
                    name = batch["name"][row].as_py()
                    if name in arrays:
                        raise CorruptCheckpointError(f"{path}: has variable {name!r} twice")
                    wanted = names is None or name in names
                    arrays[name] = _decode(path, batch, row) if wanted else None
    # ValueError: a name is not valid UTF-8.
    except (pa.ArrowException, OSError, ValueError, *lengths.MALFORMED) as error:
        raise CorruptCheckpointError(f"{path}: cannot be read as a dense file: {error}") from error
    return list(arrays.items())


def _encode(name: str, array: np.ndarray) -> pa.RecordBatch:
    dtype = array.dtype
    if dtype.kind not in _STANDARD_KINDS and not _is_extended(dtype):
        raise CheckpointError(f"variable {name!r} must have a numeric dtype but has {dtype}")
    little = array if _is_little(dtype) else array.astype(dtype.newbyteorder("<"))
    flat = np.ascontiguousarray(little).reshape(-1).view(np.uint8)
    offsets = np.array([0, flat.nbytes], np.int64)
    # From buffers, so that the variable's bytes are not copied.
    data = pa.Array.from_buffers(
        pa.large_binary(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(flat)]
    )
    columns = [
        pa.array([name], SCHEMA.field("name").type),
        pa.array([dtype.name], SCHEMA.field("dtype").type),
        pa.array([list(array.shape)], SCHEMA.field("shape").type),
        data,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _decode(path: Path, batch: pa.RecordBatch, row: int) -> np.ndarray:
    name = batch["name"][row].as_py()
    dtype_name = batch["dtype"][row].as_py()
    shape = batch["shape"][row].as_py()
    data: Any = batch["data"][row].as_buffer()
    dtype = _dtype(dtype_name)
    if dtype is None:
        raise CorruptCheckpointError(
            f"{path}: variable {name!r}: expected a numeric dtype, found {dtype_name!r}"
        )
    if (
        len(shape) > _MAX_RANK
        or any(size < 0 for size in shape)
        or math.prod(shape) * dtype.itemsize != data.size
    ):
        raise CorruptCheckpointError(
            f"{path}: variable {name!r}: expected the bytes of {dtype_name} {shape}, "
            f"found {data.size} bytes"
        )
    stored = np.frombuffer(data, np.uint8).view(dtype.newbyteorder("<"))
    return stored.astype(dtype, copy=True).reshape(shape)


def _is_little(dtype: np.dtype[Any]) -> bool:
    return (
        dtype.byteorder == "<"
        or dtype.byteorder == "|"
        or (dtype.byteorder == "=" and sys.byteorder == "little")
    )


def _is_extended(dtype: np.dtype[Any]) -> bool:
    return _extended_dtype(dtype.name) == dtype


def _dtype(name: str) -> np.dtype[Any] | None:
    return _STANDARD.get(name) or _extended_dtype(name)


def _extended_dtype(name: str) -> np.dtype[Any] | None:
    """Looks up a dtype of ml_dtypes; imports that package, which TensorFlow installs, only then."""
    import ml_dtypes

    found = getattr(ml_dtypes, name, None)
    if isinstance(found, type) and issubclass(found, np.generic):
        return np.dtype(found)
    return None
