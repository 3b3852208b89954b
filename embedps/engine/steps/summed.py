"""Takes a step of several workers together: parameter servers add up what they send.

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
from typing import Any

import tensorflow as tf

from embedps.engine.steps.interface import StepParts
from embedps.engine.steps.servers import Gradients, RemoteExchange, StepRequest
from embedps.engine.steps.unit_parts import StepPart
from embedps.tables import part_ops, step_ops


class SummedExchange(RemoteExchange):
    """Has servers add up what workers send, and applies the sums."""

    sends_parts = True

    def _part_inputs(self, device: str, found: Gradients) -> dict[str, Any]:
        """Makes the arguments by which ops take a part; see `step_ops.add_part`."""
        dense = self._variables.summed(device, found.update).values()
        return {
            "rows": [*found.rows.values()],
            "dense": [tf.cast(t, tf.float32) if t.dtype.is_floating else t for t in dense],
        }

    def _apply_sum(
        self,
        device: str,
        log: tf.Tensor,
        merged: Any,
        found: Gradients,
        *,
        learning_rate: tf.Tensor,
        step: tf.Tensor,
        after: Sequence[tf.Operation] = (),
    ) -> tf.Operation:
        """Applies a sum on a server, the current device, if the caller must.

        Args:
          device: the server's.
          log: of the steps whose parts are added up.
          merged: what an op returned for the arguments that `_part_inputs` made.
          found: the caller's own part.
          learning_rate: of the tables.
          step: the number that the rows get.
          after: what must be done before the step counts as applied.
        """
        is_new = merged.is_complete
        rows = part_ops.merged_parts(merged, [*found.rows.values()])
        summed = self._variables.summed(device, found.update)
        sums = [
            tf.cast(t, own.dtype)
            for own, t in zip(summed.values(), merged.merged_dense, strict=True)
        ]
        total = Gradients(
            dict(zip(found.rows, rows, strict=True)), replaced(found.update, list(summed), sums)
        )
        applied = self._update(device, total, learning_rate, step, is_new)
        with tf.control_dependencies([*after, *applied]):
            return step_ops.step_taken(log, is_new, merged.turn)


class PartExchange(SummedExchange):
    """Waits for all parts of a step."""

    ranks = None

    def _add_part(
        self,
        device: str,
        log: tf.Tensor,
        request: StepRequest,
        found: Gradients,
        after: Sequence[tf.Operation] = (),
    ) -> tf.Operation:
        """Adds a part on the current device, a server; applies the sum if that completes it."""
        part = part_of(request)
        merged = step_ops.add_part(
            log,
            request.number,
            num_parts=part.num_parts,
            rank=part.rank,
            num_rows=part.num_rows,
            worker=request.worker,
            seen=request.seen,
            **self._part_inputs(device, found),
        )
        return self._apply_sum(
            device,
            log,
            merged,
            found,
            learning_rate=request.learning_rate,
            step=request.number - part.rank,
            after=after,
        )


class FullExchange(PartExchange):
    """Updates rows and network once per step, by the sum of its parts."""

    logs_all = True

    def __init__(self, parts: StepParts) -> None:
        super().__init__(parts)
        self._step_logs.share()

    def _enter(self, device: str, request: StepRequest) -> tf.Tensor:
        return _await_step(self._logs[device], request)

    def _apply(self, device: str, request: StepRequest, found: Gradients) -> tf.Operation:
        return self._add_part(device, self._logs[device], request, found)


class DenseExchange(PartExchange):
    """Updates rows by each part at once, and the network once per step by the sum of its parts."""

    def __init__(self, parts: StepParts) -> None:
        super().__init__(parts)
        self._network_logs = self._step_logs.make_shared(self._variables.devices)

    def _enter(self, device: str, request: StepRequest) -> tf.Tensor:
        if device not in self._network_logs:
            return super()._enter(device, request)
        with tf.control_dependencies([_await_step(self._network_logs[device], request)]):
            return super()._enter(device, request)

    def _apply(self, device: str, request: StepRequest, found: Gradients) -> tf.Operation:
        logged = super()._apply(device, request, found._replace(update=()))
        if device not in self._network_logs:
            return logged
        log = self._network_logs[device]
        return self._add_part(device, log, request, found._replace(rows={}), after=[logged])


def _await_step(log: tf.Tensor, request: StepRequest) -> tf.Tensor:
    """Waits on the current device, a server, until a part's step may begin."""
    return step_ops.await_step(log, request.number, after=part_of(request).after)


def part_of(request: StepRequest) -> StepPart:
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
