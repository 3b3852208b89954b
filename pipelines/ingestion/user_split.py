"""Divides the rows of a range of users: each one's last rows are held out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embedps.data.dataset import MISSING_ID

from .file_record import DividedRows
from .ingest_job import IngestJob
from .row_divider import RowDivider
from .user_runs import HELD_OUT, UserRange, UserRows, UserRunReader, UserRunRecord


def divide_range(job: IngestJob, runs: Sequence[UserRunRecord], of: UserRange) -> DividedRows:
    """Divides the rows of a range into the splits.

    Args:
      runs: those of all files, in order.
    """
    divider = RowDivider(job, of.index)
    found = UserRunReader(job.work, runs).read(of)
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
    divider.add(rows.drop_columns([HELD_OUT]), held_out)
    return divider.finish(users_left=users_left, rows_left=rows_left)


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
