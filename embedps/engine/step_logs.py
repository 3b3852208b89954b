"""The parameter servers' logs of applied steps, and how stale the steps were.

A worker reads rows and variables, computes, and sends gradients. Other workers' steps are applied
meanwhile: their number is the step's staleness (the delay tau of Ho et al. 2013, "More Effective
Distributed ML via a Stale Synchronous Parallel Parameter Server").
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from embedps.tables import ops

Staleness: TypeAlias = dict[int, dict[int, int]]
"""By worker, by staleness, the number of its steps; a step counts once for each server."""


class StepLogs:
    """Holds a log on each parameter server that a step writes to."""

    def __init__(self, container: str) -> None:
        """Has no logs yet.

        Args:
          container: of the tables, so that a log is lost exactly when the applied updates are.
        """
        self._container = container
        self._logs: dict[str, tf.Tensor] = {}

    def make(self, devices: Iterable[str]) -> Mapping[str, tf.Tensor]:
        """Makes the log of each device; returns them."""
        for device in devices:
            with tf.device(device):
                self._logs[device] = ops.step_log(
                    container=self._container, shared_name=f"steps/{uuid.uuid4().hex}"
                )
        return self._logs

    def staleness(self) -> Staleness:
        """Counts the applied steps by worker and staleness, over all servers."""
        found: Staleness = {}
        for device, log in self._logs.items():
            with tf.device(device):
                counts: np.ndarray = ops.staleness(log).numpy()
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
