"""Makes the function that trains a unit in one process, each step in parts.

A step takes one batch per replica, as workers in step do: the same rows, seeds and numbers (see
`unit_parts`). All parts are computed of one state. Then their gradients are merged in order of
rank, in float32, and applied once, with the ops that a parameter server uses. So the bits are those
of as many workers in step.

The replicas of a MirroredStrategy compute the parts at the same time, each on a device of its own.
Tables and variables stay on the host: a device gets activations and weights, and returns gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from embedps.data.unit_reader import Batch, UnitReader
from embedps.engine.server_optimizer import make_remote_variables
from embedps.engine.step_model import StepModel
from embedps.engine.unit_functions import NO_CLIP, ClipNorms, UnitFunction
from embedps.engine.unit_parts import rank_of_unit, rank_seed
from embedps.metrics import Counts
from embedps.tables import ops
from embedps.tables.collection import EmbeddingCollection, LookupResult


class _Request(NamedTuple):
    """A part's batch and its rows."""

    batch: Batch
    lookup: LookupResult


class _Part(NamedTuple):
    """What a replica computes for a step.

    Attributes:
      rows: of each group and shard that has gradients.
      updates: of the variables, by device: see `RemoteVariables.updates`.
      counts: of the batch.
    """

    rows: dict[tuple[int, int], ops.RowPart]
    updates: dict[str, list[tf.Tensor | None]]
    counts: Counts


def make_replica_unit(
    model: StepModel,
    optimizer: Any,
    collection: EmbeddingCollection,
    unit_input: UnitReader,
    *,
    num_replicas: int,
    strategy: tf.distribute.MirroredStrategy | None = None,
    clip: ClipNorms = NO_CLIP,
) -> UnitFunction:
    """Makes the function that trains on a unit, `num_replicas` batches per step.

    Args:
      model: made in this process.
      optimizer: a Keras optimizer of the model's variables, its own variables made.
      collection: the tables, in this process.
      unit_input: reads a replica's batches.
      num_replicas: parts of a step, at least 1. The last step of a unit may have fewer.
      strategy: has as many replicas, which compute the parts; None computes them on this device.
      clip: limits the gradients of each part.

    Returns:
      A function as `make_train_unit` returns it.

    Raises:
      UsageError: the optimizer cannot take its gradients so.
    """
    row_rate = model.row_rates()
    step = _ReplicaStep(model, optimizer, collection, clip)

    def begin(reader: tf.Tensor, number: tf.Tensor) -> _Request:
        batch = unit_input.next(reader)
        batch = batch._replace(columns=model.prepare(batch.columns, training=True))
        return _Request(batch, collection.lookup(batch.columns, insert=True, step=number))

    def whole_step(readers: Sequence[tf.Tensor], number: tf.Tensor, rate: tf.Tensor) -> Counts:
        requests = [begin(reader, number + rank) for rank, reader in enumerate(readers)]
        read = step.read()
        parts = _compute_all(lambda request: step.compute(request, read), requests, strategy)
        step.apply(parts, [r.batch.num_rows for r in requests], number=number, rate=rate)
        return _sum([part.counts for part in parts])

    def last_step(
        readers: Sequence[tf.Tensor], number: tf.Tensor, rate: tf.Tensor, num_parts: tf.Tensor
    ) -> Counts:
        """Takes a step that has fewer parts than there are replicas."""
        read = step.read()
        request = begin(readers[0], number)
        parts, num_rows = [step.compute(request, read)], [request.batch.num_rows]
        zero = model.zero_counts(training=True)
        # With no examples, a part is left out, whatever its gradients are.
        absent = [tf.zeros([], tf.int64), *_flat(parts[0]._replace(counts=zero))]
        for rank in range(1, len(readers) - 1):

            def present(rank: int = rank) -> list[tf.Tensor]:
                request = begin(readers[rank], number + rank)
                return [request.batch.num_rows, *_flat(step.compute(request, read))]

            rows, *tensors = tf.cond(rank < num_parts, present, lambda: absent)
            parts.append(_like(parts[0], tensors))
            num_rows.append(rows)
        step.apply(parts, num_rows, number=number, rate=rate)
        return _sum([part.counts for part in parts])

    @tf.function
    def train_unit(
        path: tf.Tensor,
        first_row: tf.Tensor,
        num_rows: tf.Tensor,
        seed: tf.Tensor,
        first_step: tf.Tensor,
        learning_rate: tf.Tensor,
    ) -> Counts:
        readers = []
        for rank in range(num_replicas):
            own = rank_of_unit(
                first_row,
                num_rows,
                batch_rows=unit_input.batch_rows,
                rank=rank,
                num_ranks=num_replicas,
            )
            readers.append(
                unit_input.open(path, own.first_row, own.num_rows, rank_seed(seed, rank))
            )
        counts = model.zero_counts(training=True)
        num_batches = -(-num_rows // unit_input.batch_rows)
        left = num_batches % num_replicas
        for i in tf.range(0, num_batches - left, num_replicas):
            number = first_step + i
            more = whole_step(readers, number, row_rate(number, learning_rate))
            counts = _sum([counts, more])
        if num_replicas > 1 and left > 0:
            number = first_step + num_batches - left
            more = last_step(readers, number, row_rate(number, learning_rate), left)
            counts = _sum([counts, more])
        return counts

    return train_unit  # type: ignore[no-any-return]


class _ReplicaStep:
    """A step's computation and update, with the variables of this process as a server has them."""

    def __init__(
        self, model: StepModel, optimizer: Any, collection: EmbeddingCollection, clip: ClipNorms
    ) -> None:
        self._model = model
        self._collection = collection
        self._clip = clip
        self._variables = make_remote_variables(model.model, optimizer, model.state)

    def read(self) -> Mapping[str, Sequence[tf.Tensor]]:
        """Reads the variables, once for all parts."""
        read = {}
        for device in self._variables.devices:
            with tf.device(device):
                read[device] = self._variables.read(device)
        return read

    def compute(self, request: _Request, read: Mapping[str, Sequence[tf.Tensor]]) -> _Part:
        """Computes a part's gradients."""
        weights, changes = self._variables.weights(read), []  # type: ignore[var-annotated]
        lookup, routed = request.lookup, request.lookup.routed
        with (
            self._variables.using(weights),
            self._variables.carrying(read, changes),
            tf.GradientTape() as tape,
        ):
            watched = (lookup.rows, weights)
            tape.watch(watched)
            with tf.device(self._collection.devices[0]):
                activations = self._collection.combine(lookup)
            loss, counts = self._model.count(request.batch, activations, training=True)
        row_gradients, gradients = self._clip(*tape.gradient(loss, watched))
        rows = {
            (g, shard): ops.RowPart(
                routed[g].shard_ids[shard],
                routed[g].shard_splits[shard],
                gradient,
                routed[g].shard_examples[shard] if lookup.absent[g] else None,
                lookup.absent[g][shard] if lookup.absent[g] else None,
            )
            for g, of_group in enumerate(row_gradients)
            for shard, gradient in enumerate(of_group)
            if gradient is not None
        }
        return _Part(rows, self._variables.updates(gradients, read, changes), counts)

    def apply(
        self,
        parts: Sequence[_Part],
        num_rows: Sequence[tf.Tensor],
        *,
        number: tf.Tensor,
        rate: tf.Tensor,
    ) -> None:
        """Merges the parts in order of rank, and updates the rows and the variables once."""
        examples = tf.stack(num_rows)
        for g, shard in parts[0].rows:
            with tf.device(self._collection.devices[shard]):
                merged = ops.merge_rows([part.rows[g, shard] for part in parts], examples)
                self._collection.update_shard(
                    g,
                    shard,
                    merged.ids,
                    merged.splits,
                    merged.gradients,
                    learning_rate=rate,
                    step=number,
                    examples=merged.examples,
                    absent=merged.absent,
                )
        for device, update in parts[0].updates.items():
            with tf.device(device):
                merged_update = list(update)
                for i in self._variables.summed(device, update):
                    values = [part.updates[device][i] for part in parts]
                    merged_update[i] = _merge(values, examples)
                self._variables.update(device, merged_update, is_new=tf.constant(True))


def _compute_all(
    compute: Callable[[_Request], _Part],
    requests: Sequence[_Request],
    strategy: tf.distribute.MirroredStrategy | None,
) -> list[_Part]:
    """Computes the parts, by rank."""
    if strategy is None:
        return [compute(request) for request in requests]
    parts = dict[int, _Part]()  # AutoGraph refuses annotated names in closures

    def compute_own() -> None:
        context = tf.distribute.get_replica_context()
        rank = int(tf.get_static_value(context.replica_id_in_sync_group))
        parts[rank] = compute(requests[rank])

    strategy.run(compute_own)
    return [parts[rank] for rank in range(len(requests))]


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


def _sum(counts: Sequence[Counts]) -> Counts:
    return {name: tf.add_n([each[name] for each in counts]) for name in counts[0]}
