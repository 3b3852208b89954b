"""Sorted runs of rows in the work directory: writes them, and reads any range of ranks.

Rows are sorted by a key: the timestamp if the table has one, else a hash of the row's position and
the seed. Rows of equal keys keep the order of the input. Each run is sorted when it is written. A
range of ranks is a slice of each run, found by bisection over the keys, so memory holds one range.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedps.features.table_schema import Table
from embedps.splitmix import GOLDEN, mix, seed_hashes
from embedps.storage.file_io import replacing

from .work_dir import WorkDir

RUN_ROWS = 1 << 17
BATCH_ROWS = 1 << 10
"""Rows per batch in a run's file; small batches keep the columns of a slice close together."""
_MAPPED_BYTES = 1 << 18
KEY = "_key"
_SIGN = np.uint64(1 << 63)


@dataclass(frozen=True, kw_only=True)
class SortedRunRecord:
    """One sorted run: its file in the work directory; the rows and positives of each split.

    A first label that is not binary has no positives.
    """

    file_name: str
    rows: tuple[int, ...]
    positives: tuple[int, ...]


class SortedRunWriter:
    """Collects one file's rows and writes them as sorted runs."""

    def __init__(self, work: WorkDir, file_index: int, table: Table, seed: int) -> None:
        self._work, self._file_index = work, file_index
        self._schema = table.row_schema.append(pa.field(KEY, pa.uint64(), nullable=False))
        time = table.role("timestamp")
        self._time = time.name if time is not None else ""
        self._seed = seed
        label = table.role("label")
        self._label = label.name if label is not None and label.task == "binary" else ""
        self._pending: list[tuple[pa.RecordBatch, NDArray[np.bool_]]] = []
        self._num_pending = 0
        self.num_rows = 0
        self.records: list[SortedRunRecord] = []

    def add(self, rows: pa.RecordBatch, held_out: NDArray[np.bool_]) -> None:
        """Adds rows of the file, in order."""
        keyed = pa.record_batch([*rows.columns, pa.array(self._keys(rows))], schema=self._schema)
        self._pending.append((keyed, held_out))
        self._num_pending += rows.num_rows
        self.num_rows += rows.num_rows
        if self._num_pending >= RUN_ROWS:
            self.flush()

    def flush(self) -> None:
        """Writes the rows still in memory as a run."""
        if not self._num_pending:
            return
        path = self._work.run(self._file_index, len(self.records))
        rows = pa.Table.from_batches([batch for batch, _ in self._pending]).combine_chunks()
        held_out = np.concatenate([mask for _, mask in self._pending])
        self._pending, self._num_pending = [], 0
        order = np.argsort(rows.column(KEY).to_numpy(), kind="stable")
        counts, positives = [], []
        with replacing(path) as temporary, pa.ipc.new_file(str(temporary), self._schema) as writer:
            for index, mask in enumerate((~held_out, held_out)):
                split = rows.take(pa.array(order[mask[order]])).combine_chunks()
                writer.write_table(split, max_chunksize=BATCH_ROWS)
                counts.append(split.num_rows)
                labels = split.column(self._label).to_numpy() if self._label else np.empty(0)
                positives.append(int(np.count_nonzero(labels > 0.5)))
                if split.num_rows:
                    self._save_keys(path.name, index, split.column(KEY).to_numpy())
        self.records.append(
            SortedRunRecord(file_name=path.name, rows=tuple(counts), positives=tuple(positives))
        )

    def _save_keys(self, name: str, split: int, keys: NDArray[np.uint64]) -> None:
        with replacing(self._work.keys(name, split)) as path, open(path, "wb") as out:
            np.save(out, keys)

    def _keys(self, rows: pa.RecordBatch) -> NDArray[np.uint64]:
        if self._time:
            times = rows.column(rows.schema.get_field_index(self._time)).to_numpy()
            return np.asarray(times.view(np.uint64) ^ _SIGN)
        first = (self._file_index << 44) + self.num_rows
        places = np.arange(first, first + rows.num_rows, dtype=np.uint64)
        return mix(places * np.uint64(GOLDEN) ^ seed_hashes(self._seed, 1)[0])


class SortedRunReader:
    """Reads the rows of one split from all runs, in order."""

    def __init__(self, work: WorkDir, runs: Sequence[SortedRunRecord], split: int) -> None:
        self._work, self._split = work, split
        self._runs = [run for run in runs if run.rows[split]]
        self.num_rows = sum(run.rows[split] for run in self._runs)

    def ranges(self, ranks: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Yields the rows between each rank and the next, sorted.

        Args:
          ranks: ascending, within 0..num_rows.
        """
        cuts = self._cuts(np.array(ranks, np.int64))
        for starts, stops in itertools.pairwise(cuts):
            parts = []
            for run, start, stop in zip(self._runs, starts, stops, strict=True):
                if start < stop:
                    parts += self._slice(run, int(start), int(stop))
            rows = pa.Table.from_batches(parts).combine_chunks()
            order = np.argsort(rows.column(KEY).to_numpy(), kind="stable")
            rows = rows.drop_columns([KEY]).take(pa.array(order)).combine_chunks()
            yield rows.to_batches()[0]

    def each(self) -> Iterator[pa.RecordBatch]:
        """Yields the rows of each run, some at a time, without an order of all."""
        for run in self._runs:
            for start in range(0, run.rows[self._split], RUN_ROWS):
                parts = self._slice(run, start, min(start + RUN_ROWS, run.rows[self._split]))
                rows = pa.Table.from_batches(parts).drop_columns([KEY]).combine_chunks()
                yield rows.to_batches()[0]

    def _cuts(self, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns how many rows of each run come before each rank: int64 [ranks, runs]."""
        if not self._runs:
            return np.zeros((len(ranks), 0), np.int64)
        paths = [self._work.keys(run.file_name, self._split) for run in self._runs]
        keys = [load_keys(path) for path in paths]
        # The key at a rank is the smallest key with more than `rank` rows at or below it.
        low = np.full(len(ranks), min(k[0] for k in keys), np.uint64)
        high = np.full(len(ranks), max(k[-1] for k in keys), np.uint64)
        while (low < high).any():
            middle = low + (high - low) // np.uint64(2)
            below = sum(np.searchsorted(k, middle, side="right") for k in keys)
            reached = below > ranks
            high = np.where(reached, middle, high)
            low = np.where(reached, low, np.minimum(middle + np.uint64(1), high))
        cuts = np.stack([np.searchsorted(k, low, side="left") for k in keys], axis=1)
        equal = np.stack([np.searchsorted(k, low, side="right") for k in keys], axis=1) - cuts
        # Among rows of that key, the first ones in the order of the input.
        left = (ranks - cuts.sum(axis=1))[:, None]
        before = np.cumsum(equal, axis=1) - equal
        return np.asarray(cuts + np.clip(left - before, 0, equal))

    def _slice(self, run: SortedRunRecord, start: int, stop: int) -> list[pa.RecordBatch]:
        """Returns a run's rows start..stop; its file stays mapped while they are in use."""
        first_batch = -(-run.rows[0] // BATCH_ROWS) if self._split else 0
        parts = []
        with pa.memory_map(str(self._work.path / run.file_name)) as source:
            reader = pa.ipc.open_file(source)
            for at in range(start - start % BATCH_ROWS, stop, BATCH_ROWS):
                batch = reader.get_batch(first_batch + at // BATCH_ROWS)
                low = max(start - at, 0)
                parts.append(batch.slice(low, min(stop - at, BATCH_ROWS) - low))
        return parts


def load_keys(path: Path) -> NDArray[np.uint64]:
    """Reads a run's keys; maps only large files, as each map holds a file descriptor."""
    mapped = path.stat().st_size > _MAPPED_BYTES
    return np.asarray(np.load(path, mmap_mode="r" if mapped else None))
