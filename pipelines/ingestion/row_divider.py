"""Divides rows into the splits: those of a file, or of a range of users."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .column_statistics import ColumnStatistics
from .file_record import DividedRows
from .ingest_job import IngestJob
from .negatives import PoolWriter
from .sorted_runs import SortedRunWriter


class RowDivider:
    """Writes rows of each split in sorted runs, and gathers the statistics for the fit."""

    def __init__(self, job: IngestJob, index: int, *, negatives: bool = False) -> None:
        self._index, self._drawn = index, negatives
        self._pool = None
        if job.negatives is not None and not negatives:
            self._pool = PoolWriter(job.negatives, job.table, job.work, index)
        self._fits = not job.transforms_digest
        self._runs = SortedRunWriter(job.work, index, job.table, job.split.seed)
        self._statistics = ColumnStatistics(job.table, job.work, index)

    @property
    def num_rows(self) -> int:
        """The rows so far."""
        return self._runs.num_rows

    def add(self, rows: pa.RecordBatch, held_out: NDArray[np.bool_]) -> None:
        """Adds rows, in order."""
        self._runs.add(rows, held_out)
        to_train_on = rows.filter(pa.array(~held_out))
        if self._fits:
            self._statistics.add(to_train_on)
        if self._pool is not None:
            self._pool.add(to_train_on)

    def finish(self, *, users_left: int = 0, rows_left: int = 0) -> DividedRows:
        """Writes what is still in memory."""
        self._runs.flush()
        if self._pool is not None:
            self._pool.finish()
        return DividedRows(
            index=self._index,
            drawn=self._drawn,
            runs=tuple(self._runs.records),
            moments=self._statistics.moments,
            num_count_pieces=self._statistics.finish(),
            users_left=users_left,
            rows_left=rows_left,
        )
