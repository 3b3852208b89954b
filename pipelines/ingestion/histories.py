"""Makes histories: of each row, what its user did before.

A history holds rows of strictly earlier times only: of two rows of one time, neither is in the
other's. A row to train on has no row in its history that is held out, whatever rule holds it out.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedps.data.dataset import MISSING_ID
from embedps.features.table_columns import Column, History
from embedps.features.table_schema import Table

from .user_runs import HELD_OUT, UserRows, UserRunReader, places_of

_DAY_MS = 86_400_000


def with_histories(
    table: Table,
    reader: UserRunReader,
    found: UserRows,
    rows: pa.RecordBatch,
    held_out: NDArray[np.bool_],
    last: int,
) -> pa.RecordBatch:
    """Adds the columns of histories.

    Args:
      table: declares them.
      reader: finds rows before those found, of the first row's user.
      rows: those found, without histories.
      held_out: which of them are held out.
      last: how many rows of each user are held out, the last ones; 0 if another rule decides.

    Returns:
      rows of the table's `row_schema`.
    """
    made = dict(zip(rows.schema.names, rows.columns, strict=True))
    for column in table.columns:
        if column.history is not None:
            maker = _HistoryMaker(column, column.history, table)
            made[column.name] = maker.make(reader, found, rows, held_out, last)
    return pa.record_batch([made[name] for name in table.row_schema.names], table.row_schema)


class _HistoryMaker:
    """Makes one column of histories."""

    def __init__(self, column: Column, of: History, table: Table) -> None:
        self._type, self._of = column.row_type, of
        label = table.role("label")
        self._label = label.name if label is not None and of.positives else ""
        self._window_ms = np.uint64(round(of.days * _DAY_MS))

    def make(
        self,
        reader: UserRunReader,
        found: UserRows,
        rows: pa.RecordBatch,
        held_out: NDArray[np.bool_],
        last: int,
    ) -> pa.Array:
        """Makes the histories of a range's rows."""
        before, keys, held = self._before(reader, found, last)
        items = np.concatenate(
            [rows_of.column(self._of.of).to_numpy() for rows_of in (before, rows)]
        )
        counts = np.concatenate([self._counted(before), self._counted(rows)])
        keys = np.concatenate([keys, found.keys])
        held = np.concatenate([held, held_out])
        starts = np.searchsorted(keys, self._first_keys(found.keys))
        ends = np.searchsorted(keys, found.keys)  # where the rows of the same time begin
        firsts, lasts = np.zeros((2, len(starts)), np.int64)
        pools: list[NDArray[np.int64]] = []
        offset = 0
        for mine, taken in ((~held_out, counts & ~held), (held_out, counts)):
            places = np.concatenate([[0], np.cumsum(taken)])
            stop = places[ends]
            start = np.maximum(places[starts], stop - self._of.length)
            firsts[mine], lasts[mine] = start[mine] + offset, stop[mine] + offset
            pools.append(items[taken])
            offset += len(pools[-1])
        lengths = lasts - firsts
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        chosen = np.arange(offsets[-1]) + np.repeat(firsts - offsets[:-1], lengths)
        values = pa.array(np.concatenate(pools)[chosen])
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=self._type)

    def _before(
        self, reader: UserRunReader, found: UserRows, last: int
    ) -> tuple[pa.RecordBatch, NDArray[np.bytes_], NDArray[np.bool_]]:
        """Reads enough rows of the first user before the range; tells which are held out."""
        most = min(self._of.length, found.before)
        while True:
            rows, keys = reader.read_before(found.keys[0], most)
            held = np.asarray(rows.column(HELD_OUT).to_numpy(zero_copy_only=False))
            if last and most:
                _, size = places_of(found)
                place = found.before - most + np.arange(most)
                held = (size[0] > last) & (size[0] - place <= last)
            enough = np.count_nonzero(self._counted(rows) & ~held) >= self._of.length
            if enough or most == found.before:
                return rows, keys, held
            most = min(most * 4, found.before)

    def _counted(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        """Tells which rows' items belong into histories."""
        counted = rows.column(self._of.of).to_numpy() != MISSING_ID
        counted &= rows.column(self._of.by).to_numpy() != MISSING_ID
        if self._label:
            counted &= rows.column(self._label).to_numpy() > 0.5
        return np.asarray(counted)

    def _first_keys(self, keys: NDArray[np.bytes_]) -> NDArray[np.bytes_]:
        """Returns the key from which rows are recent enough for the history of each key."""
        words = np.ascontiguousarray(keys).view(">u8").reshape(-1, 2).astype(np.uint64)
        times = words[:, 1]
        is_late = times > self._window_ms
        words[:, 1] = np.where(is_late & (self._window_ms > 0), times - self._window_ms, 0)
        return words.astype(">u8").view(keys.dtype).ravel()
