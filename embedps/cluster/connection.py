"""Connects TensorFlow's client to the tasks of a cluster, and to those of another beside it.

A client has one definition of all tasks. When it is updated, that takes some 0.1 s, and functions
that run on tasks that stay go on. So the tasks of a cluster that is to take another's place are
further tasks of the same jobs for a while, and what that cluster needs is made before it does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import parameter_server_strategy_v2
from tensorflow.python.eager import context

from embedps.console import tf_logging
from embedps.kernels.tasks import MAX_TASKS, device_of

_FORGET_SECS = 5.0
_telling = threading.Lock()


class ServerStrategy(parameter_server_strategy_v2.ParameterServerStrategyV2):
    """Places variables on parameter servers.

    A process that was the client of another cluster goes on with its own gRPC server, if it has the
    same address. TensorFlow's strategy starts a further one, which never ends: some 90 threads and
    40 MB each time.
    """

    def __init__(
        self, resolver: tf.distribute.cluster_resolver.ClusterResolver, first: int = 0
    ) -> None:
        """Connects to the tasks that a resolver names; `first` is as `device_of` takes it."""
        self._first = first
        super().__init__(resolver)
        self.extended._create_variable_round_robin = self._make_in_turn

    def _connect_to_cluster(self, coordinator_name: str) -> None:
        spec = self._cluster_resolver.cluster_spec()
        known = context.get_server_def()
        own = dict(spec.as_dict()).get(coordinator_name)
        if known is None or not own or _address_of(known) != own[0]:
            super()._connect_to_cluster(coordinator_name)
            return
        self._num_ps, self._num_workers = spec.num_tasks("ps"), spec.num_tasks("worker")
        places = {
            job: {i: spec.task_address(job, i) for i in spec.task_indices(job)}
            for job in ("ps", "worker")
        }
        tell(self._first, **places)

    def _make_in_turn(self, make: Callable[..., Any], **arguments: Any) -> Any:
        """Makes a variable on the next server, as the strategy of TensorFlow does."""
        extended = self.extended
        server = device_of(("ps", extended._variable_count % extended._num_ps), self._first)
        with tf.compat.v1.colocate_with(None, ignore_existing=True), tf.device(server):
            made = make(**arguments)
        extended._variable_count += 1
        return made

    def close(self) -> None:
        """Ends the threads of the ClusterCoordinator that `scope` made, which has no call."""
        if self._cluster_coordinator is not None:
            self._cluster_coordinator._cluster.stop()


def tell(first: int, **places: Mapping[int, str]) -> None:
    """Tells TensorFlow of a cluster's tasks; those of another stay as they are.

    Args:
      first: of the cluster, as `device_of` takes it.
      places: by job ("ps", "worker") the address of each task that it has from now on, by index.

    Raises:
      OpError: a task that is to be there is not. TensorFlow keeps what it had.
    """
    with _telling:
        before = definition = context.get_server_def()
        for job, of_job in places.items():
            definition = _with_tasks(definition, job, first, of_job)
        try:
            with tf_logging.native_stderr_dropped():  # it prints of each task that is left out
                context.context().update_server_def(definition)
        except BaseException:
            is_left = not any(places.values())  # then it is left out when TensorFlow is told next
            context.context()._server_def = definition if is_left else before
            raise


def forget(first: int) -> None:
    """Has TensorFlow know none of a cluster's tasks, at the latest once it is told of others.

    Its wait for a task of another cluster that hangs has no end: whoever watches that one ends it.
    """

    def leave_out() -> None:
        with contextlib.suppress(tf.errors.OpError):
            tell(first, ps={}, worker={})

    telling = threading.Thread(target=leave_out, name="forget", daemon=True)
    telling.start()
    telling.join(_FORGET_SECS)


def _address_of(definition: tf.train.ServerDef) -> str:
    """Gives the address of the process that a definition is of."""
    (tasks,) = (j.tasks for j in definition.cluster.job if j.name == definition.job_name)
    return str(tasks[definition.task_index])


def _with_tasks(
    definition: tf.train.ServerDef, job: str, first: int, places: Mapping[int, str]
) -> tf.train.ServerDef:
    """Copies a client's definition, with these tasks of a job in place of a cluster's own.

    They see those of the other job and the client, as in TensorFlow's strategy.
    """
    copy = tf.train.ServerDef()
    copy.CopyFrom(definition)
    (tasks,) = (each.tasks for each in copy.cluster.job if each.name == job)
    other = "ps" if job == "worker" else "worker"
    filters = [each.tasks for each in copy.cluster_device_filters.jobs if each.name == job]
    for known in (tasks, *filters):
        for number in [*known]:
            if first <= number < first + MAX_TASKS:
                del known[number]
    for index, address in places.items():
        tasks[first + index] = address
        for each in filters:
            each[first + index].device_filters.extend(
                [f"/job:{other}", f"/job:{definition.job_name}"]
            )
    return copy
