"""Lookups and their gradients against plain TensorFlow, over shards, groups and shared tables."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from embedps import kernels
from embedps.errors import UsageError
from embedps.tables import SGD, FeatureSpec
from embedps.tables.collection import EmbeddingCollection
from tests.kernels.twins import initial_values
from tests.tables.builders import (
    constant,
    ids,
    look,
    make_collection,
    make_table,
    ragged,
    rows_of,
    train,
)

EXTREMES = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 1]
TABLES = [
    make_table("items", 4, optimizer=SGD()),
    make_table("users", 4, optimizer=SGD()),
    make_table("wide", 17, optimizer=SGD()),
    make_table("places", 4),  # another optimizer: another group
]
FEATURES = [
    FeatureSpec(name="shown", table="items"),
    FeatureSpec(name="user", table="users"),
    FeatureSpec(name="clicked", table="items", ragged=True),
    FeatureSpec(name="liked", table="items", ragged=True, combiner="sqrtn"),
    FeatureSpec(name="wide_one", table="wide"),
    FeatureSpec(name="wide_many", table="wide", ragged=True, combiner="sum"),
    FeatureSpec(name="place", table="places"),
    FeatureSpec(name="been", table="places", ragged=True, combiner="mean"),
]
BATCH_SIZE = 64


def _batch(seed: int = 0):
    """Makes ids with repeats within and between features, extreme ids, and empty bags."""
    random = np.random.default_rng(seed)
    pool = np.array([*EXTREMES, *range(2, 40)], np.int64)
    batch = {}
    for feature in FEATURES:
        if not feature.ragged:
            batch[feature.name] = ids(*random.choice(pool, BATCH_SIZE))
            continue
        sizes = random.integers(0, 5, BATCH_SIZE)
        sizes[[0, -1]] = 0
        batch[feature.name] = ragged([random.choice(pool, n).tolist() for n in sizes])
    return batch


def _dense(batch):
    """Returns per table its distinct ids and a variable of their rows, and per feature indices."""
    distinct: dict[str, np.ndarray] = {}
    for table in TABLES:
        values = [
            b.values if isinstance(b, tf.RaggedTensor) else b
            for b in (batch[f.name] for f in FEATURES if f.table_name == table.name)
        ]
        distinct[table.name] = np.unique(np.concatenate(values))
    variables = {t.name: tf.Variable(initial_values(t, distinct[t.name])) for t in TABLES}
    indices = {}
    for f in FEATURES:
        b, known = batch[f.name], distinct[f.table_name]
        if f.ragged:
            indices[f.name] = b.with_values(tf.constant(np.searchsorted(known, b.values)))
        else:
            indices[f.name] = tf.constant(np.searchsorted(known, b))
    return distinct, variables, indices


def _plain(feature, variable, indices):
    """Combines a feature with plain TensorFlow; an empty bag gives zeros."""
    if not feature.ragged:
        return tf.gather(variable, indices)
    found = tf.nn.embedding_lookup_sparse(
        variable, indices.to_sparse(), None, combiner=feature.combiner
    )
    missing = BATCH_SIZE - tf.shape(found)[0]  # the result ends at the last non-empty bag
    return tf.pad(found, [[0, missing], [0, 0]])


def _segments(feature, variable, indices):
    """Does the same with tf.math.segment ops."""
    rows, bags = tf.gather(variable, indices.values), indices.value_rowids()
    sums = tf.math.unsorted_segment_sum(rows, bags, BATCH_SIZE)
    sizes = tf.cast(tf.maximum(indices.row_lengths(), 1), tf.float32)[:, None]
    return {"sum": sums, "mean": sums / sizes, "sqrtn": sums / tf.sqrt(sizes)}[feature.combiner]


def _upstream(seed: int = 1):
    random = np.random.default_rng(seed)
    dims = {t.name: t.embedding_dim for t in TABLES}
    return {
        f.name: random.standard_normal((BATCH_SIZE, dims[f.table_name])).astype(np.float32)
        for f in FEATURES
    }


@pytest.mark.parametrize("num_shards", [1, 2, 5])
def test_vectors_and_gradients_equal_tensorflow(num_shards):
    batch, upstream = _batch(), _upstream()
    collection = make_collection(TABLES, FEATURES, num_shards=num_shards)
    assert [g.dim for g in collection.groups] == [4, 17, 4]
    result = collection.lookup(batch, insert=True)
    with tf.GradientTape() as tape:
        tape.watch(result.rows)
        vectors = collection.combine(result)
        loss = tf.add_n([tf.reduce_sum(vectors[f] * upstream[f]) for f in vectors])
    gradients = tape.gradient(loss, result.rows)

    distinct, variables, indices = _dense(batch)
    with tf.GradientTape() as tape:
        plain = {f.name: _plain(f, variables[f.table_name], indices[f.name]) for f in FEATURES}
        loss = tf.add_n([tf.reduce_sum(plain[f] * upstream[f]) for f in plain])
    plain_gradients = tape.gradient(loss, variables)

    for f in FEATURES:
        np.testing.assert_allclose(vectors[f.name], plain[f.name], rtol=1e-5, atol=1e-6)
        if f.ragged:
            segments = _segments(f, variables[f.table_name], indices[f.name])
            np.testing.assert_allclose(vectors[f.name], segments, rtol=1e-5, atol=1e-6)
    seen = 0
    for group, routed, shard_gradients in zip(
        collection.groups, result.routed, gradients, strict=True
    ):
        for shard in range(num_shards):
            splits = routed.shard_splits[shard].numpy()
            for t, table in enumerate(group.tables):
                part = slice(splits[t], splits[t + 1])
                asked = routed.shard_ids[shard].numpy()[part]
                assert len(set(asked)) == len(asked)
                at = np.searchsorted(distinct[table.name], asked)
                expected = tf.convert_to_tensor(plain_gradients[table.name]).numpy()[at]
                np.testing.assert_allclose(
                    shard_gradients[shard].numpy()[part], expected, rtol=1e-5, atol=1e-5
                )
                seen += len(asked)
    assert seen == sum(len(d) for d in distinct.values())  # each distinct id once, over all shards


@pytest.mark.parametrize("num_shards", [1, 3])
def test_update_applies_one_summed_gradient_a_row(num_shards, tmp_path):
    batch, upstream = _batch(2), _upstream(3)
    collection = make_collection(TABLES, FEATURES, num_shards=num_shards)
    train(collection, batch, upstream, learning_rate=0.25, step=9)
    distinct, variables, indices = _dense(batch)
    with tf.GradientTape() as tape:
        plain = {f.name: _plain(f, variables[f.table_name], indices[f.name]) for f in FEATURES}
        loss = tf.add_n([tf.reduce_sum(plain[f] * upstream[f]) for f in plain])
    gradients = tape.gradient(loss, variables)
    found = rows_of(collection, tmp_path)
    assert len(found) == sum(len(d) for d in distinct.values())
    for table in TABLES[:3]:  # SGD: linear in the sum
        gradient = tf.convert_to_tensor(gradients[table.name]).numpy()
        expected = variables[table.name].numpy() - 0.25 * gradient
        for i, id_ in enumerate(distinct[table.name]):
            row = found[table.name, id_]
            np.testing.assert_allclose(row.embedding, expected[i], rtol=1e-5, atol=1e-5)
            assert (row.frequency, row.last_step) == (1, 9)
    table = TABLES[3]  # row-wise Adagrad is not linear, so a sum in parts would differ
    gradient = tf.convert_to_tensor(gradients[table.name]).numpy()
    for i, id_ in enumerate(distinct[table.name]):
        expected_slot = np.mean(gradient[i].astype(np.float64) ** 2)
        np.testing.assert_allclose(found[table.name, id_].slots[0][0], expected_slot, rtol=1e-5)


def test_results_do_not_depend_on_shards():
    batch, upstream = _batch(4), _upstream(5)
    results = []
    for num_shards in (1, 2, 5):
        collection = make_collection(TABLES, FEATURES, num_shards=num_shards)
        for step in range(1, 4):
            train(collection, batch, upstream, step=step)
        results.append(look(collection, batch))
    for other in results[1:]:
        for name, value in results[0].items():
            np.testing.assert_array_equal(value, other[name])


def test_training_goes_on_from_updated_rows():
    collection = make_collection([make_table("t", 2, optimizer=SGD(), initializer=constant(1.0))])
    gradient = {"t": np.array([[1, 2], [3, 4], [1, 2]], np.float32)}
    train(collection, {"t": ids(5, 6, 5)}, gradient, learning_rate=0.5)
    found = look(collection, {"t": ids(6, 5, 7)})["t"]
    np.testing.assert_array_equal(found, [[-0.5, -1], [0, -1], [0, 0]])


def test_missing_id_and_the_ends_of_int64_have_rows_of_their_own(tmp_path):
    collection = make_collection([make_table("t", 1, optimizer=SGD())], num_shards=2)
    gradient = np.arange(1, 1 + len(EXTREMES), dtype=np.float32)[:, None]
    before = train(collection, {"t": ids(*EXTREMES)}, {"t": gradient}, learning_rate=1.0)["t"]
    assert collection.stats().rows == {"t": len(EXTREMES)}
    after = look(collection, {"t": ids(*EXTREMES)})["t"]
    np.testing.assert_allclose(after, before - gradient, rtol=1e-6)
    assert {i for _, i in rows_of(collection, tmp_path)} == set(EXTREMES)


def test_evaluation_lookup_gives_zeros_and_creates_nothing():
    collection = make_collection(TABLES, FEATURES, num_shards=2)
    for value in look(collection, _batch(), insert=False).values():
        assert not value.any()
    stats = collection.stats()
    assert set(stats.rows.values()) == {0}
    known = look(collection, _batch(), insert=True)
    rows = collection.stats().rows
    again = look(collection, _batch(), insert=False)
    for name, value in known.items():
        np.testing.assert_array_equal(again[name], value)
    look(collection, _batch(99), insert=False)
    assert collection.stats().rows == rows


@pytest.mark.parametrize("absent", ["zeros", "initial"])
def test_ids_beyond_the_capacity_read_as_declared_and_do_not_learn(absent):
    spec = make_table("t", 2, capacity=8, absent=absent, optimizer=SGD())
    other = make_table("u", 2, optimizer=SGD())
    collection = make_collection([spec, other], num_shards=2)
    batch = {"t": ids(*range(100)), "u": ids(*range(100))}
    upstream = {n: np.ones((100, 2), np.float32) for n in batch}
    found = train(collection, batch, upstream)["t"]
    initial = initial_values(spec, range(100))
    has_row = (found != 0).any(axis=1) if absent == "zeros" else np.ones(100, bool)
    np.testing.assert_array_equal(found, np.where(has_row[:, None], initial, 0))
    stats = collection.stats()
    assert stats.rows == {"t": 8, "u": 100}
    assert stats.rejected_inserts == 92
    assert stats.skipped_updates == 92
    after = look(collection, batch, insert=True)["t"]
    assert np.sum((after != found).any(axis=1)) == 8
    np.testing.assert_array_equal(look(collection, batch, insert=False)["t"], after)


def test_empty_batch_gives_no_vectors():
    collection = make_collection(TABLES, FEATURES, num_shards=2)
    batch = {f.name: ragged([]) if f.ragged else ids() for f in FEATURES}
    dims = {t.name: t.embedding_dim for t in TABLES}
    upstream = {f.name: np.zeros((0, dims[f.table_name]), np.float32) for f in FEATURES}
    for name, value in train(collection, batch, upstream).items():
        assert value.shape == upstream[name].shape
    only_empty = {f.name: ragged([[], []]) if f.ragged else ids(1, 2) for f in FEATURES}
    assert not look(collection, only_empty, insert=True)["been"].any()


def test_ragged_ids_may_have_int32_splits():
    feature = FeatureSpec(name="f", table="t", ragged=True)
    collection = make_collection([make_table("t", 2)], [feature])
    bags = [[1, 2], [], [3]]
    narrow = tf.ragged.constant(bags, tf.int64, row_splits_dtype=tf.int32)
    expected = look(collection, {"f": ragged(bags)}, insert=True)["f"]
    np.testing.assert_array_equal(look(collection, {"f": narrow})["f"], expected)


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ({}, r"feature 'one' is not among the batch's: \['many'\]"),
        ({"one": ragged([[1]])}, "'one' is declared with ragged=False but the batch has a ragged"),
        ({"many": ids(1)}, "'many' is declared with ragged=True but the batch has a dense"),
        ({"one": tf.constant([1])}, "'one' must have int64 ids but got int32"),
        ({"one": tf.constant([[1]], tf.int64)}, r"'one' must have ids of shape \[batch\] but got"),
        (
            {"many": tf.ragged.constant([[[1]]], tf.int64)},
            r"'many' must have ids of shape \[batch, None\] but got \(1, None, None\)",
        ),
    ],
)
def test_lookup_refuses_wrong_batch(batch, text):
    features = [
        FeatureSpec(name="one", table="t"),
        FeatureSpec(name="many", table="t", ragged=True),
    ]
    collection = make_collection([make_table("t", 2)], features)
    good = {"one": ids(1), "many": ragged([[1]])}
    if not batch:
        del good["one"]
    with pytest.raises(UsageError, match=text):
        collection.lookup({**good, **batch}, insert=True)


def test_collection_refuses_no_shards():
    with pytest.raises(UsageError, match="at least one shard"):
        EmbeddingCollection(
            [make_table()], [FeatureSpec(name="f", table="t")], devices=[], container="none"
        )


def _store(dim=4, tables=2):
    collection = make_collection([make_table(f"t{i}", dim) for i in range(tables)])
    return collection, collection._stores[0][0]


@pytest.mark.parametrize(
    ("splits", "text"),
    [
        ([0, 1, 2], None),
        ([0, 2], r"'dim4-rowwise_adagrad': splits must be \[3\] \(its tables \+ 1\) .*\[2\]"),
        ([0, 1, 3], "splits must rise from 0 to 2, the number of ids"),
        ([1, 1, 2], "splits must rise from 0 to 2"),
        ([0, 3, 2], "splits must rise from 0 to 2"),
        ([0, -1, 2], "splits must rise from 0 to 2"),
        ([[0, 1, 2]], r"splits must be \[3\]"),
    ],
)
def test_lookup_op_checks_splits(splits, text):
    collection, store = _store()
    run = lambda: kernels.load().embedps_lookup(  # noqa: E731
        store, ids(1, 2), tf.constant(splits, tf.int32), dim=4, insert=True
    )
    if text is None:
        assert run().shape == (2, 4)
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        run()
    assert collection.stats().rows == {"t0": 0, "t1": 0}


def test_lookup_op_checks_dim_rank_and_store():
    _, store = _store()
    ops = kernels.load()
    splits = tf.constant([0, 1, 1], tf.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="stores dim 4 but the lookup wants 5"):
        ops.embedps_lookup(store, ids(1), splits, dim=5, insert=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="rank 1"):
        ops.embedps_lookup(store, tf.constant([[1]], tf.int64), splits, dim=4, insert=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="table must be under 2 but got 2"):
        ops.embedps_remove(store, ids(1), table=2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="table must be under 2 but got 7"):
        ops.embedps_evict(store, 1, 1, table=7)


def test_dropped_store_is_not_found():
    collection, store = _store()
    collection.drop()
    with pytest.raises(tf.errors.NotFoundError):
        kernels.load().embedps_stats(store)


def _combine(positions, splits, *, rows=((1.0, 2.0), (3.0, 4.0)), combiners=("sum",)):
    return kernels.load().embedps_combine(
        rows=[tf.constant(rows)],
        positions=[tf.constant(positions, tf.int32)],
        row_splits=[tf.constant(splits, tf.int64)],
        combiners=list(combiners),
        feature_tables=[0],
    )


@pytest.mark.parametrize(
    ("positions", "splits", "text"),
    [
        ([2], [], r"feature 0: positions must be in \[0, 2\) but got 2"),
        ([-1], [], r"feature 0: positions must be in \[0, 2\) but got -1"),
        ([0, 1], [0, 1], "feature 0: row_splits must rise from 0 to 2"),
        ([0, 1], [1, 2], "row_splits must rise from 0 to 2"),
        ([0, 1], [0, 2, 1, 2], "row_splits must rise from 0 to 2"),
        ([0, 1], [0, -1, 2], "row_splits must rise from 0 to 2"),
    ],
)
def test_combine_op_checks_positions_and_splits(positions, splits, text):
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        _combine(positions, splits)


def test_combine_op_names_unknown_combiner_and_wrong_rows():
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="sum, mean, sqrtn or none but got 'max'"
    ):
        _combine([0], [], combiners=["max"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="combiners and feature_tables must"):
        _combine([0], [], combiners=["sum", "sum"])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"rank 2|rows must be \[n, dim\]"):
        _combine([0], [], rows=(1.0, 2.0))


def test_route_op_checks_its_tables_and_ids():
    def route(first: tf.Tensor, *, table: int = 0, row_splits=(), **counted: Any):
        return kernels.load().embedps_route(
            ids=[first],
            row_splits=list(row_splits),
            feature_tables=[table],
            tables=["t"],
            num_shards=1,
            **counted,
        )

    with pytest.raises(tf.errors.InvalidArgumentError, match="feature_tables must give each of 1"):
        route(ids(1), table=1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="'t': ids must be of rank 1"):
        route(tf.constant([[1]], tf.int64))
    with pytest.raises(tf.errors.InvalidArgumentError, match="counted_tables must be empty or as"):
        route(ids(1), counted_tables=[True])
    counted: dict[str, Any] = {"counted_tables": [True], "num_counted_shards": 1}
    with pytest.raises(tf.errors.InvalidArgumentError, match="the lists of feature 0"):
        route(ids(1), row_splits=[ids(0, 2)], **counted)
