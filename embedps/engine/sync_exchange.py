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
from typing import Any, Literal, TypeAlias

import tensorflow as tf

from embedps.engine.step_exchange import RemoteExchange, Request, RowUpdate, StepInputs
from embedps.engine.unit_parts import StepPart
from embedps.errors import UsageError
from embedps.tables import ops
from embedps.tables.collection import EmbeddingCollection

SyncMode: TypeAlias = Literal["none", "dense", "full"]
"""What workers update together: nothing, the network, or the network and the rows."""


class SummedExchange(RemoteExchange):
    """Has servers add up what workers send, and applies the sums.

    Attributes:
      sync: what workers update together.
    """

    sync: SyncMode

    def __init__(
        self, network: tf.keras.Model, optimizer: Any, collection: EmbeddingCollection, **more: Any
    ) -> None:
        """Takes what `RemoteExchange` does.

        Raises:
          UsageError: the tables and variables are not on parameter servers.
        """
        if not collection.devices[0].startswith("/job:ps"):
            raise UsageError(
                f"sync {self.sync!r} adds up what workers send at parameter servers, but there are "
                "none: train with servers and workers, or with sync 'none'"
            )
        super().__init__(network, optimizer, collection, **more)

    def _part_tensors(
        self, device: str, rows: Sequence[RowUpdate], update: Sequence[tf.Tensor | None]
    ) -> dict[str, Any]:
        """Makes the arguments by which ops take the tensors of a part; see `ops.add_part`."""
        dense = self._variables.summed(device, update).values()
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

    def _apply_sum(
        self,
        device: str,
        log: tf.Tensor,
        found: Any,
        rows: Sequence[RowUpdate],
        update: Sequence[tf.Tensor | None],
        *,
        learning_rate: tf.Tensor,
        step: tf.Tensor,
        after: Sequence[tf.Operation] = (),
    ) -> tf.Operation:
        """Applies a sum on a server, the current device, if the caller must.

        Args:
          device: the server's.
          log: of the steps whose parts are added up.
          found: what an op returned for the arguments that `_part_tensors` made.
          rows: of the caller's own part.
          update: of the server's variables, of that part.
          learning_rate: of the tables.
          step: the number that the rows get.
          after: what must be done before the step counts as applied.
        """
        is_new = found.is_complete
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
        applied = self._update_rows(merged, learning_rate, step=step, is_new=is_new)
        summed = self._variables.summed(device, update)
        sums = [
            tf.cast(t, own.dtype)
            for own, t in zip(summed.values(), found.merged_dense, strict=True)
        ]
        merged_update = replaced(update, list(summed), sums)
        applied += self._variables.update(device, merged_update, is_new=is_new)
        with tf.control_dependencies([*after, *applied]):
            return ops.step_taken(log, is_new, found.turn)


class PartExchange(SummedExchange):
    """Waits for all parts of a step."""

    def _add_part(
        self,
        device: str,
        log: tf.Tensor,
        inputs: StepInputs,
        rows: Sequence[RowUpdate],
        update: Sequence[tf.Tensor | None],
        after: Sequence[tf.Operation] = (),
    ) -> tf.Operation:
        """Adds a part on the current device, a server; applies the sum if that completes it."""
        request = inputs.sent[device]
        part = part_of(request)
        found = ops.add_part(
            log,
            request.number,
            num_parts=part.num_parts,
            rank=part.rank,
            num_rows=part.num_rows,
            worker=request.worker,
            seen=inputs.seen[device],
            **self._part_tensors(device, rows, update),
        )
        return self._apply_sum(
            device,
            log,
            found,
            rows,
            update,
            learning_rate=request.learning_rate,
            step=request.number - part.rank,
            after=after,
        )


class FullExchange(PartExchange):
    """Updates rows and network once per step, by the sum of its parts."""

    sync = "full"
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
        return self._add_part(device, self._logs[device], inputs, rows, update)


class DenseExchange(PartExchange):
    """Updates rows by each part at once, and the network once per step by the sum of its parts."""

    sync = "dense"

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
        logged = super()._apply(device, inputs, rows, ())
        if device not in self._network_logs:
            return logged
        log = self._network_logs[device]
        return self._add_part(device, log, inputs, (), update, after=[logged])


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
