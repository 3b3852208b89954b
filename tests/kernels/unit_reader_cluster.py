"""Schedules units onto a worker process and prints what came back as JSON.

A program of its own: a coordinator changes its process's TensorFlow for good.
"""

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any

import embedps  # noqa: F401  chooses Keras 2 before TensorFlow's import

import tensorflow as tf  # isort: skip

from embedps import kernels
from embedps.data.unit_reader import UnitReader

SERVER = """
import json, sys
from embedps import kernels
import tensorflow as tf

kernels.load()
server = tf.distribute.Server(tf.train.ClusterSpec(json.loads(sys.argv[1])), sys.argv[2], 0)
print("ready", flush=True)
sys.stdin.read()  # until the client ends
"""


def free_ports(count: int) -> list[int]:
    """Finds ports that nothing listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in sockets]


def start_cluster(stack: ExitStack) -> Any:
    """Starts a coordinator, a worker and a PS; the two processes end with the stack."""
    worker, ps = free_ports(2)
    spec = {"worker": [f"localhost:{worker}"], "ps": [f"localhost:{ps}"]}
    for job in spec:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, json.dumps(spec), job],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.callback(server.wait)
        stack.callback(server.kill)
        if server.stdout is None or server.stdout.readline() != "ready\n":
            raise RuntimeError(f"the {job} server did not start")
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(spec), rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    return tf.distribute.coordinator.ClusterCoordinator(strategy)


def main() -> None:
    """Runs `unit_reader_cluster.py FILE RANGES`, with the ranges as JSON."""
    path, ranges = sys.argv[1], json.loads(sys.argv[2])
    ops = kernels.load()
    unit = UnitReader(batch_rows=64, ids=("row",), id_lists=("tags",), shuffle_rows=500)

    @tf.function
    def read_unit(path, first_row, num_rows):
        reader = unit.open(path, first_row, num_rows, seed=1)
        batch = unit.next(reader)
        total = tf.constant(0, tf.int64)
        while batch.num_rows > 0:
            total += tf.reduce_sum(batch.columns["row"]) + tf.reduce_sum(
                batch.columns["tags"].values
            )
            batch = unit.next(reader)
        return total, ops.embedps_process_id()

    @tf.function
    def live_readers():
        return ops.embedps_unit_reader_live_count()

    def unit_args(path: str, first: int, num: int) -> tuple[Any, Any, Any]:
        return tf.constant(path), tf.constant(first, tf.int64), tf.constant(num, tf.int64)

    with ExitStack() as stack:
        coordinator = start_cluster(stack)
        results = [coordinator.schedule(read_unit, unit_args(path, *each)) for each in ranges]
        coordinator.join()
        fetched = [coordinator.fetch(result) for result in results]
        deadline = time.monotonic() + 30  # a result may be there just before its reader is freed
        while (live := int(coordinator.fetch(coordinator.schedule(live_readers)))) > 0:
            if time.monotonic() > deadline:
                break
        coordinator.schedule(read_unit, unit_args("absent.parquet", 0, 1))
        error = "none"
        try:
            coordinator.join()
        except tf.errors.NotFoundError as raised:
            error = str(raised)
        found = {
            "client": os.getpid(),
            "totals": [int(total) for total, _ in fetched],
            "processes": sorted({int(process) for _, process in fetched}),
            "live_readers": live,
            "error": error,
        }
        print(json.dumps(found), flush=True)
    # Skip the coordinator's teardown: it waits for servers that are gone.
    os._exit(0)


if __name__ == "__main__":
    main()
