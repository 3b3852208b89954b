"""Items' vectors in a Parquet file, with their ids: what an index or an exact search reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from embedps.errors import DatasetError, UsageError
from embedps.layers.candidates import as_tensor, row_buffer
from embedps.storage.file_io import open_file, replacing

VECTOR = "vector"


def write_items(path: Path, name: str, batches: Iterable[tuple[Any, Any]]) -> int:
    """Writes items; the file is there once it is complete. Memory is that of one batch.

    Args:
      name: of the column of the ids.
      batches: vectors, float32 [n, dim], and ids [n].

    Returns:
      How many items there are.

    Raises:
      UsageError: there are none, or the file cannot be written.
    """
    rows, writer = 0, None
    try:
        with replacing(path, sync=True) as temporary, contextlib.ExitStack() as stack:
            for vectors, ids in batches:
                flat = pa.array(np.asarray(vectors).reshape(-1))
                lists = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
                table = pa.table({name: pa.array(np.asarray(ids)), VECTOR: lists})
                if writer is None:
                    made = pq.ParquetWriter(temporary, table.schema, use_dictionary=[])
                    writer = stack.enter_context(made)
                writer.write_table(table)
                rows += table.num_rows
            if writer is None:
                raise UsageError("there are no items to export")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    return rows


def read_items(path: Path | str) -> tuple[npt.NDArray[Any], tf.Tensor]:
    """Reads items that `LoadedModel.export_items` wrote. Memory is that of the vectors.

    Returns:
      Their ids [items], and their vectors, a tensor float32 [items, dim].

    Raises:
      DatasetError: the file is not one of items, or is damaged.
    """
    try:
        open_file(Path(path)).close()  # a pipe would be waited for
        with pq.ParquetFile(path, pre_buffer=False) as file:
            kind = file.schema_arrow.field(VECTOR).type
            (name,) = [column for column in file.schema_arrow.names if column != VECTOR]
            vectors = row_buffer(file.metadata.num_rows, kind.list_size)
            ids, place = [], 0
            for batch in file.iter_batches(65536):
                flat = batch.column(VECTOR).flatten().to_numpy()
                vectors[place : place + batch.num_rows] = flat.reshape(batch.num_rows, -1)
                ids.append(batch.column(name).to_numpy(zero_copy_only=False))
                place += batch.num_rows
            if place != len(vectors):
                raise ValueError(f"it claims {len(vectors)} items but has {place}")
    except (
        OSError,
        pa.ArrowException,
        KeyError,
        ValueError,
        AttributeError,
        MemoryError,  # it claims more items than there is room for
        OverflowError,
    ) as error:
        raise DatasetError(f"{path} must be a file of export_items: {error}") from error
    return np.concatenate(ids) if ids else np.zeros(0, np.int64), as_tensor(vectors)
