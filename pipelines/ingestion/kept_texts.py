"""The texts of ids: gathers them from the input, and writes those of the most frequent ids.

Each file gives sorted pieces on disk. A part, a range of ids, is merged of the pieces of all files,
some ids at a time; then the counts of all parts tell which texts are frequent enough. So memory
grows neither with the number of texts nor with their lengths, and the bytes depend on the input
only.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from embedps.data.dataset_metadata import KeptTexts
from embedps.features.table_schema import Table
from embedps.features.transforms import Transforms
from embedps.storage import id_texts
from embedps.storage.file_io import replacing
from embedps.storage.id_texts import MAX_CHARACTERS, MAX_TEXTS_PER_ID

from .file_record import FileRecord
from .ingest_job import IngestJob
from .work_dir import WorkDir

_PIECE_BYTES = 1 << 23
_MERGED_ROWS = 1 << 16
_MOST_COUNTED = 1023
"""Texts that are there as often, or more often, count as equally frequent."""
_SCHEMA = id_texts.SCHEMA.append(pa.field("count", pa.int64(), nullable=False))


class TextGatherer:
    """Gathers the texts of one file's rows.

    Attributes:
      table: the table that the file is to be decoded by, so that texts are seen.
    """

    def __init__(
        self, table: Table, columns: Sequence[str], work: WorkDir, file_index: int
    ) -> None:
        self._columns = columns
        self._work, self._file_index = work, file_index
        self._seen: list[dict[int, dict[str, None]]] = [{} for _ in columns]
        self._pending: list[list[pa.Table]] = [[] for _ in columns]
        self._num_pieces = [0] * len(columns)
        watched = {name: functools.partial(self._see, i) for i, name in enumerate(columns)}
        self.table = replace(
            table,
            columns=tuple(replace(c, on_text=watched.get(c.name)) for c in table.columns),
        )

    def _see(self, column: int, text: str, number: int) -> None:
        if len(text) > MAX_CHARACTERS:
            text = text[:MAX_CHARACTERS] + "…"
        self._seen[column].setdefault(number, {})[text] = None

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds decoded rows, and the texts of their ids; those of other ids are dropped."""
        for i, name in enumerate(self._columns):
            seen, self._seen[i] = self._seen[i], {}
            ids = rows.column(name)
            ids = ids.flatten() if pa.types.is_list(ids.type) else ids
            found = zip(*map(np.ndarray.tolist, np.unique(ids, return_counts=True)), strict=True)
            records = [(n, text, count) for n, count in found for text in seen.get(n, ())]
            if records:
                pending = self._pending[i]
                columns = map(pa.array, zip(*records, strict=True))
                pending.append(pa.table(list(columns), schema=_SCHEMA))
                if _num_bytes(pending) >= _PIECE_BYTES:
                    pending[:] = [_merge(pending)]
                    if _num_bytes(pending) >= _PIECE_BYTES // 2:
                        self._write_piece(i)

    def finish(self) -> tuple[int, ...]:
        """Writes what is still in memory; returns the number of pieces of each column."""
        for i, pending in enumerate(self._pending):
            if pending:
                self._write_piece(i)
        return tuple(self._num_pieces)

    def _write_piece(self, column: int) -> None:
        merged = _merge(self._pending[column]).combine_chunks()
        path = self._work.texts(self._file_index, column, self._num_pieces[column])
        self._pending[column] = []
        self._num_pieces[column] += 1
        with replacing(path) as temporary, pa.ipc.new_file(str(temporary), _SCHEMA) as writer:
            writer.write_table(merged)


def _num_bytes(tables: Sequence[pa.Table]) -> int:
    return sum(table.nbytes for table in tables)


def _merge(tables: Sequence[pa.Table]) -> pa.Table:
    """Adds up the counts of equal texts; sorts them, and keeps MAX_TEXTS_PER_ID per id."""
    grouped = pa.concat_tables(tables).group_by(["id", "text"], use_threads=False)
    merged = grouped.aggregate([("count", "sum")]).select(["id", "text", "count_sum"])
    merged = merged.rename_columns(_SCHEMA.names).cast(_SCHEMA)
    merged = merged.sort_by([("id", "ascending"), ("text", "ascending")])
    ids = merged.column(0).to_numpy()
    nth_of_id = np.arange(len(ids)) - np.searchsorted(ids, ids)
    return merged.filter(pa.array(nth_of_id < MAX_TEXTS_PER_ID))


@dataclass(frozen=True, kw_only=True)
class MergedPart:
    """A part's texts in the work directory.

    Attributes:
      index: of the part.
      tally: how many texts are there no time, once, twice and so on.
      shared: how many ids several texts have.
    """

    index: int
    tally: NDArray[np.int64]
    shared: int


def merge_part(
    job: IngestJob, files: Sequence[FileRecord], transforms: Transforms, index: int
) -> MergedPart:
    """Merges the texts of a part that are of ids in the dataset: rare ones have no id there."""
    tally, shared = np.zeros(_MOST_COUNTED + 1, np.int64), 0
    low, high = (id_texts.least_id(i, job.num_shards) for i in (index, index + 1))
    pieces = [
        (name, job.work.texts(file.index, column, piece))
        for file in files
        for column, name in enumerate(job.keep_texts)
        for piece in range(file.num_text_pieces[column])
    ]

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal shared
        for table in _merged(pieces, transforms, low, high):
            counts = np.minimum(table.column(2).to_numpy(), _MOST_COUNTED)
            tally[:] += np.bincount(counts, minlength=len(tally))
            _, texts = np.unique(table.column(0).to_numpy(), return_counts=True)
            shared += int((texts > 1).sum())
            yield from table.to_batches()

    with replacing(job.work.merged_texts(index)) as path:
        id_texts.write_texts(path, batches(), _SCHEMA)
    return MergedPart(index=index, tally=tally, shared=shared)


def write_part(job: IngestJob, parts: Sequence[MergedPart], index: int) -> int:
    """Writes those of a part's texts that are frequent enough; returns how many.

    Args:
      job: the job.
      parts: all, in any order.
      index: of the part.
    """
    tally = sum((part.tally for part in parts), np.zeros(_MOST_COUNTED + 1, np.int64))
    # By count c: how many texts are there at least c times.
    as_frequent = np.append(np.cumsum(tally[::-1])[::-1], 0)
    least = int(np.argmax(as_frequent <= job.max_texts))
    # Of those that are there once less, the first ones fill the rest.
    rest = job.max_texts - int(as_frequent[least])
    room = rest - sum(int(part.tally[least - 1]) for part in parts if part.index < index)

    def kept() -> Iterator[pa.RecordBatch]:
        nonlocal room
        with pq.ParquetFile(job.work.merged_texts(index)) as file:
            for batch in file.iter_batches():
                counts = np.minimum(batch.column(2).to_numpy(), _MOST_COUNTED)
                taken = counts >= least
                others = np.flatnonzero(counts == least - 1)[: max(room, 0)]
                taken[others] = True
                room -= len(others)
                yield batch.filter(pa.array(taken)).select(["id", "text"])

    path = job.texts_path(index)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, sync=True) as temporary:
        return id_texts.write_texts(temporary, kept())


def describe_texts(
    job: IngestJob, parts: Sequence[MergedPart], written: Sequence[int]
) -> KeptTexts:
    """Makes the texts' entry in `_dataset.json`, given how many each part has."""
    found = sum(int(part.tally.sum()) for part in parts)
    return KeptTexts(
        columns=job.keep_texts,
        kept=sum(written),
        left=found - sum(written),
        shared=sum(part.shared for part in parts),
    )


def _merged(
    pieces: Sequence[tuple[str, Path]], transforms: Transforms, low: int, high: int
) -> Iterator[pa.Table]:
    """Yields the texts of ids from `low` to below `high` in order, some ids at a time.

    Args:
      pieces: each one's column and file.
      transforms: tell which ids are in the dataset.
    """
    ranges = [(low, high, pieces)]
    while ranges:
        low, high, pieces = ranges.pop()
        counts = []
        for _, path in pieces:
            with _records(path, low, high) as batch:
                counts.append(batch.num_rows)
        left = [piece for piece, count in zip(pieces, counts, strict=True) if count]
        if sum(counts) > _MERGED_ROWS and high - low > 1:  # ids may crowd: fingerprints can be made
            middle = (low + high) // 2
            ranges += [(middle, high, left), (low, middle, left)]
            continue
        tables = []
        for column, path in left:
            with _records(path, low, high) as batch:
                kept = _is_kept(transforms, column, batch.column(0).to_numpy())
                tables.append(pa.Table.from_batches([batch.filter(pa.array(kept))]))
        if tables:
            yield _merge(tables)


@contextlib.contextmanager
def _records(path: Path, low: int, high: int) -> Iterator[pa.RecordBatch]:
    """Maps a piece, and gives its records of ids from `low` to below `high`."""
    with pa.memory_map(str(path)) as source:
        batch = pa.ipc.open_file(source).get_batch(0)
        ids = batch.column(0).to_numpy()
        start, stop = int(np.searchsorted(ids, low)), int(np.searchsorted(ids, high - 1, "right"))
        yield batch.slice(start, stop - start)


def _is_kept(transforms: Transforms, name: str, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tells which of a column's ids its features, or its key, have as they are."""
    kept = np.full(len(ids), transforms.table.column(name).keep)
    for feature in transforms.table.features:
        if feature.sources == (name,):
            made = ids
            for step in feature.steps:
                made = step.apply(made)
            kept |= made == ids
    return kept
