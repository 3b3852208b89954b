"""Exchanges a training step's rows, variables and gradients with the tables and the network.

If tables and variables are in this process, the step calls the tables and Keras directly. On
parameter servers, each tensor sent to another task costs an RPC; for both processes, an RPC costs
more than a few kilobytes do. So a step and a server exchange three messages, however many tables
and variables there are:

    worker ── step, learning rate, ids ──► server
           ◄── rows, variables ──
           ── gradients of both ──►

If a worker is lost or slow, its unit may be attempted again while the first attempt still runs.
Training twice within minutes on the same rows overfits to them: training twice in a row on one of
32 units lowers held-out AUC from 0.78 to 0.73-0.75. So a server logs the steps that it has applied,
and ignores the gradients of a step that is in the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from embedps.engine.random_numbers import unseeded
from embedps.engine.server_optimizer import make_remote_variables
from embedps.engine.step_logs import StepLogs
from embedps.engine.unit_parts import StepPart
from embedps.tables import ops
from embedps.tables.activations import Ids
from embedps.tables.collection import EmbeddingCollection, LookupResult


class Request(NamedTuple):
    """Holds what a step requests of a server, on that server.

    Attributes:
      number: the step's number, int64 scalar.
      learning_rate: of the tables, float32 scalar.
      worker: the index of the worker's task, int64 scalar.
      part: which part of a step this is, or None.
      asked: by shard of the server ids, splits and, if counted, examples.
    """

    number: tf.Tensor
    learning_rate: tf.Tensor
    worker: tf.Tensor
    part: StepPart | None
    asked: list[list[tf.Tensor]]


class StepInputs(NamedTuple):
    """Holds what a step got from the tables and the network, and what becomes of its state.

    Attributes:
      lookup: the rows.
      weights: the variables' values; gradients are taken of these and of `lookup.rows`.
      number: the step's number, int64 scalar.
      learning_rate: of the tables, float32 scalar.
      sent: maps each server to what was requested of it, on that server.
      seen: maps each server to the number of steps that it had applied, on that server.
      read: maps each server to the values that were read from its variables.
      changes: what the step adds to the network's state, once it has computed.
    """

    lookup: LookupResult
    weights: list[Any]
    number: tf.Tensor
    learning_rate: tf.Tensor
    sent: Mapping[str, Request]
    seen: Mapping[str, tf.Tensor]
    read: Mapping[str, Sequence[tf.Tensor]]
    changes: list[tf.Tensor | None]


class RowUpdate(NamedTuple):
    """Holds the gradients of rows of one shard, on the shard's server.

    Attributes:
      group: the index of the tables' group.
      shard: the index of the shard.
      ids: int64 [n], as `EmbeddingCollection.update_shard` takes them.
      splits: int32 [num_tables + 1].
      gradients: float32 [n, dim].
      examples: int32 [n]; None if the group has no admission.
      absent: uint8 [n]; None if the group has no admission.
    """

    group: int
    shard: int
    ids: tf.Tensor
    splits: tf.Tensor
    gradients: tf.Tensor
    examples: tf.Tensor | None
    absent: tf.Tensor | None


class Gradients(NamedTuple):
    """Holds what a server got of a step, on that server.

    Attributes:
      rows: those that have gradients.
      update: of the server's variables, as `RemoteVariables.updates` makes it.
    """

    rows: list[RowUpdate]
    update: list[tf.Tensor | None]


class StepExchange(Protocol):
    """Gets a training step's inputs and applies its gradients.

    Attributes:
      steps_per_iteration: how many steps one iteration of a unit's loop should run in sequence.
    """

    steps_per_iteration: int

    def begin(
        self,
        ids: Mapping[str, Ids],
        *,
        number: tf.Tensor,
        learning_rate: tf.Tensor,
        part: StepPart | None = None,
    ) -> StepInputs:
        """Gets the rows and variables that a batch needs.

        Args:
          ids: as `EmbeddingCollection.lookup` takes them; absent rows are created.
          number: the step's number, int64 scalar in [0, 2^32); the same in every attempt.
          learning_rate: of the tables, float32 scalar.
          part: which part of a step that several ranks take together; its number is `number`. None
            if this is a whole step.
        """

    def computing(self, inputs: StepInputs) -> AbstractContextManager[None]:
        """Makes the network compute with a step's inputs within the block."""

    def end(
        self,
        inputs: StepInputs,
        row_gradients: Sequence[Sequence[tf.Tensor | None]],
        gradients: Sequence[tf.Tensor | None],
    ) -> None:
        """Applies the gradients of `inputs.lookup.rows` and of `inputs.weights`.

        A parameter server that has already applied a step of this number ignores them.
        """


def make_step_exchange(
    network: tf.keras.Model,
    optimizer: Any,
    collection: EmbeddingCollection,
    *,
    state: Sequence[tf.Variable] = (),
    wire_dtype: tf.DType,
    logs: StepLogs | None = None,
) -> StepExchange:
    """Makes the exchange for the place where the tables and the network's variables are.

    Args:
      network: built.
      optimizer: as `dense_optimizer.make_dense_optimizer` makes it, its variables made.
      collection: the tables.
      state: variables that the network itself updates.
      wire_dtype: of rows, matrices and their gradients between tasks: float32 or bfloat16.
      logs: get the parameter servers' logs; by default nobody reads them.
    """
    devices = [*collection.devices, *(v.device for v in network.trainable_variables)]
    if any("/job:ps" in device for device in devices):
        return RemoteExchange(
            network, optimizer, collection, state=state, wire_dtype=wire_dtype, logs=logs
        )
    return LocalExchange(network, optimizer, collection)


class LocalExchange:
    """Exchanges with tables and variables in this process."""

    steps_per_iteration = 1

    def __init__(
        self, network: tf.keras.Model, optimizer: Any, collection: EmbeddingCollection
    ) -> None:
        self._network = network
        self._optimizer = optimizer
        self._collection = collection

    def begin(
        self,
        ids: Mapping[str, Ids],
        *,
        number: tf.Tensor,
        learning_rate: tf.Tensor,
        part: StepPart | None = None,
    ) -> StepInputs:
        """Looks up the rows; the weights are the variables themselves."""
        found = self._collection.lookup(ids, insert=True, step=number)
        return StepInputs(
            found, list(self._network.trainable_variables), number, learning_rate, {}, {}, {}, []
        )

    def computing(self, inputs: StepInputs) -> AbstractContextManager[None]:
        """Does nothing: the network reads its variables."""
        return nullcontext()

    def end(
        self,
        inputs: StepInputs,
        row_gradients: Sequence[Sequence[tf.Tensor | None]],
        gradients: Sequence[tf.Tensor | None],
    ) -> None:
        """Updates the rows, and the variables through Keras."""
        self._collection.update(
            inputs.lookup,
            row_gradients,
            learning_rate=inputs.learning_rate,
            step=inputs.number,
        )
        self._optimizer.apply_gradients(zip(gradients, inputs.weights, strict=True))


class RemoteExchange:
    """Exchanges with parameter servers: three messages per step and server.

    Each loop iteration costs three more: the start of the iteration and of its body, and the end.
    Classes that inherit this one say what becomes of a step on servers: `_enter`, and `_apply` or
    `_apply_everywhere`.

    Attributes:
      logs_all: whether each server logs each step, even if it has nothing that learns.
    """

    steps_per_iteration = 4
    logs_all = False

    def __init__(
        self,
        network: tf.keras.Model,
        optimizer: Any,
        collection: EmbeddingCollection,
        *,
        state: Sequence[tf.Variable] = (),
        wire_dtype: tf.DType,
        logs: StepLogs | None = None,
    ) -> None:
        self._variables = make_remote_variables(network, optimizer, state)
        self._collection = collection
        self._wire_dtype = wire_dtype
        # Maps each server to its shards, as (group, shard).
        self._on: dict[str, list[tuple[int, int]]] = {}
        for shard, device in enumerate(collection.devices):
            self._on.setdefault(device, []).extend(
                (g, shard) for g in range(len(collection.groups))
            )
        for device in self._variables.devices:
            self._on.setdefault(device, [])
        self._step_logs = logs or StepLogs(collection.container)
        self._logs = self._step_logs.make(self._on)

    def begin(
        self,
        ids: Mapping[str, Ids],
        *,
        number: tf.Tensor,
        learning_rate: tf.Tensor,
        part: StepPart | None = None,
    ) -> StepInputs:
        """Requests rows and variables from all servers; gives tensors of this device."""
        found = self._collection.route(ids, counts=True)
        rows: list[list[Any]] = [[None] * self._collection.num_shards for _ in found.routed]
        rates: list[list[Any]] = [
            [None] * self._collection.num_shards if group.gives_rates else []
            for group in self._collection.groups
        ]
        absent: list[list[Any]] = [
            [None] * self._collection.num_shards if routed.shard_examples else []
            for routed in found.routed
        ]
        sent, seen, read = {}, {}, {}
        worker = self._step_logs.enter(ops.task_index())
        for device, shards in self._on.items():
            request = [number, learning_rate, worker]
            if part is not None:
                request.append(tf.stack(part))
            num_scalars = len(request)
            for g, shard in shards:
                request += found.routed[g].request(shard)
            rated = [(g, shard) for g, shard in shards if rates[g]]
            message = ops.pack(request)
            with tf.device(device):
                there = ops.unpack(message, [tf.TensorSpec(r.shape, r.dtype) for r in request])
                wanted = self._by_shard(device, there[num_scalars:])
                sent[device] = Request(
                    there[0],
                    there[1],
                    there[2],
                    None if part is None else StepPart(*tf.unstack(there[3], len(part))),
                    wanted,
                )
                seen[device] = self._enter(device, sent[device])
                with tf.control_dependencies([seen[device]]):  # read the variables only now
                    rows_there = []
                    for (g, shard), parts in zip(shards, wanted, strict=True):
                        if absent[g]:
                            shown, absent[g][shard] = self._collection.lookup_shown(
                                g, shard, *parts, step=sent[device].number
                            )
                        else:
                            shown = self._collection.lookup_shard(g, shard, *parts, insert=True)
                        rows_there.append(shown)
                    answer = [
                        *rows_there,
                        *(
                            self._collection.rates_of_shard(g, shard, *parts[:2])
                            for (g, shard), parts in zip(shards, wanted, strict=True)
                            if rates[g]
                        ),
                        *self._variables.read(device),
                    ]
                exact = self._variables.num_exact(device)
                message = ops.pack(answer, self._wire_dtypes(answer, exact))
            specs = [tf.TensorSpec([None, self._collection.groups[g].dim]) for g, _ in shards]
            specs += [tf.TensorSpec([None])] * len(rated)
            answer = ops.unpack(message, [*specs, *self._variables.specs(device)])
            for (g, shard), arrived in zip(shards, answer[: len(shards)], strict=True):
                rows[g][shard] = arrived
            for (g, shard), rates_there in zip(
                rated, answer[len(shards) : len(specs)], strict=True
            ):
                rates[g][shard] = rates_there
            read[device] = answer[len(specs) :]
        found.rows.extend(rows)
        found.rates.extend(rates)
        found.absent.extend(absent)
        weights = self._variables.weights(read)
        return StepInputs(found, weights, number, learning_rate, sent, seen, read, [])

    @contextmanager
    def computing(self, inputs: StepInputs) -> Iterator[None]:
        """Makes the network use the values that were read, and each worker's own random numbers."""
        with (
            self._variables.using(inputs.weights),
            self._variables.carrying(inputs.read, inputs.changes),
            unseeded(),
        ):
            yield

    def end(
        self,
        inputs: StepInputs,
        row_gradients: Sequence[Sequence[tf.Tensor | None]],
        gradients: Sequence[tf.Tensor | None],
    ) -> None:
        """Sends the gradients; servers update the variables with the ops that Keras would call."""
        updates = self._variables.updates(gradients, inputs.read, inputs.changes)
        absent = inputs.lookup.absent
        found = {}
        for device, shards in self._on.items():
            parts = [*(row_gradients[g][shard] for g, shard in shards), *updates.get(device, [])]
            known = [part for part in parts if part is not None]
            if not known and not self.logs_all:
                continue
            exact = self._variables.num_exact(device)
            exact -= sum(part is None for part in parts[len(parts) - exact :])
            message = ops.pack(known, self._wire_dtypes(known, exact)) if known else None
            specs = [tf.TensorSpec(part.shape, part.dtype) for part in known]
            with tf.device(device):
                arrived = iter(() if message is None else ops.unpack(message, specs))
                there = [None if part is None else next(arrived) for part in parts]
                rows = [
                    RowUpdate(
                        g,
                        shard,
                        asked[0],
                        asked[1],
                        gradient,
                        asked[2] if absent[g] else None,
                        absent[g][shard] if absent[g] else None,
                    )
                    for (g, shard), asked, gradient in zip(
                        shards, inputs.sent[device].asked, there[: len(shards)], strict=True
                    )
                    if gradient is not None
                ]
            found[device] = Gradients(rows, there[len(shards) :])
        logged = self._apply_everywhere(inputs, found)
        first = next(iter(self._on))  # has the gate
        self._step_logs.leave(inputs.sent[first].worker, logged)

    def _enter(self, device: str, request: Request) -> tf.Tensor:
        """Begins a step on a server, the current device; gives how many it had applied before."""
        return ops.steps_seen(self._logs[device], request.number)

    def _apply_everywhere(
        self, inputs: StepInputs, found: Mapping[str, Gradients]
    ) -> list[tf.Operation]:
        """Applies a step on the servers that have gradients of it."""
        applied = []
        for device, (rows, update) in found.items():
            with tf.device(device):
                applied.append(self._apply(device, inputs, rows, update))
        return applied

    def _apply(
        self,
        device: str,
        inputs: StepInputs,
        rows: Sequence[RowUpdate],
        update: Sequence[tf.Tensor | None],
    ) -> tf.Operation:
        """Applies a step on a server, the current device, and logs it.

        Args:
          device: the server's.
          inputs: the step's.
          rows: the server's rows that have gradients.
          update: of the server's variables.
        """
        number, learning_rate, *_ = inputs.sent[device]
        is_new = ops.step_is_new(self._logs[device], number)
        applied = self._update_rows(rows, learning_rate, step=number, is_new=is_new)
        applied += self._variables.update(device, update, is_new=is_new)
        return self._log_step(device, inputs, applied)

    def _update_rows(
        self,
        rows: Sequence[RowUpdate],
        learning_rate: tf.Tensor,
        *,
        step: tf.Tensor,
        is_new: tf.Tensor,
    ) -> list[tf.Operation]:
        """Updates rows on the current device; they get the step's number."""
        return [
            self._collection.update_shard(
                each.group,
                each.shard,
                each.ids,
                each.splits,
                each.gradients,
                learning_rate=learning_rate,
                step=step,
                is_new=is_new,
                examples=each.examples,
                absent=each.absent,
            )
            for each in rows
        ]

    def _log_step(
        self, device: str, inputs: StepInputs, applied: Sequence[tf.Operation]
    ) -> tf.Operation:
        """Logs a step once it is applied: another attempt must apply what is lost half-way."""
        number, _, worker, *_ = inputs.sent[device]
        with tf.control_dependencies(applied):
            return ops.step_applied(
                self._logs[device], number, worker=worker, seen=inputs.seen[device]
            )

    def _by_shard(self, device: str, parts: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
        """Splits what a server was sent by its shards: ids, splits and, if counted, examples."""
        left = iter(parts)
        groups, learns = self._collection.groups, self._collection.learns
        return [
            [next(left) for _ in range(3 if groups[g].counted_tables and learns else 2)]
            for g, _ in self._on[device]
        ]

    def _wire_dtypes(self, parts: Sequence[tf.Tensor], num_exact: int) -> list[tf.DType]:
        """Returns the dtypes on the wire; the last tensors, of the network's state, stay exact."""
        rounded = len(parts) - num_exact
        return [self._wire_dtype_of(p) for p in parts[:rounded]] + [
            p.dtype for p in parts[rounded:]
        ]

    def _wire_dtype_of(self, part: tf.Tensor) -> tf.DType:
        """Returns the dtype on the wire: float32 for vectors; they are few, and sums stay exact."""
        matrix = part.dtype == tf.float32 and part.shape.rank is not None and part.shape.rank > 1
        return self._wire_dtype if matrix else part.dtype
