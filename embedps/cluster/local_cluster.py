"""Starts a local cluster of processes and connects to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from embedps.cluster.coordinator import CoordinatorCluster
from embedps.cluster.local_processes import LocalProcesses
from embedps.console.shutdown import within
from embedps.errors import ClusterError
from embedps.run.config import TrainConfig


def start(
    *,
    num_ps: int,
    num_workers: int,
    num_shards: int,
    log_dir: Path,
    grace_secs: float = TrainConfig.grace_secs,
    server_timeout_secs: float = TrainConfig.server_timeout_secs,
    wait_secs: float = TrainConfig.wait_secs,
    on_lost: Callable[[ClusterError], None] = lambda error: None,
) -> tuple[CoordinatorCluster, LocalProcesses]:
    """Starts a local cluster and connects to it.

    Args:
      num_ps: parameter servers, at least 1.
      num_workers: workers, at least 1.
      num_shards: of the tables; 0 is one a parameter server.
      log_dir: for the processes' output.
      grace_secs: a server that is told to end has so long for it.
      server_timeout_secs: one that does not answer for so long is killed.
      wait_secs: the longest wait for the servers to come up; then, the cluster is lost where no
        function ends for so long.
      on_lost: told, on another thread, that the cluster cannot go on.

    Raises:
      ClusterError: a process did not come up.
    """
    processes = LocalProcesses(
        num_ps=num_ps, num_workers=num_workers, log_dir=log_dir, grace_secs=grace_secs
    )
    try:
        processes.wait_until_serving(wait_secs)
        processes.watch(on_lost)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(processes.cluster), task_type="chief", task_id=0, rpc_layer="grpc"
        )
        with within(wait_secs, "the servers of the local cluster to take a client"):
            cluster = CoordinatorCluster(
                resolver,
                num_shards=num_shards,
                processes=processes,
                server_timeout_secs=server_timeout_secs,
                wait_secs=wait_secs,
                on_lost=on_lost,
            )
    except BaseException:
        processes.close()
        raise
    return cluster, processes
