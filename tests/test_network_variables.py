"""Variables packed by server train as the Keras optimizer does one by one."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from embedps import local
from embedps.cluster import EmbeddedCluster
from embedps.network_variables import (
    LocalVariables,
    RemoteVariables,
    make_network_variables,
)
from embedps.tables.collection import EmbeddingCollection
from embedps.units import make_dense_optimizer, make_train_unit
from tests.builders import ROOT, make_dlrm, write_dataset

KINDS = ("sgd", "adagrad", "adam")


class Network(tf.keras.Model):
    """Uses a variable twice, one by its handle, one not at all, and one that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self._hidden = tf.keras.layers.Dense(5, activation="relu")
        self._out = tf.keras.layers.Dense(1)

    def build(self, input_shape) -> None:
        self._scale = self.add_weight(name="scale", shape=[3], initializer="ones")
        self._unused = self.add_weight(name="unused", shape=[2], initializer="ones")
        self._fixed = self.add_weight(name="fixed", shape=[], initializer="ones", trainable=False)
        super().build(input_shape)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        x = self._hidden(x * self._scale) * self._fixed
        return self._out(x) * tf.reduce_sum(self._scale) + tf.gather(self._scale, [1, 1])[0]


def train(kind: str, make, *, steps: int = 4) -> list[np.ndarray]:
    tf.keras.utils.set_random_seed(3)
    network = Network()
    network(tf.zeros([1, 3]))
    optimizer = make_dense_optimizer(kind, 0.05, network)
    variables = make(network, optimizer)

    @tf.function
    def step(x: tf.Tensor) -> None:
        with variables.read() as weights, tf.GradientTape() as tape:
            tape.watch(weights)
            loss = tf.reduce_mean(network(x) ** 2)
        variables.update(tape.gradient(loss, weights))

    rng = np.random.default_rng(0)
    for _ in range(steps):
        step(tf.constant(rng.normal(size=[6, 3]), tf.float32))
    return [v.numpy() for v in (*network.variables, *optimizer.variables())]


@pytest.mark.parametrize("kind", KINDS)
def test_packed_variables_train_as_keras_does(kind):
    packed, plain = train(kind, RemoteVariables), train(kind, LocalVariables)
    before = train(kind, LocalVariables, steps=0)
    assert len(packed) == len(plain)
    for ours, keras in zip(packed, plain, strict=True):
        np.testing.assert_allclose(ours, keras, rtol=1e-6, atol=1e-7)
    assert sum(not np.array_equal(a, b) for a, b in zip(packed, before, strict=True)) >= 5


def test_variables_of_this_process_are_left_to_keras():
    network = Network()
    network(tf.zeros([1, 3]))
    optimizer = make_dense_optimizer("sgd", 0.1, network)
    assert isinstance(make_network_variables(network, optimizer), LocalVariables)


def tensors_between_tasks(unit, arguments) -> tuple[set[str], set[str]]:
    """Tensors that a unit's loop body sends to a server, and gets from it."""
    graph = unit.get_concrete_function(*arguments).graph
    (loop,) = (op for op in graph.get_operations() if op.type in ("While", "StatelessWhile"))
    body = graph._get_function(loop.get_attr("body").name).graph

    def is_remote(op: tf.Operation) -> bool:
        # A read of a variable is placed where that is, whatever device it names.
        return "/job:ps" in op.device or op.type == "ReadVariableOp"

    sent: set[str] = set()
    got: set[str] = set()
    for op in body.get_operations():
        for tensor in op.inputs:
            if is_remote(op) != is_remote(tensor.op) and tensor.dtype != tf.resource:
                (sent if is_remote(op) else got).add(tensor.name)
    return sent, got


@pytest.mark.multiprocess
@pytest.mark.slow
def test_one_server_and_worker_train_as_this_process_does(tmp_path):
    # In a client of its own: TensorFlow never leaves a cluster that it has connected to.
    done = subprocess.run(
        [sys.executable, "-m", "tests.test_network_variables", str(tmp_path)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def check_one_server_and_worker(directory: Path) -> None:
    """Checks losses, rows and variables, for each of the network's optimizers."""
    dataset = write_dataset(directory / "data")
    file = dataset.split("train").files[0]
    path = str(dataset.absolute_path(file))
    remote, _ = local.start(num_ps=1, num_workers=1, num_shards=2, log_dir=directory / "logs")
    here = EmbeddedCluster(num_shards=2)
    try:
        for kind in KINDS:
            results = []
            for cluster in (remote, here):
                recommender = make_dlrm(dataset)
                collection = EmbeddingCollection(
                    recommender.tables,
                    recommender.features,
                    devices=cluster.shard_devices,
                    container=f"test-{kind}",
                )
                tf.keras.utils.set_random_seed(5)
                with cluster.strategy.scope():
                    network = recommender.build_network()
                    optimizer = make_dense_optimizer(kind, 0.05, network)
                unit = make_train_unit(
                    recommender,
                    network,
                    optimizer,
                    collection,
                    cluster.strategy,
                    recommender.input(batch_rows=64, shuffle_rows=0),
                )
                numbers = [tf.constant(n, tf.int64) for n in (0, file.rows, 0, 0)]
                arguments = (tf.constant(path), *numbers, tf.constant(0.1))
                if cluster is remote:
                    # By shard its ids and its gradients, its rows; once each for the server: the
                    # step and learning rate, the network's gradients, the network's variables.
                    assert len(collection.groups) == 1
                    sent, got = tensors_between_tasks(unit, arguments)
                    assert (len(sent), len(got)) == (6, 3), (sent, got)
                call = cluster.schedule(unit, arguments)
                losses = cluster.fetch(call).sums
                weights = [v.numpy() for v in (*network.variables, *optimizer.variables())]
                results.append((losses, weights, collection.stats().rows))
            (losses, weights, rows), (expected, expected_weights, expected_rows) = results
            np.testing.assert_allclose(losses, expected, rtol=1e-5)
            assert rows == expected_rows
            for ours, theirs in zip(weights, expected_weights, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    finally:
        remote.close()
        here.close()


if __name__ == "__main__":
    check_one_server_and_worker(Path(sys.argv[1]))
