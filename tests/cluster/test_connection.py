"""The definition of the cluster that TensorFlow's client has."""

import tensorflow as tf

from embedps.cluster.connection import _with_tasks
from embedps.kernels.tasks import MAX_TASKS


def tasks(definition: tf.train.ServerDef, job: str) -> dict[int, str]:
    return next(dict(each.tasks) for each in definition.cluster.job if each.name == job)


def seen(definition: tf.train.ServerDef, job: str) -> dict[int, list[str]]:
    jobs = definition.cluster_device_filters.jobs
    of_job = next(each.tasks for each in jobs if each.name == job)
    return {index: [*of_job[index].device_filters] for index in of_job}


def test_tasks_of_two_clusters_are_told_apart() -> None:
    first = tf.train.ServerDef(job_name="chief", task_index=0)
    for job, places in (("chief", "c"), ("ps", "pq"), ("worker", "v")):
        added = first.cluster.job.add(name=job)
        added.tasks.update(dict(enumerate(places)))
    first.cluster_device_filters.jobs.add(name="worker").tasks[0].device_filters.append("/job:ps")
    both = _with_tasks(first, "worker", MAX_TASKS, {0: "w", 1: "x"})
    assert tasks(both, "worker") == {0: "v", MAX_TASKS: "w", MAX_TASKS + 1: "x"}
    assert tasks(both, "ps") == tasks(first, "ps") == {0: "p", 1: "q"}
    filters = ["/job:ps", "/job:chief"]
    wanted = {0: ["/job:ps"], MAX_TASKS: filters, MAX_TASKS + 1: filters}
    assert seen(both, "worker") == wanted
    assert tasks(first, "worker") == {0: "v"}  # a copy
    other = _with_tasks(both, "worker", 0, {})
    assert tasks(other, "worker") == {MAX_TASKS: "w", MAX_TASKS + 1: "x"}
    moved = _with_tasks(other, "worker", MAX_TASKS, {1: "y"})
    assert tasks(moved, "worker") == {MAX_TASKS + 1: "y"}
    assert [*seen(moved, "worker")] == [MAX_TASKS + 1]
