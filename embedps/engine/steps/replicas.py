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
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from embedps.data.unit_reader import Batch
from embedps.engine.steps.interface import (
    Computed,
    RowGradients,
    StepParts,
    ValueExchange,
    ValueInputs,
    sum_counts,
)
from embedps.engine.steps.unit_parts import Step
from embedps.metrics import Counts
from embedps.tables import part_ops
from embedps.tables.activations import Activation, Ids
from embedps.tables.ops import RowPart

_Begun: TypeAlias = tuple[Batch, ValueInputs]
_Compute: TypeAlias = Callable[[Batch, ValueInputs], Computed]


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

    def __init__(self, parts: StepParts) -> None:
        super().__init__(parts)
        self.num_lanes = parts.replicas
        self.ranks = (0, parts.replicas, -1)
        self._mirrored = parts.mirrored

    def begin(self, ids: Mapping[str, Ids], step: Step) -> ValueInputs:
        """Looks up a part's rows, and reads the variables."""
        read = self._read()
        return ValueInputs(
            lookup=self.collection.lookup(ids, insert=True, step=step.number),
            weights=self._variables.weights(read),
            number=step.number - step.part.rank,
            learning_rate=step.learning_rate,
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
        computed = (row_gradients, gradients, dict[str, tf.Tensor]())
        self._end_parts(inputs, [self._part(tf.ones([], tf.int64), inputs, computed)])

    def take(self, begun: Sequence[_Begun], compute: _Compute) -> Counts:
        """Takes a step that has a part of each replica; gives the counts of all."""
        return self._end_parts(begun[0][1], self._compute_all(begun, compute))

    def take_last(
        self, begins: Sequence[Callable[[], _Begun]], compute: _Compute, num_parts: tf.Tensor
    ) -> Counts:
        """Takes a unit's last step, which has fewer parts than there are replicas.

        Args:
          begins: by rank, begins a part: gives its batch and its inputs.
          compute: as `take` has it.
          num_parts: how many there are, int64 scalar from 1 on. The others do not begin.

        Returns:
          The counts of the parts.
        """
        first = begins[0]()
        part = self._compute(first, compute)
        zeros = {name: tf.zeros_like(v) for name, v in part.counts.items()}
        absent = _flat(part._replace(num_rows=tf.zeros([], tf.int64), counts=zeros))
        parts = [part]
        for rank, begin in enumerate(begins[1:], 1):

            def present(begin: Callable[[], _Begun] = begin) -> list[tf.Tensor]:
                return _flat(self._compute(begin(), compute))

            parts.append(_like(part, tf.cond(rank < num_parts, present, lambda: absent)))
        return self._end_parts(first[1], parts)

    def _compute(self, begun: _Begun, compute: _Compute) -> _Part:
        """Computes a part."""
        batch, inputs = begun
        return self._part(batch.num_rows, inputs, compute(batch, inputs))

    def _part(self, num_rows: tf.Tensor, inputs: ValueInputs, computed: Computed) -> _Part:
        """Makes the part of a batch of what was computed of it."""
        rows, gradients, counts = computed
        updates = self._variables.updates(gradients, inputs.read, inputs.changes)
        return _Part(num_rows, inputs.lookup.parts(rows), updates, counts)

    def _compute_all(self, begun: Sequence[_Begun], compute: _Compute) -> list[_Part]:
        """Computes the parts, by rank."""
        if self._mirrored is None:
            return [self._compute(each, compute) for each in begun]
        parts = dict[int, _Part]()  # AutoGraph refuses annotated names in closures

        def compute_own() -> None:
            context = tf.distribute.get_replica_context()
            rank = int(tf.get_static_value(context.replica_id_in_sync_group))
            parts[rank] = self._compute(begun[rank], compute)

        self._mirrored.run(compute_own)
        return [parts[rank] for rank in range(len(begun))]

    def _end_parts(self, inputs: ValueInputs, parts: Sequence[_Part]) -> Counts:
        """Merges the parts in order of rank, and updates the rows and the variables once.

        Args:
          inputs: of any part.
          parts: by rank.

        Returns:
          The counts of all parts.
        """
        examples = tf.stack([part.num_rows for part in parts])
        for g, shard in parts[0].rows:
            with tf.device(self.collection.devices[shard]):
                self.collection.update_shard(
                    g,
                    shard,
                    part_ops.merge_rows([part.rows[g, shard] for part in parts], examples),
                    learning_rate=inputs.learning_rate,
                    step=inputs.number,
                )
        for device, update in parts[0].updates.items():
            with tf.device(device):
                merged = list(update)
                for i in self._variables.summed(device, update):
                    merged[i] = _merge([part.updates[device][i] for part in parts], examples)
                self._variables.update(device, merged, is_new=tf.constant(True))
        return sum_counts([part.counts for part in parts])


def _merge(values: Sequence[tf.Tensor], num_examples: tf.Tensor) -> tf.Tensor:
    """Sums gradients or changes of state over ranks; whole numbers have no weights."""
    if values[0].dtype == tf.float32:
        return part_ops.merge_dense(values, num_examples)
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
