"""Measures the same Keras model on stock ParameterServerStrategy, over processes of this machine.

Settings: num_ps, num_workers. Each worker keeps the batches in its own memory. MinSizePartitioner
with 2 MB does not shard the dense kernels: mixed bfloat16 requires this, and it was faster.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # TFRS uses tf-keras
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from benchmarks.peers import protocol, tf_model

_MIN_SHARD_BYTES = 2 << 20
_CLUSTER = "EMBEDPS_PEER_CLUSTER"


class ParameterServers:
    """Trains on a cluster of processes that hold the tables, with one network per variant."""

    def __init__(self, work: protocol.Work) -> None:
        self._work = work
        self._num_workers = work.settings["num_workers"]
        num_ps = work.settings["num_ps"]
        resolver = start_cluster(num_ps=num_ps, num_workers=self._num_workers)
        partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
            min_shard_bytes=_MIN_SHARD_BYTES, max_shards=num_ps
        )
        self._strategy = tf.distribute.ParameterServerStrategy(
            resolver, variable_partitioner=partitioner
        )
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
        with self._strategy.scope():
            self._layers = [tf.keras.layers.Embedding(c, work.dim) for c in work.cardinalities]
            for layer in self._layers:
                layer.build(())
        self._tables = [v for layer in self._layers for v in layer.trainable_variables]
        self._sparse: dict[str, Any] = {}

    def prepare(self, variant: protocol.Variant) -> protocol.Measure:
        if variant.task != "train":
            raise protocol.UnsupportedError(f"{variant.task} is measured in one process only")
        with self._strategy.scope():
            if variant.kind not in self._sparse:
                self._sparse[variant.kind] = tf_model.optimizer(variant.kind)
            dense = tf_model.optimizer(variant.kind)
            network = tf_model.Network(self._work, variant.precision)
        sparse = self._sparse[variant.kind]

        def replica(batch: tuple[tf.Tensor, ...]) -> tf.Tensor:
            numerics, ids, labels = batch
            with tf.GradientTape() as tape:
                looked = [layer(ids[i]) for i, layer in enumerate(self._layers)]
                loss = tf_model.loss_of(labels, network.logits(numerics, looked))
            ours = network.variables
            of_tables, of_network = tape.gradient(loss, (self._tables, ours))
            sparse.apply_gradients(zip(of_tables, self._tables, strict=True))
            dense.apply_gradients(zip(of_network, ours, strict=True))
            return loss

        @tf.function
        def step(iterator: Any) -> tf.Tensor:
            loss = self._strategy.run(replica, args=(next(iterator),))
            return self._strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None)

        iterator = iter(self._coordinator.create_per_worker_dataset(lambda: self._data(variant)))
        steps_per_sec = 10.0
        warm = False

        def measure(secs: float) -> dict[str, float]:
            nonlocal steps_per_sec, warm
            steps = max(2 * self._num_workers, round(secs * steps_per_sec))
            if not warm and secs:  # warm-up: every worker reads its files into memory once
                warm = True
                measure(2 * secs)
            began = time.perf_counter()
            for _ in range(steps):
                self._coordinator.schedule(step, args=(iterator,))
            self._coordinator.join()
            took = time.perf_counter() - began
            steps_per_sec = steps / took
            return {"examples": steps * variant.batch, "secs": took}

        return measure

    def _data(self, variant: protocol.Variant) -> tf.data.Dataset:
        """Reads the arrays on the worker that runs this, by ops that need no Python there."""
        size, folder = variant.batch, self._work.folder
        rows = len(self._work.labels) // size * size
        features = len(self._work.cardinalities)

        def array(name: str, dtype: Any, shape: list[int]) -> tf.Tensor:
            raw = tf.io.decode_raw(tf.io.read_file(str(folder / f"{name}.raw")), dtype)
            return tf.reshape(raw, shape)

        numerics = array("numerics", tf.float32, [-1, self._work.num_numerics])[:rows]
        ids = tf.transpose(array("ids", tf.int32, [features, -1])[:, :rows])
        labels = array("labels", tf.float32, [-1, 1])[:rows]
        data = tf.data.Dataset.from_tensor_slices((numerics, ids, labels))
        data = data.batch(size, drop_remainder=True)
        data = data.map(lambda n, i, y: (n, tf.transpose(i), y))
        return data.cache().repeat().prefetch(2)


def start_cluster(*, num_ps: int, num_workers: int) -> Any:
    """Starts the processes, which end with this one; returns a resolver of the cluster."""
    sockets = [socket.socket() for _ in range(num_ps + num_workers + 1)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    cluster = {
        "chief": addresses[:1],
        "ps": addresses[1 : 1 + num_ps],
        "worker": addresses[1 + num_ps :],
    }
    for job in ("ps", "worker"):
        for index in range(len(cluster[job])):
            environment = os.environ | {_CLUSTER: json.dumps(cluster)}
            command = [sys.executable, "-m", "benchmarks.peers.tf_ps", job, str(index)]
            process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)
            atexit.register(process.kill)
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), task_type="chief", task_id=0, rpc_layer="grpc"
    )


def _serve_task(job: str, index: int) -> None:
    """Runs a parameter server or worker until the parent closes the pipe on stdin."""
    cluster = json.loads(os.environ[_CLUSTER])
    tf.distribute.Server(
        tf.train.ClusterSpec(cluster), job_name=job, task_index=index, protocol="grpc"
    )
    sys.stdin.read()
    os._exit(0)


def _make(work: protocol.Work) -> ParameterServers:
    for name, dtype in (("numerics", np.float32), ("ids", np.int32), ("labels", np.float32)):
        path = work.folder / f"{name}.raw"
        if not path.exists():
            getattr(work, name).astype(dtype).tofile(path)
    return ParameterServers(work)


if __name__ == "__main__":
    if _CLUSTER in os.environ:
        _serve_task(sys.argv[1], int(sys.argv[2]))
    protocol.serve(_make, ["tensorflow", "tf-keras", "tensorflow-recommenders", "numpy"])
