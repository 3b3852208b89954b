"""Connects TensorFlow's client to the tasks of a cluster, and later to others."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf
from tensorflow.python.distribute import parameter_server_strategy_v2
from tensorflow.python.eager import context


class ServerStrategy(parameter_server_strategy_v2.ParameterServerStrategyV2):
    """Places variables on parameter servers.

    A process that was the client of another cluster goes on with its own gRPC server, if it has the
    same address. TensorFlow's strategy starts a further one, which never ends: some 90 threads and
    40 MB each time.
    """

    def _connect_to_cluster(self, coordinator_name: str) -> None:
        spec = self._cluster_resolver.cluster_spec()
        known = context.get_server_def()
        own = dict(spec.as_dict()).get(coordinator_name)
        if known is None or not own or _address_of(known) != own[0]:
            super()._connect_to_cluster(coordinator_name)
            return
        self._num_ps, self._num_workers = spec.num_tasks("ps"), spec.num_tasks("worker")
        for job in ("ps", "worker"):
            places = {i: spec.task_address(job, i) for i in spec.task_indices(job)}
            known = with_tasks(known, job, places)
        context.context().update_server_def(known)

    def close(self) -> None:
        """Ends the threads of the ClusterCoordinator that `scope` made, which has no call."""
        if self._cluster_coordinator is not None:
            self._cluster_coordinator._cluster.stop()


def _address_of(definition: tf.train.ServerDef) -> str:
    """Gives the address of the process that a definition is of."""
    (tasks,) = (j.tasks for j in definition.cluster.job if j.name == definition.job_name)
    return str(tasks[definition.task_index])


def with_tasks(
    definition: tf.train.ServerDef, job: str, places: Mapping[int, str]
) -> tf.train.ServerDef:
    """Copies a client's definition, with these tasks of a job in place of its own.

    Args:
      job: "worker" or "ps"; its tasks see those of the other and the client, as in TensorFlow's
        strategy.
      places: the address of each task by index.
    """
    copy = tf.train.ServerDef()
    copy.CopyFrom(definition)
    (tasks,) = (each.tasks for each in copy.cluster.job if each.name == job)
    tasks.clear()
    tasks.update(places)
    other = "ps" if job == "worker" else "worker"
    for filters in copy.cluster_device_filters.jobs:
        if filters.name == job:
            filters.tasks.clear()
            for index in places:
                seen = filters.tasks[index].device_filters
                seen.extend([f"/job:{other}", f"/job:{definition.job_name}"])
    return copy
