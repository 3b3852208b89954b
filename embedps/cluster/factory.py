"""Makes the cluster that a config asks for: in this process, of local processes, or TF_CONFIG's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from embedps.cluster.coordinator import CoordinatorCluster
from embedps.cluster.embedded import EmbeddedCluster
from embedps.cluster.health import wait_for_some, wait_until_serving
from embedps.cluster.interface import Cluster
from embedps.cluster.local_cluster import LocalCluster
from embedps.console.shutdown import deadline
from embedps.errors import ClusterError, UsageError
from embedps.kernels.tasks import TaskId
from embedps.run.cluster_config import ClusterConfig
from embedps.run.config import TrainConfig
from embedps.run.preparation import chief_task
from embedps.storage.object_store import as_path, local_dir


def make_cluster(
    config: TrainConfig,
    *,
    on_lost: Callable[[ClusterError], None],
    num_ps: int | None = None,
    num_workers: int | None = None,
) -> Cluster:
    """Makes the cluster of a run.

    Args:
      config: of the run; if TF_CONFIG is set, it names the servers.
      on_lost: called on another thread if the cluster cannot continue.
      num_ps: parameter servers of a local cluster, other than the config's.
      num_workers: of a local cluster, other than the config's.

    Raises:
      UsageError: TF_CONFIG is wrong, is for another task than a chief, or is set together with a
        local cluster's flags; or the config asks for what needs a cluster, and there is none.
      ClusterError: a server did not start.
    """
    task = chief_task(config)
    asked = config.cluster
    if task is not None:
        return _join(config, task, on_lost)
    if asked.num_ps:
        return LocalCluster(
            num_ps=num_ps or asked.num_ps,
            num_workers=num_workers or asked.num_workers,
            num_shards=asked.num_shards,
            log_dir=local_dir(as_path(config.model_dir)) / "logs",
            grace_secs=config.grace_secs,
            server_timeout_secs=asked.server_timeout_secs,
            wait_secs=asked.wait_secs,
            on_lost=on_lost,
        )
    asked.check_way("process")
    return EmbeddedCluster(num_workers=asked.num_workers, num_shards=asked.num_shards or 1)


def check_cluster(cluster: Cluster, config: TrainConfig) -> None:
    """Checks that a config fits the cluster that the caller passed.

    Raises:
      UsageError: a field is neither its default nor the cluster's value, or asks for what the
        cluster lacks.
    """
    config.cluster.check_way(cluster.place)
    config.cluster.parts_needed(cluster.num_workers)
    has: dict[str, float] = {
        "num_ps": cluster.num_ps,
        "num_workers": cluster.num_workers,
        "num_shards": len(cluster.shard_devices),
    }
    if cluster.num_ps:
        has["server_timeout_secs"] = cluster.server_timeout_secs
    for name, value in has.items():
        asked = getattr(config.cluster, name)
        if asked not in (getattr(ClusterConfig, name), value):
            raise UsageError(
                f"config.cluster.{name} is {asked}, but the cluster that was passed has {value}: "
                "remove one of the two"
            )


def _join(
    config: TrainConfig, task: dict[str, Any], on_lost: Callable[[ClusterError], None]
) -> CoordinatorCluster:
    """Connects to the servers of TF_CONFIG after each of them answers."""
    servers: dict[TaskId, str] = {
        (job, index): address
        for job in ("ps", "worker")
        for index, address in enumerate(task["cluster"].get(job, []))
    }
    workers = {index: address for (job, index), address in servers.items() if job == "worker"}
    asked, known = config.cluster, workers
    if asked.min_workers > len(workers):
        raise UsageError(
            f"--min-workers must be at most {len(workers)}, the workers of TF_CONFIG, but is "
            f"{asked.min_workers}"
        )
    if {job for job, _ in servers} == {"ps", "worker"}:
        if asked.min_workers:
            servers = {task: at for task, at in servers.items() if task[0] == "ps"}
        wait_until_serving(servers, secs=asked.wait_secs, check=lambda task: None)
        if asked.min_workers:
            there = wait_for_some(workers, least=asked.min_workers, secs=asked.wait_secs)
            known = {index: workers[index] for index in there}
    spec = {job: value for job, value in {**task["cluster"], "worker": known}.items() if value}
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(spec), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    with deadline(asked.wait_secs, "the servers of TF_CONFIG to accept a client"):
        return CoordinatorCluster(
            resolver,
            workers=workers,
            num_shards=asked.num_shards,
            server_timeout_secs=asked.server_timeout_secs,
            wait_secs=asked.wait_secs,
            on_lost=on_lost,
        )
