"""The speed of training: a short timed run here, and what it tells of more workers and servers."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tensorflow as tf

from embedps.cluster.embedded import EmbeddedCluster
from embedps.cluster.interface import Cluster
from embedps.cluster.local_cluster import LocalCluster
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.run.config import TrainConfig
from embedps.scheduling.ledger import Unit
from embedps.training.training_setup import TrainingSetup, set_up

_TICKS_PER_SEC = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """A step of one worker, as it was measured on this machine.

    Attributes:
      num_ps: servers of the measured cluster; 0 for this process alone.
      cores: that these processes shared.
      examples: of the steps that were timed.
      secs: per step.
      worker_cpu_secs: of a core, per step.
      server_cpu_secs: of a core, per step, on all servers.
      base_bytes: resident memory of a server, or of this process, besides the tables.
    """

    num_ps: int
    cores: int
    examples: int
    secs: float
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
      limit: "workers", "servers" (their cores) or "links".
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
) -> Speed:
    """Predicts the speed of a cluster of which each task has a machine of its own.

    A worker alone is as fast as it was here, plus the time that its bytes take on a link. The
    servers' cores and the fullest server's link are limits for all workers together.

    Args:
      step: measured on a cluster.
      machines: of the cluster.
      num_workers: of the cluster.
      num_ps: of the cluster.
      worker_bytes: per step, the larger of a worker's bytes in and out.
      server_bytes: per step of one worker, the larger of the fullest server's bytes in and out.
    """
    alone = step.secs + worker_bytes / machines.link_bytes_per_sec
    limits = {
        "workers": num_workers / alone,
        "servers": num_ps * machines.cores / max(step.server_cpu_secs, 1e-9),
        "links": machines.link_bytes_per_sec / server_bytes,
    }
    limit = min(limits, key=limits.__getitem__)
    return Speed(steps_per_sec=limits[limit], limit=limit)


def predict_local_speed(step: MeasuredStep, *, num_workers: int) -> Speed:
    """Predicts the speed of servers and workers that all share this machine's cores."""
    limits = {
        "workers": num_workers / step.secs,
        "cores": step.cores / (step.worker_cpu_secs + step.server_cpu_secs),
    }
    limit = min(limits, key=limits.__getitem__)
    return Speed(steps_per_sec=limits[limit], limit=limit)


def measure_step(
    recommender: Recommender,
    dataset: Dataset,
    config: TrainConfig,
    *,
    num_ps: int,
    secs: float,
    say: Callable[[str], None],
) -> MeasuredStep:
    """Trains for some seconds in a temporary directory, and measures a step.

    Args:
      recommender: the model.
      dataset: whose units are trained.
      config: of the planned run.
      num_ps: 0 trains in this process, 1 on a local cluster of a server and a worker.
      secs: how long to measure.
      say: is told what goes on.
    """
    where = "a server and a worker on this machine" if num_ps else "this process"
    with tempfile.TemporaryDirectory(prefix="embedps-plan-") as folder:
        config = dataclasses.replace(config, model_dir=str(Path(folder) / "model"))
        with _cluster(num_ps, folder) as cluster:
            say(f"measuring a step in {where}: building it")
            setup = set_up(recommender, dataset, config, cluster, [], run_id=id(folder))
            try:
                return _measure(setup, cluster, config, where, secs, say)
            finally:
                setup.collection.drop()


@contextmanager
def _cluster(num_ps: int, folder: str) -> Iterator[Cluster]:
    cluster: Cluster
    if num_ps:
        cluster = LocalCluster(num_ps=num_ps, num_workers=1, log_dir=Path(folder) / "logs")
    else:
        cluster = EmbeddedCluster(num_workers=1)
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
    units = setup.ledger.units_of(0)

    def train(chosen: list[Unit]) -> float:
        began = time.perf_counter()
        calls = [cluster.schedule(setup.train_unit, unit_arguments(u, config)) for u in chosen]
        for call in calls:
            cluster.fetch(call)
        return time.perf_counter() - began

    train(units[:1])  # traces the function
    took = train(units[1:2] or units[:1])
    count = max(1, min(len(units), round(secs / max(took, 1e-3))))
    say(f"measuring a step in {where}: {count} units, about {count * took:.0f} s")
    chosen = units[-count:]
    before = _cpu_secs(cluster)
    took = train(chosen)
    worker, server = (b - a for a, b in zip(before, _cpu_secs(cluster), strict=True))
    steps = sum(-(-unit.num_rows // config.batch_size) for unit in chosen)
    tables = setup.collection.stats().memory_bytes
    return MeasuredStep(
        num_ps=cluster.num_ps,
        cores=len(os.sched_getaffinity(0)),
        examples=sum(unit.num_rows for unit in chosen),
        secs=took / steps,
        worker_cpu_secs=worker / steps,
        server_cpu_secs=server / steps,
        base_bytes=max(0, _resident_bytes(cluster) - tables),
    )


def unit_arguments(unit: Unit, config: TrainConfig) -> tuple[tf.Tensor, ...]:
    """Makes the arguments of a unit's training function, with the run's first learning rate."""
    numbers = (unit.first_row, unit.num_rows, unit.seed, unit.first_step)
    return (
        tf.constant(unit.path),
        *(tf.constant(np.int64(n)) for n in numbers),
        tf.constant(np.float32(config.optimizer.sparse_learning_rate)),
    )


def _cpu_secs(cluster: Cluster) -> tuple[float, float]:
    """Reads the CPU seconds so far of the worker, and of all servers."""
    if not isinstance(cluster, LocalCluster):
        return time.process_time(), 0.0
    processes = cluster.processes
    servers = [processes.pid("ps", i) for i in range(cluster.num_ps)]
    return _cpu_secs_of(processes.pid("worker", 0)), sum(map(_cpu_secs_of, servers))


def _cpu_secs_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SEC  # utime, stime


def _resident_bytes(cluster: Cluster) -> int:
    """Reads the resident memory of the first server, or of this process."""
    local = isinstance(cluster, LocalCluster)
    pid = cluster.processes.pid("ps", 0) if local else os.getpid()  # type: ignore[attr-defined]
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
