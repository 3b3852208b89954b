"""Training through servers updates tables and network as training in one process does."""

import collections
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from embedps.cluster.embedded import EmbeddedCluster
from embedps.cluster.interface import Cluster
from embedps.cluster.local_cluster import LocalCluster
from embedps.data.dataset import Dataset
from embedps.engine.dense_optimizer import make_dense_optimizer
from embedps.engine.network_variables import RemoteVariables
from embedps.engine.steps.in_process import LocalExchange
from embedps.engine.steps.interface import StepExchange, StepParts
from embedps.engine.steps.servers import RemoteExchange
from embedps.engine.steps.unit_parts import Step, StepPart
from embedps.tables import FeatureSpec, MinCount
from tests.builders import make_dlrm, write_dataset
from tests.commands import run_program
from tests.engine.builders import (
    Trained,
    assign,
    check_close,
    check_messages,
    check_rows_close,
    force_messages,
)
from tests.tables.builders import Rows, make_collection, make_table, ragged, rows_of

KINDS = ("sgd", "adagrad", "adam")
keras = tf.keras.optimizers
OPTIMIZERS: dict[str, str | Callable[[], Any]] = {
    **{kind: kind for kind in (*KINDS, "lion", "ftrl")},
    "schedule": lambda: keras.Adam(keras.schedules.CosineDecay(0.01, 40)),
    "global_clipnorm": lambda: keras.Adam(0.01, global_clipnorm=0.05),
    "clipvalue": lambda: keras.RMSprop(0.01, momentum=0.9, clipvalue=0.01),
}


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
    kind: str,
    make: Callable[[StepParts], StepExchange[Any]],
    folder: Path,
    *,
    steps: int = 4,
    admission: MinCount | None = None,
    wire_dtype: str = "float32",
) -> tuple[list[np.ndarray], Rows, list[float]]:
    """Steps of a network over two tables of other dims; variables, rows and losses."""
    tf.keras.utils.set_random_seed(3)
    tables = [
        make_table("a", embedding_dim=3, seed=1, admission=admission),
        make_table("b", embedding_dim=2, seed=2),
    ]
    features = [
        FeatureSpec(name="a", table="a"),
        FeatureSpec(name="b", table="b", ragged=True, combiner="sum"),
    ]
    collection = make_collection(tables, features, num_shards=3)
    network = Network()
    network(tf.zeros([1, 3]))
    optimizer = make_dense_optimizer(OPTIMIZERS[kind], 0.05, network)
    recommender = SimpleNamespace(wire_dtype=wire_dtype)
    model: Any = SimpleNamespace(model=network, state=(), recommender=recommender)
    exchange = make(StepParts(model, optimizer, collection))
    whole = StepPart(rank=0, num_parts=1, num_rows=6, after=-1)

    @tf.function
    def step(a: tf.Tensor, b: tf.RaggedTensor, number: tf.Tensor) -> tf.Tensor:
        rate = tf.constant(0.3)
        ids = {"a": a, "b": b}
        begun = exchange.begin(ids, Step(number, rate, whole))
        with exchange.computing(begun), tf.GradientTape() as tape:
            watched = (begun.lookup.rows, begun.weights)
            tape.watch(watched)
            vectors = collection.combine(begun.lookup)
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


@pytest.mark.parametrize(
    ("kind", "admission"),
    [*((kind, None) for kind in OPTIMIZERS), ("adagrad", MinCount(count=2))],
)
def test_messages_train_as_keras_and_the_tables_do(kind, admission, tmp_path):
    weights, rows, losses = train(kind, RemoteExchange, tmp_path / "messages", admission=admission)
    plain_weights, plain_rows, plain_losses = train(
        kind, LocalExchange, tmp_path / "plain", admission=admission
    )
    before, _, _ = train(kind, LocalExchange, tmp_path / "before", steps=0)
    assert rows == plain_rows
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-6)
    check_close(weights, plain_weights, rtol=1e-6, atol=1e-7)
    assert sum(not np.array_equal(a, b) for a, b in zip(weights, before, strict=True)) >= 5


def test_bfloat16_on_the_way_is_a_rounding_of_the_same(tmp_path):
    weights, rows, losses = train(
        "sgd", RemoteExchange, tmp_path / "messages", wire_dtype="bfloat16"
    )
    exact_weights, exact_rows, exact_losses = train("sgd", RemoteExchange, tmp_path / "exact")
    assert losses != exact_losses
    np.testing.assert_allclose(losses, exact_losses, rtol=0.03)
    check_close(weights, exact_weights, rtol=0.03, atol=0.003)
    check_rows_close(rows, exact_rows, rtol=0.03, atol=0.003)


def test_the_rate_and_the_count_are_of_the_servers_that_have_them():
    def on(server: str) -> Any:
        return SimpleNamespace(device=server, shape=tf.TensorShape([2, 3]), dtype=tf.float32)

    network: Any = SimpleNamespace(trainable_variables=[on("a"), on("b"), on("a")])
    optimizer = SimpleNamespace(iterations=on("b"), learning_rate=on("c"))
    variables = RemoteVariables(network, optimizer)
    matrix, rate = tf.TensorSpec([2, 3], tf.float32), tf.TensorSpec([], tf.float32)
    specs = {server: variables.specs(server) for server in variables.devices}
    count = tf.TensorSpec([], tf.int64)
    assert specs == {"a": [matrix, matrix], "b": [matrix, count], "c": [rate]}


@pytest.mark.parametrize("overlap", [False, True])
def test_a_unit_that_overlaps_steps_lacks_the_gradients_of_one(tmp_path, monkeypatch, overlap):
    dataset = write_dataset(tmp_path / "data", train=(600,))
    results = []
    for name, exchange in (("unit", RemoteExchange), ("by hand", LocalExchange)):
        if exchange is RemoteExchange:
            force_messages(monkeypatch)
        model = make_model(dataset, EmbeddedCluster(num_shards=2))
        if exchange is RemoteExchange:
            model.run(model.make_unit(overlap=overlap, logs=model.logs))
            # Two iterations of four steps, and two steps by themselves.
            per_log = {0: 4, 1: 6} if overlap else {0: 10}
            assert model.logs.staleness() == {0: {k: 2 * n for k, n in per_log.items()}}
        else:
            train_by_hand(model, overlap=overlap)
        results.append((model.weights(), rows_of(model.collection, tmp_path / name)))
    (weights, rows), (expected, expected_rows) = results
    check_close(weights, expected, rtol=1e-4, atol=1e-6)
    check_rows_close(rows, expected_rows, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "min_count", "overlap"),
    [
        ("adam", 1, False),  # its state is the most
        ("adagrad", 3, True),
        pytest.param("adam", 1, True, marks=pytest.mark.slow),
        pytest.param("adagrad", 3, False, marks=pytest.mark.slow),
    ],
)
def test_second_attempt_at_a_unit_applies_only_what_the_first_did_not(
    tmp_path, monkeypatch, overlap, kind, min_count
):
    force_messages(monkeypatch)
    dataset = write_dataset(tmp_path / "data", train=(600,))

    def train(name: str, *attempts: int) -> Iterator[tuple[list[np.ndarray], Rows, Any]]:
        """What is there after attempts that end after so many rows."""
        model = make_model(dataset, EmbeddedCluster(num_shards=2), kind=kind, min_count=min_count)
        unit = model.make_unit(overlap=overlap)
        for i, rows in enumerate(attempts):
            model.run(unit, *model.arguments(rows))
            decided = model.collection.admission_stats()
            assert any(stats.refused for stats in decided.values()) == (min_count > 1)
            yield model.weights(), rows_of(model.collection, tmp_path / f"{name}-{i}"), decided

    (weights, rows, decided), twice = train("twice", 600, 600)
    *_, cut_short = train("cut short", 240, 600, 420)
    for again, rows_again, decided_again in (twice, cut_short):
        assert rows_again == rows
        assert decided_again == decided
        check_close(again, weights)


def make_model(
    dataset: Dataset, cluster: Cluster, *, kind: str = "adagrad", min_count: int = 1
) -> Trained:
    return Trained(make_dlrm(dataset, min_count=min_count), dataset, cluster, kind=kind, rate=0.05)


def train_by_hand(model: Trained, *, overlap: bool) -> None:
    """Steps of the tables and Keras, each with the rows and values of before, or two before.

    The first step of each four, and those after the last four, have those of before.
    """
    path, first_row, num_rows, seed, _, rate = model.arguments()
    unit_input = model.step.input(batch_rows=60, shuffle_rows=0)
    reader = unit_input.open(path, first_row, num_rows, seed)
    batches = [unit_input.next(reader) for _ in range(-(-int(num_rows) // 60))]
    variables = model.model.trainable_variables
    exchange = LocalExchange(StepParts(model.step, model.optimizer, model.collection))

    def begin(k: int) -> tuple[Any, list[np.ndarray]]:
        part = StepPart(rank=0, num_parts=1, num_rows=batches[k].num_rows, after=-1)
        begun = exchange.begin(batches[k].columns, Step(tf.constant(k, tf.int64), rate, part))
        return begun, [v.numpy() for v in variables]

    early = None
    for k, batch in enumerate(batches):
        begun, values = early or begin(k)
        is_last = k % 4 == 3 or k >= len(batches) // 4 * 4
        early = begin(k + 1) if overlap and not is_last else None
        now = [v.numpy() for v in variables]
        assign(variables, values)
        with tf.GradientTape() as tape:
            tape.watch(begun.lookup.rows)
            embeddings = model.collection.combine(begun.lookup)
            with model.step.embeddings.providing(embeddings):
                logits = model.model.logits(batch.columns, training=True)
            labels = batch.columns["label"]
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, (begun.lookup.rows, variables))
        assign(variables, now)
        exchange.end(begun, *gradients)


@pytest.mark.multiprocess
@pytest.mark.slow
def test_servers_and_a_worker_train_as_this_process_does(tmp_path):
    run_program("-m", "tests.engine.test_step_exchange", tmp_path)


def check_servers_and_worker(directory: Path) -> None:
    """Checks losses, rows and variables, for each of the network's optimizers."""
    dataset = write_dataset(directory / "data")
    remote = LocalCluster(num_ps=3, num_workers=1, num_shards=4, log_dir=directory / "logs")
    here = EmbeddedCluster(num_shards=4)
    monkeypatch = pytest.MonkeyPatch()
    try:
        for kind, overlap in zip(KINDS, (False, True, False), strict=True):
            results = []
            for cluster in (remote, here):
                model = make_model(dataset, cluster, kind=kind)
                if cluster is here:
                    force_messages(monkeypatch)
                unit = model.make_unit(overlap=overlap)
                monkeypatch.undo()
                if cluster is remote:
                    check_placement(model)
                    # Whatever the shards.
                    assert len(model.collection.groups) == 1
                    check_messages(unit, model.arguments(), 3)
                losses = model.run(unit)["click/0"]
                results.append((losses, model.weights(), model.collection.stats().rows))
            (losses, weights, rows), (expected, expected_weights, expected_rows) = results
            np.testing.assert_allclose(losses, expected, rtol=1e-5)
            assert rows == expected_rows
            check_close(weights, expected_weights, rtol=1e-4, atol=1e-5)
    finally:
        remote.close()
        here.close()


def check_placement(model: Trained) -> None:
    """No server's variables are more than the least server's and one variable."""
    floats: collections.Counter[str] = collections.Counter()
    for variable in model.model.variables:
        floats[variable.device] += variable.shape.num_elements()
    largest = max(v.shape.num_elements() for v in model.model.variables)
    assert len(floats) == 3
    assert max(floats.values()) <= min(floats.values()) + largest, floats
    for variable in model.model.trainable_variables:
        for slot in model.optimizer.get_slot_names():
            assert model.optimizer.get_slot(variable, slot).device == variable.device


if __name__ == "__main__":
    check_servers_and_worker(Path(sys.argv[1]))
