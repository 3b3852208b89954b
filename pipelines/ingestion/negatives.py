"""Draws negatives: copies of a positive row with the item of another, whose label is 0.

The items are drawn from a pool of at most POOL_ROWS rows to train on: any of them, so that an item
is as likely as it is frequent, or one of each distinct item. Each divided part keeps the rows of
the smallest hashes; those of all parts are the pool. So memory is bounded, and the draw depends on
the input and the seed only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedps.data.dataset import MISSING_ID
from embedps.errors import UsageError
from embedps.features.table_schema import Table
from embedps.splitmix import GOLDEN, mix, seed_hashes
from embedps.storage.file_io import replacing

from .work_dir import WorkDir

POOL_ROWS = 1 << 16
_HASH = "_hash"
_TRIES = 16


@dataclass(frozen=True, kw_only=True)
class NegativeRule:
    """How negatives are drawn.

    Attributes:
      per_row: of each positive row.
      of: the item's column, then others that come from the same row as the item.
      by: popularity, or uniform over distinct items.
    """

    per_row: int
    of: tuple[str, ...]
    by: str
    seed: int = 0

    def with_joined(self, table: Table) -> NegativeRule:
        """Returns the rule with the columns that side tables give an item."""
        of = [*self.of]
        for name, join in table.joined.items():
            if join.on in of and name not in of:
                of.append(name)
        return replace(self, of=tuple(of))

    def check(self, table: Table) -> None:
        """Raises UsageError if the table lacks what the rule needs."""
        item, *others = (table.column(name) for name in self.of)
        if item.role != "categorical":
            raise UsageError(f"--negatives-of {item.name} must be a categorical column")
        for column in others:
            if column.role in ("label", "weight", "timestamp", "ignore") or column.history:
                raise UsageError(
                    f"--negatives-of {column.name} must be a column of the item's values"
                )
        labels = [column for column in table.columns if column.role == "label"]
        if len(labels) != 1 or labels[0].task != "binary":
            raise UsageError(
                "--negatives needs one label in the schema, a binary one; for rows that are all "
                'positive, declare it with as = "label", value = 1'
            )


class PoolWriter:
    """Keeps those of a part's rows to train on that may be in the pool."""

    def __init__(self, rule: NegativeRule, table: Table, work: WorkDir, index: int) -> None:
        self._rule, self._work, self._index = rule, work, index
        fields = [table.row_schema.field(name) for name in rule.of]
        self._schema = pa.schema([*fields, pa.field(_HASH, pa.uint64(), nullable=False)])
        label = table.role("label")
        self._label = "" if label is None else label.name
        self._pool = self._schema.empty_table()
        self._num_rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds rows to train on."""
        first = (self._index << 44) + self._num_rows
        self._num_rows += rows.num_rows
        ids = rows.column(self._rule.of[0]).to_numpy()
        values = ids.view(np.uint64)
        if self._rule.by == "popularity":
            values = np.arange(first, first + rows.num_rows, dtype=np.uint64)
        hashes = mix(values * np.uint64(GOLDEN) ^ seed_hashes(self._rule.seed, 1)[0])
        taken = pa.array((ids != MISSING_ID) & (rows.column(self._label).to_numpy() > 0.5))
        columns = [*(rows.column(name) for name in self._rule.of), pa.array(hashes)]
        found = pa.record_batch(columns, schema=self._schema).filter(taken)
        self._pool = _smallest(pa.concat_tables([self._pool, pa.Table.from_batches([found])]))

    def finish(self) -> None:
        """Writes the part's rows."""
        path = self._work.pool(self._index)
        with replacing(path) as temporary, pa.ipc.new_file(str(temporary), self._schema) as out:
            out.write_table(self._pool)


def _smallest(pool: pa.Table) -> pa.Table:
    """Keeps the rows of the smallest hashes, the first of each."""
    _, firsts = np.unique(pool.column(_HASH).to_numpy(), return_index=True)
    return pool.take(pa.array(firsts[:POOL_ROWS])).combine_chunks()


def join_pools(work: WorkDir, indexes: Sequence[int]) -> bool:
    """Makes the pool of those of all parts, in their order; returns whether negatives can be drawn.

    They can if there are two items.
    """
    pool: pa.Table | None = None
    for index in indexes:
        with pa.memory_map(str(work.pool(index))) as source:
            found = pa.ipc.open_file(source).read_all()
            pool = _smallest(found if pool is None else pa.concat_tables([pool, found]))
    if pool is None or len(np.unique(pool.column(0).to_numpy())) < 2:
        return False
    with (
        replacing(work.joined_pool) as temporary,
        pa.ipc.new_file(str(temporary), pool.schema) as out,
    ):
        out.write_table(pool)
    return True


class NegativeDrawer:
    """Draws the negatives of one part's rows."""

    def __init__(self, rule: NegativeRule, table: Table, work: WorkDir, index: int) -> None:
        self._rule = rule
        with pa.memory_map(str(work.joined_pool)) as source:
            self._pool = pa.ipc.open_file(source).read_all().combine_chunks()
        self._items = self._pool.column(0).to_numpy()
        label = table.role("label")
        self._label = "" if label is None else label.name
        self._first = index << 44

    def draw(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Draws for the positive rows; a negative's item is another than its row's."""
        labels = rows.column(self._label).to_numpy()
        positives = np.repeat(np.flatnonzero(labels > 0.5), self._rule.per_row)
        places = np.arange(self._first, self._first + len(positives), dtype=np.uint64)
        self._first += len(positives)
        own = rows.column(self._rule.of[0]).to_numpy()[positives]
        seed = seed_hashes(self._rule.seed, 1)[0]
        drawn = self._place(mix(places * np.uint64(GOLDEN) ^ seed))
        for number in range(1, _TRIES):
            again = np.flatnonzero(self._items[drawn] == own)
            drawn[again] = self._place(mix(mix(places[again]) + np.uint64(number)))
        for at in np.flatnonzero(
            self._items[drawn] == own
        ):  # few items, or one that most rows have
            others = np.flatnonzero(self._items != own[at])
            drawn[at] = others[int(mix(places[at : at + 1].copy())[0]) % len(others)]
        made = rows.take(pa.array(positives))
        for name in self._rule.of:
            at = made.schema.get_field_index(name)
            values = self._pool.column(name).combine_chunks().take(pa.array(drawn))
            made = made.set_column(at, made.schema.field(at), values)
        at = made.schema.get_field_index(self._label)
        zeros = pa.array(np.zeros(len(drawn), np.float32))
        return made.set_column(at, made.schema.field(at), zeros)

    def _place(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        return (hashes % np.uint64(len(self._items))).astype(np.int64)
