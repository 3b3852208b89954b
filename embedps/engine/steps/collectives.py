"""Takes a step of several workers together, which exchange by collectives.

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

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from embedps.data.unit_reader import Batch
from embedps.engine.steps.interface import (
    Computed,
    RowGradients,
    StepParts,
    ValueExchange,
    ValueInputs,
)
from embedps.engine.steps.unit_parts import Step
from embedps.metrics import Counts
from embedps.tables import part_ops
from embedps.tables.activations import Ids
from embedps.tables.ops import RowPart
from embedps.tables.padded_rows import add_group, flat_rows, pad, padded_length, width_of

# The places of the program that exchange.
_COUNTS, _IDS, _ROWS, _GRADIENTS, _SUMS, _RESULTS = range(1, 7)  # 7 and 9 are the cluster's
_WHOLE = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerInputs(ValueInputs):
    """Holds also what this worker and the others asked each other.

    Attributes:
      num_rows: by rank int64 [size], the examples of each batch.
      lengths: by asking and asked worker and group int64 [size, size, num_groups].
      asked: by group and asking worker, of this one.
    """

    num_rows: tf.Tensor
    lengths: tf.Tensor
    asked: list[list[RowPart]]


class CollectiveExchange(ValueExchange[WorkerInputs]):
    """Exchanges with the other workers. This one uses the shard of its rank."""

    all_take_each_step = True

    def __init__(self, parts: StepParts) -> None:
        super().__init__(parts)
        if parts.workers is None:
            raise ValueError("collectives must have the workers that take part")
        self._group = parts.workers
        self.ranks = (self._group.rank, self._group.size, -1)

    def begin(self, ids: Mapping[str, Ids], step: Step) -> WorkerInputs:
        """Gets the rows of a batch from the workers that have them, and gives others theirs."""
        size, rank = self._group.size, self._group.rank
        number = step.number - step.part.rank
        found = self.collection.route(ids, counts=True)
        routed = list(found.routed)
        # Each worker's rows, and by asked worker and group the splits of what it asks.
        splits = [
            tf.stack([tf.cast(each.shard_splits[s], tf.int64) for s in range(size)])
            for each in routed
        ]
        head = tf.concat(
            [[tf.cast(step.part.num_rows, tf.int64)], tf.reshape(tf.concat(splits, 1), [-1])], 0
        )
        heads = tf.reshape(self._group.all_gather(head, key=_COUNTS), [size, -1])
        widths = [int(each.shape[1]) for each in splits]
        by_group = tf.split(tf.reshape(heads[:, 1:], [size, size, sum(widths)]), widths, axis=2)
        lengths = tf.stack([each[:, :, -1] for each in by_group], axis=2)
        longest = self._longest(lengths)
        to_me = [each[:, rank] for each in by_group]  # [size, num_tables + 1]

        asked_ids = []
        for each, most in zip(routed, longest, strict=True):
            asked_ids.append(pad(each.shard_ids, most))
            if each.shard_examples:
                asked_ids.append(pad([tf.cast(e, tf.int64) for e in each.shard_examples], most))
        got = self._group.all_to_all(tf.concat(asked_ids, 1), key=_IDS)
        first = tf.zeros([], tf.int64)
        asked: list[list[RowPart]] = []
        answers = []
        for g, (each, most) in enumerate(zip(routed, longest, strict=True)):
            columns = [got[:, first : first + most]]
            first += most
            if each.shard_examples:
                columns.append(got[:, first : first + most])
                first += most
            requests = []
            for r in range(size):
                own, *shown = [column[r, : lengths[r, rank, g]] for column in columns]
                examples = tf.cast(shown[0], tf.int32) if shown else None
                requests.append(RowPart(own, tf.cast(to_me[g][r], tf.int32), examples=examples))
            answered = [
                self.collection.lookup_shard(g, rank, request, insert=True, step=number)
                for request in requests
            ]
            asked.append([each.asked for each in answered])
            lists = [flat_rows(each) for each in answered]
            answers.append(pad(lists, most * width_of(self.collection, g)))
        arrived = self._group.all_to_all(tf.concat(answers, 1), key=_ROWS)
        first = tf.zeros([], tf.int64)
        for g, most in enumerate(longest):
            own_lengths = [lengths[rank, s, g] for s in range(size)]
            add_group(found, self.collection, arrived, first, own_lengths)
            first += most * width_of(self.collection, g)
        read = self._read()
        return WorkerInputs(
            lookup=found,
            weights=self._variables.weights(read),
            number=number,
            learning_rate=step.learning_rate,
            read=read,
            num_rows=heads[:, 0],
            lengths=lengths,
            asked=asked,
        )

    def end(
        self,
        inputs: WorkerInputs,
        row_gradients: RowGradients,
        gradients: Sequence[tf.Tensor | None],
    ) -> None:
        """Merges all workers' gradients, and updates this worker's rows and its variables."""
        updates = self._variables.updates(gradients, inputs.read, inputs.changes)
        size, groups = self._group.size, self.collection.groups
        longest = self._longest(inputs.lengths)
        trained = [g for g, of_group in enumerate(row_gradients) if of_group[0] is not None]
        sent = [
            pad([tf.reshape(t, [-1]) for t in row_gradients[g]], longest[g] * groups[g].dim)
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
            for r, asked in enumerate(inputs.asked[g]):
                length = inputs.lengths[r, self._group.rank, g] * dim
                gradient = tf.reshape(got[r, first : first + length], [-1, dim])
                parts.append(asked._replace(gradients=gradient))
            self.collection.update_shard(
                g,
                self._group.rank,
                part_ops.merge_rows(parts, inputs.num_rows),
                learning_rate=inputs.learning_rate,
                step=inputs.number,
            )
            first += longest[g] * dim
        own = part_ops.merge_dense(tf.unstack(got[:, first:], size), inputs.num_rows)
        sums = self._group.all_gather(own, key=_SUMS)[:count]
        sums_of = iter(tf.split(sums, [v.shape.num_elements() for v in floats]))
        counts_of = iter(self._sum_exact(exact, inputs.num_rows))
        for (device, i), value in zip(summed, values, strict=True):
            each = next(sums_of if value.dtype == tf.float32 else counts_of)
            updates[device][i] = tf.reshape(each, value.shape)
        for device, update in updates.items():
            self._variables.update(device, update, is_new=tf.constant(True))

    def take(
        self,
        begun: Sequence[tuple[Batch, WorkerInputs]],
        compute: Callable[[Batch, WorkerInputs], Computed],
    ) -> Counts:
        """Takes a step; an empty batch counts nothing."""
        counts = super().take(begun, compute)
        has_part = begun[0][0].num_rows > 0
        return {name: tf.where(has_part, v, tf.zeros_like(v)) for name, v in counts.items()}

    def total(self, counts: Counts) -> Counts:
        """Adds all workers' counts, in order of rank."""
        flat = tf.concat([tf.reshape(tf.cast(v, tf.float64), [-1]) for v in counts.values()], 0)
        gathered = self._group.all_gather(flat, key=_RESULTS)
        total = tf.add_n(tf.unstack(tf.reshape(gathered, [self._group.size, -1])))
        return dict(zip(counts, _split(total, list(counts.values())), strict=True))

    def _sum_exact(self, values: Sequence[tf.Tensor], num_rows: tf.Tensor) -> list[tf.Tensor]:
        """Adds all workers' whole numbers, which have no weights."""
        if not values:
            return []
        flat = tf.concat([tf.reshape(tf.cast(v, tf.int64), [-1]) for v in values], 0)
        parts = tf.reshape(self._group.all_gather(flat, key=_WHOLE), [self._group.size, -1])
        total = tf.reduce_sum(tf.where(num_rows[:, None] > 0, parts, tf.zeros_like(parts)), axis=0)
        return _split(total, values)

    def _longest(self, lengths: tf.Tensor) -> list[tf.Tensor]:
        """Gives each group's length of lists."""
        num_groups = len(self.collection.groups)
        return list(tf.unstack(padded_length(tf.reshape(lengths, [-1, num_groups])), num_groups))


def _split(flat: tf.Tensor, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Divides a flat tensor into tensors of the shapes and dtypes of others."""
    parts = tf.split(flat, [v.shape.num_elements() for v in like])
    return [
        tf.cast(tf.reshape(each, v.shape), v.dtype) for each, v in zip(parts, like, strict=True)
    ]
