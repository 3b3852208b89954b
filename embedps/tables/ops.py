"""Wraps the ops of row stores. The wrappers add only names, types and the gradient."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from embedps import kernels


class RowPart(NamedTuple):
    """The rows of one group on one shard that a batch asks for, and what it adds to them.

    Attributes:
      ids: int64 [n], ordered by table, each id once per table.
      splits: int32 [num_tables + 1], where each table's ids begin.
      gradients: float32 [n, dim]; None before they are computed.
      examples: int32 [n], how many examples show each id; None if no table of the group has an
        admission.
      absent: as `lookup_shown` returns them; None if `examples` is, or before the lookup.
    """

    ids: tf.Tensor
    splits: tf.Tensor
    gradients: Any = None
    examples: tf.Tensor | None = None
    absent: tf.Tensor | None = None


class RoutedIds(NamedTuple):
    """A step's ids of one group, as `route` returns them.

    Attributes:
      shard_ids: per shard int64 [n], ordered by table, each id once per table.
      shard_splits: per shard int32 [num_tables + 1], where each table's ids begin.
      positions: per feature int32 [num ids], indexes into the shards' concatenated rows.
      shard_examples: per shard int32 [n], how many examples show each id; no shards if no table of
        the group has a policy of admission.
    """

    shard_ids: list[tf.Tensor]
    shard_splits: list[tf.Tensor]
    positions: list[tf.Tensor]
    shard_examples: list[tf.Tensor]

    def request(self, shard: int) -> RowPart:
        """Returns what a lookup asks of a shard."""
        examples = self.shard_examples[shard] if self.shard_examples else None
        return RowPart(self.shard_ids[shard], self.shard_splits[shard], examples=examples)


def route(
    ids: Sequence[tf.Tensor],
    *,
    feature_tables: Sequence[int],
    tables: Sequence[str],
    num_shards: int,
    row_splits: Sequence[tf.Tensor] = (),
    counted_tables: Sequence[bool] = (),
) -> RoutedIds:
    """Deduplicates ids by table and routes them to shards.

    Args:
      ids: per feature int64 [n].
      feature_tables: each feature's index in `tables`.
      tables: the group's table names; the routing hash depends on them.
      num_shards: the group's number of shards.
      row_splits: per feature int64 [batch + 1], or empty if every example has one id; only needed
        with `counted_tables`.
      counted_tables: the tables of which to count the examples that show each id: once per example,
        however often the example shows the id. Empty for none.
    """
    out = kernels.load().embedps_route(
        ids=list(ids),
        row_splits=list(row_splits) if counted_tables else [],
        feature_tables=feature_tables,
        tables=tables,
        counted_tables=counted_tables,
        num_shards=num_shards,
        num_counted_shards=num_shards if counted_tables else 0,
    )
    return RoutedIds(*(list(each) for each in out))


def keep_last(
    ids: tf.Tensor, row_splits: tf.Tensor, *, max_length: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Cuts lists of ids to their last `max_length` ids.

    Args:
      ids: int64 [n], the lists one after the other.
      row_splits: int64 [num_lists + 1], where each list begins.
      max_length: at least 1.

    Returns:
      The ids that remain, and their row splits.
    """
    out = kernels.load().embedps_keep_last(ids, row_splits, max_length=max_length)
    return out.kept, out.kept_splits


def lookup(
    store: tf.Tensor, ids: tf.Tensor, splits: tf.Tensor, *, dim: int, insert: bool
) -> tf.Tensor:
    """Reads rows on the store's device.

    Args:
      store: a resource, as `row_store` returns.
      ids: int64 [n], ordered by table, each id once per table.
      splits: int32 [num_tables + 1].
      dim: the group's dim.
      insert: create absent rows; otherwise they read as their table declares.

    Returns:
      float32 [n, dim].
    """
    return kernels.load().embedps_lookup(store, ids, splits, dim=dim, insert=insert)


def read_ahead(store: tf.Tensor, ids: tf.Tensor, splits: tf.Tensor) -> tf.Operation:
    """Begins to bring those of a coming lookup's rows into memory that are on disk, and returns.

    The arguments are as of `lookup`. Absent rows are not created.
    """
    return kernels.load().embedps_read_ahead(store, ids, splits)


def lookup_staged(
    store: tf.Tensor, staged: tf.Tensor, ids: tf.Tensor, splits: tf.Tensor, *, dim: int
) -> tf.Tensor:
    """Reads rows as `lookup` without insert will once staged records are applied.

    Args:
      store: a resource, as `row_store` returns.
      staged: of `StagedFiles.handles`.
      ids: as in `lookup`.
      splits: as in `lookup`.
      dim: the group's dim.

    Returns:
      float32 [n, dim].
    """
    return kernels.load().embedps_lookup_staged(store, staged, ids, splits, dim=dim)


def lookup_shown(
    store: tf.Tensor,
    ids: tf.Tensor,
    splits: tf.Tensor,
    examples: tf.Tensor,
    *,
    dim: int,
    step: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Reads a training step's rows on the store's device, if a table admits ids.

    Args:
      store: a resource, as `row_store` returns.
      ids: as in `lookup`.
      splits: as in `lookup`.
      examples: int32 [n], how many of the step's examples show each id.
      dim: the group's dim.
      step: int64 scalar in [0, 2^32).

    Returns:
      The rows, float32 [n, dim]; and uint8 [n], 1 for each id that `admit` decides about.
    """
    out = kernels.load().embedps_lookup_shown(store, ids, splits, examples, step, dim=dim)
    return out.rows, out.absent


def admit(
    store: tf.Tensor,
    ids: tf.Tensor,
    splits: tf.Tensor,
    examples: tf.Tensor,
    absent: tf.Tensor,
    *,
    step: tf.Tensor,
    is_new: tf.Tensor | bool = True,
) -> tf.Operation:
    """Counts the examples of absent ids and creates the rows of those that they admit.

    Args:
      store: a resource, as `row_store` returns.
      ids: as in `lookup`.
      splits: as in `lookup`.
      examples: as in `lookup_shown`.
      absent: as `lookup_shown` returns.
      step: as in `lookup_shown`.
      is_new: bool scalar; if false, nothing changes.
    """
    return kernels.load().embedps_admit(store, ids, splits, examples, absent, step, is_new)


def update_rates(store: tf.Tensor, ids: tf.Tensor, splits: tf.Tensor) -> tf.Tensor:
    """Estimates of each id the share of steps that update its row, on the store's device.

    It is Laplace's rule of succession: (updates + 1) / (steps + 2).

    Args:
      store: a resource, as `row_store` returns.
      ids: as in `lookup`.
      splits: as in `lookup`.

    Returns:
      float32 [n], in (0, 1).
    """
    return kernels.load().embedps_update_rates(store, ids, splits)


def update(
    store: tf.Tensor,
    ids: tf.Tensor,
    splits: tf.Tensor,
    gradients: tf.Tensor,
    *,
    learning_rate: tf.Tensor,
    step: tf.Tensor,
    is_new: tf.Tensor | bool = True,
) -> tf.Operation:
    """Applies summed gradients to the rows that exist.

    Args:
      store: a resource, as `row_store` returns.
      ids: as in `lookup`.
      splits: as in `lookup`.
      gradients: float32 [n, dim].
      learning_rate: float32 scalar.
      step: int64 scalar in [0, 2^32).
      is_new: bool scalar; if false, the rows stay unchanged.
    """
    return kernels.load().embedps_update(store, ids, splits, gradients, learning_rate, step, is_new)


def keep_rows(
    kept: tf.Tensor, ids: tf.Tensor, splits: tf.Tensor, gradients: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Leaves out the ids and gradients of rows that an update must not change.

    Args:
      kept: bool [n].
      ids: as in `update`.
      splits: as in `update`.
      gradients: as in `update`.

    Returns:
      The ids, splits and gradients of those that stay.
    """
    before = tf.concat([[0], tf.cumsum(tf.cast(kept, tf.int32))], axis=0)
    return (
        tf.boolean_mask(ids, kept),
        tf.gather(before, splits),
        tf.boolean_mask(gradients, kept),
    )


def combine(
    rows: Sequence[tf.Tensor],
    positions: Sequence[tf.Tensor],
    row_splits: Sequence[tf.Tensor],
    *,
    combiners: Sequence[str],
    feature_tables: Sequence[int],
    lengths: Sequence[int] = (),
) -> list[tf.Tensor]:
    """Combines rows into one vector per feature and example; differentiable in the rows.

    Args:
      rows: per shard float32 [n, dim].
      positions: per feature int32 [num ids], indexes into the concatenated rows.
      row_splits: per feature int64 [batch + 1], or empty if every example has one id.
      combiners: per feature a `specs.Combiner`.
      feature_tables: per feature the index of its table; gradients are summed per table.
      lengths: per feature 0, or with combiner none the length to pad to; empty if all are 0.

    Returns:
      Per feature float32 [batch, dim]; zeros for an example without ids. With combiner none, a row
      per id: [num ids, dim], or padded with zeros [batch, length, dim].

    Raises:
      tf.errors.InvalidArgumentError: a list has more ids than the feature's length.
    """
    return list(
        kernels.load().embedps_combine(
            rows=list(rows),
            positions=list(positions),
            row_splits=list(row_splits),
            combiners=combiners,
            feature_tables=feature_tables,
            lengths=lengths,
        )
    )


@tf.RegisterGradient("EmbedpsCombine")
def _combine_gradient(op: tf.Operation, *upstream: tf.Tensor) -> list[tf.Tensor | None]:
    num_shards = op.get_attr("num_shards")
    num_features = op.get_attr("num_features")
    inputs = list(op.inputs)
    gradients = kernels.load().embedps_combine_grad(
        upstream=list(upstream),
        rows=inputs[:num_shards],
        positions=inputs[num_shards : num_shards + num_features],
        row_splits=inputs[num_shards + num_features :],
        combiners=op.get_attr("combiners"),
        feature_tables=op.get_attr("feature_tables"),
        lengths=op.get_attr("lengths"),
    )
    return [*gradients, *[None] * (2 * num_features)]


def row_store(**attributes: Any) -> tf.Tensor:
    """Finds or creates a store on the current device; see `collection.py` for the attributes."""
    return kernels.load().embedps_row_store(**attributes)
