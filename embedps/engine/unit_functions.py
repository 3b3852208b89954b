"""Makes the functions that run on workers: train a unit, score a unit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator

from embedps.console.tf_logging import op_error_text
from embedps.data.unit_reader import Batch, UnitReader
from embedps.engine.group_exchange import DenseGroups, FullGroups, GroupExchange
from embedps.engine.group_watch import GroupWatch
from embedps.engine.step_exchange import StepExchange, StepInputs, make_step_exchange
from embedps.engine.step_logs import StepLogs
from embedps.engine.step_model import StepModel
from embedps.engine.sync_exchange import DenseExchange, FullExchange, SyncMode
from embedps.engine.unit_parts import StepPart, rank_of_unit, rank_seed, whole_step
from embedps.errors import DatasetError, ServerLostError, UsageError
from embedps.metrics import Counts
from embedps.tables.collection import EmbeddingCollection

UnitFunction = Callable[..., Counts]
Begin = Callable[[Batch, int], StepInputs]
"""Begins the step of a batch; the number says which of the loop's iteration."""


class ClipNorms(NamedTuple):
    """Limits of the norms of a step's gradients; 0 is no limit.

    Attributes:
      rows: of each row's gradient.
      dense: of the network's gradients, all together (Pascanu et al. 2013, arXiv:1211.5063).
    """

    rows: float = 0.0
    dense: float = 0.0

    def __call__(self, rows: Any, dense: Any) -> tuple[Any, Any]:
        """Scales gradients down to the limits; keeps None where there is no gradient."""
        if self.rows:
            rows = tf.nest.map_structure(
                lambda g: None if g is None else tf.clip_by_norm(g, self.rows, axes=[1]), rows
            )
        if self.dense:
            flat, _ = tf.clip_by_global_norm(tf.nest.flatten(dense), self.dense)
            dense = tf.nest.pack_sequence_as(dense, flat)
        return rows, dense


NO_CLIP = ClipNorms()


def make_train_unit(
    model: StepModel,
    optimizer: Any,
    collection: EmbeddingCollection,
    strategy: tf.distribute.Strategy,
    unit_input: UnitReader,
    *,
    overlap: bool,
    clip: ClipNorms = NO_CLIP,
    logs: StepLogs | None = None,
    sync: SyncMode = "none",
    backup_workers: int | None = None,
) -> UnitFunction:
    """Makes the function that trains on a unit.

    The function loops over all batches of the unit in one call; one call per step reaches 0.77 of
    that throughput. Each step looks up rows on their shards, runs the network forward and backward,
    and applies the summed gradients of the rows and those of the network. With `sync` "none",
    workers do not wait for each other.

    With `overlap` on a cluster, a step requests its rows and variables before the step before it
    ends, so that the worker computes while the servers look up. So these values lack the gradients
    of that one step, and those that other workers have not sent yet. The first step of a loop
    iteration starts after all steps of the iteration before.

    Args:
      model: made in the strategy's scope.
      optimizer: a Keras optimizer of the model's variables, its own variables made.
      collection: the tables.
      strategy: the cluster's.
      unit_input: reads a unit's batches.
      overlap: request the next step's rows and variables while a step computes; has no effect in
        one process.
      clip: limits the gradients of a step.
      logs: get the parameter servers' logs; by default nobody reads them.
      sync: what workers update together, in steps that each has a part of.
      backup_workers: how many of the workers a step does not wait for, if sync is not "none"; None
        waits for all, and for a lost one until its part is trained again.

    Returns:
      A tf.function of (path string, first_row, num_rows, seed, first_step: int64 scalars,
      learning_rate float32 scalar; a factor if the model has a schedule) that returns the
      Counts of the predictions made before each update. If a step waits for all workers, it has
      three more int64 scalars: rank, num_ranks and after. It then trains on a rank's part of the
      unit, as `unit_parts` divides it, and begins once the step `after` is applied, or at once if
      that is negative. Each rank of a unit gets the same other arguments.

    Raises:
      UsageError: steps overlap, or there are no servers, with a sync that is not "none".
    """
    if overlap and sync != "none":
        raise UsageError(
            f"overlap must be off with sync {sync!r} but is on: a step begins once the step before "
            "is applied"
        )
    row_rate = model.row_rates()
    make_exchange: Callable[..., StepExchange] = make_step_exchange
    if backup_workers is not None:
        make_exchange = functools.partial(
            FullGroups if sync == "full" else DenseGroups, backup_workers=backup_workers
        )
    elif sync != "none":
        make_exchange = FullExchange if sync == "full" else DenseExchange
    exchange = make_exchange(
        model.model,
        optimizer,
        collection,
        state=model.state,
        wire_dtype=tf.as_dtype(model.recommender.wire_dtype),
        logs=logs,
    )

    waits_for_all = sync != "none" and backup_workers is None
    group = exchange if isinstance(exchange, GroupExchange) else None
    if group is not None and logs is not None:
        logs.groups = GroupWatch(group, strategy)

    def train_step(batch: Batch, inputs: StepInputs) -> Counts:
        with exchange.computing(inputs), tf.GradientTape() as tape:
            watched = (inputs.lookup.rows, inputs.weights)
            tape.watch(watched)
            activations = collection.combine(inputs.lookup)
            loss, counts = model.count(batch, activations, training=True)
        exchange.end(inputs, *clip(*tape.gradient(loss, watched)))
        return counts

    def next_batch(reader: tf.Tensor) -> Batch:
        batch = unit_input.next(reader)
        return batch._replace(columns=model.prepare(batch.columns, training=True))

    steps_ahead = 1 if overlap else 0

    def train_batches(batches: list[Batch], begin: Begin) -> Counts:
        counts: Counts | None = None
        requested: list[StepInputs] = []
        for k, batch in enumerate(batches):
            for j in range(len(requested), min(k + steps_ahead + 1, len(batches))):
                requested.append(begin(batches[j], j))
            more = train_step(batch, requested[k])
            counts = more if counts is None else _add(counts, more)
        return model.zero_counts(training=True) if counts is None else counts

    def train_all(
        reader: tf.Tensor, num_batches: tf.Tensor, begin_at: Callable[[tf.Tensor], Begin]
    ) -> Counts:
        counts = model.zero_counts(training=True)
        num_whole = num_batches // exchange.steps_per_iteration * exchange.steps_per_iteration
        # Several steps per iteration: each iteration costs messages to and from each server.
        for i in tf.range(0, num_whole, exchange.steps_per_iteration):
            batches = [next_batch(reader) for _ in range(exchange.steps_per_iteration)]
            counts = _add(counts, strategy.run(train_batches, args=(batches, begin_at(i))))
        if exchange.steps_per_iteration > 1:
            for i in tf.range(num_whole, num_batches):
                batches = [next_batch(reader)]
                counts = _add(counts, strategy.run(train_batches, args=(batches, begin_at(i))))
        return counts

    @tf.function
    def train_unit(
        path: tf.Tensor,
        first_row: tf.Tensor,
        num_rows: tf.Tensor,
        seed: tf.Tensor,
        first_step: tf.Tensor,
        learning_rate: tf.Tensor,
    ) -> Counts:
        def begin(first: tf.Tensor, batch: Batch, k: int) -> StepInputs:
            number = first + k
            rate = row_rate(number, learning_rate)
            part = None if group is None else whole_step(batch.num_rows)
            return exchange.begin(batch.columns, number=number, learning_rate=rate, part=part)

        reader = unit_input.open(path, first_row, num_rows, seed)
        num_batches = -(-num_rows // unit_input.batch_rows)
        member = None if group is None else group.enter_unit()
        counts = train_all(reader, num_batches, lambda i: functools.partial(begin, first_step + i))
        if group is not None:
            strategy.run(group.leave_unit, args=(member, first_step + num_batches - 1))
        return counts

    @tf.function
    def train_rank(
        path: tf.Tensor,
        first_row: tf.Tensor,
        num_rows: tf.Tensor,
        seed: tf.Tensor,
        first_step: tf.Tensor,
        learning_rate: tf.Tensor,
        rank: tf.Tensor,
        num_ranks: tf.Tensor,
        after: tf.Tensor,
    ) -> Counts:
        own = rank_of_unit(
            first_row, num_rows, batch_rows=unit_input.batch_rows, rank=rank, num_ranks=num_ranks
        )

        def begin(first: tf.Tensor, batch: Batch, k: int) -> StepInputs:
            before = (first + k) * num_ranks  # batches of the unit
            step = first_step + before
            part = StepPart(
                rank=rank,
                num_parts=tf.minimum(num_ranks, own.unit_batches - before),
                num_rows=batch.num_rows,
                after=tf.where(before > 0, step - num_ranks, after),
            )
            rate = row_rate(step, learning_rate)
            return exchange.begin(batch.columns, number=step + rank, learning_rate=rate, part=part)

        reader = unit_input.open(path, own.first_row, own.num_rows, rank_seed(seed, rank))
        return train_all(reader, own.num_batches, lambda i: functools.partial(begin, i))

    return train_rank if waits_for_all else train_unit  # type: ignore[no-any-return]


def make_eval_unit(
    model: StepModel,
    collection: EmbeddingCollection,
    unit_input: UnitReader,
) -> UnitFunction:
    """Makes the function that scores a unit; it creates no rows and changes no state.

    Returns:
      A tf.function of (path string, first_row, num_rows: int64 scalars, and the tensors that
      `StepModel.encode_candidates` returns) that returns its Counts.
    """

    @tf.function
    def eval_unit(
        path: tf.Tensor, first_row: tf.Tensor, num_rows: tf.Tensor, *candidates: tf.Tensor
    ) -> Counts:
        reader = unit_input.open(path, first_row, num_rows)
        counts = model.zero_counts(training=False)
        num_batches = -(-num_rows // unit_input.batch_rows)
        for _ in tf.range(num_batches):
            batch = unit_input.next(reader)
            batch = batch._replace(columns=model.prepare(batch.columns, training=False))
            found = collection.lookup(batch.columns, insert=False)
            rows = collection.combine(found)
            _, more = model.count(batch, rows, training=False, candidates=candidates)
            counts = _add(counts, more)
        return counts

    return eval_unit  # type: ignore[no-any-return]


def _add(counts: Counts, more: Counts) -> Counts:
    return {name: value + more[name] for name, value in counts.items()}


def explain(error: BaseException) -> BaseException:
    """Turns a unit's failure into the error that tells the user what happened."""
    # Cancelled: a function that ran beside the one that met the lost server.
    lost = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
    if isinstance(error, lost) or cluster_coordinator._is_ps_failure(error):
        why = op_error_text(str(getattr(error, "message", error)))[:200] or type(error).__name__
        return ServerLostError(f"a parameter server is lost ({why})")
    wrong = tf.errors.DataLossError | tf.errors.NotFoundError | tf.errors.InvalidArgumentError
    if isinstance(error, wrong) and ".parquet" in error.message:
        return DatasetError(f"{op_error_text(error.message)}: make the dataset again")
    if isinstance(error, tf.errors.DataLossError | tf.errors.NotFoundError):
        return DatasetError(op_error_text(error.message))
    return error
