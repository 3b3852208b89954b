"""The parameter servers' logs of applied steps, and how stale the steps were.

A worker reads rows and variables, computes, and sends gradients. Other workers' steps are applied
meanwhile: their number is the step's staleness (the delay tau of Ho et al. 2013, "More Effective
Distributed ML via a Stale Synchronous Parallel Parameter Server").
"""

from __future__ import annotations

import uuid
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from typing import Protocol, TypeAlias

import numpy as np
import tensorflow as tf

from embedps.tables import step_ops

Staleness: TypeAlias = dict[int, dict[int, int]]
"""By worker, by staleness, the number of its steps; a step counts once for each server."""


class Groups(Protocol):
    """Watches the groups in which parts of steps are applied; see `group_watch.GroupWatch`."""

    def num_closed(self) -> int:
        """Counts the groups that closed."""

    def last_groups(self) -> dict[int, np.ndarray]:
        """Lists the last groups: by index the numbers of their parts. The last one is open."""

    def poll(self) -> None:
        """Applies what has closed, if no group has since the last call."""

    def awaited(self) -> tuple[int, list[int]]:
        """Tells, as of the last poll, the open group and the workers that it waits for."""

    def forget(self, workers: Iterable[int]) -> None:
        """Lets no group wait for workers that do not answer, until they do."""


class StepLogs:
    """Holds a log on each parameter server that a step writes to; may bound staleness.

    The first server has the gate. A step enters it before it reads anywhere, and leaves it when all
    servers have applied it. So the steps that it meets on any server are among those that are under
    way when it enters and those that enter before it leaves; the gate counts these.

    Attributes:
      most_stale: the largest staleness, in steps; None is no bound.
      groups: where workers take steps together without waiting for all; None elsewhere.
    """

    groups: Groups | None = None

    def __init__(self, container: str, *, most_stale: int | None = None) -> None:
        """Has no logs yet.

        Args:
          container: of the tables, so that a log is lost exactly when the applied updates are.
          most_stale: the largest staleness, in steps; None is no bound.
        """
        self.most_stale = most_stale
        self._container = container
        self._logs: dict[str, tf.Tensor] = {}
        self._shared: dict[str, tf.Tensor] = {}

    def make(self, devices: Iterable[str]) -> Mapping[str, tf.Tensor]:
        """Makes the log of each device; returns them."""
        self._logs = self._new(devices)
        return self._logs

    def make_shared(self, devices: Iterable[str]) -> Mapping[str, tf.Tensor]:
        """Makes logs of the steps that workers take together; returns them."""
        self._shared = self._new(devices)
        return self._shared

    @property
    def devices(self) -> Set[str]:
        """The servers that have a log."""
        return {*self._logs, *self._shared}

    def replace(self, devices: Container[str]) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Makes the logs of some servers anew; gives the old and the new handle of each."""
        replaced = []
        for logs in {id(each): each for each in (self._logs, self._shared)}.values():
            for device in [each for each in logs if each in devices]:
                old, logs[device] = logs[device], self._new([device])[device]
                replaced.append((old, logs[device]))
        return replaced

    def share(self) -> Mapping[str, tf.Tensor]:
        """Says that workers take all steps together; returns the logs that `make` made."""
        self._shared = self._logs
        return self._shared

    def open_steps(self) -> dict[int, list[int | None]]:
        """Lists, on one server, the steps that wait for parts.

        Returns:
          By step, for each rank the worker that brought the part; None if none has.
        """
        found: dict[int, list[int | None]] = {}
        for device, log in list(self._shared.items())[:1]:
            with tf.device(device):
                parts: np.ndarray = step_ops.open_steps(log).numpy()
            for step, _, worker in parts.tolist():
                found.setdefault(step, []).append(None if worker < 0 else worker)
        return found

    def _new(self, devices: Iterable[str]) -> dict[str, tf.Tensor]:
        logs = {}
        for device in devices:
            with tf.device(device):
                logs[device] = step_ops.step_log(
                    container=self._container, shared_name=f"steps/{uuid.uuid4().hex}"
                )
        return logs

    def enter(self, worker: tf.Tensor) -> tf.Tensor:
        """Gives a worker's number, in a step's graph, once its step may begin."""
        if self.most_stale is None:
            return worker
        device, log = self._gate()
        with tf.device(device):
            entered = step_ops.step_enter(log, worker, most=self.most_stale)
        with tf.control_dependencies([entered]):
            return tf.identity(worker)

    def leave(self, worker: tf.Tensor, applied: Sequence[tf.Operation]) -> None:
        """Ends a step, in its graph, once all servers have applied it."""
        if self.most_stale is not None:
            device, log = self._gate()
            with tf.control_dependencies(applied), tf.device(device):
                step_ops.step_leave(log, worker)

    def forget(self, workers: Iterable[int]) -> None:
        """Lets no step wait for those of lost workers."""
        if self.groups is not None:
            self.groups.forget(workers)
        for worker in workers if self.most_stale is not None else ():
            device, log = self._gate()
            with tf.device(device):
                step_ops.step_leave(log, tf.constant(worker, tf.int64))

    def _gate(self) -> tuple[str, tf.Tensor]:
        """Returns the device and the log of the server that has the gate."""
        return next(iter(self._logs.items()))

    def staleness(self) -> Staleness:
        """Counts the applied steps by worker and staleness, over all servers."""
        found: Staleness = {}
        for device, log in self._logs.items():
            with tf.device(device):
                counts: np.ndarray = step_ops.staleness(log).numpy()
            for worker, stale, steps in counts.tolist():
                of_worker = found.setdefault(worker, {})
                of_worker[stale] = of_worker.get(stale, 0) + steps
        return {worker: dict(sorted(found[worker].items())) for worker in sorted(found)}


def staleness_percentile(counts: Mapping[int, int], percent: float) -> int:
    """Gives the least staleness that at least so many percent of the steps do not exceed.

    Args:
      counts: the number of steps by staleness; at least one step.
      percent: in (0, 100].
    """
    stale = np.sort(np.fromiter(counts, np.int64))
    steps = np.cumsum([counts[each] for each in stale.tolist()])
    return int(stale[np.searchsorted(steps, steps[-1] * percent / 100)])
