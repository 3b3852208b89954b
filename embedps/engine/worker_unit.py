"""Makes the function that trains a unit on workers in step, which exchange by collectives.

Each worker has a shard of the rows and a copy of the network's variables. In a step, a worker:

    sends how many ids it asks of each worker     all-gather
    sends the ids to the workers that have them   all-to-all
    looks up what it was asked, sends the rows    all-to-all
    sends the gradients of rows, and its share    all-to-all
      of those of the network to each worker
    merges the parts in order of rank, updates
      its rows, sends the sums of its share       all-gather
    updates its copy of the variables

An all-to-all sends as much to each worker, so the lists are padded to the longest. The parts, the
order of the sums and the ops that update are those of `--replicas`, so the bits are too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from embedps.data.unit_reader import Batch, UnitReader
from embedps.engine.server_optimizer import make_remote_variables
from embedps.engine.step_model import StepModel
from embedps.engine.unit_functions import NO_CLIP, ClipNorms, UnitFunction
from embedps.engine.unit_parts import rank_of_unit, rank_seed
from embedps.engine.worker_group import WorkerGroup
from embedps.metrics import Counts
from embedps.tables import ops
from embedps.tables.collection import EmbeddingCollection, LookupResult

# The places of the program that exchange.
_COUNTS, _IDS, _ROWS, _GRADIENTS, _SUMS, _RESULTS = range(1, 7)  # 7 is the cluster's
_WHOLE = 8

_MULTIPLE = 512  # of ids; lists are padded to it


class _Asked(NamedTuple):
    """What a worker asks of this one in a group, and what it found.

    Attributes:
      request: ids, splits and, if counted, examples.
      absent: as `EmbeddingCollection.lookup_shown` gives it, if counted.
    """

    request: list[tf.Tensor]
    absent: tf.Tensor | None


class _Rows(NamedTuple):
    """A step's rows.

    Attributes:
      lookup: this worker's.
      num_rows: by rank int64 [size], the examples of each batch.
      lengths: by asking and asked worker and group int64 [size, size, num_groups].
      asked: by group and asking worker.
    """

    lookup: LookupResult
    num_rows: tf.Tensor
    lengths: tf.Tensor
    asked: list[list[_Asked]]


def make_worker_unit(
    model: StepModel,
    optimizer: Any,
    collection: EmbeddingCollection,
    unit_input: UnitReader,
    group: WorkerGroup,
    *,
    clip: ClipNorms = NO_CLIP,
) -> UnitFunction:
    """Makes the function that trains on a unit, a batch of each worker per step.

    Args:
      model: the same on all workers.
      optimizer: a Keras optimizer of the model's variables, its own variables made.
      collection: the tables, with a shard per worker. This worker uses that of its rank.
      unit_input: reads a worker's batches.
      group: the workers.
      clip: limits the gradients of each worker's part.

    Returns:
      A function as `make_train_unit` returns it. All workers must call it with the same arguments;
      it gives all the same counts, of the whole unit.

    Raises:
      UsageError: the optimizer cannot take its gradients so.
    """
    row_rate = model.row_rates()
    step = _WorkerStep(model, optimizer, collection, group, clip)

    @tf.function
    def train_unit(
        path: tf.Tensor,
        first_row: tf.Tensor,
        num_rows: tf.Tensor,
        seed: tf.Tensor,
        first_step: tf.Tensor,
        learning_rate: tf.Tensor,
    ) -> Counts:
        own = rank_of_unit(
            first_row,
            num_rows,
            batch_rows=unit_input.batch_rows,
            rank=group.rank,
            num_ranks=group.size,
        )
        reader = unit_input.open(path, own.first_row, own.num_rows, rank_seed(seed, group.rank))
        counts = model.zero_counts(training=True)
        for i in tf.range(0, own.unit_batches, group.size):
            batch = unit_input.next(reader)  # an empty one if this worker has no part
            batch = batch._replace(columns=model.prepare(batch.columns, training=True))
            number = first_step + i
            more = step.take(batch, number=number, rate=row_rate(number, learning_rate))
            counts = {name: value + more[name] for name, value in counts.items()}
        return sum_over_workers(group, counts, key=_RESULTS)

    return train_unit  # type: ignore[no-any-return]


def sum_over_workers(group: WorkerGroup, counts: Counts, *, key: int) -> Counts:
    """Adds all workers' counts, in order of rank."""
    flat = tf.concat([tf.reshape(tf.cast(v, tf.float64), [-1]) for v in counts.values()], 0)
    parts = tf.unstack(tf.reshape(group.all_gather(flat, key=key), [group.size, -1]))
    total = tf.add_n(parts)
    sizes = [v.shape.num_elements() for v in counts.values()]
    return {
        name: tf.cast(tf.reshape(part, old.shape), old.dtype)
        for (name, old), part in zip(counts.items(), tf.split(total, sizes), strict=True)
    }


class _WorkerStep:
    """A worker's part of a step."""

    def __init__(
        self,
        model: StepModel,
        optimizer: Any,
        collection: EmbeddingCollection,
        group: WorkerGroup,
        clip: ClipNorms,
    ) -> None:
        self._model = model
        self._collection = collection
        self._group = group
        self._clip = clip
        self._variables = make_remote_variables(model.model, optimizer, model.state)

    def take(self, batch: Batch, *, number: tf.Tensor, rate: tf.Tensor) -> Counts:
        """Looks rows up, computes, and updates; gives the counts of this worker's batch."""
        rows = self.look_up(batch, number=number)
        read = {device: self._variables.read(device) for device in self._variables.devices}
        weights, changes = self._variables.weights(read), []  # type: ignore[var-annotated]
        with (
            self._variables.using(weights),
            self._variables.carrying(read, changes),
            tf.GradientTape() as tape,
        ):
            watched = (rows.lookup.rows, weights)
            tape.watch(watched)
            activations = self._collection.combine(rows.lookup)
            loss, counts = self._model.count(batch, activations, training=True)
        row_gradients, gradients = self._clip(*tape.gradient(loss, watched))
        updates = self._variables.updates(gradients, read, changes)
        self.update(rows, row_gradients, updates, number=number, rate=rate)
        has_part = batch.num_rows > 0
        return {name: tf.where(has_part, v, tf.zeros_like(v)) for name, v in counts.items()}

    def look_up(self, batch: Batch, *, number: tf.Tensor) -> _Rows:
        """Gets the rows of a batch from the workers that have them, and gives others theirs."""
        collection, size = self._collection, self._group.size
        found = collection.route(batch.columns, counts=True)
        routed = list(found.routed)
        # Each worker's rows, and by asked worker and group the splits of what it asks.
        splits = [
            tf.stack([tf.cast(each.shard_splits[s], tf.int64) for s in range(size)])
            for each in routed
        ]
        head = tf.concat(
            [[tf.cast(batch.num_rows, tf.int64)], tf.reshape(tf.concat(splits, 1), [-1])], 0
        )
        heads = tf.reshape(self._group.all_gather(head, key=_COUNTS), [size, -1])
        widths = [int(each.shape[1]) for each in splits]
        by_group = tf.split(tf.reshape(heads[:, 1:], [size, size, sum(widths)]), widths, axis=2)
        lengths = tf.stack([each[:, :, -1] for each in by_group], axis=2)
        longest = tf.unstack(_longest(lengths), len(routed))
        to_me = [each[:, self._group.rank] for each in by_group]  # [size, num_tables + 1]

        asked_ids = []
        for each, most in zip(routed, longest, strict=True):
            asked_ids.append(_padded(each.shard_ids, most))
            if each.shard_examples:
                asked_ids.append(_padded([tf.cast(e, tf.int64) for e in each.shard_examples], most))
        got = self._group.all_to_all(tf.concat(asked_ids, 1), key=_IDS)
        first = tf.zeros([], tf.int64)
        asked: list[list[_Asked]] = []
        answers = []
        for g, (each, most) in enumerate(zip(routed, longest, strict=True)):
            columns = [got[:, first : first + most]]
            first += most
            if each.shard_examples:
                columns.append(got[:, first : first + most])
                first += most
            of_group, found_rows = [], []
            for r in range(size):
                request = [columns[0][r, : lengths[r, self._group.rank, g]]]
                request.append(tf.cast(to_me[g][r], tf.int32))
                if each.shard_examples:
                    shown = columns[1][r, : lengths[r, self._group.rank, g]]
                    request.append(tf.cast(shown, tf.int32))
                rows, absent = self._look_up_own(g, request, number)
                of_group.append(_Asked(request, absent))
                found_rows.append(tf.reshape(rows, [-1]))
            asked.append(of_group)
            answers.append(_padded(found_rows, most * self._width(g)))
        arrived = self._group.all_to_all(tf.concat(answers, 1), key=_ROWS)
        first = tf.zeros([], tf.int64)
        for g, most in enumerate(longest):
            width = self._width(g)
            shards = [
                tf.reshape(
                    arrived[s, first : first + lengths[self._group.rank, s, g] * width],
                    [-1, width],
                )
                for s in range(size)
            ]
            dim = collection.groups[g].dim
            found.rows.append([rows[:, :dim] for rows in shards] if width > dim else shards)
            found.rates.append([rows[:, dim] for rows in shards] if width > dim else [])
            found.absent.append([])
            first += most * width
        return _Rows(found, heads[:, 0], lengths, asked)

    def _width(self, g: int) -> int:
        """Returns how many floats an answer has per row: the row and, if asked for, its rate."""
        return self._collection.groups[g].dim + int(self._collection.groups[g].gives_rates)

    def _look_up_own(
        self, g: int, request: list[tf.Tensor], number: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        collection, rank, absent = self._collection, self._group.rank, None
        if len(request) > 2:
            rows, absent = collection.lookup_shown(g, rank, *request, step=number)
        else:
            rows = collection.lookup_shard(g, rank, *request, insert=True)
        if collection.groups[g].gives_rates:
            rates = collection.rates_of_shard(g, rank, *request[:2])
            rows = tf.concat([rows, rates[:, None]], 1)
        return rows, absent

    def update(
        self,
        rows: _Rows,
        row_gradients: Sequence[Sequence[tf.Tensor | None]],
        updates: Mapping[str, Sequence[tf.Tensor | None]],
        *,
        number: tf.Tensor,
        rate: tf.Tensor,
    ) -> None:
        """Merges all workers' gradients, and updates this worker's rows and its variables."""
        size, groups = self._group.size, self._collection.groups
        longest = tf.unstack(_longest(rows.lengths), len(groups))
        trained = [g for g, of_group in enumerate(row_gradients) if of_group[0] is not None]
        sent = [
            _padded([tf.reshape(t, [-1]) for t in row_gradients[g]], longest[g] * groups[g].dim)
            for g in trained
        ]
        summed = [
            (device, i)
            for device, update in updates.items()
            for i in self._variables.summed(device, update)
        ]
        values: list[Any] = [updates[device][i] for device, i in summed]
        exact = [v for v in values if v.dtype != tf.float32]
        floats = [v for v in values if v.dtype == tf.float32]
        flat = tf.concat([tf.reshape(v, [-1]) for v in floats], 0)
        count = tf.size(flat, tf.int64)
        share = -(-count // size)
        flat = tf.pad(flat, [[0, share * size - count]])
        sent.append(tf.reshape(flat, [size, share]))
        got = self._group.all_to_all(tf.concat(sent, 1), key=_GRADIENTS)
        first = tf.zeros([], tf.int64)
        for g in trained:
            dim, parts = groups[g].dim, []
            for r, asked in enumerate(rows.asked[g]):
                length = rows.lengths[r, self._group.rank, g] * dim
                gradients = tf.reshape(got[r, first : first + length], [-1, dim])
                ids, splits, *examples = asked.request
                parts.append(ops.RowPart(ids, splits, gradients, *examples, *_known(asked.absent)))
            of_all = ops.merge_rows(parts, rows.num_rows)
            self._collection.update_shard(
                g,
                self._group.rank,
                of_all.ids,
                of_all.splits,
                of_all.gradients,
                learning_rate=rate,
                step=number,
                examples=of_all.examples,
                absent=of_all.absent,
            )
            first += longest[g] * dim
        own = ops.merge_dense(tf.unstack(got[:, first:], size), rows.num_rows)
        sums = self._group.all_gather(own, key=_SUMS)[:count]
        merged = {device: list(update) for device, update in updates.items()}
        sums_of = iter(tf.split(sums, [v.shape.num_elements() for v in floats]))
        counts_of = iter(self._sum_exact(exact, rows.num_rows))
        for (device, i), value in zip(summed, values, strict=True):
            each = next(sums_of if value.dtype == tf.float32 else counts_of)
            merged[device][i] = tf.reshape(each, value.shape)
        for device, update in merged.items():
            self._variables.update(device, update, is_new=tf.constant(True))

    def _sum_exact(self, values: Sequence[tf.Tensor], num_rows: tf.Tensor) -> list[tf.Tensor]:
        """Adds all workers' whole numbers, which have no weights."""
        if not values:
            return []
        flat = tf.concat([tf.reshape(tf.cast(v, tf.int64), [-1]) for v in values], 0)
        parts = tf.reshape(self._group.all_gather(flat, key=_WHOLE), [self._group.size, -1])
        total = tf.reduce_sum(tf.where(num_rows[:, None] > 0, parts, tf.zeros_like(parts)), axis=0)
        split = tf.split(total, [v.shape.num_elements() for v in values])
        return [tf.cast(each, v.dtype) for each, v in zip(split, values, strict=True)]


def _longest(lengths: tf.Tensor) -> tf.Tensor:
    """Gives each group's length of lists: few different ones, see `WorkerGroup.all_to_all`.

    It is never 0: TensorFlow's all-to-all ends the process if there is nothing to send.
    """
    most = tf.maximum(tf.reduce_max(lengths, axis=[0, 1]), 1)
    return -(-most // _MULTIPLE) * _MULTIPLE


def _known(value: tf.Tensor | None) -> list[tf.Tensor]:
    return [] if value is None else [value]


def _padded(lists: Sequence[tf.Tensor], length: tf.Tensor) -> tf.Tensor:
    """Stacks lists of one dimension, each padded to a length."""
    return tf.stack([tf.pad(x, [[0, length - tf.size(x, tf.int64)]]) for x in lists])
