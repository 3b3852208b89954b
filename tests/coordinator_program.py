"""Runs a local cluster as a client does and prints what it found as JSON, for test_cluster.py.

A program of its own: a coordinator changes its process's TensorFlow for good.
"""

import gc
import json
import os
import signal
import sys
import threading
import time
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import Any

import embedps  # noqa: F401  chooses Keras 2 before TensorFlow's import

import tensorflow as tf  # isort: skip

from embedps import kernels
from embedps.cluster.interface import Cluster
from embedps.cluster.local_cluster import LocalCluster
from embedps.tables import FeatureSpec, TableSpec
from embedps.tables.collection import EmbeddingCollection


def use(cluster: Cluster) -> dict[str, Any]:
    """What any cluster does: `schedule`, `fetch`, `done`, `join`, and the error of a function."""

    @tf.function
    def square(x):
        return {"square": x * x, "process": kernels.load().embedps_process_id()}

    @tf.function
    def fail(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 0, message="must be below 0")]):
            return tf.identity(x)

    results = [cluster.schedule(square, (tf.constant(i),)) for i in range(8)]
    cluster.join()
    found: dict[str, Any] = {"done": cluster.done()}
    values = [cluster.fetch(result) for result in results]
    found["squares"] = [int(value["square"]) for value in values]
    found["processes"] = sorted({int(value["process"]) for value in values})
    found["client"] = os.getpid()
    found["num_workers"] = cluster.num_workers
    found["shard_devices"] = list(cluster.shard_devices)
    try:
        cluster.fetch(cluster.schedule(fail, (tf.constant(1),)))
        found["error"] = "none"
    except tf.errors.InvalidArgumentError as error:
        found["error"] = error.message
    found["after_error"] = int(cluster.fetch(cluster.schedule(square, (tf.constant(9),)))["square"])
    return found


def shard_rows(cluster: Cluster) -> dict[str, Any]:
    """Rows that a scheduled function creates are in the parameter servers' memory."""
    collection = EmbeddingCollection(
        [TableSpec(name="t", embedding_dim=2)],
        [FeatureSpec(name="t", table="t")],
        devices=cluster.shard_devices,
        container="program",
    )

    @tf.function
    def touch(ids):
        return tf.reduce_sum(collection.combine(collection.lookup({"t": ids}, insert=True))["t"])

    for first in range(0, 100, 20):
        cluster.schedule(touch, (tf.range(first, first + 20, dtype=tf.int64),))
    cluster.join()
    return {"rows": collection.stats().rows}


def stop_a_worker(cluster: Cluster, pid: int) -> int:
    """Stops worker 0 just before it is told that a tensor is not needed; what ends after that."""

    @tf.function
    def square(x):
        return x * x

    cluster.fetch(cluster.schedule(square, (tf.constant(0),)))
    gc.collect()  # every server is told of a function that is made or gone, and must answer
    with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
        tensor = tf.constant(1) + 1
    os.kill(pid, signal.SIGSTOP)
    del tensor
    # Either worker's thread may take a function first.
    stuck = cluster.schedule(square, (tf.constant(0),))
    while stuck.worker != 0:
        if stuck.done():
            stuck = cluster.schedule(square, (tf.constant(0),))
        time.sleep(0.01)
    results = [stuck, *(cluster.schedule(square, (tf.constant(i),)) for i in range(1, 8))]
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and sum(r.done() for r in results) < 7:
        time.sleep(0.05)
    return sum(r.done() for r in results)


def outlive_a_call(cluster: LocalCluster) -> list[int]:
    """Kills the worker of a call that does not end; who attempted it, and has a thread then."""
    attempts: list[int] = []
    may_end = threading.Event()

    def attempt(worker: int, number: int) -> None:
        attempts.append(worker)
        if len(attempts) == 1:
            cluster.processes.kill(("worker", worker))
            may_end.wait()

    cluster._queue.put(attempt, order=0)
    cluster.join()  # another attempt has ended
    function = tf.function(lambda x: x)
    while True:  # its worker takes calls again, beside the thread that waits
        call = cluster.schedule(function, (tf.constant(0),))
        cluster.fetch(call)
        if call.worker == attempts[0]:
            break
    may_end.set()
    name = f"worker {attempts[0]}"
    while len(left := [t for t in threading.enumerate() if t.name == name]) > 1:
        time.sleep(0.05)
    assert cluster._queue._num_taken == 0
    return [*attempts, len(left)]


def come_back_as_another(cluster: LocalCluster) -> str:
    """Has worker 0 start again with another version; why the cluster is lost."""
    lost: list[str] = []
    cluster.call_on_loss(lambda error: lost.append(str(error)))
    worker = cluster.processes._processes["worker", 0]
    serve = "import embedps, embedps.server; embedps.__version__ = '9.9'; embedps.server.main([])"
    worker._command = [sys.executable, "-c", serve]
    worker.kill()
    function = tf.function(lambda x: x)
    while not lost:  # the coordinator connects again once a function needs the worker
        with suppress(tf.errors.OpError, TimeoutError, CancelledError):
            cluster.schedule(function, (tf.constant(0),)).result(1.0)
    return lost[0]


def main() -> None:
    """`coordinator_program LOG_DIR NUM_PS NUM_WORKERS NUM_SHARDS MODE`."""
    log_dir, num_ps, num_workers, num_shards, mode = sys.argv[1:]
    cluster = LocalCluster(
        num_ps=int(num_ps),
        num_workers=int(num_workers),
        num_shards=int(num_shards),
        log_dir=Path(log_dir),
        server_timeout_secs=600,
    )
    pid = cluster.processes.pid
    found: dict[str, Any] = {"ps": pid("ps", 0), "worker": pid("worker", 0)}
    found |= shard_rows(cluster) | use(cluster)
    if mode == "stop":
        found["ended"] = stop_a_worker(cluster, pid("worker", 0))
    if mode == "close":
        found["attempts"] = outlive_a_call(cluster)
        found["worker"] = pid("worker", 0)  # it may be another
    print(json.dumps(found), flush=True)
    if mode == "close":
        print(come_back_as_another(cluster), flush=True)
    if mode == "wait":
        sys.stdin.read()  # until it is killed
    cluster.close()
    print("closed", flush=True)
    sys.stdin.read()
    # Not the coordinator's teardown: it waits for servers that are gone.
    os._exit(0)


if __name__ == "__main__":
    main()
