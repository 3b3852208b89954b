"""Takes each step in parts, in one process.

A step takes one batch per replica, as workers in step do: the same rows, seeds and numbers (see
`unit_parts`). All parts are computed of one state. Then their gradients are merged in order of
rank, in float32, and applied once, with the ops that a parameter server uses. So the bits are those
of as many workers in step.

The replicas of a MirroredStrategy compute the parts at the same time, each on a device of its own.
Tables and variables stay on the host: a device gets activations and weights, and returns gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from embedps.data.unit_reader import Batch, UnitReader
from embedps.engine.step_model import StepModel
from embedps.engine.steps.interface import (
    NO_CLIP,
    ClipNorms,
    RowGradients,
    UnitFunction,
    ValueExchange,
    ValueInputs,
    gradients_of,
    next_batch,
    sum_counts,
)
from embedps.engine.steps.unit_parts import StepPart, open_rank
from embedps.metrics import Counts
from embedps.tables import ops
from embedps.tables.activations import Activation, Ids
from embedps.tables.ops import RowPart


class _Part(NamedTuple):
    """What a replica computes for a step.

    Attributes:
      num_rows: of the batch, int64 scalar. With no examples, a part is left out.
      rows: those that have gradients, by group and shard.
      updates: of the variables, by device: see `RemoteVariables.updates`.
      counts: of the batch.
    """

    num_rows: tf.Tensor
    rows: Mapping[tuple[int, int], RowPart]
    updates: Mapping[str, list[tf.Tensor | None]]
    counts: Counts


class ReplicaExchange(ValueExchange[ValueInputs]):
    """Computes the parts of a step of one state, and updates once, as a parameter server does."""

    def begin(
        self,
        ids: Mapping[str, Ids],
        *,
        number: tf.Tensor,
        learning_rate: tf.Tensor,
        part: StepPart,
    ) -> ValueInputs:
        """Looks up a part's rows, and reads the variables."""
        read = self._read()
        return ValueInputs(
            lookup=self.collection.lookup(ids, insert=True, step=number),
            weights=self._variables.weights(read),
            number=number - part.rank,
            learning_rate=learning_rate,
            read=read,
        )

    def combine(self, inputs: ValueInputs) -> dict[str, Activation]:
        """Combines a part's rows where the tables are."""
        with tf.device(self.collection.devices[0]):
            return super().combine(inputs)

    def end(
        self,
        inputs: ValueInputs,
        row_gradients: RowGradients,
        gradients: Sequence[tf.Tensor | None],
    ) -> None:
        """Updates by a step that has one part."""
        rows, updates = self.part(inputs, row_gradients, gradients)
        self.end_parts(inputs, [_Part(tf.ones([], tf.int64), rows, updates, {})])

    def part(
        self,
        inputs: ValueInputs,
        row_gradients: RowGradients,
        gradients: Sequence[tf.Tensor | None],
    ) -> tuple[Mapping[tuple[int, int], RowPart], Mapping[str, list[tf.Tensor | None]]]:
        """Gives what a part adds to rows and variables."""
        updates = self._variables.updates(gradients, inputs.read, inputs.changes)
        return inputs.lookup.parts(row_gradients), updates

    def end_parts(self, inputs: ValueInputs, parts: Sequence[_Part]) -> None:
        """Merges the parts in order of rank, and updates the rows and the variables once.

        Args:
          inputs: of any part.
          parts: by rank.
        """
        examples = tf.stack([part.num_rows for part in parts])
        for g, shard in parts[0].rows:
            with tf.device(self.collection.devices[shard]):
                self.collection.update_shard(
                    g,
                    shard,
                    ops.merge_rows([part.rows[g, shard] for part in parts], examples),
                    learning_rate=inputs.learning_rate,
                    step=inputs.number,
                )
        for device, update in parts[0].updates.items():
            with tf.device(device):
                merged = list(update)
                for i in self._variables.summed(device, update):
                    merged[i] = _merge([part.updates[device][i] for part in parts], examples)
                self._variables.update(device, merged, is_new=tf.constant(True))


def make_replica_unit(
    model: StepModel,
    exchange: ReplicaExchange,
    unit_input: UnitReader,
    *,
    num_replicas: int,
    strategy: tf.distribute.MirroredStrategy | None = None,
    clip: ClipNorms = NO_CLIP,
) -> UnitFunction:
    """Makes the function that trains on a unit, `num_replicas` batches per step.

    Args:
      model: made in this process.
      exchange: of the model, with tables in this process.
      unit_input: reads a replica's batches.
      num_replicas: parts of a step, at least 1. The last step of a unit may have fewer.
      strategy: has as many replicas, which compute the parts; None computes them on this device.
      clip: limits the gradients of each part.

    Returns:
      A function as `make_train_unit` returns it.
    """
    row_rate = model.row_rates()

    def begin(
        reader: tf.Tensor, rank: int, number: tf.Tensor, rate: tf.Tensor
    ) -> tuple[Batch, ValueInputs]:
        batch = next_batch(unit_input, reader, model)
        part = StepPart(rank=rank, num_parts=num_replicas, num_rows=batch.num_rows, after=-1)
        inputs = exchange.begin(batch.columns, number=number + rank, learning_rate=rate, part=part)
        return batch, inputs

    def compute(begun: tuple[Batch, ValueInputs]) -> _Part:
        batch, inputs = begun
        rows, dense, counts = gradients_of(exchange, model, batch, inputs, clip)
        return _Part(batch.num_rows, *exchange.part(inputs, rows, dense), counts)

    def whole_step(readers: Sequence[tf.Tensor], number: tf.Tensor, rate: tf.Tensor) -> Counts:
        begun = [begin(reader, rank, number, rate) for rank, reader in enumerate(readers)]
        parts = _compute_all(compute, begun, strategy)
        exchange.end_parts(begun[0][1], parts)
        return sum_counts([part.counts for part in parts])

    def last_step(
        readers: Sequence[tf.Tensor], number: tf.Tensor, rate: tf.Tensor, num_parts: tf.Tensor
    ) -> Counts:
        """Takes a step that has fewer parts than there are replicas."""
        begun = begin(readers[0], 0, number, rate)
        parts = [compute(begun)]
        zero = model.zero_counts(training=True)
        absent = _flat(parts[0]._replace(num_rows=tf.zeros([], tf.int64), counts=zero))
        for rank in range(1, len(readers) - 1):

            def present(rank: int = rank) -> list[tf.Tensor]:
                return _flat(compute(begin(readers[rank], rank, number, rate)))

            tensors = tf.cond(rank < num_parts, present, lambda: absent)
            parts.append(_like(parts[0], tensors))
        exchange.end_parts(begun[1], parts)
        return sum_counts([part.counts for part in parts])

    @tf.function
    def train_unit(
        path: tf.Tensor,
        first_row: tf.Tensor,
        num_rows: tf.Tensor,
        seed: tf.Tensor,
        first_step: tf.Tensor,
        learning_rate: tf.Tensor,
    ) -> Counts:
        unit = (unit_input, path, first_row, num_rows, seed)
        readers = [
            open_rank(*unit, rank=rank, num_ranks=num_replicas)[1] for rank in range(num_replicas)
        ]
        counts = model.zero_counts(training=True)
        num_batches = -(-num_rows // unit_input.batch_rows)
        left = num_batches % num_replicas
        for i in tf.range(0, num_batches - left, num_replicas):
            number = first_step + i
            more = whole_step(readers, number, row_rate(number, learning_rate))
            counts = sum_counts([counts, more])
        if num_replicas > 1 and left > 0:
            number = first_step + num_batches - left
            more = last_step(readers, number, row_rate(number, learning_rate), left)
            counts = sum_counts([counts, more])
        return counts

    return train_unit  # type: ignore[no-any-return]


def _compute_all(
    compute: Callable[[tuple[Batch, ValueInputs]], _Part],
    begun: Sequence[tuple[Batch, ValueInputs]],
    strategy: tf.distribute.MirroredStrategy | None,
) -> list[_Part]:
    """Computes the parts, by rank."""
    if strategy is None:
        return [compute(each) for each in begun]
    parts = dict[int, _Part]()  # AutoGraph refuses annotated names in closures

    def compute_own() -> None:
        context = tf.distribute.get_replica_context()
        rank = int(tf.get_static_value(context.replica_id_in_sync_group))
        parts[rank] = compute(begun[rank])

    strategy.run(compute_own)
    return [parts[rank] for rank in range(len(begun))]


def _merge(values: Sequence[tf.Tensor], num_examples: tf.Tensor) -> tf.Tensor:
    """Sums gradients or changes of state over ranks; whole numbers have no weights."""
    if values[0].dtype == tf.float32:
        return ops.merge_dense(values, num_examples)
    present = tf.unstack(tf.cast(num_examples > 0, values[0].dtype), len(values))
    return tf.add_n([n * value for n, value in zip(present, values, strict=True)])


def _flat(part: _Part) -> list[tf.Tensor]:
    return [value for value in tf.nest.flatten(part) if value is not None]


def _like(part: _Part, tensors: Sequence[tf.Tensor]) -> _Part:
    """Puts the tensors that `_flat` returned into the structure of a part."""
    given = iter(tensors)
    flat = [None if value is None else next(given) for value in tf.nest.flatten(part)]
    packed: _Part = tf.nest.pack_sequence_as(part, flat)
    return packed
