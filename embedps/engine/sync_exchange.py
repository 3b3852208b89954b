"""Exchanges a step that several workers take together with the parameter servers.

Each worker sends its part of a step: the gradients of one batch. A server waits for all parts,
adds them up in order of rank, each weighted by its share of the rows, and updates once. So the sum
does not depend on which part came first, and N workers of batch B do what one process of batch
N x B does, within the rounding of the sums.

    worker ── step, part, ids ──► server waits for the step before
           ◄── rows, variables ──
           ── gradients ──► server keeps the part; the last one updates

Nothing is sent beyond what workers send that do not wait. The first attempt at a part counts. If
the worker that brought the last part is lost before the update, the parts stay, and the next
attempt at any part updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import tensorflow as tf

from embedps.engine.step_exchange import RemoteExchange, Request, RowUpdate, StepInputs
from embedps.engine.step_logs import StepLogs
from embedps.engine.unit_parts import StepPart
from embedps.errors import UsageError
from embedps.tables import ops
from embedps.tables.collection import EmbeddingCollection

SyncMode: TypeAlias = Literal["none", "dense", "full"]
"""What workers update together: nothing, the network, or the network and the rows."""


def make_sync_exchange(
    sync: SyncMode,
    network: tf.keras.Model,
    optimizer: Any,
    collection: EmbeddingCollection,
    *,
    state: Sequence[tf.Variable] = (),
    wire_dtype: tf.DType,
    logs: StepLogs | None = None,
) -> RemoteExchange:
    """Makes the exchange of steps that several workers take together, each waiting for all.

    Args:
      sync: what they update together; not "none".
      network: as `make_step_exchange` takes it, and what follows.

    Raises:
      UsageError: the tables and variables are not on parameter servers.
    """
    check_servers(sync, collection)
    make = FullExchange if sync == "full" else DenseExchange
    return make(network, optimizer, collection, state=state, wire_dtype=wire_dtype, logs=logs)


def check_servers(sync: SyncMode, collection: EmbeddingCollection) -> None:
    """Checks that there are servers, which add up what workers send.

    Raises:
      UsageError: there are none.
    """
    if not collection.devices[0].startswith("/job:ps"):
        raise UsageError(
            f"sync {sync!r} adds up what workers send at parameter servers, but there are none: "
            "train with servers and workers, or with sync 'none'"
        )


class FullExchange(RemoteExchange):
    """Updates rows and network once per step, by the sum of its parts."""

    logs_all = True

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        self._step_logs.share()

    def _enter(self, device: str, request: Request) -> tf.Tensor:
        return _await_step(self._logs[device], request)

    def _apply(
        self,
        device: str,
        inputs: StepInputs,
        rows: Sequence[RowUpdate],
        update: Sequence[tf.Tensor | None],
    ) -> tf.Operation:
        request = inputs.sent[device]
        summed = self._variables.summed(device, update)
        step = _add_part(
            self._logs[device],
            request,
            seen=inputs.seen[device],
            rows=rows,
            dense=[update[i] for i in summed],
        )
        number = request.number - part_of(request).rank
        applied = self._update_rows(
            step.rows, request.learning_rate, step=number, is_new=step.is_complete
        )
        merged = replaced(update, summed, step.dense)
        applied += self._variables.update(device, merged, is_new=step.is_complete)
        with tf.control_dependencies(applied):
            return ops.step_taken(self._logs[device], step.is_complete, step.turn)


class DenseExchange(RemoteExchange):
    """Updates rows by each part at once, and the network once per step by the sum of its parts."""

    def __init__(self, *parts: Any, **options: Any) -> None:
        super().__init__(*parts, **options)
        self._network_logs = self._step_logs.make_shared(self._variables.devices)

    def _enter(self, device: str, request: Request) -> tf.Tensor:
        if device not in self._network_logs:
            return super()._enter(device, request)
        with tf.control_dependencies([_await_step(self._network_logs[device], request)]):
            return super()._enter(device, request)

    def _apply(
        self,
        device: str,
        inputs: StepInputs,
        rows: Sequence[RowUpdate],
        update: Sequence[tf.Tensor | None],
    ) -> tf.Operation:
        request = inputs.sent[device]
        number, learning_rate, *_ = request
        is_new = ops.step_is_new(self._logs[device], number)
        updated = self._update_rows(rows, learning_rate, step=number, is_new=is_new)
        logged = self._log_step(device, inputs, updated)
        if device not in self._network_logs:
            return logged
        log = self._network_logs[device]
        summed = self._variables.summed(device, update)
        step = _add_part(
            log,
            request,
            seen=inputs.seen[device],
            rows=(),
            dense=[update[i] for i in summed],
        )
        merged = replaced(update, summed, step.dense)
        applied = self._variables.update(device, merged, is_new=step.is_complete)
        with tf.control_dependencies([logged, *applied]):
            return ops.step_taken(log, step.is_complete, step.turn)


class _SummedStep(NamedTuple):
    """Holds the sum of a step's parts, to be applied if `is_complete`."""

    is_complete: tf.Tensor
    turn: tf.Tensor
    rows: list[RowUpdate]
    dense: list[tf.Tensor]


def _add_part(
    log: tf.Tensor,
    request: Request,
    *,
    seen: tf.Tensor,
    rows: Sequence[RowUpdate],
    dense: Sequence[tf.Tensor],
) -> _SummedStep:
    """Adds a part on the current device, a server; gives the step's sum if that completes it."""
    part = part_of(request)
    found = ops.add_part(
        log,
        request.number,
        num_parts=part.num_parts,
        rank=part.rank,
        num_rows=part.num_rows,
        worker=request.worker,
        seen=seen,
        **part_tensors(rows, dense),
    )
    return _SummedStep(found.is_complete, found.turn, *merged_of(found, rows, dense))


def part_tensors(rows: Sequence[RowUpdate], dense: Sequence[tf.Tensor]) -> dict[str, Any]:
    """Makes the arguments by which ops take the tensors of a part; see `ops.add_part`."""
    return {
        "ids": [each.ids for each in rows],
        "splits": [each.splits for each in rows],
        "gradients": [each.gradients for each in rows],
        "counts": {
            i: (each.examples, each.absent)
            for i, each in enumerate(rows)
            if each.examples is not None and each.absent is not None
        },
        "dense": [tf.cast(t, tf.float32) if t.dtype.is_floating else t for t in dense],
    }


def merged_of(
    found: Any, rows: Sequence[RowUpdate], dense: Sequence[tf.Tensor]
) -> tuple[list[RowUpdate], list[tf.Tensor]]:
    """Gives the sums that an op returned for such arguments: of rows, and of dense tensors."""
    examples, absent = iter(found.merged_examples), iter(found.merged_absent)
    merged = [
        each._replace(
            ids=found.merged_ids[i],
            splits=found.merged_splits[i],
            gradients=found.merged_gradients[i],
            examples=None if each.examples is None else next(examples),
            absent=None if each.absent is None else next(absent),
        )
        for i, each in enumerate(rows)
    ]
    return merged, [tf.cast(t, d.dtype) for t, d in zip(found.merged_dense, dense, strict=True)]


def _await_step(log: tf.Tensor, request: Request) -> tf.Tensor:
    """Waits on the current device, a server, until a part's step may begin."""
    part = part_of(request)
    return ops.await_step(log, request.number, after=part.after)


def part_of(request: Request) -> StepPart:
    """Gives the part of a request that must have one."""
    if request.part is None:
        raise ValueError("a step that several workers take together must say which part it is")
    return request.part


def replaced(
    update: Sequence[tf.Tensor | None], at: Sequence[int], values: Sequence[tf.Tensor]
) -> list[tf.Tensor | None]:
    """Returns an update with other values at some indexes."""
    new = dict(zip(at, values, strict=True))
    return [new.get(i, each) for i, each in enumerate(update)]
