"""Simulates a run whose tasks fail: how much of the time becomes training that is kept.

A lost server stops the steps, because each needs all servers. How long, and whether the work since
the last committed cut is done again, depends on the way of recovery. A lost worker costs its share
of the speed until it is back, and half a unit. `benchmarks.goodput` compares it with real runs.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import random
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple


class Failure(NamedTuple):
    """A task that is killed, at seconds after the first step."""

    at: float
    task: Literal["server", "worker"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recovery:
    """How a run goes on without one of its servers.

    Attributes:
      name: of the way.
      fixed_secs: from the death until steps go on, besides what follows.
      rows_per_sec: that a server reads from the last checkpoint; 0 if it needs not read.
      repeats: whether work since that checkpoint is done again.
      replay_share: seconds of replay per second of work since that checkpoint.
      is_measured: whether this way exists.
    """

    name: str
    fixed_secs: float
    rows_per_sec: float = 0.0
    repeats: bool = False
    replay_share: float = 0.0
    is_measured: bool = False

    def down_secs(self, rows: float, since_cut: float) -> float:
        """Gives the seconds without a step.

        Args:
          rows: of the server.
          since_cut: seconds of work since the last committed cut.
        """
        read = rows / self.rows_per_sec if self.rows_per_sec else 0.0
        return self.fixed_secs + read + self.replay_share * since_cut


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """Tasks, and what a checkpoint costs.

    Attributes:
      workers, servers: how many.
      rows_per_server: that a server restores.
      interval_secs: from one cut of a checkpoint to the next.
      save_secs: from a cut until its commit.
      save_slowdown: share of the speed that a save takes while it is under way.
      worker_secs: until a lost worker is back.
      unit_secs: that a worker takes for a unit.
    """

    workers: int
    servers: int
    rows_per_server: float
    interval_secs: float
    save_secs: float
    save_slowdown: float = 0.0
    worker_secs: float = 0.0
    unit_secs: float = 0.0

    @property
    def speed(self) -> float:
        """The speed without failures, by that without saves."""
        return 1.0 - self.save_slowdown * min(1.0, self.save_secs / self.interval_secs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of the time; shares of it.

    Attributes:
      secs: until the work was done.
      goodput: work that was kept.
      down: without a step.
      repeated: work that was done again.
      workers: the speed of lost workers, and their units.
      failures: of servers.
    """

    secs: float
    goodput: float
    down: float
    repeated: float
    workers: float
    failures: int


def simulate(
    cluster: Cluster,
    recovery: Recovery,
    failures: Iterable[Failure],
    *,
    work_secs: float = math.inf,
    most_secs: float = math.inf,
) -> Outcome:
    """Runs until so much work is kept, or until so much time is over.

    Args:
      failures: in order of time.
      work_secs: of work, in seconds of a run without failures and saves.
      most_secs: of time; where failures come too often, a run never ends.
    """
    began, done, committed = 0.0, 0.0, 0.0  # since when steps go on, and the work until then
    down = repeated = by_workers = 0.0
    num_failures = 0
    speed = cluster.speed
    for failure in failures:
        if failure.at >= min(most_secs, began + (work_secs - done) / speed):
            break
        ran = max(0.0, failure.at - began)
        if failure.task == "worker":
            cost = speed * (cluster.worker_secs + cluster.unit_secs / 2) / cluster.workers
            done -= cost
            by_workers += cost
            continue
        num_failures += 1
        if ran > 0:
            cuts = int(max(0.0, ran - cluster.save_secs) / cluster.interval_secs)
            if cuts > 0:
                committed = done + cuts * cluster.interval_secs * speed
            done += ran * speed
        since_cut = done - committed
        if recovery.repeats:
            repeated += since_cut
            done = committed
        ends = failure.at + recovery.down_secs(cluster.rows_per_server, since_cut)
        down += ends - max(began, failure.at)  # a recovery that is cut short is paid for once
        began = ends
    secs = min(most_secs, began + (work_secs - done) / speed)
    down -= max(0.0, began - secs)  # a recovery that the end cuts off
    kept = done + max(0.0, secs - began) * speed
    return Outcome(
        secs=secs,
        goodput=max(0.0, kept) / secs,
        down=down / secs,
        repeated=repeated / speed / secs,
        workers=by_workers / speed / secs,
        failures=num_failures,
    )


def random_failures(
    cluster: Cluster, *, worker_mtbf_secs: float, server_mtbf_secs: float, seed: int
) -> Iterator[Failure]:
    """Draws failures for ever: those of a task come at random, with a mean time between two."""

    def of(task: Literal["server", "worker"], tasks: int, mtbf: float) -> Iterator[Failure]:
        rng = random.Random(f"{seed} {task}")
        at = 0.0
        while tasks:
            at += rng.expovariate(tasks / mtbf)
            yield Failure(at, task)

    return heapq.merge(
        of("server", cluster.servers, server_mtbf_secs),
        of("worker", cluster.workers, worker_mtbf_secs),
    )
