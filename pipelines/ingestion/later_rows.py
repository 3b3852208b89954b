"""Divides rows that are not divided as they are parsed: ranges of users, and drawn negatives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embedps.data.dataset import MISSING_ID

from .file_record import DividedRows
from .histories import with_histories
from .ingest_job import IngestJob
from .negatives import NegativeDrawer
from .row_divider import RowDivider
from .sorted_runs import SortedRunReader
from .user_runs import HELD_OUT, UserRange, UserRunReader, UserRunRecord, places_of
from .work_dir import SPLITS


def draw_negatives(job: IngestJob, part: DividedRows, num_parts: int) -> DividedRows:
    """Draws the negatives of a part's positive rows, a part of their own after all others."""
    index = num_parts + part.index
    divider = RowDivider(job, index, negatives=True)
    if job.negatives is not None:
        drawer = NegativeDrawer(job.negatives, job.table, job.work, index)
        for split in range(len(SPLITS)):
            for rows in SortedRunReader(job.work, part.runs, split).each():
                made = drawer.draw(rows)
                divider.add(made, np.full(made.num_rows, bool(split)))
    return divider.finish()


def divide_range(job: IngestJob, runs: Sequence[UserRunRecord], of: UserRange) -> DividedRows:
    """Divides the rows of a range into the splits.

    Args:
      runs: those of all files, in order.
    """
    divider = RowDivider(job, of.index)
    reader = UserRunReader(job.work, runs)
    found = reader.read(of)
    if found is None:
        return divider.finish()
    rows = found.rows
    held_out = np.asarray(rows.column(HELD_OUT).to_numpy(zero_copy_only=False))
    users_left = rows_left = 0
    if job.split.last:
        is_user = rows.column(job.split.by).to_numpy() != MISSING_ID
        place, size = places_of(found)
        held_out = is_user & (size > job.split.last) & (size - place <= job.split.last)
        rows_left = int(np.count_nonzero(~is_user))
        users_left = int(np.count_nonzero(is_user & (size <= job.split.last) & (place == 0)))
    rows = rows.drop_columns([HELD_OUT])
    divider.add(with_histories(job.table, reader, found, rows, held_out, job.split.last), held_out)
    return divider.finish(users_left=users_left, rows_left=rows_left)
