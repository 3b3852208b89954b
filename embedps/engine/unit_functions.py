"""Makes the functions that run on workers: train a unit, score a unit."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator

from embedps.console.tf_logging import op_error_text
from embedps.data.unit_reader import Batch, UnitInput
from embedps.engine.kept_examples import KeptExamples
from embedps.engine.step_model import StepModel
from embedps.engine.steps import ways
from embedps.engine.steps.collectives import CollectiveExchange
from embedps.engine.steps.group_watch import GroupWatch
from embedps.engine.steps.grouped import DenseGroups, FullGroups, GroupExchange
from embedps.engine.steps.in_process import LocalExchange
from embedps.engine.steps.interface import (
    NO_CLIP,
    ClipNorms,
    Computed,
    StepExchange,
    StepInputs,
    StepParts,
    UnitFunction,
    gradients_of,
    next_batch,
    sum_counts,
)
from embedps.engine.steps.replicas import ReplicaExchange
from embedps.engine.steps.servers import RemoteExchange
from embedps.engine.steps.step_logs import StepLogs
from embedps.engine.steps.step_workers import StepWorkers
from embedps.engine.steps.summed import DenseExchange, FullExchange
from embedps.engine.steps.unit_parts import Step, StepPart, open_rank
from embedps.engine.steps.ways import Place, SyncMode, Way
from embedps.errors import DatasetError, ServerLostError, UsageError
from embedps.metrics import Counts
from embedps.tables.collection import EmbeddingCollection

Begin = Callable[[Batch, int, int], StepInputs]
"""Begins a batch's part of a step: which step of the loop's iteration, and which lane's part."""


EXCHANGES: dict[Way, Callable[[StepParts], StepExchange[Any]]] = {
    ways.ONE_PROCESS: LocalExchange,
    ways.REPLICAS: ReplicaExchange,
    ways.ASYNCHRONOUS: RemoteExchange,
    ways.HYBRID: DenseExchange,
    ways.IN_STEP: FullExchange,
    ways.HYBRID_GROUPS: DenseGroups,
    ways.IN_GROUPS: FullGroups,
    ways.COLLECTIVES: CollectiveExchange,
}
"""How steps exchange, by the way in which they are taken."""


def make_train_unit(
    model: StepModel,
    optimizer: Any,
    collection: EmbeddingCollection,
    strategy: tf.distribute.Strategy,
    unit_input: UnitInput,
    *,
    overlap: bool = False,
    clip: ClipNorms = NO_CLIP,
    logs: StepLogs | None = None,
    sync: SyncMode = "none",
    backup_workers: int | None = None,
    replicas: int = 1,
    mirrored: tf.distribute.MirroredStrategy | None = None,
    workers: StepWorkers | None = None,
) -> UnitFunction:
    """Makes the function that trains on a unit.

    The function loops over all batches of the unit in one call; one call per step reaches 0.77 of
    that throughput. Each step looks up rows on their shards, runs the network forward and backward,
    and applies the summed gradients of the rows and those of the network. `steps.ways` has the ways
    in which that is done.

    With `overlap` on a cluster, a step requests its rows and variables before the step before it
    ends, so that the worker computes while the servers look up. So these values lack the gradients
    of that one step, and those that other workers have not sent yet. The first step of a loop
    iteration starts after all steps of the iteration before.

    Args:
      model: made in the strategy's scope; with `workers`, the same on all of them.
      optimizer: a Keras optimizer of the model's variables, its own variables made.
      collection: the tables; with `workers`, a shard for each.
      overlap: request the next step's rows and variables while a step computes; has no effect in
        one process.
      clip: limits the gradients of a batch.
      logs: get the parameter servers' logs; by default nobody reads them.
      sync: what workers update together, in steps that each has a part of.
      backup_workers: how many of the workers a step does not wait for, if sync is not "none"; None
        waits for all, and for a lost one until its part is trained again.
      replicas: batches per step of this process. The last step of a unit may have fewer.
      mirrored: has as many replicas, which compute the batches; None computes them on this device.
      workers: exchange by collectives; all must call the function with the same arguments.

    Returns:
      A tf.function of (path string, first_row, num_rows, seed, first_step: int64 scalars,
      learning_rate float32 scalar; a factor if the model has a schedule) that returns the
      Counts of the predictions made before each update; with `workers`, those of all. If a step
      waits on servers for all workers, it has three more int64 scalars: rank, num_ranks and after.
      It then trains on a rank's part of the unit, as `unit_parts` divides it, and begins once the
      step `after` is applied, or at once if that is negative. Each rank of a unit gets the same
      other arguments.

    Raises:
      UsageError: these do not go together, or the optimizer cannot take its gradients so.
    """
    on_servers = collection.devices[0].startswith("/job:ps")
    place: Place = "workers" if workers else "servers" if on_servers else "process"
    in_groups = backup_workers is not None
    way = ways.way_of(place=place, replicas=replicas, sync=sync, in_groups=in_groups)
    way.check({"overlap": True} if overlap else {}, place)
    parts = StepParts(
        model, optimizer, collection, logs, backup_workers or 0, workers, replicas, mirrored
    )
    exchange: Any = EXCHANGES[way](parts)
    if isinstance(exchange, GroupExchange) and logs is not None:
        logs.groups = GroupWatch(exchange, strategy)
    row_rate = model.row_rates()
    steps_ahead = 1 if overlap else 0

    def compute(batch: Batch, inputs: StepInputs) -> Computed:
        return gradients_of(exchange, model, batch, inputs, clip)

    def train_steps(steps: list[list[Batch]], begin: Begin) -> Counts:
        """Takes steps in sequence, of the lanes' batches."""
        counts: Counts | None = None
        requested: list[list[tuple[Batch, StepInputs]]] = []
        for k in range(len(steps)):
            for j in range(len(requested), min(k + steps_ahead + 1, len(steps))):
                requested.append([(b, begin(b, j, lane)) for lane, b in enumerate(steps[j])])
            for later in steps[1:] if k == 0 else []:
                for batch in later:
                    exchange.read_ahead(batch.columns)
            more = exchange.take(requested[k], compute)
            counts = more if counts is None else sum_counts([counts, more])
        return model.zero_counts(training=True) if counts is None else counts

    def train_last(readers: list[tf.Tensor], begin: Begin, num_parts: tf.Tensor) -> Counts:
        """Takes a step that has fewer parts than there are lanes."""

        def begin_lane(lane: int) -> tuple[Batch, StepInputs]:
            batch = next_batch(unit_input, readers[lane], model)
            return batch, begin(batch, 0, lane)

        begins = [functools.partial(begin_lane, lane) for lane in range(len(readers) - 1)]
        counts: Counts = exchange.take_last(begins, compute, num_parts)
        return counts

    def train_all(
        readers: list[tf.Tensor], num_steps: tf.Tensor, begin_at: Callable[[tf.Tensor], Begin]
    ) -> Counts:
        """Takes all steps that have a part of each lane."""
        counts, done = model.zero_counts(training=True), tf.zeros([], tf.int64)
        # Several steps per iteration: each iteration costs messages to and from each server.
        for size in dict.fromkeys([exchange.steps_per_iteration, 1]):
            num_whole = num_steps // size * size
            for i in tf.range(done, num_whole, size):
                steps = [[next_batch(unit_input, r, model) for r in readers] for _ in range(size)]
                more = strategy.run(train_steps, args=(steps, begin_at(i)))
                counts = sum_counts([counts, more])
            done = num_whole
        return counts

    @tf.function
    def train_unit(
        path: tf.Tensor,
        first_row: tf.Tensor,
        num_rows: tf.Tensor,
        seed: tf.Tensor,
        first_step: tf.Tensor,
        learning_rate: tf.Tensor,
        *ranks: tf.Tensor,
    ) -> Counts:
        first_rank, num_ranks, after = exchange.ranks or ranks
        own_ranks = [first_rank + lane for lane in range(exchange.num_lanes)]
        unit = (unit_input, path, first_row, num_rows, seed)
        opened = [open_rank(*unit, rank=rank, num_ranks=num_ranks) for rank in own_ranks]
        own, _ = opened[-1]  # no lane has fewer batches
        readers = [reader for _, reader in opened]

        def begin(first: tf.Tensor, batch: Batch, k: int, lane: int) -> StepInputs:
            rank = own_ranks[lane]
            before = (first + k) * num_ranks  # batches of the unit
            number = first_step + before
            part = StepPart(
                rank=rank,
                num_parts=tf.minimum(tf.cast(num_ranks, tf.int64), own.unit_batches - before),
                num_rows=batch.num_rows,
                after=tf.where(before > 0, number - num_ranks, after),
            )
            rate = row_rate(number, learning_rate)
            begun: StepInputs = exchange.begin(batch.columns, Step(number + rank, rate, part))
            return begun

        num_steps = own.num_batches
        if exchange.all_take_each_step:
            num_steps = -(-own.unit_batches // num_ranks)
        entered = exchange.enter_unit()
        counts = train_all(readers, num_steps, lambda i: functools.partial(begin, i))
        if exchange.num_lanes > 1 and own.unit_batches % num_ranks > 0:
            begin_last = functools.partial(begin, num_steps)
            more = train_last(readers, begin_last, own.unit_batches % num_ranks)
            counts = sum_counts([counts, more])
        strategy.run(exchange.leave_unit, args=(entered, first_step + own.num_batches - 1))
        total: Counts = exchange.total(counts)
        return total

    return train_unit  # type: ignore[no-any-return]


def make_eval_unit(
    model: StepModel,
    collection: EmbeddingCollection,
    unit_input: UnitInput,
    kept: KeptExamples | None = None,
) -> UnitFunction:
    """Makes the function that scores a unit; it creates no rows and changes no state.

    Args:
      unit_input: reads the model's columns, or those of `kept`.
      kept: what to keep of each example; None is nothing.

    Returns:
      A tf.function of (path string, first_row, num_rows: int64 scalars, and the tensors that
      `StepModel.encode_candidates` returns) that returns its Counts. What is kept is among them.
    """
    dtypes = {} if kept is None else kept.dtypes

    @tf.function
    def eval_unit(
        path: tf.Tensor, first_row: tf.Tensor, num_rows: tf.Tensor, *candidates: tf.Tensor
    ) -> Counts:
        reader = unit_input.open(path, first_row, num_rows)
        counts = model.zero_counts(training=False)
        num_batches = tf.cast(-(-num_rows // unit_input.batch_rows), tf.int32)
        parts = [
            tf.TensorArray(dtype, num_batches, element_shape=[None], infer_shape=False)
            for dtype in dtypes.values()
        ]
        for i in tf.range(num_batches):
            read = unit_input.next(reader)
            own = {n: v for n, v in read.columns.items() if kept is None or n not in kept.extra}
            batch = read._replace(columns=model.prepare(own, training=False))
            found = collection.lookup(batch.columns, insert=False)
            rows = collection.combine(found)
            _, more = model.count(batch, rows, training=False, candidates=candidates)
            counts = sum_counts([counts, more])
            if kept is not None:
                of_batch = kept.of(read.columns, batch.columns, rows, collection)
                parts = [p.write(i, of_batch[n]) for n, p in zip(dtypes, parts, strict=True)]
        return {**counts, **{n: p.concat() for n, p in zip(dtypes, parts, strict=True)}}

    return eval_unit  # type: ignore[no-any-return]


def unit_without_rows(path: str, num_ranks: int | None) -> tuple[tf.Tensor, ...]:
    """Makes arguments with which the function of `make_train_unit` trains nothing.

    Args:
      path: of a file of units.
      num_ranks: of workers that take steps together; None if they do not.
    """
    ranks = [] if num_ranks is None else [0, num_ranks, -1]
    made = [tf.constant(np.int64(n)) for n in (0, 0, 0, 0, *ranks)]
    return (tf.constant(path), *made[:4], tf.constant(np.float32(0)), *made[4:])


def explain(error: BaseException) -> BaseException:
    """Turns a unit's failure into the error that tells the user what happened."""
    # Cancelled: a function that ran beside the one that met the lost server.
    lost = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
    message = str(getattr(error, "message", error))
    # TensorFlow's words once a worker's return told it that a server is another process.
    is_stale = "contains an invalid device" in message
    if is_stale or isinstance(error, lost) or cluster_coordinator._is_ps_failure(error):
        why = op_error_text(message)[:200] or type(error).__name__
        return ServerLostError(f"a parameter server is lost ({why})")
    computed = re.search(r"initializer '[^']*' must [^\n]*", message)
    if isinstance(error, tf.errors.InvalidArgumentError) and computed is not None:
        return UsageError(computed[0])
    if isinstance(error, tf.errors.DataLossError) and "spill file" in error.message:
        return ServerLostError(op_error_text(error.message))
    wrong = tf.errors.DataLossError | tf.errors.NotFoundError | tf.errors.InvalidArgumentError
    if isinstance(error, wrong) and ".parquet" in error.message:
        return DatasetError(f"{op_error_text(error.message)}: make the dataset again")
    said = re.search(r"\[([^]]*(?: of dataset_fn | must be equally long )[^]]*)\]", message)
    if isinstance(error, tf.errors.InvalidArgumentError) and said is not None:
        return DatasetError(said[1])
    wrong_label = re.search(r"\[(label [^\]]* must be [^\]]*)\] \[but is\] \[([^\]]*)", str(error))
    if isinstance(error, tf.errors.InvalidArgumentError) and wrong_label is not None:
        said_label = f"{wrong_label[1]}, but is {wrong_label[2]}"
        return DatasetError(f"{said_label}: make the dataset again")
    if isinstance(error, tf.errors.OutOfRangeError):
        return DatasetError(
            "dataset_fn must give as many batches per epoch as it says, but its dataset ended "
            "early: set DatasetFunction(batches=...), or repeat the dataset"
        )
    if isinstance(error, tf.errors.DataLossError | tf.errors.NotFoundError):
        return DatasetError(op_error_text(error.message))
    return error
