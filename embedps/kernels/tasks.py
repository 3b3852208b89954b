"""Names the tasks of a cluster, and checks that each runs what this process runs."""

from __future__ import annotations

from typing import TypeAlias

import tensorflow as tf

from embedps import kernels
from embedps.errors import ClusterError

TaskId: TypeAlias = tuple[str, int]
"""Identifies a task of the cluster: its job ("ps" or "worker") and its index."""

MAX_TASKS = 1 << 20
"""Of a job of a cluster. While another is to take its place, TensorFlow has the tasks of one of the
two as further tasks of the same jobs, with numbers that are as much higher. The op that tells the
index of a task has it too."""


def device_of(task: TaskId, first: int = 0) -> str:
    """Returns the device where a task's ops run; `first` is TensorFlow's number of task 0."""
    job, index = task
    return f"/job:{job}/replica:0/task:{first + index}/device:CPU:0"


def check_task(task: TaskId, first: int = 0) -> None:
    """Checks that a task has the kernels, and the versions of this process.

    Args:
      first: as `device_of` takes it.

    Raises:
      ClusterError: it has not.
      OpError: it does not answer.
    """
    name = f"{task[0]} {task[1]}"
    try:
        with tf.init_scope(), tf.device(device_of(task, first)):
            theirs = kernels.load().embedps_version().numpy().decode()
    except (tf.errors.NotFoundError, tf.errors.InvalidArgumentError) as error:
        if "EmbedpsVersion" not in error.message:  # it has just started, and knows no client yet
            raise
        raise ClusterError(
            f"{name} must have the kernels of embedps to hold rows, but has none: start it by "
            "`embedps server`, or `import embedps` in its program before its tf.distribute.Server "
            "starts"
        ) from error
    check_versions(name, theirs)


def check_versions(name: str, theirs: str) -> None:
    """Checks that a task's versions are those of this process.

    Raises:
      ClusterError: they are not.
    """
    ours = kernels.versions()
    if theirs != ours:
        raise ClusterError(
            f"{name} must run {ours}, as this process does, but runs {theirs}: start it with the "
            "same versions"
        )
