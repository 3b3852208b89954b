"""A traced step has one lookup and one update op per group and shard."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from embedps.tables import SGD, FeatureSpec
from tests.tables.builders import ids, look, make_collection, make_table, ragged, run_step

TABLES = [
    *[make_table(f"C{i}", 4) for i in range(1, 6)],
    make_table("wide", 9),
    make_table("plain", 4, optimizer=SGD()),
]
FEATURES = [
    *[FeatureSpec(name=f"f{i}", table=f"C{i}") for i in range(1, 6)],
    FeatureSpec(name="shared", table="C1"),
    FeatureSpec(name="bag", table="C1", ragged=True, combiner="mean"),
    FeatureSpec(name="wide", table="wide"),
    FeatureSpec(name="plain", table="plain"),
]
BATCH = {f.name: ragged([[1, 2], []]) if f.ragged else ids(1, 2) for f in FEATURES}
NUM_GROUPS = 3


def _total(vectors):
    return tf.add_n([tf.reduce_sum(v) for v in vectors.values()])


def _step(collection, batch, step):
    loss, _ = run_step(collection, batch, _total, learning_rate=0.1, step=step)
    return loss


def _op_counts(concrete):
    """Counts each op type in the function's graph and in the functions that it calls."""
    graph = concrete.graph.as_graph_def()
    counts = collections.Counter(node.op for node in graph.node)
    for function in graph.library.function:
        counts.update(node.op for node in function.node_def)
    return counts


@pytest.mark.parametrize("num_shards", [1, 2, 5])
def test_step_issues_one_lookup_and_one_update_a_group_and_shard(num_shards):
    collection = make_collection(TABLES, FEATURES, num_shards=num_shards)
    assert len(collection.groups) == NUM_GROUPS

    @tf.function(autograph=False)
    def step(batch):
        return _step(collection, batch, tf.constant(1, tf.int64))

    counts = _op_counts(step.get_concrete_function(BATCH))
    assert counts["EmbedpsLookup"] == NUM_GROUPS * num_shards
    assert counts["EmbedpsUpdate"] == NUM_GROUPS * num_shards
    assert counts["EmbedpsRoute"] == NUM_GROUPS
    assert counts["EmbedpsCombine"] == NUM_GROUPS
    assert counts["EmbedpsCombineGrad"] == NUM_GROUPS


def test_loop_over_batches_holds_the_ops_once_and_runs_them_each_time():
    collection = make_collection(TABLES, FEATURES, num_shards=2)

    @tf.function(autograph=False)
    def unit(batch, num_steps):
        def body(i, total):
            return i + 1, total + _step(collection, batch, i + 1)

        first = (tf.constant(0, tf.int64), tf.constant(0.0))
        return tf.while_loop(lambda i, _: i < num_steps, body, first, parallel_iterations=1)

    concrete = unit.get_concrete_function(BATCH, tf.constant(5, tf.int64))
    counts = _op_counts(concrete)
    assert counts["EmbedpsLookup"] == NUM_GROUPS * 2
    assert counts["EmbedpsUpdate"] == NUM_GROUPS * 2

    eager = make_collection(TABLES, FEATURES, num_shards=2)
    total = sum(float(_step(eager, BATCH, tf.constant(i + 1, tf.int64))) for i in range(5))
    steps, traced_total = concrete(BATCH, tf.constant(5, tf.int64))
    assert int(steps) == 5
    np.testing.assert_allclose(traced_total, total, rtol=1e-5)
    expected = look(eager, BATCH)
    for name, value in look(collection, BATCH).items():
        np.testing.assert_array_equal(value, expected[name])


def test_update_of_unused_group_is_left_out():
    collection = make_collection(TABLES, FEATURES)

    @tf.function(autograph=False)
    def step(batch):
        run_step(collection, batch, lambda vectors: tf.reduce_sum(vectors["wide"]))

    assert _op_counts(step.get_concrete_function(BATCH))["EmbedpsUpdate"] == 1
