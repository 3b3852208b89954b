"""Rows in the work directory by user and time: writes them in runs, and reads them in ranges.

Each run is sorted by user, then time; rows of equal times keep the order of the input. A range is
the rows between two keys, found by bisection in each run. Ranges have about RANGE_ROWS rows each,
also where one user has most of the rows: then several are his. So memory holds one range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedps.data.dataset import MISSING_ID
from embedps.features.table_schema import Table
from embedps.splitmix import GOLDEN, mix
from embedps.storage.file_io import replacing

from .sorted_runs import BATCH_ROWS, RUN_ROWS, load_keys
from .work_dir import WorkDir

RANGE_ROWS = 1 << 18
HELD_OUT = "_held_out"
_SAMPLE_ROWS = 256
_SHORT = 50
_KEY = np.dtype("S16")  # user and time, big-endian: bytes compare as the pair does
_SIGN = np.uint64(1 << 63)


@dataclass(frozen=True, kw_only=True)
class UserRunRecord:
    """One run of rows by user: its file in the work directory, and its rows."""

    file_name: str
    rows: int


@dataclass(frozen=True, kw_only=True)
class UserRange:
    """A range of keys, `low` to below `high`; None is the end."""

    index: int
    low: bytes
    high: bytes | None


@dataclass(frozen=True, kw_only=True)
class UserRows:
    """The rows of a range, by user and time.

    Attributes:
      rows: of the table's `row_schema`, and whether each is held out by another rule.
      keys: one of each row, ascending.
      before: how many rows of the first row's user come before the range.
      after: how many rows of the last row's user come after it.
    """

    rows: pa.RecordBatch
    keys: NDArray[np.bytes_]
    before: int
    after: int


def places_of(found: UserRows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns each row's place among those of its user, from 0, and how many rows he has."""
    users = np.ascontiguousarray(found.keys).view(np.uint64)[::2]
    starts = np.flatnonzero(np.concatenate([[True], users[1:] != users[:-1]]))
    sizes = np.diff(np.append(starts, len(users)))
    place = np.arange(len(users)) - np.repeat(starts, sizes)
    place[: sizes[0]] += found.before
    sizes_of_all = sizes.copy()
    sizes_of_all[0] += found.before
    sizes_of_all[-1] += found.after
    return place, np.repeat(sizes_of_all, sizes)


class UserRunWriter:
    """Collects one file's rows and writes them as runs by user."""

    def __init__(self, work: WorkDir, file_index: int, table: Table, by: str) -> None:
        self._work, self._file_index, self._by = work, file_index, by
        self._schema = user_schema(table)
        time = table.role("timestamp")
        self._time = "" if time is None else time.name
        self._pending: list[pa.RecordBatch] = []
        self._num_pending = 0
        self.num_rows = 0
        self.records: list[UserRunRecord] = []

    def add(self, rows: pa.RecordBatch, held_out: NDArray[np.bool_]) -> None:
        """Adds rows of the file, in order."""
        columns = [*rows.columns, pa.array(held_out)]
        self._pending.append(pa.record_batch(columns, schema=self._schema))
        self._num_pending += rows.num_rows
        if self._num_pending >= RUN_ROWS:
            self.flush()

    def flush(self) -> None:
        """Writes the rows still in memory as a run."""
        if not self._num_pending:
            return
        path = self._work.user_run(self._file_index, len(self.records))
        rows = pa.Table.from_batches(self._pending).combine_chunks()
        self._pending, self._num_pending = [], 0
        users, times = self._users(rows), rows.column(self._time).to_numpy().view(np.uint64)
        keys = np.stack([users, times ^ _SIGN], axis=1)
        order = np.lexsort((keys[:, 1], keys[:, 0]))
        with replacing(path) as temporary, pa.ipc.new_file(str(temporary), self._schema) as writer:
            writer.write_table(rows.take(pa.array(order)), max_chunksize=BATCH_ROWS)
        with (
            replacing(self._work.user_keys(path.name)) as temporary,
            open(temporary, "wb") as out,
        ):
            np.save(out, keys[order].astype(">u8").view(_KEY).ravel())
        self.records.append(UserRunRecord(file_name=path.name, rows=rows.num_rows))
        self.num_rows += rows.num_rows

    def _users(self, rows: pa.Table) -> NDArray[np.uint64]:
        """Hashes the user of each row; a row without one counts as a user of its own."""
        ids = rows.column(self._by).to_numpy()
        first = (self._file_index << 44) + self.num_rows + 1
        places = np.arange(first, first + rows.num_rows, dtype=np.uint64) * np.uint64(GOLDEN)
        return mix(np.where(ids == MISSING_ID, ~mix(places), ids.view(np.uint64)))


def user_schema(table: Table) -> pa.Schema:
    """Returns the Arrow schema of rows by user: the decoded row, and whether it is held out."""
    return table.row_schema.append(pa.field(HELD_OUT, pa.bool_(), nullable=False))


def find_ranges(
    work: WorkDir, runs: Sequence[UserRunRecord], items_per_row: int = 0
) -> list[UserRange]:
    """Divides the rows of all runs into ranges of about RANGE_ROWS rows, fewer of long histories.

    Rows of equal keys are in one range.
    """
    samples = [
        np.array(load_keys(work.user_keys(run.file_name))[_SAMPLE_ROWS - 1 :: _SAMPLE_ROWS])
        for run in runs
    ]
    keys = np.sort(np.concatenate([np.empty(0, _KEY), *samples]))
    step = max(1, RANGE_ROWS * _SHORT // max(_SHORT, items_per_row) // _SAMPLE_ROWS)
    cuts = [b"", *np.unique(keys[step::step]).tolist()]
    return [
        UserRange(index=i, low=low, high=high)
        for i, (low, high) in enumerate(zip(cuts, [*cuts[1:], None], strict=True))
    ]


class UserRunReader:
    """Reads rows of all runs, by user and time."""

    def __init__(self, work: WorkDir, runs: Sequence[UserRunRecord]) -> None:
        self._work, self._runs = work, runs
        self._keys = [load_keys(work.user_keys(run.file_name)) for run in runs]

    def read(self, of: UserRange) -> UserRows | None:
        """Reads the rows of a range; None if it has none."""
        starts = self._places(of.low)
        ends = [run.rows for run in self._runs] if of.high is None else self._places(of.high)
        if starts == ends:
            return None
        rows, keys = self._sorted(starts, ends)
        before = sum(starts) - sum(self._places(_first_of(keys[0])))
        return UserRows(
            rows=rows, keys=keys, before=before, after=sum(self._ends_of(keys[-1])) - sum(ends)
        )

    def read_before(self, key: bytes, most: int) -> tuple[pa.RecordBatch, NDArray[np.bytes_]]:
        """Reads the last rows, at most `most`, that come before a key and are of its user."""
        ends, firsts = self._places(key), self._places(_first_of(key))
        starts = [max(first, end - most) for first, end in zip(firsts, ends, strict=True)]
        rows, keys = self._sorted(starts, ends)
        return rows.slice(max(0, len(keys) - most)), keys[max(0, len(keys) - most) :]

    def _places(self, key: bytes) -> list[int]:
        """Returns how many rows of each run come before a key."""
        wanted = np.array([key], _KEY)
        return [int(np.searchsorted(keys, wanted)[0]) for keys in self._keys]

    def _ends_of(self, key: bytes) -> list[int]:
        """Returns how many rows of each run come up to the last one of a key's user."""
        after = int.from_bytes(_first_of(key), "big") + 1
        if after >> 64:
            return [run.rows for run in self._runs]
        return self._places(after.to_bytes(8, "big"))

    def _sorted(
        self, starts: Sequence[int], ends: Sequence[int]
    ) -> tuple[pa.RecordBatch, NDArray[np.bytes_]]:
        parts: list[pa.RecordBatch] = []
        for run, start, end in zip(self._runs, starts, ends, strict=True):
            if start < end:
                parts += self._slice(run, start, end)
        found = [keys[start:end] for keys, start, end in zip(self._keys, starts, ends, strict=True)]
        keys = np.concatenate([np.empty(0, _KEY), *found])
        if not parts:
            schema = self._schema()
            return pa.RecordBatch.from_pylist([], schema=schema), keys
        words = np.ascontiguousarray(keys).view(">u8").reshape(-1, 2)
        order = np.lexsort((words[:, 1], words[:, 0]))
        rows = pa.Table.from_batches(parts).combine_chunks().take(pa.array(order))
        return rows.combine_chunks().to_batches()[0], keys[order]

    def _schema(self) -> pa.Schema:
        with pa.memory_map(str(self._work.path / self._runs[0].file_name)) as source:
            return pa.ipc.open_file(source).schema

    def _slice(self, run: UserRunRecord, start: int, end: int) -> list[pa.RecordBatch]:
        parts = []
        with pa.memory_map(str(self._work.path / run.file_name)) as source:
            reader = pa.ipc.open_file(source)
            for at in range(start - start % BATCH_ROWS, end, BATCH_ROWS):
                low = max(start - at, 0)
                batch = reader.get_batch(at // BATCH_ROWS)
                parts.append(batch.slice(low, min(end - at, BATCH_ROWS) - low))
        return parts


def _first_of(key: bytes) -> bytes:
    """Returns the first key of a key's user; NumPy leaves out the zeros that bytes end with."""
    return bytes(key)[:8].ljust(8, b"\0")
