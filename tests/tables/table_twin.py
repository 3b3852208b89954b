"""A plain-Python twin of one table on one shard: its stripes, row numbers, policies and cuts.

It says for each operation which rows go, and which records, in which order, a file must hold.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from embedps.tables import MinNorm, SizeLimit, TableSpec, TimeToLive
from embedps.tables.eviction import find
from tests.kernels.twins import mix64, table_salt

STRIPES = 64
CANDIDATES = 16
FIRST_CHUNK_ROWS, CHUNK_ROWS = 16, 1024
FIRST_ROOM = STRIPES * FIRST_CHUNK_ROWS
TABLE_BYTES, BOOKKEEPING_BYTES = 65536, 40
LEARNING_RATE = 0.5
DIM = 2
CAUSES = ("age", "norm", "limit", "hand")


def row_bytes() -> int:
    """Of a row with SGD: the header and the embedding."""
    return 16 + 4 * DIM


@functools.cache
def row_hash(table: str, id_: int) -> int:
    return int(mix64(np.asarray([id_], np.int64).astype(np.uint64) ^ table_salt(table))[0])


def shard_of(table: str, id_: int, num_shards: int) -> int:
    return (row_hash(table, id_) >> 32) * num_shards >> 32


@functools.cache
def stripe_of(table: str, id_: int) -> int:
    one = 1 << 12
    x = row_hash(table, id_) & (one - 1)
    return STRIPES * x * (4 * one - x) // (3 * one * one)


@dataclasses.dataclass
class TwinRow:
    """A row. All its numbers are equal, and float32 represents them exactly."""

    id: int
    value: float
    last_step: int
    frequency: int
    saved: bool = False  # a file has it

    def worth(self, order: str) -> tuple[int, int]:
        frequency = max(self.frequency, 1)
        if order == "least_recent":
            return self.last_step, frequency
        return frequency, self.last_step


Record = tuple[int, tuple[float, int, int] | None]
"""An id, and its value, last step and frequency; None is a removal."""


class Stripe:
    """Rows by number, as the kernels give them."""

    def __init__(self) -> None:
        self.rows: list[TwinRow | None] = []
        self.numbers: dict[int, int] = {}  # by id
        self.free: list[int] = []
        self.room = 0
        self.hand = 0
        self.open: set[int] = set()
        self.pending: set[int] = set()
        self.open_removed: set[int] = set()
        self.pending_removed: set[int] = set()
        self.displaced_by_records: list[int] = []

    @property
    def needs_room(self) -> bool:
        return not self.free and len(self.rows) == self.room

    @property
    def next_room(self) -> int:
        if self.room >= CHUNK_ROWS:
            return self.room + CHUNK_ROWS
        return max(FIRST_CHUNK_ROWS, 2 * self.room)

    def insert(self, row: TwinRow) -> int:
        if self.free:
            number = self.free.pop()
            self.rows[number] = row
        else:
            if len(self.rows) == self.room:
                self.room = self.next_room
            number = len(self.rows)
            self.rows.append(row)
        self.numbers[row.id] = number
        return number

    def remove(self, number: int) -> TwinRow:
        row = self.rows[number]
        assert row is not None
        self.rows[number] = None
        del self.numbers[row.id]
        self.free.append(number)
        return row

    def worst_candidate(self, order: str) -> int | None:
        """Chooses as kernels/store/eviction.h does."""
        used = len(self.rows)
        if not self.numbers:
            return None
        count = min(CANDIDATES, used)
        self.hand %= used
        numbers = [(self.hand + i * (used // count)) % used for i in range(count)]
        live = [n for n in numbers if self.rows[n] is not None]
        while not live:
            self.hand = (self.hand + 1) % used
            live = [self.hand] if self.rows[self.hand] is not None else []
        self.hand = (self.hand + 1) % used
        return min(live, key=lambda n: self.rows[n].worth(order))  # type: ignore[union-attr]


class TableTwin:
    """One table on one shard."""

    def __init__(self, spec: TableSpec, num_shards: int) -> None:
        self.spec = spec
        assert spec.initializer is not None
        self.first = spec.initializer.low
        self.absent = self.first if spec.absent == "initial" else 0.0
        self.stripes = [Stripe() for _ in range(STRIPES)]
        self.steps = 0
        self.evicted = dict.fromkeys(CAUSES, 0)
        self.rejected = 0
        self.skipped = 0
        age, norm = find(spec.eviction, TimeToLive), find(spec.eviction, MinNorm)
        limit = find(spec.eviction, SizeLimit)
        self.ttl_steps = age.steps if age else 0
        self.min_norm = float(np.float32(norm.norm)) if norm else 0.0
        self.order = limit.order if limit else "least_recent"
        self.capacity = -(-spec.capacity // num_shards)
        self.max_rows = -(-limit.max_rows // num_shards) if limit else 0
        max_bytes = limit.max_bytes // num_shards if limit else 0
        self.num_rows = 0
        self.max_room = (
            max(FIRST_ROOM, (max_bytes - TABLE_BYTES) // (row_bytes() + BOOKKEEPING_BYTES))
            if max_bytes
            else 0
        )

    @property
    def now(self) -> int:
        return max(self.steps, 1) - 1

    def rows(self) -> dict[int, TwinRow]:
        return {row.id: row for s in self.stripes for row in s.rows if row is not None}

    def stripe(self, id_: int) -> Stripe:
        return self.stripes[stripe_of(self.spec.name, id_)]

    # ---- in a step ---------------------------------------------------------------------------

    def lookup(self, ids: Sequence[int], *, insert: bool) -> dict[int, float]:
        """Returns the value that each id reads as; visits them stripe by stripe."""
        found = {}
        for id_ in sorted(ids, key=lambda each: stripe_of(self.spec.name, each)):
            number = self.stripe(id_).numbers.get(id_)
            if number is None and insert:
                number = self._new_row(id_)
                if number is None:
                    self.rejected += 1
                    found[id_] = self.absent
                    continue
            row = None if number is None else self.stripe(id_).rows[number]
            found[id_] = self.absent if row is None else row.value
        return found

    def update(self, ids: Iterable[int], gradient: float, step: int) -> None:
        self.steps = max(self.steps, step + 1)
        for id_ in ids:
            stripe = self.stripe(id_)
            number = stripe.numbers.get(id_)
            if number is None:
                self.skipped += 1
                continue
            row = stripe.rows[number]
            assert row is not None
            row.last_step = step
            row.frequency += 1
            row.value = float(np.float32(row.value - LEARNING_RATE * gradient))
            stripe.open.add(number)

    def _new_row(self, id_: int) -> int | None:
        """Gives a row to an absent id, unless the table is full."""
        if self.capacity and self.num_rows >= self.capacity:
            return None
        stripe = self.stripe(id_)
        if not self._make_place(stripe):
            return None
        # A table without policies does not note when a row was created.
        created = self.now if self.spec.eviction else 0
        number = stripe.insert(TwinRow(id_, self.first, created, 0))
        self.num_rows += 1
        stripe.open.add(number)
        return number

    def _make_place(self, stripe: Stripe) -> bool:
        if self.max_rows and self.num_rows >= self.max_rows:
            if stripe.numbers:
                self._displace(stripe)
                return True
            at = self.stripes.index(stripe)
            for i in range(1, STRIPES):
                other = self.stripes[(at + i) % STRIPES]
                if other.numbers:
                    self._displace(other)
                    return self._has_room(stripe, 0)
            return False
        if not self._has_room(stripe, 0):
            self._displace(stripe)
        return True

    def _has_room(self, stripe: Stripe, slack: int) -> bool:
        if not self.max_room or not stripe.needs_room or stripe.room == 0:
            return True
        room = sum(max(s.room, FIRST_CHUNK_ROWS) for s in self.stripes)
        return room + stripe.next_room - stripe.room <= self.max_room + slack

    def _displace(self, stripe: Stripe) -> None:
        number = stripe.worst_candidate(self.order)
        assert number is not None
        self._remove(stripe, number, "limit")

    def _remove(self, stripe: Stripe, number: int, cause: str | None) -> None:
        row = stripe.remove(number)
        if row.saved:
            stripe.open_removed.add(row.id)
        self.num_rows -= 1
        if cause is not None:
            self.evicted[cause] += 1

    # ---- evictions ---------------------------------------------------------------------------

    def _remove_where(self, says: Callable[[TwinRow], str | None]) -> None:
        for stripe in self.stripes:
            for number, row in enumerate(stripe.rows):
                cause = None if row is None else says(row)
                if cause is not None:
                    self._remove(stripe, number, cause)

    def sweep(self) -> None:
        def says(row: TwinRow) -> str | None:
            if self.ttl_steps and row.last_step + self.ttl_steps < self.now:
                return "age"
            too_small = DIM * row.value**2 < self.min_norm**2
            return "norm" if self.min_norm and row.frequency and too_small else None

        if self.ttl_steps or self.min_norm:
            self._remove_where(says)

    def evict(self, before_step: int, max_frequency: int) -> None:
        self._remove_where(
            lambda row: (
                "hand" if row.last_step < before_step and row.frequency < max_frequency else None
            )
        )

    def remove(self, ids: Iterable[int]) -> None:
        for id_ in ids:
            number = self.stripe(id_).numbers.get(id_)
            if number is not None:
                self._remove(self.stripe(id_), number, None)

    # ---- files -------------------------------------------------------------------------------

    def cut(self, kind: str, *, committed: bool) -> list[Record]:
        """Returns the records of a base or delta. `committed`: the cut before this one was."""
        records: list[Record] = []
        for stripe in self.stripes:
            if committed:
                stripe.pending, stripe.pending_removed = set(), set()
            stripe.pending |= stripe.open
            stripe.pending_removed |= stripe.open_removed
            stripe.open, stripe.open_removed = set(), set()
            numbers = range(len(stripe.rows))
            if kind == "delta":
                numbers = sorted(stripe.pending)  # type: ignore[assignment]
                records += [(id_, None) for id_ in sorted(stripe.pending_removed)]
            for number in numbers:
                row = stripe.rows[number]
                if row is not None:
                    row.saved = True
                    records.append((row.id, (row.value, row.last_step, row.frequency)))
        return records

    def load(self, records: Iterable[Record]) -> None:
        """Loads the records of this shard; `finish_load` must follow."""
        for id_, fields in records:
            stripe = self.stripe(id_)
            number = stripe.numbers.get(id_)
            if fields is None:
                if number is not None:
                    stripe.remove(number)
                    self.num_rows -= 1
                continue
            value, last_step, frequency = fields
            row = TwinRow(id_, value, last_step, frequency, saved=True)
            self.steps = max(self.steps, last_step + 1)
            if number is not None:
                stripe.rows[number] = row
            elif self._has_room(stripe, self.max_room // 64 + FIRST_ROOM):
                stripe.insert(row)
                self.num_rows += 1
            else:
                raise AssertionError("these traces have no room for so many records")

    def finish_load(self) -> None:
        """Displaces what is beyond the limit once all is loaded."""
        i = 0
        while self.max_rows and self.num_rows > self.max_rows:
            if self.stripes[i].numbers:
                self._displace(self.stripes[i])
            i = (i + 1) % STRIPES
