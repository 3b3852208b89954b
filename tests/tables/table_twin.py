"""A plain-Python twin of one table on one shard: its stripes, row numbers, policies and cuts.

It says for each operation what is read, which rows go, and which records, in which order, a file
must hold.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from embedps.tables import MinCount, MinNorm, SizeLimit, TableSpec, TimeToLive
from embedps.tables.byte_limits import ServerLimit
from embedps.tables.eviction import find
from tests.kernels.twins import (
    first_slots,
    round_to,
    steps_passed,
    update_stored,
)
from tests.tables.admission_twin import Counter, CounterTwin, admits_by_chance
from tests.tables.clock_twin import ClockTwin
from tests.tables.stripe_twin import (
    CAUSES,
    CHUNK_ROWS,
    COUNTER_PARTS,
    COUNTING_BYTES,
    EVICTED_BYTES,
    FIRST_CHUNK_ROWS,
    FIRST_ROOM,
    LEARNING_RATE,
    SERVER_STORES,
    STRIPES,
    TABLE_BYTES,
    Floats,
    Stripe,
    TwinRow,
    chunk_rows,
    counted_bytes,
    first_embedding,
    room_slack,
    stripe_of,
)


@dataclasses.dataclass(frozen=True)
class TwinEvicted:
    """A row that went, as a file of evicted rows has it."""

    id: int
    cause: str
    evicted_step: int
    last_step: int
    frequency: int
    w: Floats
    slots: Floats


Record = tuple[int, tuple[Floats, Floats, int, int] | None]
"""An id, and its embedding, slots, last step and frequency; None is a removal."""


@dataclasses.dataclass(frozen=True)
class FileRecords:
    """What a shard's file holds, and the admission file beside it, if the table counts."""

    rows: list[Record]
    counters: dict[int, Counter | None] | None


class ServerTwin:
    """A server with a byte limit, and the shards that it has.

    Attributes:
      limit: of all shards together.
      shards: of the table.
      refusals: how often a stripe got no memory.
    """

    def __init__(self, limit: ServerLimit) -> None:
        self.limit = limit
        self.refusals = 0
        self.shards: list[TableTwin] = []

    def has_room(self, more_bytes: int) -> bool:
        has = self.charged_bytes + more_bytes <= self.limit.max_bytes
        self.refusals += not has
        return has

    @property
    def charged_bytes(self) -> int:
        return sum(twin.charged_bytes for twin in self.shards)


class TableTwin:
    """One table on one shard."""

    def __init__(
        self,
        spec: TableSpec,
        num_shards: int,
        clock: ClockTwin,
        server: ServerTwin | None = None,
        *,
        keeps_evicted: bool = False,
    ) -> None:
        self.spec = spec
        self._server = server
        if server is not None:
            server.shards.append(self)
        self._keeps_evicted = keeps_evicted
        self._evicted_bytes = EVICTED_BYTES if keeps_evicted else 0
        self.gone: list[TwinEvicted] = []  # since the last file of evicted rows
        self._first_slots = tuple(first_slots(spec).tolist())
        self.clock = clock
        self.units_done = 0
        self.counters = (
            CounterTwin(spec.admission.expire_steps)
            if isinstance(spec.admission, MinCount)
            else None
        )
        self.admitted = 0
        self.refused = 0
        self.steps = 0
        self.evicted = dict.fromkeys(CAUSES, 0)
        self.rejected = 0
        self.skipped = 0
        age, norm = find(spec.eviction, TimeToLive), find(spec.eviction, MinNorm)
        limit = find(spec.eviction, SizeLimit)
        self.ttl_steps = age.steps if age else 0
        self.ttl_secs = age.event_secs if age else 0
        self.min_norm = float(np.float32(norm.norm)) if norm else 0.0
        self.order = (limit or (server and server.limit) or SizeLimit(max_rows=1)).order
        self.capacity = -(-spec.capacity // num_shards)
        self.max_rows = -(-limit.max_rows // num_shards) if limit else 0
        max_bytes = limit.max_bytes // num_shards if limit else 0
        of_chunks = [max_bytes] if max_bytes else []
        of_chunks += [server.limit.max_bytes // SERVER_STORES] if server else []
        rows = min([chunk_rows(spec, each) for each in of_chunks], default=CHUNK_ROWS)
        self.stripes = [Stripe(rows) for _ in range(STRIPES)]
        if self.counters is not None:
            max_bytes -= max_bytes // COUNTER_PARTS
        self.num_rows = 0
        self.max_room = (
            max(
                FIRST_ROOM,
                (max_bytes - TABLE_BYTES - self._evicted_bytes) // counted_bytes(spec),
            )
            if max_bytes
            else 0
        )

    @property
    def now(self) -> int:
        return max(self.steps, 1) - 1

    def rows(self) -> dict[int, TwinRow]:
        return {row.id: row for s in self.stripes for row in s.rows if row is not None}

    @property
    def room(self) -> int:
        """The rows that byte limits count."""
        return sum(max(s.room, FIRST_CHUNK_ROWS) for s in self.stripes)

    @property
    def charged_bytes(self) -> int:
        """What a server's limit counts. Those few counters that traces have are among the first."""
        counting = 0 if self.counters is None else COUNTING_BYTES
        rows = self.room * counted_bytes(self.spec)
        return TABLE_BYTES + self._evicted_bytes + counting + rows

    def stripe(self, id_: int) -> Stripe:
        return self.stripes[stripe_of(self.spec.name, id_)]

    def first(self, id_: int) -> Floats:
        spec = self.spec
        assert spec.initializer is not None
        return first_embedding(
            spec.name, spec.initializer, spec.seed, spec.embedding_dim, spec.row_dtype, id_
        )

    def absent(self, id_: int) -> Floats:
        """What an id without a row reads as."""
        return (
            self.first(id_) if self.spec.absent == "initial" else (0.0,) * self.spec.embedding_dim
        )

    # ---- in a step ---------------------------------------------------------------------------

    def _in_order(self, ids: Iterable[int]) -> list[int]:
        return sorted(ids, key=lambda each: stripe_of(self.spec.name, each))

    def _read(self, id_: int) -> Floats | None:
        stripe = self.stripe(id_)
        number = stripe.numbers.get(id_)
        row = None if number is None else stripe.rows[number]
        return None if row is None else row.w

    def lookup(self, ids: Iterable[int], *, insert: bool) -> dict[int, Floats]:
        """Returns what each id reads as; visits them stripe by stripe."""
        found = {}
        for id_ in self._in_order(ids):
            read = self._read(id_)
            if read is None and insert and self.spec.admission is None and self._new_row(id_):
                read = self.first(id_)
            found[id_] = self.absent(id_) if read is None else read
        return found

    def lookup_shown(
        self, examples: Mapping[int, int], step: int
    ) -> tuple[dict[int, Floats], set[int]]:
        """Returns what each id reads as in a step, and those that admission decides about."""
        found, absent = {}, set()
        is_full = self.capacity and self.num_rows >= self.capacity
        for id_ in examples:
            read = self._read(id_)
            if read is None:
                absent.add(id_)
                admits = self._admits(id_, examples[id_], step)[0] and not is_full
                read = self.first(id_) if admits else self.absent(id_)
            found[id_] = read
        return found, absent

    def admit(self, examples: Mapping[int, int], absent: Iterable[int], step: int) -> None:
        """Counts examples of ids without a row, and creates the rows of those that they admit."""
        for id_ in self._in_order(absent):
            if id_ in self.stripe(id_).numbers:
                continue
            admits, count = self._admits(id_, examples[id_], step)
            if not admits:
                self.refused += 1
                if self.counters is not None:
                    self.counters.set(id_, count, step)
            elif self._new_row(id_):
                self.admitted += 1
                if self.counters is not None:
                    self.counters.erase(id_)

    def _admits(self, id_: int, examples: int, step: int) -> tuple[bool, int]:
        """Says whether examples admit an id, and its count with them."""
        if self.counters is None:
            return admits_by_chance(self.spec, id_, examples, step), 0
        assert isinstance(self.spec.admission, MinCount)
        count = self.counters.count(id_, step) + examples
        return count >= self.spec.admission.count, count

    def update(self, ids: Sequence[int], gradients: np.ndarray, step: int) -> None:
        """Applies gradients [num_ids, dim] to the rows that exist."""
        self.steps = max(self.steps, step + 1)
        at, rows, passed = [], [], []
        for i, id_ in enumerate(ids):
            stripe = self.stripe(id_)
            number = stripe.numbers.get(id_)
            if number is None:
                self.skipped += 1
                continue
            row = stripe.rows[number]
            assert row is not None
            passed.append(steps_passed(row.frequency, row.last_step, step))
            row.last_step = step
            row.frequency += 1
            stripe.open.add(number)
            at.append(i)
            rows.append(row)
        if not rows:
            return
        w, slots = update_stored(
            self.spec,
            [row.id for row in rows],
            np.array([row.w for row in rows], np.float32),
            np.array([row.slots for row in rows], np.float32),
            np.array([row.frequency for row in rows]),
            np.array(passed),
            gradients[at],
            LEARNING_RATE,
            step,
        )
        for row, new_w, new_slots in zip(rows, w.tolist(), slots.tolist(), strict=True):
            row.w, row.slots = tuple(new_w), tuple(new_slots)

    def _new_row(self, id_: int) -> bool:
        """Gives a row to an absent id; tells whether the table has room."""
        stripe = self.stripe(id_)
        if (self.capacity and self.num_rows >= self.capacity) or not self._make_place(stripe):
            self.rejected += 1
            self.refused += 1
            return False
        # A table without policies does not note when a row was created.
        created = self.now if self.spec.eviction or self._server is not None else 0
        number = stripe.insert(TwinRow(id_, self.first(id_), self._first_slots, created, 0))
        self.num_rows += 1
        stripe.open.add(number)
        return True

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
        if not stripe.needs_room or stripe.room == 0:
            return True
        more = stripe.next_room - stripe.room
        if self.max_room and self.room + more > self.max_room + slack:
            return False
        return self._server is None or self._server.has_room(more * counted_bytes(self.spec))

    def _displace(self, stripe: Stripe) -> None:
        number = stripe.worst_candidate(self.order)
        assert number is not None
        self._remove(stripe, number, "limit")

    def _remove(
        self, stripe: Stripe, number: int, cause: str | None, removed: set[int] | None = None
    ) -> None:
        row = stripe.remove(number)
        if row.saved:
            (stripe.open_removed if removed is None else removed).add(row.id)
        self.num_rows -= 1
        if cause is None:
            return
        self.evicted[cause] += 1
        if self._keeps_evicted:
            self.gone.append(
                TwinEvicted(row.id, cause, self.now, row.last_step, row.frequency, row.w, row.slots)
            )

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
            if self.ttl_secs and self.clock.is_older(row.last_step, self.ttl_secs, self.units_done):
                return "age"
            too_small = sum(x**2 for x in row.w) < self.min_norm**2
            return "norm" if self.min_norm and row.frequency and too_small else None

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
            elif self.counters is not None and id_ in self.counters.counts:
                self.counters.erase(id_)

    # ---- files -------------------------------------------------------------------------------

    def cut(self, kind: str, *, committed: bool) -> FileRecords:
        """Returns the records of a base or delta. `committed`: the cut before this one was."""
        records: list[Record] = []
        for stripe in self.stripes:
            if committed:
                stripe.pending, stripe.pending_removed = set(), set()
            stripe.pending |= stripe.open
            stripe.pending_removed |= stripe.open_removed
            stripe.open, stripe.open_removed = set(), set()
            numbers: Iterable[int] = range(len(stripe.rows))
            if kind == "delta":
                numbers = sorted(stripe.pending)
                records += [(id_, None) for id_ in sorted(stripe.pending_removed)]
            records += _records(stripe, numbers)
        counters = self.counters
        return FileRecords(
            records, None if counters is None else counters.cut(kind, committed=committed)
        )

    def copy(self) -> FileRecords:
        """Returns all rows and counters without a cut."""
        records = [r for stripe in self.stripes for r in _records(stripe, range(len(stripe.rows)))]
        return FileRecords(records, None if self.counters is None else dict(self.counters.counts))

    def load(self, records: Iterable[Record]) -> None:
        """Loads a file's records of this shard, by stripe; `finish_load` must follow."""
        for id_, fields in sorted(records, key=lambda record: stripe_of(self.spec.name, record[0])):
            stripe = self.stripe(id_)
            number = stripe.numbers.get(id_)
            if fields is None:
                if number is not None:
                    stripe.remove(number)
                    self.num_rows -= 1
                continue
            w, slots, last_step, frequency = fields
            row = TwinRow(
                id_,
                _rounded(self.spec.row_dtype, w),
                _rounded(self.spec.slot_dtype, slots),
                last_step,
                frequency,
                saved=True,
            )
            if number is not None:
                stripe.rows[number] = row
            elif self._make_place_for(row, stripe):
                stripe.insert(row)
                self.num_rows += 1
            else:
                continue
            self.steps = max(self.steps, last_step + 1)

    def _make_place_for(self, row: TwinRow, stripe: Stripe) -> bool:
        """Makes place for a record, if it is not the worst."""
        if self._has_room(stripe, room_slack(self.spec, self.max_room, self._evicted_bytes)):
            return True
        worst = stripe.worst_candidate(self.order)
        assert worst is not None
        other = stripe.rows[worst]
        assert other is not None
        if other.worth(self.order) < row.worth(self.order):
            self._remove(stripe, worst, "limit", stripe.displaced_by_records)
            return True
        self.evicted["limit"] += 1
        stripe.displaced_by_records.add(row.id)
        return False

    def finish_load(self) -> None:
        """Displaces what is beyond the limit once all is loaded."""
        for stripe in self.stripes:
            stripe.open_removed |= stripe.displaced_by_records - stripe.numbers.keys()
            stripe.displaced_by_records.clear()
        i = 0
        while self.max_rows and self.num_rows > self.max_rows:
            if self.stripes[i].numbers:
                self._displace(self.stripes[i])
            i = (i + 1) % STRIPES

    def load_counters(self, records: Mapping[int, Counter | None]) -> None:
        """Loads counters of this shard after all rows, if the table counts."""
        for id_, counter in records.items():
            if self.counters is not None:
                self.counters.load(id_, counter, has_row=id_ in self.stripe(id_).numbers)


def _records(stripe: Stripe, numbers: Iterable[int]) -> Iterator[Record]:
    for number in numbers:
        row = stripe.rows[number]
        if row is not None:
            row.saved = True
            yield row.id, (row.w, row.slots, row.last_step, row.frequency)


def _rounded(dtype: str, floats: Floats) -> Floats:
    if dtype == "float32" or not floats:
        return floats
    return tuple(round_to(dtype, np.array(floats, np.float32)).tolist())
