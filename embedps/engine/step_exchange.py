"""What a training step gets of the tables and the network's variables, and gives back to them.

Where they are in this process, the step calls the tables and Keras. On parameter servers each
tensor between tasks is a call, which costs both processes more than a few kilobytes do: there a
step and server exchange three messages, whatever the tables and variables are:

    worker ── step, learning rate, ids ──► server
           ◄── rows, variables ──
           ── gradients of both ──►

A unit may be attempted again where its worker is lost or slow, and the first attempt may go on
beside that. Rows that are trained on twice within minutes are learned by heart: one unit of 32
visited twice in a row took 0.03 to 0.05 of a held-out AUC of 0.78. So a server logs the steps it
has applied, and the gradients of one that is in the log change nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from embedps.engine.network_variables import RemoteVariables
from embedps.engine.random_numbers import unseeded
from embedps.tables import ops
from embedps.tables.collection import EmbeddingCollection, Ids, LookupResult


class StepInputs(NamedTuple):
    """What a step has got.

    Attributes:
      looked: the rows.
      weights: the variables: what to take gradients of, besides `looked.rows`.
      number: of the step, int64 scalar.
      learning_rate: of the tables, float32 scalar.
      sent: by server, the step, learning rate, ids and splits as they are there.
      read: by server, what was read of its variables.
    """

    looked: LookupResult
    weights: list[Any]
    number: tf.Tensor
    learning_rate: tf.Tensor
    sent: Mapping[str, Sequence[tf.Tensor]]
    read: Mapping[str, Sequence[tf.Tensor]]


class StepExchange(Protocol):
    """What a training step asks.

    Attributes:
      steps_per_iteration: how many steps a turn of a unit's loop should have, one after the other.
    """

    steps_per_iteration: int

    def begin(
        self, ids: Mapping[str, Ids], *, number: tf.Tensor, learning_rate: tf.Tensor
    ) -> StepInputs:
        """Gets what a batch needs.

        Args:
          ids: as `EmbeddingCollection.lookup` takes them; absent rows are created.
          number: of the step, int64 scalar in [0, 2^32), in every attempt at it the same.
          learning_rate: of the tables, float32 scalar.
        """

    def computing(self, step: StepInputs) -> AbstractContextManager[None]:
        """Has the network compute with what a step got, within the block."""

    def end(
        self,
        step: StepInputs,
        row_gradients: Sequence[Sequence[tf.Tensor | None]],
        gradients: Sequence[tf.Tensor | None],
    ) -> None:
        """Applies the gradients of `step.looked.rows` and of `step.weights`.

        A parameter server that has applied a step of this number leaves all as it is.
        """


def make_step_exchange(
    network: tf.keras.Model,
    optimizer: Any,
    collection: EmbeddingCollection,
    *,
    wire_dtype: tf.DType,
) -> StepExchange:
    """Picks the way by where the tables and the network's variables are.

    Args:
      network: built.
      optimizer: as `dense_optimizer.make_dense_optimizer` makes it, its variables made.
      collection: the tables.
      wire_dtype: of rows, matrices and their gradients between tasks: float32 or bfloat16.
    """
    devices = [*collection.devices, *(v.device for v in network.trainable_variables)]
    if any("/job:ps" in device for device in devices):
        return RemoteExchange(network, optimizer, collection, wire_dtype=wire_dtype)
    return LocalExchange(network, optimizer, collection)


class LocalExchange:
    """Tables and variables of this process."""

    steps_per_iteration = 1

    def __init__(
        self, network: tf.keras.Model, optimizer: Any, collection: EmbeddingCollection
    ) -> None:
        self._network = network
        self._optimizer = optimizer
        self._collection = collection

    def begin(
        self, ids: Mapping[str, Ids], *, number: tf.Tensor, learning_rate: tf.Tensor
    ) -> StepInputs:
        """The variables are themselves."""
        looked = self._collection.lookup(ids, insert=True)
        return StepInputs(
            looked, list(self._network.trainable_variables), number, learning_rate, {}, {}
        )

    def computing(self, step: StepInputs) -> AbstractContextManager[None]:
        """It does so anyway."""
        return nullcontext()

    def end(
        self,
        step: StepInputs,
        row_gradients: Sequence[Sequence[tf.Tensor | None]],
        gradients: Sequence[tf.Tensor | None],
    ) -> None:
        """The variables by Keras."""
        self._collection.update(
            step.looked, row_gradients, learning_rate=step.learning_rate, step=step.number
        )
        self._optimizer.apply_gradients(zip(gradients, step.weights, strict=True))


class RemoteExchange:
    """Tables and variables of parameter servers: three messages a step and server.

    A turn of the loop is three more: that it begins (of the loop and of its body), and that it has
    ended.
    """

    steps_per_iteration = 4

    def __init__(
        self,
        network: tf.keras.Model,
        optimizer: Any,
        collection: EmbeddingCollection,
        *,
        wire_dtype: tf.DType,
    ) -> None:
        self._variables = RemoteVariables(network, optimizer)
        self._collection = collection
        self._wire_dtype = wire_dtype
        # By server: the shards there, as (group, shard).
        self._on: dict[str, list[tuple[int, int]]] = {}
        for shard, device in enumerate(collection.devices):
            self._on.setdefault(device, []).extend(
                (g, shard) for g in range(len(collection.groups))
            )
        for device in self._variables.devices:
            self._on.setdefault(device, [])
        # In the tables' container: with what was applied goes the log of it.
        self._logs = {}
        for device in self._on:
            with tf.device(device):
                self._logs[device] = ops.step_log(
                    container=collection.container, shared_name=f"steps/{uuid.uuid4().hex}"
                )

    def begin(
        self, ids: Mapping[str, Ids], *, number: tf.Tensor, learning_rate: tf.Tensor
    ) -> StepInputs:
        """Tensors of this device."""
        looked = self._collection.route(ids)
        rows: list[list[Any]] = [[None] * self._collection.num_shards for _ in looked.routed]
        sent, read = {}, {}
        for device, shards in self._on.items():
            request = [number, learning_rate]
            for g, shard in shards:
                request += [looked.routed[g].shard_ids[shard], looked.routed[g].shard_splits[shard]]
            message = ops.pack(request)
            with tf.device(device):
                sent[device] = ops.unpack(
                    message, [tf.TensorSpec(r.shape, r.dtype) for r in request]
                )
                pairs = _pairs(sent[device][2:])
                with tf.control_dependencies(sent[device][:1]):  # variables as of now
                    answer = [
                        *(
                            self._collection.lookup_shard(g, shard, *wanted, insert=True)
                            for (g, shard), wanted in zip(shards, pairs, strict=True)
                        ),
                        *self._variables.read(device),
                    ]
                message = ops.pack(answer, [self._travels_as(a) for a in answer])
            specs = [tf.TensorSpec([None, self._collection.groups[g].dim]) for g, _ in shards]
            answer = ops.unpack(message, [*specs, *self._variables.specs(device)])
            for (g, shard), found in zip(shards, answer[: len(shards)], strict=True):
                rows[g][shard] = found
            read[device] = answer[len(shards) :]
        looked.rows.extend(rows)
        return StepInputs(looked, self._variables.weights(read), number, learning_rate, sent, read)

    @contextmanager
    def computing(self, step: StepInputs) -> Iterator[None]:
        """Of the variables with what was read of them, and random numbers of each worker's own."""
        with self._variables.using(step.weights), unseeded():
            yield

    def end(
        self,
        step: StepInputs,
        row_gradients: Sequence[Sequence[tf.Tensor | None]],
        gradients: Sequence[tf.Tensor | None],
    ) -> None:
        """The variables by the ops that Keras would call."""
        updates = self._variables.updates(gradients, step.read)
        for device, shards in self._on.items():
            parts = [*(row_gradients[g][shard] for g, shard in shards), *updates.get(device, [])]
            known = [part for part in parts if part is not None]
            if not known:
                continue
            message = ops.pack(known, [self._travels_as(part) for part in known])
            specs = [tf.TensorSpec(part.shape, part.dtype) for part in known]
            with tf.device(device):
                arrived = iter(ops.unpack(message, specs))
                there = [None if part is None else next(arrived) for part in parts]
                number, learning_rate, *wanted = step.sent[device]
                is_new = ops.step_is_new(self._logs[device], number)
                applied = [
                    self._collection.update_shard(
                        g,
                        shard,
                        *pair,
                        gradient,
                        learning_rate=learning_rate,
                        step=number,
                        is_new=is_new,
                    )
                    for (g, shard), pair, gradient in zip(
                        shards, _pairs(wanted), there[: len(shards)], strict=True
                    )
                    if gradient is not None
                ]
                applied += self._variables.update(device, there[len(shards) :], is_new=is_new)
                # Not before: what is lost half-way is to be applied by another attempt.
                with tf.control_dependencies(applied):
                    ops.step_applied(self._logs[device], number)

    def _travels_as(self, part: tf.Tensor) -> tf.DType:
        """Vectors stay as they are: there are few, and what is added up at the end is exact."""
        matrix = part.dtype == tf.float32 and part.shape.rank is not None and part.shape.rank > 1
        return self._wire_dtype if matrix else part.dtype


def _pairs(parts: Sequence[tf.Tensor]) -> list[tuple[tf.Tensor, tf.Tensor]]:
    return list(zip(parts[::2], parts[1::2], strict=True))
