"""Reads vectors of ids from files of other systems, part by part."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from embedps import constants
from embedps.checkpoint.tools import foreign_arrays
from embedps.checkpoint.tools.foreign_arrays import FILE_ERRORS, find_matrix, open_arrays
from embedps.errors import UsageError

ID, EMBEDDING = "id", "embedding"
TEXT_KINDS = (".vec", ".txt")
KINDS = (".parquet", ".arrow", ".csv", *TEXT_KINDS, *foreign_arrays.KINDS)
_NO_NUMBERS = "cmMOSU"  # kinds of NumPy's dtypes, of which it would make floats
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
    optimizer slots, as `embedps table export` writes them; so may .npz and .safetensors files. In
    CSV, the column `id` is followed by one column per float; in a text file, as word2vec writes it,
    a word by its floats. Other files have an array of vectors, and `ids` names the file of the ids
    of its rows; without it, they are the rows' numbers.

    Attributes:
      path: of the file.
      ids: of an array's ids: .npy, or one per line.
      tensor: the array's name, or a part of it.
      optimizer_slots: take those that the file has.
      text_ids: ids are texts, and `fingerprint` turns each into an id.
      fingerprint: of a text.
    """

    path: Path
    ids: Path | None = None
    tensor: str | None = None
    optimizer_slots: bool = True
    text_ids: bool = False
    fingerprint: Callable[[str], int] | None = None

    def __post_init__(self) -> None:
        if self.path.suffix not in KINDS:
            raise UsageError(f"{self.path} must be a file of {', '.join(KINDS)}")
        given = [name for name in ("ids", "tensor") if getattr(self, name) is not None]
        if given and self.path.suffix not in foreign_arrays.KINDS:
            raise UsageError(
                f"--{given[0]} belongs to an --input of {', '.join(foreign_arrays.KINDS)} but got "
                f"{self.path}"
            )

    def vectors(self, widths: dict[str, int]) -> Iterator[Vectors]:
        """Yields all rows in order, at most 65,536 at a time.

        Args:
          widths: floats per row by column; of these, a file must have `embedding`.

        Raises:
          UsageError: the file cannot be read, or a column is not what it must be.
        """
        if not self.optimizer_slots:
            widths = {EMBEDDING: widths[EMBEDDING]}
        try:
            for batch in self._batches(widths):
                for first in range(0, batch.num_rows, _BATCH_ROWS):
                    yield self._checked(batch.slice(first, _BATCH_ROWS), widths)
        except (pa.ArrowException, *FILE_ERRORS) as error:
            raise UsageError(f"{self.path} cannot be read: {error}") from error

    def _batches(self, widths: dict[str, int]) -> Iterator[pa.RecordBatch]:
        if self.path.suffix == ".parquet":
            # Of a file that is not mapped, Arrow holds what it has read.
            with pq.ParquetFile(self.path, memory_map=True) as file:
                yield from file.iter_batches(_BATCH_ROWS)
        elif self.path.suffix == ".arrow":
            with pa.memory_map(str(self.path)) as mapped:
                reader = pa.ipc.open_file(mapped)
                yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
        elif self.path.suffix == ".csv":
            kinds = {ID: pa.string()} if self.text_ids else {}
            options = pa_csv.ConvertOptions(column_types=kinds)
            with pa_csv.open_csv(self.path, convert_options=options) as reader:
                yield from (self._of_csv(batch, widths[EMBEDDING]) for batch in reader)
        elif self.path.suffix in TEXT_KINDS:
            yield from self._of_words(widths[EMBEDDING])
        else:
            yield from self._of_arrays(widths)

    def _of_csv(self, batch: pa.RecordBatch, dim: int) -> pa.RecordBatch:
        names = [name for name in batch.schema.names if name != ID]
        if ID not in batch.schema.names or len(names) != dim:
            raise UsageError(
                f"{self.path} must have the column 'id' and {dim} columns of floats but has "
                f"{', '.join(batch.schema.names)[:200]}"
            )
        floats = np.stack([batch[n].cast(pa.float32()).to_numpy(False) for n in names], axis=1)
        return _batch(batch[ID], {EMBEDDING: floats})

    def _of_words(self, dim: int) -> Iterator[pa.RecordBatch]:
        with open(self.path, encoding="utf-8", newline="\n") as file:
            header = file.readline().split()  # of word2vec and fastText; GloVe has none
            if len(header) != 2:
                file.seek(0)
            elif header[1] != str(dim):
                raise UsageError(f"{self.path} must have {dim} floats per row but has {header[1]}")
            read = 0
            while lines := list(itertools.islice(file, _BATCH_ROWS)):
                # A word may have spaces, and fastText writes one at the end.
                parts = [line.rstrip(" \r\n").rsplit(" ", dim) for line in lines]
                if short := [i for i, part in enumerate(parts) if len(part) != dim + 1]:
                    raise UsageError(
                        f"{self.path}: line {read + short[0] + 1 + (len(header) == 2)} must have a "
                        f"word and {dim} floats"
                    )
                read += len(parts)
                floats = np.array([part[1:] for part in parts], np.float32)
                yield _batch(self._of_texts([part[0] for part in parts]), {EMBEDDING: floats})
            if len(header) == 2 and header[0] != str(read):
                raise UsageError(f"{self.path} must have {header[0]} rows but has {read}")

    def _of_arrays(self, widths: dict[str, int]) -> Iterator[pa.RecordBatch]:
        with open_arrays(self.path) as arrays:
            if EMBEDDING in arrays and self.tensor is None:
                columns = {name: arrays[name] for name in widths if name in arrays}
            else:
                name = find_matrix(self.path, arrays, widths[EMBEDDING], self.tensor)
                columns = {EMBEDDING: arrays[name]}
                keys = name.removesuffix("-values") + "-keys"  # of a dynamic table of TFRA
                if keys in arrays:
                    arrays[ID] = arrays[keys]
            num_rows = columns[EMBEDDING].shape[0]
            shapes: dict[str, tuple[int, ...]] = {n: (num_rows, widths[n]) for n in columns}
            if ID in arrays and self.ids is None:
                columns[ID], shapes[ID] = arrays[ID], (num_rows,)
            for name, shape in shapes.items():
                if tuple(columns[name].shape) != shape:
                    raise UsageError(
                        f"{self.path}: array {name!r} must have the shape {list(shape)} but has "
                        f"{list(columns[name].shape)}"
                    )
            ids = self._parts_of(columns.pop(ID)) if ID in columns else self._row_ids(num_rows)
            for first in range(0, num_rows, _BATCH_ROWS):
                some = slice(first, first + _BATCH_ROWS)
                parts = {name: array[some] for name, array in columns.items()}
                for name, part in parts.items():
                    if part.dtype.kind in _NO_NUMBERS:
                        raise UsageError(
                            f"{self.path}: array {name!r} must have real numbers but has "
                            f"{part.dtype}"
                        )
                yield _batch(next(ids), parts)
            next(ids, None)  # which checks that it has no more

    def _row_ids(self, num_rows: int) -> Iterator[pa.Array]:
        """Yields the ids of the rows of an array, by part."""
        if self.ids is None:
            for first in range(0, num_rows, _BATCH_ROWS):
                yield pa.array(np.arange(first, min(first + _BATCH_ROWS, num_rows)))
            return
        if self.ids.suffix == ".npy":
            array = np.load(self.ids, mmap_mode="r")
            if array.shape != (num_rows,):
                raise UsageError(f"{self.ids} must have the shape [{num_rows}], as {self.path} has")
            yield from self._parts_of(array)
            return
        with open(self.ids, encoding="utf-8", newline="\n") as file:
            lines = (line.rstrip("\r\n") for line in file)
            for first in range(0, num_rows, _BATCH_ROWS):
                wanted = min(_BATCH_ROWS, num_rows - first)
                texts = list(itertools.islice(lines, wanted))
                if len(texts) < wanted:
                    raise self._other_count(num_rows, first + len(texts))
                yield self._of_texts(texts)
            if more := sum(1 for _ in lines):
                raise self._other_count(num_rows, num_rows + more)

    def _other_count(self, num_rows: int, found: int) -> UsageError:
        return UsageError(
            f"{self.ids} must have an id for each of {num_rows} rows of {self.path} but has {found}"
        )

    def _parts_of(self, array: Any) -> Iterator[pa.Array]:
        for first in range(0, array.shape[0], _BATCH_ROWS):
            yield pa.array(np.ascontiguousarray(array[first : first + _BATCH_ROWS]))

    def _of_texts(self, texts: list[str]) -> pa.Array:
        return pa.array(texts if self.text_ids else ids_of(texts, None))

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


def _batch(ids: pa.Array, columns: dict[str, np.ndarray]) -> pa.RecordBatch:
    arrays = [ids]
    for floats in columns.values():
        flat = pa.array(np.ascontiguousarray(floats, np.float32).reshape(-1))
        arrays.append(pa.FixedSizeListArray.from_arrays(flat, floats.shape[1]))
    return pa.RecordBatch.from_arrays(arrays, names=[ID, *columns])
