"""What a step exchanges with servers trains tables and network as it does in one process."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from embedps import local
from embedps.cluster import EmbeddedCluster
from embedps.exchange import LocalExchange, RemoteExchange, make_exchange
from embedps.tables import FeatureSpec
from embedps.tables.collection import EmbeddingCollection
from embedps.units import make_dense_optimizer, make_train_unit
from tests.builders import ROOT, make_dlrm, write_dataset
from tests.tables.builders import Rows, make_collection, make_table, ragged, rows_of

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


def train(
    kind: str, make, folder: Path, *, steps: int = 4
) -> tuple[list[np.ndarray], Rows, list[float]]:
    """Steps of a network over two tables of other dims; variables, rows and losses."""
    tf.keras.utils.set_random_seed(3)
    tables = [make_table("a", dim=3, seed=1), make_table("b", dim=2, seed=2)]
    features = [FeatureSpec(name="a", table="a"), FeatureSpec(name="b", table="b", ragged=True)]
    collection = make_collection(tables, features, num_shards=3)
    network = Network()
    network(tf.zeros([1, 3]))
    optimizer = make_dense_optimizer(kind, 0.05, network)
    exchange = make(network, optimizer, collection)

    @tf.function
    def step(a: tf.Tensor, b: tf.RaggedTensor, number: tf.Tensor) -> tf.Tensor:
        rate = tf.constant(0.3)
        with (
            exchange.begin({"a": a, "b": b}, number=number, learning_rate=rate) as begun,
            tf.GradientTape() as tape,
        ):
            watched = (begun.looked.rows, begun.weights)
            tape.watch(watched)
            vectors = collection.combine(begun.looked)
            x = vectors["a"] + tf.reduce_sum(vectors["b"], axis=1, keepdims=True)
            loss = tf.reduce_mean(network(x) ** 2)
        exchange.end(begun, *tape.gradient(loss, watched))
        return loss

    rng = np.random.default_rng(0)
    losses = []
    for number in range(steps):
        a = tf.constant(rng.integers(0, 9, 6), tf.int64)
        b = ragged([rng.integers(0, 9, n).tolist() for n in (2, 0, 1, 3, 1, 1)])
        losses.append(float(step(a, b, tf.constant(number, tf.int64))))
    weights = [v.numpy() for v in (*network.variables, *optimizer.variables())]
    return weights, rows_of(collection, folder), losses


def remote(wire_dtype: tf.DType = tf.float32):
    return lambda *parts: RemoteExchange(*parts, wire_dtype=wire_dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_messages_train_as_keras_and_the_tables_do(kind, tmp_path):
    weights, rows, losses = train(kind, remote(), tmp_path / "messages")
    plain_weights, plain_rows, plain_losses = train(kind, LocalExchange, tmp_path / "plain")
    before, _, _ = train(kind, LocalExchange, tmp_path / "before", steps=0)
    assert rows == plain_rows
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-6)
    assert len(weights) == len(plain_weights)
    for ours, keras in zip(weights, plain_weights, strict=True):
        np.testing.assert_allclose(ours, keras, rtol=1e-6, atol=1e-7)
    assert sum(not np.array_equal(a, b) for a, b in zip(weights, before, strict=True)) >= 5


def test_bfloat16_on_the_way_is_a_rounding_of_the_same(tmp_path):
    weights, rows, losses = train("sgd", remote(tf.bfloat16), tmp_path / "messages")
    exact_weights, exact_rows, exact_losses = train("sgd", remote(), tmp_path / "exact")
    assert losses != exact_losses
    np.testing.assert_allclose(losses, exact_losses, rtol=0.03)
    for ours, exact in zip(weights, exact_weights, strict=True):
        np.testing.assert_allclose(ours, exact, rtol=0.03, atol=0.003)
    assert rows.keys() == exact_rows.keys()
    for key, row in rows.items():
        np.testing.assert_allclose(row.embedding, exact_rows[key].embedding, rtol=0.03, atol=0.003)


def test_variables_of_this_process_are_left_to_keras():
    network = Network()
    network(tf.zeros([1, 3]))
    optimizer = make_dense_optimizer("sgd", 0.1, network)
    collection = make_collection([make_table()])
    exchange = make_exchange(network, optimizer, collection, wire_dtype=tf.bfloat16)
    assert isinstance(exchange, LocalExchange)


def tensors_between_tasks(unit, arguments) -> tuple[set[str], set[str]]:
    """Tensors that the body of a unit's last loop, of a step, sends to a server, and gets."""
    graph = unit.get_concrete_function(*arguments).graph
    loop = [op for op in graph.get_operations() if op.type in ("While", "StatelessWhile")][-1]
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
        [sys.executable, "-m", "tests.test_exchange", str(tmp_path)],
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
                    recommender.input(batch_rows=60, shuffle_rows=0),
                )
                numbers = [tf.constant(n, tf.int64) for n in (0, file.rows, 0, 0)]
                arguments = (tf.constant(path), *numbers, tf.constant(0.1))
                if cluster is remote:
                    # Whatever the shards: ids, gradients; rows with the variables.
                    assert len(collection.groups) == 1
                    sent, got = tensors_between_tasks(unit, arguments)
                    assert (len(sent), len(got)) == (2, 1), (sent, got)
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
