"""A step's kernels on empty shapes give an empty result or a typed error."""

import numpy as np
import pytest
import tensorflow as tf

from embedps import kernels
from embedps.layers.dense import dot_interaction
from embedps.tables import SGD, FeatureSpec, TableSpec, message_ops, ops
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.ops import RowPart
from tests.kernels.unit_files import make_input, make_table, write_table


def _mlp(inputs: list[tf.Tensor], widths: list[int], final_relu: bool) -> list[tf.Tensor]:
    """Runs the op and its gradient in a graph, with kernels of 0.5 and biases of 1."""
    all_widths = [sum(x.shape[1] for x in inputs), *widths]
    weights = [tf.fill(pair, 0.5) for pair in zip(all_widths, widths, strict=False)]
    biases = [tf.ones([width]) for width in widths]

    @tf.function
    def run():
        with tf.GradientTape() as tape:
            tape.watch((inputs, weights, biases))
            out, _ = kernels.load().embedps_mlp(
                inputs=inputs,
                kernels=weights,
                biases=biases,
                final_relu=final_relu,
                out_type=tf.float32,
            )
            loss = tf.reduce_sum(out)
        return out, *tape.gradient(loss, (inputs, weights, biases))

    # A tensor that nothing writes keeps the memory's old content.
    for _ in range(3):
        _ = [tf.fill([n], np.float32(np.nan)) for n in (1, 2, 3, 8, 64)]
    return run()


@pytest.mark.parametrize("final_relu", [False, True])
@pytest.mark.parametrize("input_widths", [[0], [0, 0]])
def test_mlp_without_columns_is_that_of_its_biases(input_widths, final_relu):
    inputs = [tf.zeros([5, width]) for width in input_widths]
    out, of_inputs, of_weights, of_biases = _mlp(inputs, [8, 2], final_relu)
    np.testing.assert_array_equal(out, np.full((5, 2), 1 + 8 * 0.5, np.float32))
    assert [g.shape for g in of_inputs] == [(5, 0)] * len(inputs)
    assert of_weights[0].shape == (0, 8)
    np.testing.assert_array_equal(of_weights[1], np.full((8, 2), 5.0, np.float32))
    np.testing.assert_array_equal(of_biases[0], np.full(8, 5 * 2 * 0.5, np.float32))
    np.testing.assert_array_equal(of_biases[1], np.full(2, 5.0, np.float32))


def test_mlp_of_one_input_without_columns_is_that_of_the_other():
    x = tf.ones([3, 4])
    out, _, of_weights, of_biases = _mlp([x], [2], False)
    beside, of_inputs, *of_both = _mlp([tf.zeros([3, 0]), x], [2], False)
    np.testing.assert_array_equal(beside, out)
    assert [g.shape for g in of_inputs] == [(3, 0), (3, 4)]
    for ours, theirs in zip(of_both, (of_weights, of_biases), strict=True):
        np.testing.assert_array_equal(ours[0], theirs[0])


@pytest.mark.parametrize("width", [0, 4])
def test_mlp_of_no_rows_has_gradients_of_zero(width):
    out, of_inputs, of_weights, of_biases = _mlp([tf.zeros([0, width])], [8, 2], True)
    assert (out.shape, of_inputs[0].shape) == ((0, 2), (0, width))
    for gradient in (*of_weights, *of_biases):
        np.testing.assert_array_equal(gradient, tf.zeros_like(gradient))


def test_mlp_refuses_a_layer_without_outputs():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"kernel 0 must be \[4, units\]"):
        _mlp([tf.zeros([3, 4])], [0], False)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("n", [2, 3, 33])
@pytest.mark.parametrize(("batch", "dim"), [(0, 4), (2, 0), (0, 0)])
def test_dot_interaction_of_nothing_is_zero(dtype, n, batch, dim):
    features = [tf.zeros([batch, dim], dtype) for _ in range(n)]
    with tf.GradientTape() as tape:
        tape.watch(features)
        out = dot_interaction(features, dtype)
    gradients = tape.gradient(out, features, output_gradients=tf.ones_like(out))
    np.testing.assert_array_equal(tf.cast(out, tf.float32), np.zeros((batch, n * (n - 1) // 2)))
    assert [g.shape for g in gradients] == [(batch, dim)] * n


@pytest.mark.parametrize("n", [0, 1])
def test_dot_interaction_refuses_fewer_than_two_vectors(n):
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"of {n} must be at least minimum 2"):
        dot_interaction([tf.zeros([3, 4])] * n)


@pytest.mark.parametrize("dim", [0, 3])
@pytest.mark.parametrize(
    ("positions", "row_splits", "batch"),
    [([], [], 0), ([], [0], 0), ([], [0, 0, 0], 2)],
    ids=["no ids", "no lists", "empty lists"],
)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_combine_without_rows_gives_zeros(dim, positions, row_splits, batch, combiner):
    rows = [tf.zeros([0, dim]), tf.zeros([0, dim])]
    with tf.GradientTape() as tape:
        tape.watch(rows)
        (out,) = ops.combine(
            rows,
            [tf.constant(positions, tf.int32)],
            [tf.constant(row_splits, tf.int64)],
            combiners=[combiner],
            feature_tables=[0],
        )
    gradients = tape.gradient(out, rows, output_gradients=tf.ones_like(out))
    np.testing.assert_array_equal(out, np.zeros((batch, dim)))
    assert [g.shape for g in gradients] == [(0, dim)] * 2


@pytest.mark.parametrize(
    ("positions", "row_splits", "message"),
    [
        ([0], [], r"positions must be in \[0, 0\)"),
        ([0], [0, 1], r"positions must be in \[0, 0\)"),
        ([], [1], "row_splits must rise from 0 to 0"),
    ],
)
def test_combine_refuses_positions_without_rows(positions, row_splits, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.combine(
            [tf.zeros([0, 3])],
            [tf.constant(positions, tf.int32)],
            [tf.constant(row_splits, tf.int64)],
            combiners=["sum"],
            feature_tables=[0],
        )


@pytest.mark.parametrize("num_shards", [1, 3])
def test_route_of_no_ids_asks_every_shard_for_none(num_shards):
    none = tf.constant([], tf.int64)
    routed = ops.route([none] * 2, feature_tables=[0, 1], tables=["a", "b"], num_shards=num_shards)
    assert [ids.shape for ids in routed.shard_ids] == [(0,)] * num_shards
    assert [splits.numpy().tolist() for splits in routed.shard_splits] == [[0, 0, 0]] * num_shards
    assert [positions.shape for positions in routed.positions] == [(0,)] * 2


def test_lookup_and_update_of_no_ids_leave_a_store_as_it_is():
    collection = EmbeddingCollection(
        [TableSpec(name="t", embedding_dim=3, optimizer=SGD())],
        [FeatureSpec(name="t", table="t")],
        devices=["/device:CPU:0"],
        container="empty-shapes",
    )
    none, splits = tf.constant([], tf.int64), tf.constant([0, 0], tf.int32)
    for insert in (False, True):
        found = collection.lookup_shard(0, 0, RowPart(none, splits), insert=insert)
        assert found.rows.shape == (0, 3)
    now = {"learning_rate": tf.constant(0.1), "step": tf.constant(1, tf.int64)}
    collection.update_shard(0, 0, RowPart(none, splits, tf.zeros([0, 3])), **now)
    for wrong in ([0, 2], [3, 0], [0]):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"gradients must be \[0, 3\]"):
            collection.update_shard(0, 0, RowPart(none, splits, tf.zeros(wrong)), **now)
    with pytest.raises(tf.errors.InvalidArgumentError, match="splits"):
        collection.lookup_shard(0, 0, RowPart(none, tf.constant([], tf.int32)), insert=True)
    assert collection.stats().rows == {"t": 0}
    collection.drop()


@pytest.mark.parametrize("shape", [[0], [0, 5], [5, 0], [0, 0, 0]])
@pytest.mark.parametrize("wire_dtype", [tf.float32, tf.bfloat16])
def test_message_of_parts_without_values_arrives(shape, wire_dtype):
    parts = [tf.zeros(shape), tf.constant(7, tf.int64), tf.zeros(shape)]
    specs = [tf.TensorSpec(p.shape, p.dtype) for p in parts]
    message = message_ops.pack(parts, [wire_dtype, tf.int64, wire_dtype])
    first, number, last = message_ops.unpack(message, specs)
    assert (first.shape, last.shape) == (tuple(shape), tuple(shape))
    assert number.numpy() == 7
    with pytest.raises(tf.errors.InvalidArgumentError, match="ends within its header"):
        message_ops.unpack(message[:0], specs)


@pytest.mark.parametrize("columns", [{}, {"ids": ()}, {"id_lists": ()}])
def test_reader_without_float_columns_gives_rows_of_width_zero(tmp_path, columns):
    unit = make_input(numerics=(), **columns)
    reader = unit.open(write_table(make_table(), tmp_path), 5, unit.batch_rows + 1)
    sizes = []
    for _ in range(3):  # a batch, the remaining row, the end
        batch = unit.next(reader)
        sizes.append(int(batch.num_rows))
        assert batch.columns["numerics"].shape == (sizes[-1], 0)
        assert batch.columns["label"].shape == (sizes[-1],)
        assert set(batch.columns) == {"numerics", "label", *unit.ids, *unit.id_lists}
    assert sizes == [unit.batch_rows, 1, 0]
