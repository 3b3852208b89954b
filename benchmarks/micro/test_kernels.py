"""Times route, lookup, update, combine and interaction of a W1 step; a row file of 200k rows."""

import itertools

import embedps  # noqa: F401  before TensorFlow: it chooses the Keras

# isort: split
import numpy as np
import pytest
import tensorflow as tf

from benchmarks.peers.protocol import num_interactions
from benchmarks.workload import W1, make_batches
from embedps.layers.dense import MLP, dot_interaction
from embedps.tables import FeatureSpec, TableSpec, ops
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.optimizers import BY_KIND

BATCH = 2048
FEATURES = [f"C{i + 1}" for i in range(len(W1.cardinalities))]
FILE_ROWS = 200_000
containers = itertools.count()


@pytest.fixture(scope="module")
def ids():
    batches = make_batches(W1, 16 * BATCH)
    return [
        dict(zip(FEATURES, tf.constant(batches.ids[:, k : k + BATCH]), strict=True))
        for k in range(0, 16 * BATCH, BATCH)
    ]


def make_collection(kind):
    return EmbeddingCollection(
        [TableSpec(name=n, embedding_dim=W1.dim, optimizer=BY_KIND[kind]()) for n in FEATURES],
        [FeatureSpec(name=n, table=n) for n in FEATURES],
        devices=["/device:CPU:0"],
        container=f"micro-{next(containers)}",  # dropped only by its own test
    )


@pytest.fixture(scope="module")
def filled(ids):
    collection = make_collection("rowwise_adagrad")
    for batch in ids:
        collection.lookup(batch, insert=True)
    return collection


def cycle(values):
    """Takes another value per round, so that no round finds its rows in the caches."""
    values = itertools.cycle(values)
    return lambda: ((next(values),), {})


def test_route(benchmark, ids):
    def route(batch):
        values = [batch[n] for n in FEATURES]
        tables = list(range(len(FEATURES)))
        return ops.route(values, feature_tables=tables, tables=FEATURES, num_shards=2)

    routed = benchmark.pedantic(route, setup=cycle(ids), rounds=60, warmup_rounds=4)
    assert len(routed.shard_ids) == 2


@pytest.mark.parametrize("insert", [False, True], ids=["read", "insert"])
def test_lookup(benchmark, ids, filled, insert):
    looked = benchmark.pedantic(
        lambda batch: filled.lookup(batch, insert=insert),
        setup=cycle(ids),
        rounds=60,
        warmup_rounds=4,
    )
    assert looked.rows[0][0].shape[1] == W1.dim


@pytest.mark.parametrize("kind", sorted(BY_KIND))
def test_update(benchmark, ids, kind):
    collection = make_collection(kind)
    looked = [collection.lookup(batch, insert=True) for batch in ids]
    gradients = [[[tf.ones_like(rows) for rows in g] for g in x.rows] for x in looked]
    benchmark.pedantic(
        lambda pair: collection.update(
            pair[0], pair[1], learning_rate=tf.constant(0.01), step=tf.constant(1, tf.int64)
        ),
        setup=cycle(list(zip(looked, gradients, strict=True))),
        rounds=60,
        warmup_rounds=4,
    )
    collection.drop()


def test_combine(benchmark, ids, filled):
    looked = [filled.lookup(batch, insert=False) for batch in ids]
    vectors = benchmark.pedantic(filled.combine, setup=cycle(looked), rounds=60, warmup_rounds=4)
    assert vectors["C1"].shape == (BATCH, W1.dim)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "forward-backward"])
def test_interaction(benchmark, dtype, backward):
    rng = np.random.default_rng(1)
    shape = (BATCH, W1.dim)
    inputs = [tf.constant(rng.random(shape), dtype) for _ in range(len(FEATURES) + 1)]

    def run():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            pairs = dot_interaction(inputs, dtype)
        return tape.gradient(pairs, inputs) if backward else pairs

    benchmark.pedantic(run, rounds=60, warmup_rounds=4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("which", ["bottom", "top"])
def test_mlp_forward_backward(benchmark, which, dtype):
    rng = np.random.default_rng(1)
    features = len(FEATURES)
    if which == "bottom":
        widths = [W1.num_numerics]
        network = MLP(W1.bottom_mlp, final_activation="relu", compute_dtype=dtype)
    else:
        widths = [W1.dim, num_interactions(features, W1.dim) - W1.dim]
        network = MLP(W1.top_mlp, compute_dtype=dtype, out_dtype="float32")
    inputs = [tf.constant(rng.random((BATCH, n)), dtype) for n in widths]
    if which == "bottom":
        inputs = [tf.constant(rng.random((BATCH, widths[0])), tf.float32)]

    @tf.function
    def run():
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            out = network(inputs)
        return tape.gradient(out, [inputs, network.trainable_variables])

    gradients = benchmark.pedantic(run, rounds=60, warmup_rounds=4)
    assert len(gradients[1]) == 2 * len(W1.bottom_mlp if which == "bottom" else W1.top_mlp)


@pytest.mark.parametrize("what", ["write", "load"])
def test_row_file(benchmark, tmp_path, what):
    collection = EmbeddingCollection(
        [TableSpec(name="t", embedding_dim=W1.dim)],
        [FeatureSpec(name="t", table="t")],
        devices=["/device:CPU:0"],
        container="micro-file",
    )
    collection.lookup({"t": tf.range(FILE_ROWS, dtype=tf.int64)}, insert=True)
    numbers = itertools.count()

    def write():
        folder = tmp_path / str(next(numbers))
        for group in collection.groups:
            (folder / group.name).mkdir(parents=True)
        return collection.files.write("base", str(folder), since={})

    if what == "write":
        files = benchmark.pedantic(write, rounds=5, warmup_rounds=1)
        assert files[0].rows == FILE_ROWS
    else:
        files = {f.group: [f.stored] for f in write()}
        taken = benchmark.pedantic(lambda: collection.files.load(files), rounds=5, warmup_rounds=1)
        assert taken == FILE_ROWS
    collection.drop()
