"""Takes a step with tables and variables on parameter servers.

Each tensor sent to another task costs an RPC; for both processes, an RPC costs more than a few
kilobytes do. So a step and a server exchange three messages, however many tables and variables
there are:

    worker ── step, learning rate, ids ──► server
           ◄── rows, variables ──
           ── gradients of both ──►

If a worker is lost or slow, its unit may be attempted again while the first attempt still runs.
Training twice within minutes on the same rows overfits to them: training twice in a row on one of
32 units lowers held-out AUC from 0.78 to 0.73-0.75. So a server logs the steps that it has applied,
and ignores the gradients of a step that is in the log.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import tensorflow as tf

from embedps.engine.random_numbers import unseeded
from embedps.engine.steps.interface import RowGradients, StepParts, ValueExchange, ValueInputs
from embedps.engine.steps.step_logs import StepLogs
from embedps.engine.steps.unit_parts import Step, StepPart
from embedps.tables import message_ops, step_ops
from embedps.tables.activations import Ids
from embedps.tables.lookup_result import ShardRows
from embedps.tables.ops import RowPart


class StepRequest(NamedTuple):
    """Holds what a server knows of a step that began, on that server.

    Attributes:
      number: the part's number, int64 scalar.
      learning_rate: of the tables, float32 scalar.
      worker: the index of the worker's task, int64 scalar.
      part: which part of a step this is; None if the server need not know.
      seen: the number of steps that it had applied.
    """

    number: tf.Tensor
    learning_rate: tf.Tensor
    worker: tf.Tensor
    part: StepPart | None
    seen: tf.Tensor | None = None


class Gradients(NamedTuple):
    """Holds what a server got of a step, on that server.

    Attributes:
      rows: those that have gradients, by group and shard.
      update: of the server's variables, as `RemoteVariables.updates` makes it.
    """

    rows: Mapping[tuple[int, int], RowPart]
    update: Sequence[tf.Tensor | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerInputs(ValueInputs):
    """Holds also what each server knows of the step."""

    sent: Mapping[str, StepRequest]


class RemoteExchange(ValueExchange[ServerInputs]):
    """Exchanges with parameter servers: three messages per step and server.

    Each loop iteration costs three more: the start of the iteration and of its body, and the end.
    Classes that inherit this one say what becomes of a step on servers: `_enter`, and `_apply` or
    `_apply_everywhere`.

    Attributes:
      sends_parts: whether servers are told which part of a step a batch is.
      logs_all: whether each server logs each step, even if it has nothing that learns.
    """

    steps_per_iteration = 4
    sends_parts = False
    logs_all = False

    def __init__(self, parts: StepParts) -> None:
        super().__init__(parts)
        self._wire_dtype = tf.as_dtype(parts.model.recommender.wire_dtype)
        # Maps each server to its shards, as (group, shard).
        self._on: dict[str, list[tuple[int, int]]] = {}
        for shard, device in enumerate(self.collection.devices):
            self._on.setdefault(device, []).extend(
                (g, shard) for g in range(len(self.collection.groups))
            )
        for device in self._variables.devices:
            self._on.setdefault(device, [])
        self._step_logs = parts.logs or StepLogs(self.collection.container)
        self._logs = self._step_logs.make(self._on)

    def begin(self, ids: Mapping[str, Ids], step: Step) -> ServerInputs:
        """Requests rows and variables from all servers; gives tensors of this device."""
        found = self.collection.route(ids, counts=True)
        shards: dict[tuple[int, int], ShardRows] = {}
        sent, read = {}, {}
        worker = self._step_logs.enter(step_ops.task_index())
        scalars = [step.number, step.learning_rate, worker]
        scalars += [tf.stack(step.part)] if self.sends_parts else []
        for device, on_device in self._on.items():
            asked = [found.routed[g].request(shard) for g, shard in on_device]
            request = [*scalars, *(t for each in asked for t in each if t is not None)]
            message = message_ops.pack(request)
            with tf.device(device):
                there = message_ops.unpack(
                    message, [tf.TensorSpec(r.shape, r.dtype) for r in request]
                )
                parts = [
                    StepPart(*tf.unstack(t, len(StepPart._fields))) for t in there[3 : len(scalars)]
                ]
                number_there, rate_there, worker_there = there[:3]
                begun = StepRequest(
                    number_there, rate_there, worker_there, parts[0] if parts else None
                )
                sent[device] = begun = begun._replace(seen=self._enter(device, begun))
                arrived = iter(there[len(scalars) :])
                asked = [RowPart(*(t if t is None else next(arrived) for t in a)) for a in asked]
                with tf.control_dependencies([begun.seen]):  # read the variables only now
                    rows_there = [
                        self.collection.lookup_shard(g, shard, a, insert=True, step=begun.number)
                        for (g, shard), a in zip(on_device, asked, strict=True)
                    ]
                    answer = [
                        *(each.rows for each in rows_there),
                        *(each.rates for each in rows_there if each.rates is not None),
                        *self._variables.read(device),
                    ]
                exact = self._variables.num_exact(device)
                message = message_ops.pack(answer, self._wire_dtypes(answer, exact))
            specs = [tf.TensorSpec([None, self.collection.groups[g].dim]) for g, _ in on_device]
            num_rates = sum(each.rates is not None for each in rows_there)
            specs += [tf.TensorSpec([None])] * num_rates
            here = iter(message_ops.unpack(message, [*specs, *self._variables.specs(device)]))
            rows = [next(here) for _ in rows_there]
            for at, row, each in zip(on_device, rows, rows_there, strict=True):
                rate = None if each.rates is None else next(here)
                shards[at] = ShardRows(row, rate, each.asked)
            read[device] = list(here)
        for g in range(len(found.routed)):
            found.add([shards[g, shard] for shard in range(self.collection.num_shards)])
        return ServerInputs(
            lookup=found,
            weights=self._variables.weights(read),
            number=step.number,
            learning_rate=step.learning_rate,
            read=read,
            sent=sent,
        )

    @contextmanager
    def computing(self, inputs: ServerInputs) -> Iterator[None]:
        """Makes the network use the values that were read, and each worker's own random numbers."""
        with super().computing(inputs), unseeded():
            yield

    def end(
        self,
        inputs: ServerInputs,
        row_gradients: RowGradients,
        gradients: Sequence[tf.Tensor | None],
    ) -> None:
        """Sends the gradients; servers update the variables with the ops that Keras would call."""
        updates = self._variables.updates(gradients, inputs.read, inputs.changes)
        rows = inputs.lookup.parts(row_gradients)
        found = {}
        for device, on_device in self._on.items():
            parts = [*(row_gradients[g][shard] for g, shard in on_device), *updates.get(device, [])]
            known = [part for part in parts if part is not None]
            if not known and not self.logs_all:
                continue
            exact = self._variables.num_exact(device)
            exact -= sum(part is None for part in parts[len(parts) - exact :])
            message = message_ops.pack(known, self._wire_dtypes(known, exact)) if known else None
            specs = [tf.TensorSpec(part.shape, part.dtype) for part in known]
            with tf.device(device):
                arrived = iter(() if message is None else message_ops.unpack(message, specs))
                there = [None if part is None else next(arrived) for part in parts]
            rows_there = {
                at: rows[at]._replace(gradients=gradient)
                for at, gradient in zip(on_device, there[: len(on_device)], strict=True)
                if gradient is not None
            }
            found[device] = Gradients(rows_there, there[len(on_device) :])
        logged = self._apply_everywhere(inputs, found)
        first = next(iter(self._on))  # has the gate
        self._step_logs.leave(inputs.sent[first].worker, logged)

    def _enter(self, device: str, request: StepRequest) -> tf.Tensor:
        """Begins a step on a server, the current device; gives how many it had applied before."""
        return step_ops.steps_seen(self._logs[device], request.number)

    def _apply_everywhere(
        self, inputs: ServerInputs, found: Mapping[str, Gradients]
    ) -> list[tf.Operation]:
        """Applies a step on the servers that have gradients of it."""
        applied = []
        for device, gradients in found.items():
            with tf.device(device):
                applied.append(self._apply(device, inputs.sent[device], gradients))
        return applied

    def _apply(self, device: str, request: StepRequest, found: Gradients) -> tf.Operation:
        """Applies a step on a server, the current device, and logs it.

        Another attempt must apply what is lost half-way.
        """
        is_new = step_ops.step_is_new(self._logs[device], request.number)
        applied = self._update(device, found, request.learning_rate, request.number, is_new)
        with tf.control_dependencies(applied):
            return step_ops.step_applied(
                self._logs[device], request.number, worker=request.worker, seen=request.seen
            )

    def _update(
        self,
        device: str,
        found: Gradients,
        learning_rate: tf.Tensor,
        step: tf.Tensor,
        is_new: tf.Tensor,
    ) -> list[tf.Operation]:
        """Updates rows and variables of a server, the current device; rows get the step's number.

        If `is_new`, a bool scalar, is false, nothing changes.
        """
        return [
            *(
                self.collection.update_shard(
                    *at, part, learning_rate=learning_rate, step=step, is_new=is_new
                )
                for at, part in found.rows.items()
            ),
            *self._variables.update(device, found.update, is_new=is_new),
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
