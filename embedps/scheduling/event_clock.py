"""The event clock: how far a run has come in the time of its events.

A unit's time is the least timestamp of the row groups that it reads, by the statistics in the
Parquet file. So a row from the far future has no effect beside others. The clock at a unit is the
median of the times of that unit and the eight before it, or an earlier median that is later: it
only advances, and a few units of a wrong time do not move it. It begins with the fifth unit.

A file that arrives in a watched directory counts as one unit, however large it is, by its least
timestamp. So a file of a wrong time does not move the clock, even if it has many units.

So the clock depends on the dataset and the order of the files alone, not on workers, servers or
restarts. Later epochs repeat times: it stands still.
"""

from __future__ import annotations

import bisect
import collections
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence

import pyarrow.parquet as pq

from embedps.data.arrow_errors import check_statistics, naming
from embedps.data.dataset import Dataset
from embedps.errors import DatasetError, UsageError
from embedps.scheduling.ledger import Ledger, Unit

_WINDOW = 9  # units
_FIRST = _WINDOW // 2
_NEVER = -(2**63)  # before any timestamp


class EventClock:
    """Tells which steps were before a time to live, by the units that are done."""

    def __init__(self, first_steps: Sequence[int], times_ms: Sequence[int]) -> None:
        """Takes the first step and the time of each unit of an epoch, in order."""
        self._window: collections.deque[int] = collections.deque(maxlen=_WINDOW)
        self._begins = 0  # the position of the first unit that is kept
        self._first_steps: list[int] = []
        self._clock: list[int] = []  # by unit, rising
        for first_step, time_ms in zip(first_steps, times_ms, strict=True):
            self.append([first_step], time_ms)

    def append(self, first_steps: Iterable[int], time_ms: int | None) -> None:
        """Adds units of one time, by their first steps; None is no time."""
        if time_ms is not None:
            self._window.append(time_ms)
        now = self._clock[-1] if self._clock else _NEVER
        if time_ms is not None and len(self._window) > _FIRST:
            now = max(now, statistics.median_low(self._window))
        for first_step in first_steps:
            self._first_steps.append(first_step)
            self._clock.append(now)

    @classmethod
    def of(cls, dataset: Dataset, units: Sequence[Unit]) -> EventClock:
        """Makes the clock of an epoch.

        Raises:
          UsageError: the dataset has no timestamp column.
          DatasetError: a file has no statistics of it.
        """
        if not dataset.timestamp:
            raise UsageError(
                "a TimeToLive in event time needs a timestamp column, but the dataset "
                f"{dataset.directory} declares none: give one in its schema and make it again, or "
                "use steps"
            )
        files: dict[str, tuple[list[int], list[int]]] = {}  # first rows of row groups, and times
        found = []
        for unit in units:
            if unit.path not in files:
                with naming(unit.path), pq.ParquetFile(unit.path) as file:
                    check_statistics(file, dataset.timestamp)
                    groups = row_group_times(file.metadata, unit.path, dataset.timestamp)
                starts = [*itertools.accumulate((rows for rows, _ in groups), initial=0)]
                files[unit.path] = starts, [time for _, time in groups]
            starts, times = files[unit.path]
            last = unit.first_row + unit.num_rows
            begin = bisect.bisect_right(starts, unit.first_row) - 1
            mine = times[begin : bisect.bisect_left(starts, last)]
            if not mine:
                raise DatasetError(
                    f"{unit.path} must have {last:,} rows or more, it has {starts[-1]:,}: make the "
                    "dataset again"
                )
            found.append(min(mine))
        return cls([unit.first_step for unit in units], found)

    def first_step_within(self, ttl_ms: int, *, units_done: int) -> int:
        """Returns the first step that is not older than a time to live.

        Args:
          ttl_ms: the time to live.
          units_done: how many units of the run are done.
        """
        now = min(units_done - self._begins, len(self._clock)) - 1
        if now < 0 or self._clock[now] == _NEVER:
            return 0
        first = bisect.bisect_left(self._clock, self._clock[now] - ttl_ms)
        # Before its first unit the clock has no time, so the rows of then have no age.
        begins = bisect.bisect_right(self._clock, _NEVER)
        return self._first_steps[first] if first > begins else 0

    def forget(self, ttl_ms: int, *, units_done: int) -> None:
        """Forgets the units that no time to live up to this one asks for again."""
        now = min(units_done - self._begins, len(self._clock)) - 1
        if now < 0:
            return
        # The last unit before is kept: a unit in front tells that the clock had begun.
        dropped = bisect.bisect_left(self._clock, self._clock[now] - ttl_ms) - 1
        if dropped > len(self._clock) // 2:  # so that each unit is moved once
            self._begins += dropped
            del self._first_steps[:dropped], self._clock[:dropped]


class EventAges:
    """Tells, by table, the step before which rows are too old by their event time."""

    def __init__(
        self, dataset: Dataset, ledger: Ledger, ttl_secs: Mapping[str, int], *, shuffle: bool
    ) -> None:
        """Reads the units' times, if a table has a time to live.

        Args:
          dataset: whose units the ledger has.
          ledger: of the run.
          ttl_secs: by table.
          shuffle: whether the run shuffles its units.

        Raises:
          UsageError: the dataset has no timestamp column, or its units are shuffled.
          DatasetError: a file has no statistics of it.
        """
        self._ttl_secs = dict(ttl_secs)
        self._ledger = ledger
        self._before = dict.fromkeys(ttl_secs, 0)
        if not ttl_secs:
            return
        self._clock = EventClock.of(dataset, ledger.units_of(0))
        if shuffle:
            raise UsageError(
                f"table {next(iter(ttl_secs))!r} has a TimeToLive in event time, so a run must see "
                "the events in their order: train with --no-shuffle (shuffle=False), or use steps"
            )

    def tell_again(self) -> None:
        """Has all steps count as changed: other tables are to be told."""
        self._before = dict.fromkeys(self._ttl_secs, 0)

    def changes(self, units_done: int) -> dict[str, int]:
        """Returns the steps that changed since the last call."""
        arrived = self._ledger.take_arrived()
        if not self._ttl_secs:
            return {}
        for first_steps, event_ms in arrived:
            self._clock.append(first_steps, event_ms)
        now = {
            name: self._clock.first_step_within(1000 * secs, units_done=units_done)
            for name, secs in self._ttl_secs.items()
        }
        changed = {name: step for name, step in now.items() if step != self._before[name]}
        self._before = now
        self._clock.forget(1000 * max(self._ttl_secs.values()), units_done=units_done)
        return changed


def row_group_times(metadata: pq.FileMetaData, path: str, column: str) -> list[tuple[int, int]]:
    """Returns the number of rows and the least timestamp of each row group of a file with rows.

    `check_statistics` must have read the file before.

    Raises:
      DatasetError: a row group has no statistics of the column.
    """
    index = metadata.schema.names.index(column)
    groups = []
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        if not group.num_rows:
            continue
        statistics_ = group.column(index).statistics
        if statistics_ is None or not statistics_.has_min_max:
            raise DatasetError(
                f"{path}: row group {i} must have statistics of column {column!r}, by which a "
                "TimeToLive in event time goes: make the dataset again"
            )
        groups.append((group.num_rows, int(statistics_.min)))
    return groups
