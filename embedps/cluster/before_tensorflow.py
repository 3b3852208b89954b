"""Makes what a run needs before TensorFlow starts, and imports that only if something is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedps.console.shutdown import sigterm_exits
from embedps.run.config import TrainConfig
from embedps.run.tf_config import is_of_workers, read_tf_config

if TYPE_CHECKING:
    from embedps.cluster.worker_cluster import WorkerCluster


def begin_cluster(config: TrainConfig) -> WorkerCluster | None:
    """Makes the workers of a TF_CONFIG that has workers only, or the devices of `--mirrored`.

    Call it before the model's module can start TensorFlow.

    Returns:
      The workers; None if `factory.make_cluster` makes the run's cluster.

    Raises:
      UsageError: TF_CONFIG has one worker only, or there are too few devices.
    """
    task = read_tf_config()
    if task is not None and is_of_workers(task):
        from embedps.cluster.worker_cluster import WorkerCluster

        with sigterm_exits(config.grace_secs / 2):
            return WorkerCluster(task, wait_secs=config.cluster.wait_secs)
    if config.cluster.mirrored:
        from embedps.cluster.replica_devices import make_replica_devices

        make_replica_devices(config.cluster.replicas)
    return None
