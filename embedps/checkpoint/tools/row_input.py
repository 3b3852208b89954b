"""Reads vectors of ids from files of other systems, part by part: Parquet, Arrow, CSV and NumPy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from embedps import constants
from embedps.errors import UsageError

ID, EMBEDDING = "id", "embedding"
KINDS = (".parquet", ".arrow", ".csv", ".npy")
_BATCH_ROWS = constants.MAX_ROW_FILE_BATCH_ROWS


@dataclasses.dataclass(frozen=True)
class Vectors:
    """Some rows of a file.

    Attributes:
      ids: int64 [num_rows].
      floats: by column, float32 [num_rows, width]; `embedding`, and optimizer slots if there are.
    """

    ids: np.ndarray
    floats: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowInput:
    """A file of vectors, which is never in memory as a whole.

    Parquet and Arrow files have the columns `id` and `embedding`, a list of floats, and may have
    optimizer slots, as `embedps checkpoint export` writes them. In CSV, the column `id` is
    followed by one column per float. A NumPy file has the vectors, and `ids` names that of the ids.

    Attributes:
      path: of the file.
      ids: of a NumPy file's ids.
      text_ids: ids are texts, and `fingerprint` turns each into an id.
      fingerprint: of a text.
    """

    path: Path
    ids: Path | None = None
    text_ids: bool = False
    fingerprint: Callable[[str], int] | None = None

    def __post_init__(self) -> None:
        if self.path.suffix not in KINDS:
            raise UsageError(f"{self.path} must be a file of {', '.join(KINDS)}")
        if (self.path.suffix == ".npy") != (self.ids is not None):
            raise UsageError("--ids is the .npy file of the ids, and belongs to an --input of .npy")

    def vectors(self, widths: dict[str, int]) -> Iterator[Vectors]:
        """Yields all rows in order, at most 65,536 at a time.

        Args:
          widths: floats per row by column; of these, a file must have `embedding`.

        Raises:
          UsageError: the file cannot be read, or a column is not what it must be.
        """
        try:
            for batch in self._batches(widths[EMBEDDING]):
                for first in range(0, batch.num_rows, _BATCH_ROWS):
                    yield self._checked(batch.slice(first, _BATCH_ROWS), widths)
        except (pa.ArrowException, ValueError, OSError) as error:
            raise UsageError(f"{self.path} cannot be read: {error}") from error

    def _batches(self, dim: int) -> Iterator[pa.RecordBatch]:
        if self.path.suffix == ".parquet":
            with pq.ParquetFile(self.path) as file:
                yield from file.iter_batches(_BATCH_ROWS)
        elif self.path.suffix == ".arrow":
            with pa.memory_map(str(self.path)) as mapped:
                reader = pa.ipc.open_file(mapped)
                yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
        elif self.path.suffix == ".csv":
            kinds = {ID: pa.string()} if self.text_ids else {}
            options = pa_csv.ConvertOptions(column_types=kinds)
            with pa_csv.open_csv(self.path, convert_options=options) as reader:
                yield from (self._of_csv(batch, dim) for batch in reader)
        else:
            yield from self._of_numpy(dim)

    def _of_csv(self, batch: pa.RecordBatch, dim: int) -> pa.RecordBatch:
        names = [name for name in batch.schema.names if name != ID]
        if ID not in batch.schema.names or len(names) != dim:
            raise UsageError(
                f"{self.path} must have the column 'id' and {dim} columns of floats but has "
                f"{', '.join(batch.schema.names)[:200]}"
            )
        floats = np.stack([batch[n].cast(pa.float32()).to_numpy(False) for n in names], axis=1)
        return _batch(batch[ID], floats)

    def _of_numpy(self, dim: int) -> Iterator[pa.RecordBatch]:
        vectors = np.load(self.path, mmap_mode="r")
        ids = np.load(str(self.ids), mmap_mode="r")
        if vectors.ndim != 2 or vectors.shape[1] != dim or ids.shape != vectors.shape[:1]:
            raise UsageError(
                f"{self.path} must have the shape [rows, {dim}] and {self.ids} [rows] but they "
                f"have {list(vectors.shape)} and {list(ids.shape)}"
            )
        for first in range(0, len(ids), _BATCH_ROWS):
            some = slice(first, first + _BATCH_ROWS)
            yield _batch(pa.array(np.ascontiguousarray(ids[some])), np.asarray(vectors[some]))

    def _checked(self, batch: pa.RecordBatch, widths: dict[str, int]) -> Vectors:
        for name in (ID, EMBEDDING):
            if name not in batch.schema.names:
                raise UsageError(
                    f"{self.path} must have the column {name!r} but has "
                    f"{', '.join(batch.schema.names)[:200]}"
                )
        for name in batch.schema.names:
            if name in (ID, *widths) and batch[name].null_count:
                raise UsageError(f"{self.path}: column {name!r} must have no nulls")
        floats = {
            name: self._floats(name, batch[name], width)
            for name, width in widths.items()
            if name in batch.schema.names
        }
        return Vectors(self._ids(batch[ID]), floats)

    def _ids(self, column: pa.Array) -> np.ndarray:
        kind = column.type
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if self.text_ids and self.fingerprint is not None and is_text:
            found = [self.fingerprint(text) for text in column.to_pylist()]
            return np.array(found, np.int64)
        if self.text_ids or not pa.types.is_integer(kind):
            wanted = "texts" if self.text_ids else "integers, or --text-ids must be given,"
            raise UsageError(f"{self.path}: column 'id' must have {wanted} but has {kind}")
        ids = column.to_numpy(zero_copy_only=False)
        return np.asarray(ids.view(np.int64) if kind == pa.uint64() else ids.astype(np.int64))

    def _floats(self, name: str, column: pa.Array, width: int) -> np.ndarray:
        kind = column.type
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if not (is_list or pa.types.is_fixed_size_list(kind)):
            raise UsageError(f"{self.path}: column {name!r} must have lists but has {kind}")
        values = column.flatten()
        # Each must be as long: rows that are too long and too short could add up.
        lengths = set(column.value_lengths().unique().to_pylist()) if is_list else {kind.list_size}
        if lengths - {width}:
            raise UsageError(
                f"{self.path}: column {name!r} must have {width} floats per row but has "
                f"{sorted(lengths - {width})[0]}"
            )
        floats = values.cast(pa.float32()).to_numpy(zero_copy_only=False).reshape(-1, width)
        if values.null_count or not np.isfinite(floats).all():
            raise UsageError(f"{self.path}: column {name!r} must have finite numbers only")
        return np.asarray(floats)


def read_ids(path: Path, fingerprint: Callable[[str], int] | None) -> np.ndarray:
    """Reads a file of one id per line: sorted and unique, int64.

    Args:
      path: of the file.
      fingerprint: turns a line into an id; None takes integers.

    Raises:
      UsageError: the file cannot be read, or a line is no id.
    """
    try:
        with open(path, encoding="utf-8") as file:
            lines = (line.rstrip("\r\n") for line in file)
            return np.unique(np.array(ids_of(filter(None, lines), fingerprint), np.int64))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} must be a file of one id per line: {error}") from error


def ids_of(
    texts: Iterator[str] | Sequence[str], fingerprint: Callable[[str], int] | None
) -> list[int]:
    """Turns texts into ids: whole numbers of 64 bits, or the fingerprints of the texts.

    Raises:
      UsageError: a text is no whole number of 64 bits.
    """
    ids = []
    for text in texts:
        if fingerprint is not None:
            ids.append(fingerprint(text))
            continue
        try:
            number = int(text)
        except ValueError:
            number = 2**64
        if not -(2**63) <= number < 2**64:
            raise UsageError(
                f"an id must be a whole number of 64 bits but is {text[:80]!r}; --text-ids takes "
                "texts"
            )
        ids.append(number - 2**64 if number >= 2**63 else number)
    return ids


def _batch(ids: pa.Array, floats: np.ndarray) -> pa.RecordBatch:
    flat = pa.array(np.ascontiguousarray(floats, np.float32).reshape(-1))
    lists = pa.FixedSizeListArray.from_arrays(flat, floats.shape[1])
    return pa.RecordBatch.from_arrays([ids, lists], names=[ID, EMBEDDING])
