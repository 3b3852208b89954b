"""Typed wrappers of the kernels' ops. They add only names, types and the gradient."""

import contextlib
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


def merge_rows(parts: Sequence[RowPart], num_examples: tf.Tensor) -> RowPart:
    """Merges the parts of a step, by rank.

    An id's gradient is the sum over the ranks that have it, in rank order and in float32, of the
    rank's share of the examples times its gradient. The counts of examples are summed; an id is
    absent if it is for a rank.

    Args:
      parts: by rank.
      num_examples: int64 [num parts]; a rank without examples is left out.

    Returns:
      All ids, by table in order of first appearance: rank after rank.
    """
    inputs = part_inputs(parts)
    out = kernels.load().embedps_merge_rows(
        num_examples=num_examples, num_counts=1 if inputs.pop("counted") else 0, **inputs
    )
    return RowPart(*out[:3], *(merged[0] for merged in out[3:] if merged))


def merge_dense(values: Sequence[tf.Tensor], num_examples: tf.Tensor) -> tf.Tensor:
    """Sums values over ranks as `merge_rows` sums gradients.

    Args:
      values: by rank, float32 of one shape.
      num_examples: int64 [num ranks]; a rank without examples is left out.
    """
    return kernels.load().embedps_merge_dense(num_examples=num_examples, values=list(values))


def pack(parts: Sequence[tf.Tensor], wire_dtypes: Sequence[tf.DType] | None = None) -> tf.Tensor:
    """Packs tensors into one. Each tensor that is sent to another task costs an RPC.

    Args:
      parts: float32, bfloat16, int32 or int64 of any shapes.
      wire_dtypes: the dtype to send each part as, by default its own. A float32 may be sent as
        bfloat16, rounded to the nearest.

    Returns:
      uint8 [n].
    """
    types = [part.dtype for part in parts]
    return kernels.load().embedps_pack(parts=list(parts), wire_types=list(wire_dtypes or types))


def unpack(message: tf.Tensor, specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
    """Returns the parts of a message of `pack`, in place; widens what was sent as bfloat16.

    Args:
      message: uint8 [n].
      specs: dtype and shape of each part, as it was packed.

    Raises:
      tf.errors.InvalidArgumentError: the message has other parts, or is no message.
    """
    return list(
        kernels.load().embedps_unpack(
            message=message, types=[s.dtype for s in specs], shapes=[s.shape for s in specs]
        )
    )


def send(parts: Sequence[tf.Tensor | None], to: str | None, *, at: str | None = None) -> list[Any]:
    """Sends tensors to another device in one message.

    Args:
      parts: as `pack` takes them, or None.
      to: the device; None is the current one.
      at: where the parts are; None is the current device.

    Returns:
      The tensors there, and None where a part is.
    """
    sent = [part for part in parts if part is not None]
    with contextlib.nullcontext() if at is None else tf.device(at):
        message = pack(sent)
    with contextlib.nullcontext() if to is None else tf.device(to):
        there = iter(unpack(message, [tf.TensorSpec(part.shape, part.dtype) for part in sent]))
        return [None if part is None else next(there) for part in parts]


def step_log(*, container: str, shared_name: str) -> tf.Tensor:
    """Finds or creates a log of applied steps on the current device."""
    return kernels.load().embedps_step_log(container=container, shared_name=shared_name)


def step_is_new(log: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """Tells whether a step, int64 in [0, 2^32), is not in a log: a bool scalar."""
    return kernels.load().embedps_step_is_new(log, step)


def steps_seen(log: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
    """Counts the steps in a log, an int64 scalar, as a step begins."""
    return kernels.load().embedps_steps_seen(log, step)


def step_applied(
    log: tf.Tensor, step: tf.Tensor, *, worker: tf.Tensor, seen: tf.Tensor
) -> tf.Operation:
    """Adds a step to a log.

    Args:
      log: as `step_log` returns it.
      step: int64 scalar in [0, 2^32).
      worker: the index of the worker's task, int64 scalar.
      seen: as `steps_seen` returned it when the worker's request was answered.
    """
    return kernels.load().embedps_step_applied(log, step, worker, seen)


def await_step(log: tf.Tensor, step: tf.Tensor, *, after: tf.Tensor) -> tf.Tensor:
    """Waits until a log has the step `after`, int64 scalar; not if that is negative.

    Args:
      log: as `step_log` returns it.
      step: int64 scalar in [0, 2^32). If the log has it, there is nothing to wait for.
      after: the number of the step to wait for, or -1.

    Returns:
      How many steps the log then has, an int64 scalar.
    """
    return kernels.load().embedps_await_step(log, step, after)


def add_part(
    log: tf.Tensor,
    number: tf.Tensor,
    *,
    num_parts: tf.Tensor,
    rank: tf.Tensor,
    num_rows: tf.Tensor,
    worker: tf.Tensor,
    seen: tf.Tensor,
    rows: Sequence[RowPart],
    dense: Sequence[tf.Tensor],
) -> Any:
    """Adds a part of a step that several workers take together.

    The first part of a number counts; that of a step in the log is ignored. The caller whose part
    completes the step gets the merged parts and applies them; then it calls `step_taken`.

    Args:
      log: as `step_log` returns it.
      number: the part's, int64 scalar in [0, 2^32); the step's number and the rank.
      num_parts: of the step, int64 scalar.
      rank: int64 scalar in [0, num_parts).
      num_rows: of the part's batch, int64 scalar; floats are weighted by it.
      worker: as in `step_applied`.
      seen: as in `step_applied`.
      rows: per store, those that have gradients.
      dense: float32, int32 or int64 of any shapes. Whole numbers are summed without weights.

    Returns:
      is_complete, a bool scalar; the turn to apply the step; what `merged_parts` takes; and
      `merged_dense`. If not is_complete, there are no ids, and the dense tensors are the caller's
      own.
    """
    return kernels.load().embedps_add_part(
        log=log,
        part=number,
        num_parts=num_parts,
        rank=rank,
        num_rows=num_rows,
        worker=worker,
        seen=seen,
        dense=list(dense),
        **part_inputs(rows),
    )


def part_inputs(parts: Sequence[RowPart]) -> dict[str, Any]:
    """Makes the inputs by which ops take the rows of parts; `counted` says which have counts."""
    counted = [i for i, part in enumerate(parts) if part.absent is not None]
    return {
        "ids": [part.ids for part in parts],
        "splits": [part.splits for part in parts],
        "gradients": [part.gradients for part in parts],
        "examples": [parts[i].examples for i in counted],
        "absent": [parts[i].absent for i in counted],
        "counted": counted,
    }


def merged_parts(found: Any, parts: Sequence[RowPart]) -> list[RowPart]:
    """Gives the merged rows of what `add_part` returned for these parts."""
    counts = iter(zip(found.merged_examples, found.merged_absent, strict=True))
    rows = zip(found.merged_ids, found.merged_splits, found.merged_gradients, strict=True)
    return [
        RowPart(*merged, *(() if part.absent is None else next(counts)))
        for merged, part in zip(rows, parts, strict=True)
    ]


def step_taken(log: tf.Tensor, is_complete: tf.Tensor, turn: tf.Tensor) -> tf.Operation:
    """Logs all parts of a step that the caller has applied; nothing if not is_complete.

    Args:
      log: as `step_log` returns it.
      is_complete: as `add_part` returned it.
      turn: as `add_part` returned it.
    """
    return kernels.load().embedps_step_taken(log, is_complete, turn)


def open_steps(log: tf.Tensor) -> tf.Tensor:
    """Lists the parts of steps that lack some.

    Returns:
      int64 [n, 3], sorted: the step, the rank, and the worker that brought the part; -1 if none
      has.
    """
    return kernels.load().embedps_open_steps(log)


def step_enter(log: tf.Tensor, worker: tf.Tensor, *, most: int) -> tf.Operation:
    """Waits until a worker's step may begin.

    Args:
      log: as `step_log` returns it.
      worker: the index of the worker's task, int64 scalar. A step that it left under way is
        forgotten.
      most: a step meets at most so many others: those under way when it begins, and those that
        begin before it leaves.
    """
    return kernels.load().embedps_step_enter(log, worker, most=most)


def step_leave(log: tf.Tensor, worker: tf.Tensor) -> tf.Operation:
    """Ends the step of a worker that entered."""
    return kernels.load().embedps_step_leave(log, worker)


def staleness(log: tf.Tensor) -> tf.Tensor:
    """Counts the steps in a log by worker and staleness.

    Returns:
      int64 [n, 3], sorted: the worker, the staleness (how many steps the log got between the step's
      `steps_seen` and its `step_applied`), and the number of steps.
    """
    return kernels.load().embedps_staleness(log)


def task_index() -> tf.Tensor:
    """Gives the index of the task that computes it, an int64 scalar."""
    return kernels.load().embedps_task_index()


def row_store(**attributes: Any) -> tf.Tensor:
    """Finds or creates a store on the current device; see `collection.py` for the attributes."""
    return kernels.load().embedps_row_store(**attributes)
