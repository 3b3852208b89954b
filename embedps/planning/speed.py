"""The speed of training: a short timed run here, and what it tells of more workers and servers."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tensorflow as tf

from embedps.cluster.embedded import EmbeddedCluster
from embedps.cluster.interface import Cluster, ScheduledCall
from embedps.cluster.local_cluster import LocalCluster
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.engine.unit_functions import explain
from embedps.errors import ServerLostError
from embedps.run.config import TrainConfig
from embedps.scheduling.ledger import Unit
from embedps.training.training_setup import TrainingSetup, set_up

_EPOCHS = 1000  # more than the measurements read
_TICKS_PER_SEC = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """A step, as it was measured on this machine.

    Attributes:
      num_ps: servers of the measured cluster; 0 for this process alone.
      num_workers: workers of the measured cluster.
      cores: that these processes shared.
      examples: of the steps that were timed.
      secs: per step of one worker, while the others rest.
      steps_per_sec: of all workers at once.
      worker_cpu_secs: of a core, per step.
      server_cpu_secs: of a core, per step, on all servers.
      base_bytes: resident memory of a server, or of this process, besides the tables.
    """

    num_ps: int
    num_workers: int
    cores: int
    examples: int
    secs: float
    steps_per_sec: float
    worker_cpu_secs: float
    server_cpu_secs: float
    base_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machines:
    """The machines of a planned cluster: one per worker and one per server.

    Attributes:
      cores: of each.
      link_bytes_per_sec: that each sends, and receives at the same time.
    """

    cores: int
    link_bytes_per_sec: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast a cluster trains.

    Attributes:
      steps_per_sec: of all workers.
      limit: "workers", "staleness", "servers" (their cores), "links" or "disks".
    """

    steps_per_sec: float
    limit: str


def predict_speed(
    step: MeasuredStep,
    machines: Machines,
    *,
    num_workers: int,
    num_ps: int,
    worker_bytes: float,
    server_bytes: float,
    staleness_bound: int | None = None,
    disk_secs: float = 0.0,
) -> Speed:
    """Predicts the speed of a cluster of which each task has a machine of its own.

    A worker alone is as fast as it was here, plus the time that its bytes take on a link and its
    rows on disks. The servers' cores, the fullest server's link and the disks are limits for all
    workers together.

    Args:
      step: measured on a cluster.
      worker_bytes: per step, the larger of a worker's bytes in and out.
      server_bytes: per step of one worker, the larger of the fullest server's bytes in and out.
      staleness_bound: the most updates of others that a step may meet: one more worker than that
        may be in a step at a time.
      disk_secs: that a server takes to read a step's part of the rows that it has on disk.
    """
    alone = step.secs + worker_bytes / machines.link_bytes_per_sec + disk_secs
    limits = {
        "workers": num_workers / alone,
        "staleness": math.inf if staleness_bound is None else (staleness_bound + 1) / alone,
        "servers": num_ps * machines.cores / max(step.server_cpu_secs, 1e-9),
        "links": machines.link_bytes_per_sec / server_bytes,
        "disks": 1 / disk_secs if disk_secs else math.inf,
    }
    limit = min(limits, key=limits.__getitem__)
    return Speed(steps_per_sec=limits[limit], limit=limit)


def measure_step(
    recommender: Recommender,
    dataset: Dataset,
    config: TrainConfig,
    *,
    num_ps: int,
    num_workers: int,
    secs: float,
    say: Callable[[str], None],
) -> MeasuredStep:
    """Trains for some seconds in a temporary directory, and measures a step.

    TensorFlow never leaves a cluster, so a process can measure one with servers only.

    Args:
      dataset: whose units are trained.
      num_ps: servers of a local cluster; 0 trains in this process.
      secs: how long to measure.
      say: is told what goes on.

    Raises:
      DatasetError: a file of the dataset is damaged.
      ServerLostError: a process of the cluster is lost.
    """
    where = name_of(num_ps, num_workers)
    with tempfile.TemporaryDirectory(prefix="embedps-plan-") as folder:
        config = dataclasses.replace(
            config,
            model_dir=str(Path(folder) / "model"),
            epochs=_EPOCHS,
            cluster=dataclasses.replace(  # units run one by one here
                config.cluster,
                sync="none",
                sync_group_size=0,
                on_lost_worker="repeat",
                backup_workers=0,
            ),
        )
        with _cluster(num_ps, num_workers, folder) as cluster:
            say(f"measuring a step in {where}: building it")
            try:
                setup = set_up(recommender, dataset, config, cluster, [], run_id=id(folder))
                step = _measure(setup, cluster, config, where, secs, say)
                setup.collection.drop()
            except (tf.errors.OpError, ServerLostError) as error:
                cause = explain(error)
                if num_ps and isinstance(cause, ServerLostError):
                    cause = ServerLostError(
                        f"a process of {where}, in which a step was measured, is lost: run the "
                        "command again, or with --no-measure"
                    )
                raise cause from (error.__cause__ if cause is error else error)
            return step


@contextmanager
def _cluster(num_ps: int, num_workers: int, folder: str) -> Iterator[Cluster]:
    cluster: Cluster
    if num_ps:
        cluster = LocalCluster(
            num_ps=num_ps, num_workers=num_workers, log_dir=Path(folder) / "logs"
        )
    else:
        cluster = EmbeddedCluster(num_workers=num_workers)
    try:
        yield cluster
    finally:
        cluster.close()


def _measure(
    setup: TrainingSetup,
    cluster: Cluster,
    config: TrainConfig,
    where: str,
    secs: float,
    say: Callable[[str], None],
) -> MeasuredStep:
    ledger = setup.ledger
    # Each unit once: a server ignores the gradients of a step that it has applied.
    units = itertools.chain.from_iterable(map(ledger.units_of, range(_EPOCHS)))

    def schedule(unit: Unit) -> ScheduledCall:
        return cluster.schedule(setup.train_unit, unit_arguments(unit, config))

    _warm_up(cluster, schedule, units)
    say(f"measuring a step in {where}: {secs:.0f} s")
    alone, together = _Timed(config), _Timed(config)
    # The first seconds are not a run's: most ids are new, and memory is touched for the first time.
    _keep_busy(cluster, schedule, units, secs / 4, _Timed(config))
    before = _cpu_secs(cluster)
    _keep_busy(cluster, schedule, units, secs / 2, together)
    worker, server = (b - a for a, b in zip(before, _cpu_secs(cluster), strict=True))
    end = time.monotonic() + secs / 4
    while time.monotonic() < end:
        unit = next(units)
        cluster.fetch(alone.watch(schedule(unit), unit))
    tables = setup.collection.stats().memory_bytes // max(cluster.num_ps, 1)
    # When the last units run, some workers have nothing left to do.
    busy_secs, busy_steps = together.totals(without_last=cluster.num_workers - 1)
    secs_alone, steps_alone = alone.totals()
    _, steps = together.totals()
    return MeasuredStep(
        num_ps=cluster.num_ps,
        num_workers=cluster.num_workers,
        cores=len(os.sched_getaffinity(0)),
        examples=together.examples,
        secs=secs_alone / steps_alone,
        steps_per_sec=cluster.num_workers * busy_steps / busy_secs,
        worker_cpu_secs=worker / steps,
        server_cpu_secs=server / steps,
        base_bytes=max(0, _resident_bytes(cluster) - tables),
    )


def _keep_busy(
    cluster: Cluster,
    schedule: Callable[[Unit], ScheduledCall],
    units: Iterator[Unit],
    secs: float,
    timed: _Timed,
) -> None:
    """Trains units with all workers for so many seconds."""
    end = time.monotonic() + secs
    under_way: deque[ScheduledCall] = deque()
    while time.monotonic() < end:
        while len(under_way) < 2 * cluster.num_workers:
            unit = next(units)
            under_way.append(timed.watch(schedule(unit), unit))
        cluster.fetch(under_way.popleft())
    for call in under_way:
        cluster.fetch(call)


class _Timed:
    """Takes the times of units."""

    def __init__(self, config: TrainConfig) -> None:
        self._batch_size = config.batch_size
        self._ended: list[tuple[float, int]] = []  # seconds and steps, in the order of their ends
        self.examples = 0

    def watch(self, call: ScheduledCall, unit: Unit) -> ScheduledCall:
        """Takes the time of a unit that was scheduled; returns its call."""
        steps = -(-unit.num_rows // self._batch_size)
        self.examples += unit.num_rows
        call.add_done_callback(
            lambda _: self._ended.append((time.monotonic() - call.started_at, steps))
        )
        return call

    def totals(self, *, without_last: int = 0) -> tuple[float, int]:
        """Adds up the seconds and the steps of all units but the last."""
        counted = self._ended[: len(self._ended) - without_last]
        return sum(secs for secs, _ in counted), sum(steps for _, steps in counted)


def name_of(num_ps: int, num_workers: int) -> str:
    """Names a cluster on this machine."""
    workers = f"{num_workers} worker{'s' if num_workers > 1 else ''}"
    if num_ps:
        return f"{num_ps} PS + {workers}"
    return "1 process" if num_workers == 1 else f"1 process with {workers}"


def _warm_up(
    cluster: Cluster, schedule: Callable[[Unit], ScheduledCall], units: Iterator[Unit]
) -> None:
    """Trains units until each worker has traced the function."""
    if not cluster.num_ps:
        cluster.fetch(schedule(next(units)))
        return
    traced: set[int | None] = set()
    while len(traced) < cluster.num_workers:
        calls = [schedule(unit) for unit in itertools.islice(units, 2 * cluster.num_workers)]
        for call in calls:
            cluster.fetch(call)
        traced |= {call.worker for call in calls}


def unit_arguments(unit: Unit, config: TrainConfig) -> tuple[tf.Tensor, ...]:
    """Makes the arguments of a unit's training function, with the run's first learning rate."""
    numbers = (unit.first_row, unit.num_rows, unit.seed, unit.first_step)
    return (
        tf.constant(unit.path),
        *(tf.constant(np.int64(n)) for n in numbers),
        tf.constant(np.float32(config.optimizer.sparse_learning_rate)),
    )


def _cpu_secs(cluster: Cluster) -> tuple[float, float]:
    """Reads the CPU seconds so far of all workers, and of all servers."""
    if not isinstance(cluster, LocalCluster):
        return time.process_time(), 0.0
    processes = cluster.processes
    servers = [processes.pid("ps", i) for i in range(cluster.num_ps)]
    workers = [processes.pid("worker", i) for i in range(cluster.num_workers)]
    return sum(map(_cpu_secs_of, workers)), sum(map(_cpu_secs_of, servers))


def _cpu_secs_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SEC  # utime, stime


def _resident_bytes(cluster: Cluster) -> int:
    """Reads the resident memory of the first server, or of this process."""
    local = isinstance(cluster, LocalCluster)
    pid = cluster.processes.pid("ps", 0) if local else os.getpid()  # type: ignore[attr-defined]
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
