"""A small copy of a tier: which of a dataset's rows it keeps in memory."""

from __future__ import annotations

import dataclasses
import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embedps.planning.step_sample import StepSample

# As kernels/store/hot_rows.h and tier_memory.h have them.
_MOST_USES, _SMALL_PARTS = 3, 10
_GAIN = 8  # slots for a row that comes back too soon
_TRIES, _AGES = 32, 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableMemory:
    """What a table's rows take.

    Attributes:
      least_slots: rows for which it has memory, whatever the limit is.
      slot_bytes: of a row.
    """

    least_slots: float
    slot_bytes: float


@dataclasses.dataclass(kw_only=True)
class _Row:
    """A row in memory."""

    key: int
    is_main: bool
    uses: int = 0
    awaited: bool = True


class _Rows:
    """A table's rows in memory, by S3-FIFO: a small queue, and a main queue that is a clock."""

    def __init__(self, slots: int) -> None:
        self.slots, self.misses, self.again = slots, 0, 0
        self.by_key: dict[int, _Row] = {}
        self._small: deque[_Row] = deque()
        self._main: deque[_Row] = deque()

    def is_full(self) -> bool:
        return len(self.by_key) >= self.slots

    def add(self, key: int, *, is_main: bool) -> None:
        """Adds a row that an update will follow."""
        self.by_key[key] = row = _Row(key=key, is_main=is_main)
        (self._main if is_main else self._small).append(row)

    def evict(self) -> _Row:
        """Removes the row that leaves next."""
        while True:
            of_small = len(self._small) * _SMALL_PARTS >= len(self.by_key) or not self._main
            queue = self._small if of_small else self._main
            row = queue.popleft()
            if row.awaited:
                row.awaited = False
            elif not row.uses:
                del self.by_key[row.key]
                return row
            elif of_small:
                row.uses, row.is_main = 0, True
                queue = self._main
            else:
                row.uses -= 1
            queue.append(row)


class TierCache:
    """Takes the rows of steps as kernels/store/row_tier.cc does, in training.

    It has the rows of all stripes of a table together: HotRows says by which rules they leave. A
    table whose rows come back too soon takes memory from another one, chosen by its size.
    """

    def __init__(self, tables: Sequence[TableMemory], room_bytes: float) -> None:
        """Begins without rows; the least slots are there even without room."""
        self._tables = tables
        self._rows = [_Rows(max(1, round(table.least_slots))) for table in tables]
        self._left = room_bytes - sum(t.least_slots * t.slot_bytes for t in tables)
        self._steps = 0
        self._last: dict[int, int] = {}  # step of each key
        self._main_age = math.inf  # of the rows that leave the main queues, about
        self._random = random.Random(0)

    @property
    def rows(self) -> NDArray[np.float64]:
        """Counts each table's rows in memory."""
        return np.array([len(rows.by_key) for rows in self._rows], float)

    @property
    def misses(self) -> NDArray[np.float64]:
        """Counts each table's rows that were read from disk."""
        return np.array([rows.misses for rows in self._rows], float)

    @property
    def again(self) -> NDArray[np.float64]:
        """Counts those of the misses that were rows of updates, which had left since the lookup."""
        return np.array([rows.again for rows in self._rows], float)

    def take_step(self, keys: Sequence[Sequence[int]]) -> None:
        """Looks up rows, of each table its distinct keys, and updates them.

        As there, those on disk come after the others, and an update reads a row again that left
        since its lookup.
        """
        self._steps += 1
        for number, key, row in self._in_turn(keys):
            if row is None:
                self._bring_in(number, key)
            else:
                row.uses = min(row.uses + 1, _MOST_USES)
                row.awaited = True
        for number, key, row in self._in_turn(keys):
            if row is None:
                rows = self._rows[number]
                before = rows.misses
                self._bring_in(number, key)
                rows.again += rows.misses - before
                row = rows.by_key[key]
            row.awaited = False
            self._last[key] = self._steps

    def _in_turn(self, keys: Sequence[Sequence[int]]) -> Iterator[tuple[int, int, _Row | None]]:
        """Yields table, key and row of those in memory, then of the others."""
        absent = []
        for number, of_table in enumerate(keys):
            by_key = self._rows[number].by_key
            for key in of_table:
                row = by_key.get(key)
                if row is None:
                    absent.append((number, key))
                else:
                    yield number, key, row
        for number, key in absent:
            yield number, key, None

    def _bring_in(self, number: int, key: int) -> None:
        rows, last = self._rows[number], self._last.get(key)
        rows.misses += last is not None
        is_soon = last is not None and self._steps - 1 - last <= self._main_age
        if rows.is_full() and not self._grow(number) and is_soon and self._shrink_another():
            self._grow(number)
        if rows.is_full():
            self._evict(rows)
        rows.add(key, is_main=is_soon)

    def _grow(self, number: int) -> bool:
        more = _GAIN * self._tables[number].slot_bytes
        if self._left < more:
            return False
        self._left -= more
        self._rows[number].slots += _GAIN
        return True

    def _shrink_another(self) -> bool:
        pairs = list(zip(self._rows, self._tables, strict=True))
        sizes = [rows.slots * of.slot_bytes for rows, of in pairs]
        for rows, of in self._random.choices(pairs, sizes, k=_TRIES):
            if rows.slots - _GAIN < max(of.least_slots, 1):
                continue
            rows.slots -= _GAIN
            self._left += _GAIN * of.slot_bytes
            while len(rows.by_key) > rows.slots:
                self._evict(rows)
            return True
        return False

    def _evict(self, rows: _Rows) -> None:
        row = rows.evict()
        if row.is_main:
            age = self._steps - 1 - self._last.get(row.key, self._steps - 1)
            first = math.isinf(self._main_age)
            self._main_age = age if first else self._main_age + (age - self._main_age) / _AGES


class SimulatedTier(NamedTuple):
    """What a tier did in the second of two epochs, by table.

    Attributes:
      rows: in memory at its end.
      misses: rows of a step that were read from disk.
      again: those of them that an update read again.
    """

    rows: NDArray[np.float64]
    misses: NDArray[np.float64]
    again: NDArray[np.float64]


def simulate_tier(
    sample: StepSample, tables: Sequence[TableMemory], room_bytes: float, *, shuffles: bool
) -> SimulatedTier:
    """Takes two epochs.

    A cache with a share of the memory has the misses of a share of the ids (Waldspurger et al.,
    SHARDS, 2015).

    Args:
      tables: of the sample.
      room_bytes: for the rows of these tables.
      shuffles: whether each epoch has its units in another order.
    """
    of_share = [dataclasses.replace(t, least_slots=t.least_slots * sample.share) for t in tables]
    cache = TierCache(of_share, room_bytes * sample.share)
    misses, again = cache.misses, cache.again
    for epoch in range(2):
        misses, again = cache.misses, cache.again
        for step in sample.steps_of(epoch if shuffles else None):
            cache.take_step(step)
    steps = max(sample.num_steps, 1) * sample.share
    return SimulatedTier(
        cache.rows / sample.share, (cache.misses - misses) / steps, (cache.again - again) / steps
    )
