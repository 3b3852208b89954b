"""Rows in a stripe of a table's twin, and how a limit counts them and chooses among them."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from embedps.tables import Initializer, TableSpec
from embedps.tables.specs import RowDtype
from tests.kernels.twins import initial_values, mix64, round_to, table_salt

STRIPES = 64
CANDIDATES = 16
FIRST_CHUNK_ROWS, CHUNK_ROWS = 16, 1024
CHUNK_PARTS = 64  # of a byte limit: at most one is a chunk of each stripe
SERVER_STORES = 4  # that share a server's limit, about
FIRST_ROOM = STRIPES * FIRST_CHUNK_ROWS
TABLE_BYTES, BOOKKEEPING_BYTES = 64 * 1152, 40
COUNTER_PARTS = 8  # counters have one of these parts of a byte limit
COUNTING_BYTES = 64 * 512  # of a shard's first counters, which a byte limit always has a place for
EVICTED_BYTES = 3 << 20  # of a shard's files of evicted rows
LEARNING_RATE = 0.5
CAUSES = ("age", "norm", "limit", "hand")
Floats = tuple[float, ...]


def row_bytes(spec: TableSpec) -> int:
    """Of a row: its header, embedding and optimizer slots, the latter two at multiples of 4."""
    num_floats = sum(spec.optimizer.optimizer_slot_widths(spec.embedding_dim).values())
    parts = ((spec.row_dtype, spec.embedding_dim), (spec.slot_dtype, num_floats))
    return 16 + sum(-(-n * (4 if dtype == "float32" else 2) // 4) * 4 for dtype, n in parts)


def counted_bytes(spec: TableSpec) -> int:
    """Of a row, as a byte limit counts it."""
    return row_bytes(spec) + BOOKKEEPING_BYTES


def least_bytes(spec: TableSpec, evicted_bytes: int) -> int:
    """Of a shard without rows, as a byte limit counts it."""
    return TABLE_BYTES + evicted_bytes + FIRST_ROOM * counted_bytes(spec)


def chunk_rows(spec: TableSpec, max_bytes: int) -> int:
    """Of a full chunk, under a byte limit of a shard."""
    of_limit = max_bytes // CHUNK_PARTS // STRIPES // counted_bytes(spec)
    rows = CHUNK_ROWS
    while rows > max(of_limit, FIRST_CHUNK_ROWS):
        rows //= 2
    return rows


def room_slack(spec: TableSpec, max_room: int, evicted_bytes: int) -> int:
    """Rows beyond a limit that there may be memory for while records are loaded."""
    least = FIRST_ROOM + (TABLE_BYTES + evicted_bytes) // counted_bytes(spec)
    return max_room // CHUNK_PARTS + 16 * math.isqrt(max_room) + least


@functools.cache
def first_embedding(
    name: str, initializer: Initializer, seed: int, dim: int, row_dtype: RowDtype, id_: int
) -> Floats:
    """Returns the embedding with which an id's row starts."""
    spec = TableSpec(name=name, embedding_dim=dim, initializer=initializer, seed=seed)
    return tuple(round_to(row_dtype, initial_values(spec, [id_])[0]).tolist())


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
    """A row. Its floats are what memory holds."""

    id: int
    w: tuple[float, ...]
    slots: tuple[float, ...]
    last_step: int
    frequency: int
    saved: bool = False  # a file has it

    def worth(self, order: str) -> tuple[int, int]:
        frequency = max(self.frequency, 1)
        if order == "least_recent":
            return self.last_step, frequency
        return frequency, self.last_step


class Stripe:
    """Rows by number, as the kernels give them."""

    def __init__(self, chunk_rows: int) -> None:
        self.chunk_rows = chunk_rows
        self.rows: list[TwinRow | None] = []
        self.numbers: dict[int, int] = {}  # by id
        self.free: list[int] = []
        self.room = 0
        self.hand = 0
        self.open: set[int] = set()
        self.pending: set[int] = set()
        self.open_removed: set[int] = set()
        self.pending_removed: set[int] = set()
        self.displaced_by_records: set[int] = set()

    @property
    def needs_room(self) -> bool:
        return not self.free and len(self.rows) == self.room

    @property
    def next_room(self) -> int:
        if self.room >= self.chunk_rows:
            return self.room + self.chunk_rows
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
