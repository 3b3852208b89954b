"""Looks rows up in arrays by stock ops of TensorFlow, and combines them as training does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from embedps.layers.candidates import as_tensor
from embedps.layers.id_hash import mixed, unsigned
from embedps.serving.cuckoo import PLACES
from embedps.serving.row_arrays import RowStack
from embedps.serving.stock_hash import initial_rows, signed
from embedps.tables.activations import Activation, Ids
from embedps.tables.specs import FeatureSpec, TableSpec


class StockTables(tf.Module):
    """The rows of a checkpoint as variables, which are memory that the arrays share."""

    def __init__(self, stacks: Sequence[RowStack], tables: Sequence[TableSpec]) -> None:
        """Takes the arrays, which must not change any more, and the declarations of the tables."""
        super().__init__(name="tables")
        self._specs = {table.name: table for table in tables}
        self._stacks = [_StockStack(stack) for stack in stacks]
        self._stack_of = {name: at for at, each in enumerate(stacks) for name in each.tables}

    def lookup(
        self, features: Sequence[FeatureSpec], ids: Mapping[str, Ids]
    ) -> dict[str, Activation]:
        """Gives features' activations, as `EmbeddingCollection.combine` does.

        Args:
          features: whose `ids` are looked up.
          ids: by feature int64 [rows], or ragged int64 [rows, None]. Features may have other rows.
        """
        flat: dict[str, tf.Tensor] = {}
        splits: dict[str, tf.Tensor] = {}
        for f in features:
            value = ids[f.name]
            if isinstance(value, tf.RaggedTensor):
                value = value if f.max_length is None else value[:, -f.max_length :]
                flat[f.name], splits[f.name] = value.values, tf.cast(value.row_splits, tf.int64)
            else:
                flat[f.name] = value
        found: dict[str, Activation] = {}
        for at, stack in enumerate(self._stacks):
            mine = [f for f in features if self._stack_of[f.table_name] == at]
            if mine:
                of_tables = [self._specs[f.table_name] for f in mine]
                rows = stack.rows([flat[f.name] for f in mine], of_tables)
                for f, of_feature in zip(mine, rows, strict=True):
                    found[f.name] = _combine(f, of_feature, splits.get(f.name), stack.dim)
        return found

    def updates(self, table: str, ids: tf.Tensor) -> tf.Tensor:
        """Gives how many steps of training updated ids' rows, float32; 0 of an absent row.

        Args:
          table: of the rows, whose arrays have "updates".
          ids: int64 [n].
        """
        return self._stacks[self._stack_of[table]].updates(ids, self._specs[table])

    def steps(self, table: str) -> int:
        """Gives the steps of training in which a table's `updates` were counted."""
        return self._stacks[self._stack_of[table]].steps[table]


class _StockStack(tf.Module):
    """A RowStack's arrays as variables."""

    def __init__(self, stack: RowStack) -> None:
        super().__init__(name=f"dim{stack.dim}")
        self.dim = stack.dim
        self._tables = stack.tables
        self._ids = tf.Variable(as_tensor(stack.ids), trainable=False, name="ids")
        self._arrays = {
            name: tf.Variable(as_tensor(array), trainable=False, name=name)
            for name, array in stack.arrays.items()
        }
        self._absent = stack.ids.size
        self.steps = {name: each.steps for name, each in stack.tables.items()}

    def rows(self, ids: Sequence[tf.Tensor], tables: Sequence[TableSpec]) -> list[tf.Tensor]:
        """Gives the rows of several features' ids, float32 [n, dim].

        An absent id gives what its table declares.

        Args:
          ids: int64 [n], n for each feature.
          tables: each feature's table.
        """
        counts = [tf.size(each) for each in ids]
        places = self._places(ids, tables)
        split = tf.split(self._at(places), tf.stack(counts), num=len(ids))
        of_features = tf.split(places, tf.stack(counts), num=len(ids))
        return [
            self._or_initial(rows, each, at, table) if table.absent == "initial" else rows
            for rows, each, at, table in zip(split, ids, of_features, tables, strict=True)
        ]

    def updates(self, ids: tf.Tensor, table: TableSpec) -> tf.Tensor:
        """Gives how many steps updated each row, float32 [n]."""
        return tf.gather(self._arrays["updates"], self._places([ids], [table]))

    def _or_initial(
        self, rows: tf.Tensor, ids: tf.Tensor, places: tf.Tensor, table: TableSpec
    ) -> tf.Tensor:
        is_absent = tf.equal(places, tf.constant(self._absent, tf.int64))
        return tf.where(is_absent[:, None], _as_held(initial_rows(table, ids), table), rows)

    def _places(self, of_features: Sequence[tf.Tensor], tables: Sequence[TableSpec]) -> tf.Tensor:
        """Gives the place of each id of all features; that of the row of zeros for an absent id."""
        ranges = [self._tables[table.name] for table in tables]
        of_feature = np.array(
            [
                [
                    signed(r.id_hash.multiplier),
                    signed(r.id_hash.summand),
                    r.num_buckets,
                    r.first_bucket,
                ]
                for r in ranges
            ],
            np.int64,
        )
        ids = tf.concat(of_features, axis=0)
        counts = tf.stack([tf.size(each) for each in of_features])
        of_id = tf.repeat(tf.constant(of_feature), counts, axis=0)
        multiplier, summand, count, _ = tf.unstack(tf.bitcast(of_id, tf.uint64), axis=1)
        first_bucket = of_id[:, 3]
        hashes = mixed(tf.bitcast(ids, tf.uint64) * multiplier + summand)
        half = tf.constant(32, tf.uint64)
        shift = tf.bitwise.right_shift
        halves = (shift(hashes, half), tf.bitwise.bitwise_and(hashes, unsigned(0xFFFF_FFFF)))
        buckets = tf.stack([tf.bitcast(shift(x * count, half), tf.int64) for x in halves], axis=1)
        buckets += first_bucket[:, None]
        there = tf.gather(self._ids, buckets)  # [n, 2, PLACES]
        places = buckets[:, :, None] * PLACES + tf.range(PLACES, dtype=tf.int64)
        is_here = tf.equal(there, ids[:, None, None])
        return tf.reduce_min(tf.where(is_here, places, tf.constant(self._absent, tf.int64)), [1, 2])

    def _at(self, places: tf.Tensor) -> tf.Tensor:
        """Gives the rows at places, float32 [n, dim]."""
        if "codes" in self._arrays:
            codes = tf.cast(tf.gather(self._arrays["codes"], places), tf.float32)
            scale, offset = tf.split(tf.gather(self._arrays["scales"], places), 2, axis=1)
            return offset + scale * codes
        rows = tf.gather(self._arrays["rows"], places)
        return (
            rows if rows.dtype == tf.float32 else tf.cast(tf.bitcast(rows, tf.bfloat16), tf.float32)
        )


def _as_held(values: tf.Tensor, table: TableSpec) -> tf.Tensor:
    """Rounds to the nearest that a table's rows have, as its memory does."""
    if table.row_dtype == "float32":
        return values
    dtype = tf.as_dtype(table.row_dtype)
    return tf.cast(tf.cast(tf.clip_by_value(values, dtype.min, dtype.max), dtype), tf.float32)


# By combiner, what a sum of so many rows is divided by.
_DIVISORS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "mean": tf.identity,
    "sqrtn": tf.sqrt,
}


def _combine(
    feature: FeatureSpec, rows: tf.Tensor, splits: tf.Tensor | None, dim: int
) -> Activation:
    """Combines rows in the order of kernels/lookup/combiner.cc, so that sums have its bits."""
    if splits is None:
        return rows
    if feature.keeps_rows:
        lists = tf.RaggedTensor.from_row_splits(rows, splits, validate=False)
        if feature.max_length is None:
            return lists
        return lists.to_tensor(shape=[None, feature.max_length, dim])
    lengths = splits[1:] - splits[:-1]
    of_row = tf.repeat(tf.range(tf.size(lengths)), lengths)
    sums = tf.math.unsorted_segment_sum(rows, of_row, tf.size(lengths))
    if feature.combiner == "sum":
        return sums
    # In float64, and rounded after each operation: the bits of float32, by whatever instruction.
    count = tf.cast(tf.maximum(lengths, 1), tf.float64)
    divisor = tf.cast(tf.cast(_DIVISORS[feature.combiner](count), tf.float32), tf.float64)
    return sums * tf.cast(1 / divisor, tf.float32)[:, None]
