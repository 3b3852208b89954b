"""Combiner none: a row per id, ragged or padded, against NumPy; lookups of some of the features."""

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf

from embedps import kernels
from embedps.errors import UsageError
from embedps.tables import SGD, FeatureSpec, activations, ops
from tests.kernels.twins import initial_values
from tests.tables.builders import ids, look, make_collection, make_table, ragged, rows_of, run_step

ITEMS = make_table("items", 4, optimizer=SGD())
PLACES = make_table("places", 3)  # another group
FEATURES = [
    FeatureSpec(name="shown", table=ITEMS),
    FeatureSpec(name="history", table=ITEMS, ragged=True, combiner="none"),
    FeatureSpec(name="recent", table="items", ragged=True, combiner="none", max_length=3),
    FeatureSpec(name="clicked", table="items", ragged=True, combiner="mean"),
    FeatureSpec(name="been", table=PLACES, ragged=True, combiner="none", max_length=2),
]
LISTS = {
    "history": [[7, 7, 1], [], [2], [-1, 7]],
    "recent": [[1, 2, 3, 4, 5], [7, 7], [], [2, 6, 2]],
    "clicked": [[1, 3], [8], [], [2, 2]],
    "been": [[], [1, 2], [5, 1, 1], [9]],
}
SHOWN = [1, 2, 7, 50]
BATCH = {"shown": ids(*SHOWN), **{name: ragged(lists) for name, lists in LISTS.items()}}
SPECS = {f.name: f for f in FEATURES}


def _kept(name):
    """Returns the lists of ids that are looked up."""
    return [x[-(SPECS[name].max_length or len(x)) :] if x else x for x in LISTS[name]]


def _row(table, id_):
    return initial_values(table, [id_])[0]


def _expected(name):
    """Lays rows out by loops: per list, or padded."""
    table = PLACES if name == "been" else ITEMS
    lists = [[_row(table, i) for i in kept] for kept in _kept(name)]
    length = SPECS[name].max_length
    if length is None:
        return lists
    padded = np.zeros((len(lists), length, table.embedding_dim), np.float32)
    for b, rows in enumerate(lists):
        for i, row in enumerate(rows):
            padded[b, i] = row
    return padded


def _upstream():
    """Makes small whole numbers, so that sums are exact in any order."""
    random = np.random.default_rng(4)
    shapes = {
        "shown": (4, 4),
        "history": (sum(map(len, LISTS["history"])), 4),
        "recent": (4, 3, 4),
        "clicked": (4, 4),
        "been": (4, 2, 3),
    }
    return {n: random.integers(-5, 6, shape).astype(np.float32) for n, shape in shapes.items()}


def _gradients(upstream):
    """Sums gradients per row by loops; the mean gives each id its part."""
    sums: dict[tuple[str, int], np.ndarray] = collections.defaultdict(
        lambda: np.zeros((), np.float32)
    )
    for b, id_ in enumerate(SHOWN):
        sums["items", id_] = sums["items", id_] + upstream["shown"][b]
    flat = iter(upstream["history"])
    for kept in _kept("history"):
        for id_ in kept:
            sums["items", id_] = sums["items", id_] + next(flat)
    for b, kept in enumerate(_kept("clicked")):
        for id_ in kept:
            sums["items", id_] = sums["items", id_] + upstream["clicked"][b] / np.float32(len(kept))
    for name, table in (("recent", "items"), ("been", "places")):
        for b, kept in enumerate(_kept(name)):
            for i, id_ in enumerate(kept):
                sums[table, id_] = sums[table, id_] + upstream[name][b, i]
    return sums


def _loss(found, upstream):
    return tf.add_n(
        [
            tf.reduce_sum((v.values if isinstance(v, tf.RaggedTensor) else v) * upstream[name])
            for name, v in found.items()
        ]
    )


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("traced", [False, True])
def test_rows_and_updates_equal_numpy(num_shards, traced, tmp_path):
    collection = make_collection([], FEATURES, num_shards=num_shards)
    upstream = _upstream()

    def step(batch):
        _, found = run_step(
            collection, batch, lambda found: _loss(found, upstream), learning_rate=0.25
        )
        return found

    found = (tf.function(step) if traced else step)(BATCH)
    assert isinstance(found["history"], tf.RaggedTensor)
    assert found["history"].shape.as_list() == [4, None, 4]
    for rows, expected in zip(found["history"], _expected("history"), strict=True):
        np.testing.assert_array_equal(rows, np.reshape(expected, (-1, 4)))
    for name in ("recent", "been"):
        np.testing.assert_array_equal(found[name], _expected(name))

    stored, gradients = rows_of(collection, tmp_path), _gradients(upstream)
    assert set(stored) == set(gradients)  # no rows of ids that max_length leaves out
    for (table, id_), gradient in gradients.items():
        if table == "items":  # SGD: linear in the sum, so repeats must add
            expected = _row(ITEMS, id_) - 0.25 * gradient
            np.testing.assert_allclose(stored[table, id_].embedding, expected, rtol=1e-5, atol=1e-6)
        else:  # row-wise Adagrad: one update of the sum
            slot = np.mean(gradient.astype(np.float64) ** 2)
            np.testing.assert_allclose(stored[table, id_].slots[0][0], slot, rtol=1e-5)
        assert stored[table, id_].frequency == 1


@pytest.mark.parametrize("name", ["recent", "been"])
def test_mask_tells_which_positions_have_an_id(name):
    expected = [[i < len(kept) for i in range(SPECS[name].max_length or 0)] for kept in _kept(name)]
    found = activations.mask(SPECS[name], BATCH[name])
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == tf.bool


def test_ids_never_seen_score_as_zeros():
    collection = make_collection([], FEATURES)
    for value in collection.combine(collection.lookup(BATCH, insert=False)).values():
        assert not tf.reduce_any((value.values if hasattr(value, "values") else value) != 0)
    assert set(collection.stats().rows.values()) == {0}


@pytest.mark.parametrize("lists", [[], [[]], [[], []]])
def test_batch_without_ids_gives_zeros(lists):
    features = [f for f in FEATURES if f.ragged]
    collection = make_collection([ITEMS], features, num_shards=2)
    batch = {f.name: ragged(lists) for f in features}
    result = collection.lookup(batch, insert=True)
    with tf.GradientTape() as tape:
        tape.watch(result.rows)
        found = collection.combine(result)
        loss = tf.add_n([tf.reduce_sum(getattr(v, "values", v)) for v in found.values()])
    assert found["history"].shape[0] == len(lists)
    np.testing.assert_array_equal(found["recent"], np.zeros((len(lists), 3, 4)))
    np.testing.assert_array_equal(
        activations.mask(SPECS["been"], batch["been"]).shape, [*found["been"].shape[:2]]
    )
    for group in tape.gradient(loss, result.rows):
        assert all(gradient.shape[0] == 0 for gradient in group)


def test_traced_shapes_are_known_and_no_op_is_tensorflows_ragged():
    collection = make_collection([], FEATURES)

    @tf.function
    def run(batch):
        return collection.combine(collection.lookup(batch, insert=False))

    specs = {
        f.name: tf.RaggedTensorSpec([None, None], tf.int64, row_splits_dtype=tf.int64)
        if f.ragged
        else tf.TensorSpec([None], tf.int64)
        for f in FEATURES
    }
    graph = run.get_concrete_function(specs)
    shapes = {name: value.shape.as_list() for name, value in graph.structured_outputs.items()}
    assert shapes == {
        "shown": [None, 4],
        "history": [None, None, 4],
        "recent": [None, 3, 4],
        "clicked": [None, 4],
        "been": [None, 2, 3],
    }
    counts = collections.Counter(op.type for op in graph.graph.get_operations())
    assert counts["EmbedpsCombine"] == counts["EmbedpsKeepLast"] == 2
    assert not [kind for kind in counts if "Ragged" in kind or kind in ("Where", "GatherV2")]
    values = {f.name: (BATCH[f.name]) for f in FEATURES}
    np.testing.assert_array_equal(run(values)["recent"].shape, [4, 3, 4])


def test_one_id_per_example_is_one_vector_with_combiner_none():
    feature = FeatureSpec(name="f", table=ITEMS, combiner="none")
    found = look(make_collection([], [feature]), {"f": ids(3, 3)}, insert=True)["f"]
    np.testing.assert_array_equal(found, initial_values(ITEMS, [3, 3]))


@pytest.mark.parametrize("feature", FEATURES, ids=lambda f: f.name)
def test_sample_has_the_shape_of_an_activation(feature):
    dim = PLACES.embedding_dim if feature.name == "been" else ITEMS.embedding_dim
    collection = make_collection([], FEATURES)
    found = collection.combine(collection.lookup(BATCH, insert=False))[feature.name]
    sample = activations.sample(feature, BATCH[feature.name], dim=dim, value=0.5)
    assert type(sample) is type(found)
    assert sample.shape.as_list() == found.shape.as_list()
    if isinstance(sample, tf.RaggedTensor):
        np.testing.assert_array_equal(sample.row_splits, found.row_splits)
        sample = sample.values
    assert (sample.numpy() == 0.5).all()


# ---- some of the features --------------------------------------------------------------------


@pytest.mark.parametrize("names", [["shown"], ["been"], ["clicked", "history"], list(SPECS)])
def test_partial_lookup_gives_and_updates_what_it_was_asked_for(names, tmp_path):
    collection, whole = (make_collection([], FEATURES, num_shards=2) for _ in range(2))
    part = {name: BATCH[name] for name in names}
    result = collection.lookup({**part, "numerics": tf.ones([4, 1])}, insert=True, partial=True)
    with tf.GradientTape() as tape:
        tape.watch(result.rows)
        found = collection.combine(result)
        loss = _loss(found, _upstream())
    assert set(found) == set(names)
    expected = whole.combine(whole.lookup(BATCH, insert=True))
    for name, value in found.items():
        np.testing.assert_array_equal(
            getattr(value, "values", value), getattr(expected[name], "values", expected[name])
        )
    wanted = {
        (SPECS[name].table_name, id_)
        for name in names
        for id_ in (SHOWN if name == "shown" else itertools.chain(*_kept(name)))
    }
    assert set(rows_of(collection, tmp_path)) == wanted
    collection.update(
        result,
        tape.gradient(loss, result.rows),
        learning_rate=tf.constant(0.25),
        step=tf.constant(3, tf.int64),
    )
    assert {row.last_step for row in rows_of(collection, tmp_path).values()} == {3}


def test_lookup_of_one_tower_asks_only_its_groups():
    collection = make_collection([], FEATURES, num_shards=2)

    @tf.function(autograph=False)
    def run():
        return collection.combine(collection.lookup({"shown": ids(1)}, insert=True, partial=True))

    operations = run.get_concrete_function().graph.get_operations()
    counts = collections.Counter(op.type for op in operations)
    assert (counts["EmbedpsRoute"], counts["EmbedpsLookup"], counts["EmbedpsCombine"]) == (1, 2, 1)


def test_lookup_without_a_feature_is_refused_unless_partial():
    collection = make_collection([], FEATURES)
    part = {name: value for name, value in BATCH.items() if name != "been"}
    for call in (collection.route, lambda batch: collection.lookup(batch, insert=True)):
        with pytest.raises(UsageError, match="feature 'been' is not among the batch's"):
            call(part)
    assert set(collection.route(part, partial=True).row_splits[0]) == set(part)
    with pytest.raises(
        UsageError, match=r"must have one of the features \['shown', .*'been'\] but"
    ):
        collection.lookup({"other": ids(1)}, insert=True, partial=True)


# ---- ops -------------------------------------------------------------------------------------


def _combine(positions, splits, *, combiners=("none",), lengths=(2,)):
    return ops.combine(
        [tf.constant([[1.0, 2.0], [3.0, 4.0]])],
        [tf.constant(positions, tf.int32)],
        [tf.constant(splits, tf.int64)],
        combiners=list(combiners),
        feature_tables=[0],
        lengths=list(lengths),
    )


@pytest.mark.parametrize(
    ("positions", "splits", "options", "text"),
    [
        ([0, 1, 0], [0, 3], {}, "feature 0: a list must have at most 2 ids but list 0 has 3"),
        ([0, 1, 0], [0, 0, 3], {}, "at most 2 ids but list 1 has 3"),
        ([0], [], {}, "feature 0: row_splits must rise from 0 to 1"),
        ([], [], {}, "row_splits must rise from 0 to 0"),
        ([0, 1], [0, 2, 1, 2], {}, "row_splits must rise from 0 to 2"),
        ([0, 1], [0, 1], {"lengths": [0]}, "row_splits must rise from 0 to 2"),
        ([2], [0, 1], {}, r"positions must be in \[0, 2\) but got 2"),
        ([0], [0, 1], {"lengths": [-1]}, "lengths must be 0, or positive with combiner none"),
        ([0], [0, 1], {"lengths": [1, 1]}, "lengths must be 0, or positive .* of the 1 features"),
        ([0], [0, 1], {"combiners": ["sum"]}, "lengths must be 0, or positive with combiner none"),
    ],
)
def test_combine_op_checks_lengths(positions, splits, options, text):
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        _combine(positions, splits, **options)


def test_combine_op_refuses_a_shape_beyond_int64():
    with pytest.raises(tf.errors.InvalidArgumentError):
        _combine([], [0] * 5, lengths=[2**62])


@pytest.mark.parametrize("shape", [[2, 1, 2], [2, 2], [4, 2], [2, 2, 2, 1], [2, 2, 3]])
def test_combine_gradient_op_checks_the_padded_shape(shape):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"gradient must be \[2,2,2\] but got"):
        kernels.load().embedps_combine_grad(
            upstream=[tf.ones(shape)],
            rows=[tf.ones([2, 2])],
            positions=[tf.constant([0, 1, 1], tf.int32)],
            row_splits=[tf.constant([0, 2, 3], tf.int64)],
            combiners=["none"],
            feature_tables=[0],
            lengths=[2],
        )


@pytest.mark.parametrize(
    ("values", "splits", "text"),
    [
        ([1, 2], [0, 1], "lists of ids: row_splits must rise from 0 to 2, the number of ids"),
        ([1, 2], [0, 3, 2], "row_splits must rise from 0 to 2"),
        ([1, 2], [], "row_splits must rise from 0 to 2"),
        ([], [], "row_splits must rise from 0 to 0"),
        ([[1, 2]], [0, 2], r"ids and row_splits must be of rank 1 but got shapes \[1,2\] and"),
        ([1, 2], [[0, 2]], "must be of rank 1"),
    ],
)
def test_keep_last_op_checks_its_lists(values, splits, text):
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        ops.keep_last(tf.constant(values, tf.int64), tf.constant(splits, tf.int64), max_length=2)


def test_keep_last_op_keeps_the_last_ids_of_each_list():
    kept, splits = ops.keep_last(ids(1, 2, 3, 4, 5, 6), ids(0, 3, 3, 4, 6), max_length=2)
    assert kept.numpy().tolist() == [2, 3, 4, 5, 6]
    assert splits.numpy().tolist() == [0, 2, 2, 3, 5]
