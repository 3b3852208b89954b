"""Training through servers updates tables and network as training in one process does."""

import collections
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from embedps.cluster.embedded import EmbeddedCluster
from embedps.cluster.interface import Cluster
from embedps.cluster.local_cluster import LocalCluster
from embedps.data.dataset import Dataset
from embedps.engine.dense_optimizer import make_dense_optimizer
from embedps.engine.network_variables import RemoteVariables
from embedps.engine.step_model import StepModel
from embedps.engine.steps.in_process import LocalExchange
from embedps.engine.steps.interface import StepExchange, StepParts
from embedps.engine.steps.servers import RemoteExchange
from embedps.engine.steps.step_logs import StepLogs
from embedps.engine.steps.unit_parts import StepPart
from embedps.engine.steps.ways import ONE_PROCESS
from embedps.engine.unit_functions import EXCHANGES, make_train_unit
from embedps.tables import FeatureSpec, MinCount
from embedps.tables.collection import EmbeddingCollection
from tests import forked
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
    optimizer = make_dense_optimizer(kind, 0.05, network)
    recommender = SimpleNamespace(wire_dtype=wire_dtype)
    model: Any = SimpleNamespace(model=network, state=(), recommender=recommender)
    exchange = make(StepParts(model, optimizer, collection))
    whole = StepPart(rank=0, num_parts=1, num_rows=6, after=-1)

    @tf.function
    def step(a: tf.Tensor, b: tf.RaggedTensor, number: tf.Tensor) -> tf.Tensor:
        rate = tf.constant(0.3)
        ids = {"a": a, "b": b}
        begun = exchange.begin(ids, number=number, learning_rate=rate, part=whole)
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("admission", [None, MinCount(count=2)])
def test_messages_train_as_keras_and_the_tables_do(kind, admission, tmp_path):
    weights, rows, losses = train(kind, RemoteExchange, tmp_path / "messages", admission=admission)
    plain_weights, plain_rows, plain_losses = train(
        kind, LocalExchange, tmp_path / "plain", admission=admission
    )
    before, _, _ = train(kind, LocalExchange, tmp_path / "before", steps=0)
    assert rows == plain_rows
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-6)
    assert len(weights) == len(plain_weights)
    for ours, keras in zip(weights, plain_weights, strict=True):
        np.testing.assert_allclose(ours, keras, rtol=1e-6, atol=1e-7)
    assert sum(not np.array_equal(a, b) for a, b in zip(weights, before, strict=True)) >= 5


def test_bfloat16_on_the_way_is_a_rounding_of_the_same(tmp_path):
    weights, rows, losses = train(
        "sgd", RemoteExchange, tmp_path / "messages", wire_dtype="bfloat16"
    )
    exact_weights, exact_rows, exact_losses = train("sgd", RemoteExchange, tmp_path / "exact")
    assert losses != exact_losses
    np.testing.assert_allclose(losses, exact_losses, rtol=0.03)
    for ours, exact in zip(weights, exact_weights, strict=True):
        np.testing.assert_allclose(ours, exact, rtol=0.03, atol=0.003)
    assert rows.keys() == exact_rows.keys()
    for key, row in rows.items():
        np.testing.assert_allclose(row.embedding, exact_rows[key].embedding, rtol=0.03, atol=0.003)


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
        model = make_model(dataset, EmbeddedCluster(num_shards=2), container=f"{name}-{overlap}")
        path, *numbers = unit_arguments(dataset)
        if exchange is RemoteExchange:
            force_messages(monkeypatch)
            logs = StepLogs(model.collection.container)
            make_unit(model, overlap=overlap, logs=logs)(path, *numbers)
            # Two iterations of four steps, and two steps by themselves.
            per_log = {0: 4, 1: 6} if overlap else {0: 10}
            assert logs.staleness() == {0: {k: 2 * n for k, n in per_log.items()}}
        else:
            train_by_hand(model, path, numbers, overlap=overlap)
        weights = [v.numpy() for v in (*model.network.variables, *model.optimizer.variables())]
        results.append((weights, rows_of(model.collection, tmp_path / name)))
    (weights, rows), (expected, expected_rows) = results
    for ours, theirs in zip(weights, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    assert rows.keys() == expected_rows.keys()
    for key, row in rows.items():
        theirs = expected_rows[key]
        assert (row.last_step, row.frequency) == (theirs.last_step, theirs.frequency)
        np.testing.assert_allclose(row.embedding, theirs.embedding, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "min_count", "overlap"),
    [
        ("adam", 1, False),  # its state is the most
        ("adagrad", 3, True),
        *(
            pytest.param(*case, overlap, marks=pytest.mark.slow)
            for case in (("sgd", 1), ("adagrad", 1), ("adam", 1), ("adagrad", 3))
            for overlap in (False, True)
            if (*case, overlap) not in (("adam", 1, False), ("adagrad", 3, True))
        ),
    ],
)
def test_second_attempt_at_a_unit_applies_only_what_the_first_did_not(
    tmp_path, monkeypatch, overlap, kind, min_count
):
    force_messages(monkeypatch)
    dataset = write_dataset(tmp_path / "data", train=(600,))
    path, first_row, num_rows, seed, first_step, rate = unit_arguments(dataset)

    def train(name: str, *attempts: int) -> tuple[list[np.ndarray], Rows, Any]:
        """Attempts that end after so many rows."""
        model = make_model(
            dataset,
            EmbeddedCluster(num_shards=2),
            container=f"{name}-{overlap}-{kind}-{min_count}",
            kind=kind,
            min_count=min_count,
        )
        unit = make_unit(model, overlap=overlap)
        for rows in attempts:
            unit(path, first_row, tf.constant(rows, tf.int64), seed, first_step, rate)
        weights = [v.numpy() for v in (*model.network.variables, *model.optimizer.variables())]
        decided = model.collection.admission_stats()
        assert any(stats.refused for stats in decided.values()) == (min_count > 1)
        return weights, rows_of(model.collection, tmp_path / name), decided

    whole = int(num_rows)
    weights, rows, decided = train("once", whole)
    for name, attempts in (("twice", (whole, whole)), ("cut short", (240, whole, 420))):
        again, rows_again, decided_again = train(name, *attempts)
        assert rows_again == rows, name
        assert decided_again == decided, name
        for ours, once in zip(again, weights, strict=True):
            np.testing.assert_array_equal(ours, once, name)


class Model(NamedTuple):
    step: StepModel
    collection: EmbeddingCollection
    network: tf.keras.Model
    optimizer: Any
    cluster: Cluster


def make_model(
    dataset: Dataset,
    cluster: Cluster,
    *,
    container: str,
    kind: str = "adagrad",
    min_count: int = 1,
) -> Model:
    tf.keras.utils.set_random_seed(5)
    with cluster.scope():
        step = StepModel(make_dlrm(dataset, min_count=min_count), dataset)
        network = step.model
        optimizer = make_dense_optimizer(kind, 0.05, network)
    collection = EmbeddingCollection(
        step.tables,
        step.features,
        devices=cluster.shard_devices,
        container=f"test-{container}",
    )
    return Model(step, collection, network, optimizer, cluster)


def make_unit(model: Model, *, overlap: bool, logs: StepLogs | None = None) -> Any:
    return make_train_unit(
        model.step,
        model.optimizer,
        model.collection,
        model.cluster.strategy,
        model.step.input(batch_rows=60, shuffle_rows=0),
        overlap=overlap,
        logs=logs,
    )


def unit_arguments(dataset: Dataset) -> tuple[tf.Tensor, ...]:
    """Those of a unit that is the first file."""
    file = dataset.split("train").files[0]
    numbers = [tf.constant(n, tf.int64) for n in (0, file.rows, 0, 0)]
    return (tf.constant(str(dataset.absolute_path(file))), *numbers, tf.constant(0.1))


def force_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has units of this process do as on a cluster."""
    monkeypatch.setitem(EXCHANGES, ONE_PROCESS, RemoteExchange)


def train_by_hand(
    model: Model, path: tf.Tensor, numbers: Sequence[tf.Tensor], *, overlap: bool
) -> None:
    """Steps of the tables and Keras, each with the rows and values of before, or two before.

    The first step of each four, and those after the last four, have those of before.
    """
    first_row, num_rows, seed, _, rate = numbers
    unit_input = model.step.input(batch_rows=60, shuffle_rows=0)
    reader = unit_input.open(path, first_row, num_rows, seed)
    batches = [unit_input.next(reader) for _ in range(-(-int(num_rows) // 60))]
    variables = model.network.trainable_variables
    exchange = LocalExchange(StepParts(model.step, model.optimizer, model.collection))

    def begin(k: int) -> tuple[Any, list[np.ndarray]]:
        number = tf.constant(k, tf.int64)
        begun = exchange.begin(
            batches[k].columns,
            number=number,
            learning_rate=rate,
            part=StepPart(rank=0, num_parts=1, num_rows=batches[k].num_rows, after=-1),
        )
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
                logits = model.network.logits(batch.columns, training=True)
            labels = batch.columns["label"]
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, (begun.lookup.rows, variables))
        assign(variables, now)
        exchange.end(begun, *gradients)


def assign(variables: Sequence[tf.Variable], values: Sequence[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def tensors_between_tasks(unit: Any, arguments: Sequence[tf.Tensor]) -> dict[tuple[str, str], int]:
    """How many tensors the body of a unit's last loop, of a step, sends from which task to which.

    The worker is "".
    """
    graph = unit.get_concrete_function(*arguments).graph
    loop = [op for op in graph.get_operations() if op.type in ("While", "StatelessWhile")][-1]
    body = graph._get_function(loop.get_attr("body").name).graph
    outside = {id(inside): external.device for external, inside in graph.captures}
    passed = {  # the loop's own counters come first, what its body captures last
        inside.name: outside.get(id(given), "")
        for inside, given in zip(body.inputs, loop.inputs, strict=True)
    }

    def task(op: tf.Operation) -> str:
        device = op.device
        if op.type == "ReadVariableOp":  # is placed where the variable is, whatever it names
            device = passed[op.inputs[0].name]
        found = re.search(r"/job:ps.*/task:\d+", device)
        return found.group() if found else ""

    tensors = {
        (task(tensor.op), task(op), tensor.name)
        for op in body.get_operations()
        for tensor in op.inputs
        if tensor.dtype != tf.resource and task(tensor.op) != task(op)
    }
    return dict(collections.Counter((source, target) for source, target, _ in tensors))


@pytest.mark.multiprocess
@pytest.mark.slow
def test_servers_and_a_worker_train_as_this_process_does(tmp_path):
    # In a client of its own: TensorFlow never leaves a cluster that it has connected to.
    done = forked.run(
        ["-m", "tests.engine.test_step_exchange", str(tmp_path)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def check_servers_and_worker(directory: Path) -> None:
    """Checks losses, rows and variables, for each of the network's optimizers."""
    dataset = write_dataset(directory / "data")
    arguments = unit_arguments(dataset)
    remote = LocalCluster(num_ps=3, num_workers=1, num_shards=4, log_dir=directory / "logs")
    here = EmbeddedCluster(num_shards=4)
    monkeypatch = pytest.MonkeyPatch()
    try:
        for kind, overlap in zip(KINDS, (False, True, False), strict=True):
            results = []
            for cluster in (remote, here):
                name = f"{kind}-{overlap}-{cluster is here}"
                model = make_model(dataset, cluster, container=name, kind=kind)
                if cluster is here:
                    force_messages(monkeypatch)
                unit = make_unit(model, overlap=overlap)
                monkeypatch.undo()
                if cluster is remote:
                    check_placement(model)
                    # Whatever the shards: ids, gradients; rows with the variables.
                    assert len(model.collection.groups) == 1
                    servers = [f"/job:ps/replica:0/task:{task}" for task in range(3)]
                    assert tensors_between_tasks(unit, arguments) == {
                        **{("", server): 2 for server in servers},
                        **{(server, ""): 1 for server in servers},
                    }
                call = cluster.schedule(unit, arguments)
                losses = cluster.fetch(call)["click/0"]
                weights = [
                    v.numpy() for v in (*model.network.variables, *model.optimizer.variables())
                ]
                results.append((losses, weights, model.collection.stats().rows))
            (losses, weights, rows), (expected, expected_weights, expected_rows) = results
            np.testing.assert_allclose(losses, expected, rtol=1e-5)
            assert rows == expected_rows
            for ours, theirs in zip(weights, expected_weights, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    finally:
        remote.close()
        here.close()


def check_placement(model: Model) -> None:
    """No server's variables are more than the least server's and one variable."""
    floats: collections.Counter[str] = collections.Counter()
    for variable in model.network.variables:
        floats[variable.device] += variable.shape.num_elements()
    largest = max(v.shape.num_elements() for v in model.network.variables)
    assert len(floats) == 3
    assert max(floats.values()) <= min(floats.values()) + largest, floats
    for variable in model.network.trainable_variables:
        for slot in model.optimizer.get_slot_names():
            assert model.optimizer.get_slot(variable, slot).device == variable.device


if __name__ == "__main__":
    check_servers_and_worker(Path(sys.argv[1]))
