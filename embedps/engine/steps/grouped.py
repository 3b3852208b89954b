"""Takes steps of several workers together, without waiting for the slowest or for lost ones.

Each worker trains units of its own and sends its part of a step, as in summed.py. The parts
that are applied together are a group. The first server decides which parts these are, so they are
the same on all servers:

    worker ── ids ──► server ── rows, variables ──► worker
           ── gradients ──► each server holds the part
           once all hold it: the part joins the group that is open on the first server
           the group closes: each server adds up its parts, in the order of their numbers, and
           updates once

A part is fresh if its worker read the state with all groups that are closed. A group closes once it
has a fresh part of each worker that is there, but for the `backup_workers` slowest (Chen et al.
2016, arXiv:1604.00981). Chen et al. drop what comes late. Here it is in the group that is open
then, and its worker goes on at once. So no example is lost; a late part is a step stale, or more,
and counts as such.

A worker is there from the beginning of a unit to its end, or until it is lost. A part is numbered
by its unit and batch, and the first attempt at it counts; so each part is applied once, whoever is
lost. A fresh part's worker applies the group on each server that has not. If all of them are lost,
the client does (`GroupWatch`); groups are applied in order, so the next ones wait for that.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from embedps.engine.steps.interface import StepParts
from embedps.engine.steps.servers import Gradients, ServerInputs, StepRequest
from embedps.engine.steps.summed import SummedExchange, part_of, replaced
from embedps.tables import group_ops, step_ops
from embedps.tables.group_ops import Group
from embedps.tables.ops import RowPart


class _Sent(NamedTuple):
    """Says which tensors a server gets of a part.

    Attributes:
      rows: by group and shard, whether they have counts.
      summed: dtype and shape by index in the update of the server's variables.
    """

    rows: dict[tuple[int, int], bool]
    summed: dict[int, tuple[tf.DType, tf.TensorShape]]


class GroupExchange(SummedExchange):
    """Applies the parts of steps in groups."""

    _group_logs: Mapping[str, tf.Tensor]

    def __init__(self, parts: StepParts) -> None:
        super().__init__(parts)
        self._backup_workers = parts.backup_workers
        self._sent: dict[str, _Sent] = {}

    @property
    def first_log(self) -> tuple[str, tf.Tensor]:
        """Returns the device and the log of the server that has the groups."""
        return next(iter(self._group_logs.items()))

    def num_applied(self) -> int:
        """Counts, eagerly, the groups that all servers have applied."""
        counts = []
        for device, log in self._group_logs.items():
            with tf.device(device):
                counts.append(int(group_ops.await_groups(log, tf.zeros([], tf.int64))))
        return min(counts)

    def enter_unit(self) -> tf.Tensor:
        """Lets the worker in, in a unit's graph; returns its membership, for `leave_unit`."""
        device, log = self.first_log
        worker = step_ops.task_index()
        with tf.device(device):
            backup_workers = tf.constant(self._backup_workers, tf.int64)
            num_closed, member = group_ops.enter_groups(log, worker, backup_workers=backup_workers)
        for device, log in self._group_logs.items():
            with tf.device(device):
                group_ops.await_groups(log, num_closed)
        return member

    def leave_unit(self, entered: tf.Tensor, last: tf.Tensor) -> None:
        """Lets the worker out once all its parts are applied; `last` is the last one's number."""
        device, log = self.first_log
        with tf.device(device):
            group = group_ops.leave_groups(log, last, entered)
        self.apply(group)

    def apply(self, group: Group) -> None:
        """Applies a group on each server that has not, without a part of the caller's own."""
        read = self._read()
        unknown = [None] * len(self._variables.weights(read))
        changes = [None] * sum(map(self._variables.num_exact, self._variables.devices))
        settings = self._variables.updates(unknown, read, changes)
        for device, sent in self._sent.items():
            with tf.device(device):
                rows = {at: self._no_rows(at[0], counted) for at, counted in sent.rows.items()}
                zeros = [tf.zeros(shape, dtype) for dtype, shape in sent.summed.values()]
                update = replaced(settings.get(device, []), list(sent.summed), zeros)
                self._take(device, group, Gradients(rows, update))

    def _apply_everywhere(
        self, inputs: ServerInputs, found: Mapping[str, Gradients]
    ) -> list[tf.Operation]:
        """Sends a part; returns once its group is applied, or for a late part the last one."""
        held = []
        for device, gradients in found.items():
            with tf.device(device):
                held += self._hold(device, inputs.sent[device], gradients)
        first, log = self.first_log
        request = inputs.sent[first]
        with tf.device(first):
            # Outside of the wait below: an op that takes a value from inside has its edges by that
            # value alone, and they go where the graph is simplified.
            seen = self._seen(request)
        with tf.control_dependencies(held), tf.device(first):
            group = group_ops.join_group(log, request.number, worker=request.worker, seen=seen)
        taken = []
        for device, gradients in found.items():
            if device in self._group_logs:
                with tf.device(device):
                    taken.append(self._take(device, group, self._grouped(gradients)))
        return taken

    def _hold_part(self, device: str, request: StepRequest, found: Gradients) -> tf.Operation:
        """Keeps what a part's group updates on the current device, a server."""
        found = self._grouped(found)
        summed = self._variables.summed(device, found.update)
        self._sent[device] = _Sent(
            {at: part.absent is not None for at, part in found.rows.items()},
            {i: (v.dtype, v.shape) for i, v in summed.items()},
        )
        return group_ops.hold_part(
            self._group_logs[device],
            request.number,
            num_rows=part_of(request).num_rows,
            worker=request.worker,
            seen=self._seen(request),
            learning_rate=request.learning_rate,
            **self._part_inputs(device, found),
        )

    def _take(self, device: str, group: Group, found: Gradients) -> tf.Operation:
        """Applies a group on the current device, a server, unless that has."""
        log = self._group_logs[device]
        merged = group_ops.take_group(log, group, **self._part_inputs(device, found))
        return self._apply_sum(
            device,
            log,
            merged,
            found,
            learning_rate=merged.learning_rate,
            step=merged.step,
        )

    def _no_rows(self, group: int, has_counts: bool) -> RowPart:
        """Makes the gradients of no rows."""
        tables = self.collection.groups[group]
        return RowPart(
            tf.zeros([0], tf.int64),
            tf.zeros([len(tables.tables) + 1], tf.int32),
            tf.zeros([0, tables.dim]),
            tf.zeros([0], tf.int32) if has_counts else None,
            tf.zeros([0], tf.uint8) if has_counts else None,
        )

    def _grouped(self, found: Gradients) -> Gradients:
        """Returns what of a part its group updates."""
        return found

    def _seen(self, request: StepRequest) -> tf.Tensor:
        """Returns how many parts a server had applied, by the groups' log."""
        return request.seen

    @abc.abstractmethod
    def _hold(self, device: str, request: StepRequest, found: Gradients) -> list[tf.Operation]:
        """Keeps on the current device what its group applies, and applies the rest."""


class FullGroups(GroupExchange):
    """Updates rows and network by the groups' sums."""

    logs_all = True

    def __init__(self, parts: StepParts) -> None:
        super().__init__(parts)
        self._group_logs = self._step_logs.share()

    def _hold(self, device: str, request: StepRequest, found: Gradients) -> list[tf.Operation]:
        return [self._hold_part(device, request, found)]


class DenseGroups(GroupExchange):
    """Updates rows by each part at once, and the network by the groups' sums."""

    def __init__(self, parts: StepParts) -> None:
        super().__init__(parts)
        self._group_logs = self._step_logs.make_shared(self._variables.devices)

    def _enter(self, device: str, request: StepRequest) -> tf.Tensor:
        """Counts the parts of both logs, or of the one that there is."""
        logs = [log[device] for log in (self._logs, self._group_logs) if device in log]
        return tf.stack([step_ops.steps_seen(log, request.number) for log in logs])

    def _seen(self, request: StepRequest) -> tf.Tensor:
        return super()._seen(request)[-1]

    def _grouped(self, found: Gradients) -> Gradients:
        return found._replace(rows={})

    def _hold(self, device: str, request: StepRequest, found: Gradients) -> list[tf.Operation]:
        of_rows = request._replace(seen=super()._seen(request)[0])
        logged = self._apply(device, of_rows, found._replace(update=()))
        if device not in self._group_logs:
            return [logged]
        return [logged, self._hold_part(device, request, found)]
