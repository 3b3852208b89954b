"""What each mode of `--sync` costs: bytes, calls and speed, beside those of steps that do not wait.

A part of a step sends what a step of its own sends. But a unit is divided among the workers of a
step, so a worker has fewer steps per unit, and what begins and ends its part of a unit weighs more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from embedps.engine.steps.ways import SyncMode
from embedps.planning.step_traffic import ServerStep, predict
from embedps.run.cluster_config import ClusterConfig

SPEEDS: Mapping[SyncMode, float] = {"none": 1.0, "dense": 1.0, "full": 0.98}
"""Examples per second of equal workers, as a share of those of mode none.

Medians of what `python -m benchmarks.strategies` measured with 2 and with 8 workers on one machine,
0.95 to 1.03; docs/performance.md has its results.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModePlan:
    """What a mode costs on the planned cluster.

    Attributes:
      sync: the mode.
      row_examples: examples of an update of the rows.
      network_examples: examples of an update of the network.
      calls: gRPC calls per step of a worker, at each server.
      bytes_in, bytes_out: per step of a worker, of the fullest server.
      examples_per_sec: of all workers on this machine; 0 if nothing was measured.
      is_measured: whether that was measured; otherwise it is predicted.
    """

    sync: SyncMode
    row_examples: float
    network_examples: float
    calls: float
    bytes_in: int
    bytes_out: int
    examples_per_sec: float
    is_measured: bool


def speed_of(sync: SyncMode, num_workers: int) -> float:
    """Predicts a mode's examples per second, as a share of those of mode none."""
    return SPEEDS[sync] if num_workers > 1 else 1.0


def calls_of(sync: SyncMode, group_size: int, unit_steps: float) -> float:
    """Predicts the gRPC calls per step of a worker, at each server.

    Args:
      group_size: how many workers take each step together, if any do.
      unit_steps: batches per unit.
    """
    return _fixed("calls", own_steps(sync, group_size, unit_steps))


def own_steps(sync: SyncMode, group_size: int, unit_steps: float) -> float:
    """Gives how many steps of a unit a worker takes that has a part of it."""
    return unit_steps if sync == "none" else max(1.0, unit_steps / group_size)


def _fixed(what: str, unit_steps: float) -> float:
    """Predicts what a step exchanges besides ids, rows and variables."""
    return predict(what, ServerStep(ids=0, row_floats=0, network_floats=0, unit_steps=unit_steps))


def plan_modes(
    cluster: ClusterConfig,
    *,
    bytes_in: int,
    bytes_out: int,
    examples_per_step: float,
    unit_steps: float,
    examples_per_sec: float,
) -> list[ModePlan]:
    """Plans each mode.

    Args:
      cluster: the planned one, which has servers.
      bytes_in: per step of a worker in mode none, of the fullest server.
      bytes_out: the same.
      examples_per_step: of a worker.
      unit_steps: batches per unit.
      examples_per_sec: measured on the cluster in mode none; 0 if it was not.
    """
    size = cluster.group_size(cluster.num_workers)
    together = examples_per_step * size

    def more(what: str, sync: SyncMode) -> int:
        own = own_steps(sync, size, unit_steps)
        return round(_fixed(what, own) - _fixed(what, unit_steps))

    return [
        ModePlan(
            sync=sync,
            row_examples=together if sync == "full" else examples_per_step,
            network_examples=examples_per_step if sync == "none" else together,
            calls=calls_of(sync, size, unit_steps),
            bytes_in=bytes_in + more("bytes_in", sync),
            bytes_out=bytes_out + more("bytes_out", sync),
            examples_per_sec=examples_per_sec * speed_of(sync, cluster.num_workers),
            is_measured=sync == "none" and examples_per_sec > 0,
        )
        for sync in SPEEDS
    ]
