"""Each sparse optimizer equals NumPy in float64, and TensorFlow's dense kernels."""

import numpy as np
import pytest
import tensorflow as tf

from embedps import kernels
from embedps.tables import SGD, Adagrad, Ftrl, LazyAdam, RowwiseAdagrad
from tests.kernels.twins import ReferenceRow, initial_values
from tests.tables import builders
from tests.tables.builders import ids, make_collection, make_table, rows_of, train

OPTIMIZERS = [
    SGD(),
    Adagrad(),
    Adagrad(initial_accumulator_value=0.0, epsilon=1e-3),
    RowwiseAdagrad(),
    RowwiseAdagrad(initial_accumulator_value=0.5, epsilon=1e-4),
    LazyAdam(),
    LazyAdam(beta_1=0.5, beta_2=0.9, epsilon=1e-4),
    Ftrl(),
    Ftrl(
        initial_accumulator_value=0.5,
        l1_regularization_strength=0.05,
        l2_regularization_strength=0.1,
    ),
    SGD(weight_decay=0.3),
    RowwiseAdagrad(weight_decay=0.05),
    LazyAdam(weight_decay=1.0),
    SGD(lazy_decay=0.3),
    RowwiseAdagrad(weight_decay=0.05, lazy_decay=2.0),
]
NUM_IDS = 7


def _steps(dim, count=6):
    """Returns gradients [NUM_IDS, dim] of several scales, with zeros, and the learning rates."""
    random = np.random.default_rng(dim)
    for step in range(1, count + 1):
        scale = 10.0 ** random.uniform(-3, 1, (NUM_IDS, 1))
        gradients = (random.standard_normal((NUM_IDS, dim)) * scale).astype(np.float32)
        gradients[random.random((NUM_IDS, dim)) < 0.1] = 0
        yield step, gradients, 0.1 / step


@pytest.mark.parametrize("dim", [1, 3, 4, 16, 17, 64])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_optimizer_equals_numpy_over_several_updates(optimizer, dim, tmp_path):
    spec = make_table(embedding_dim=dim, optimizer=optimizer)
    collection = make_collection([spec], num_shards=2)
    rows = [ReferenceRow(optimizer, v) for v in initial_values(spec, range(NUM_IDS))]
    last_steps = np.zeros(NUM_IDS, int)
    for step, gradients, learning_rate in _steps(dim):
        # Not every row in every step: each row counts its own updates.
        here = [i for i in range(NUM_IDS) if (i + step) % 3 or i == 0]
        upstream = {"t": gradients[here]}
        train(collection, {"t": ids(*here)}, upstream, learning_rate=learning_rate, step=step)
        for i in here:
            rows[i].update(gradients[i], learning_rate, step)
            last_steps[i] = step
    found = rows_of(collection, tmp_path)
    assert len(found) == NUM_IDS
    for i, reference in enumerate(rows):
        row = found["t", i]
        np.testing.assert_allclose(row.embedding, reference.w, rtol=2e-5, atol=2e-6)
        assert len(row.slots) == len(reference.slots)
        for slot, expected in zip(row.slots, reference.slots, strict=True):
            np.testing.assert_allclose(slot, expected, rtol=2e-5, atol=2e-6)
        assert (row.last_step, row.frequency) == (last_steps[i], reference.updates)


def _tensorflow_sgd(o, w, g, lr, slots, t):
    tf.raw_ops.ResourceApplyGradientDescent(var=w.handle, alpha=lr, delta=g)


def _tensorflow_adagrad(o, w, g, lr, slots, t):
    tf.raw_ops.ResourceApplyAdagradV2(
        var=w.handle, accum=slots[0].handle, lr=lr, epsilon=o.epsilon, grad=g
    )


def _tensorflow_adam(o, w, g, lr, slots, t):
    tf.raw_ops.ResourceApplyAdam(
        var=w.handle,
        m=slots[0].handle,
        v=slots[1].handle,
        beta1_power=tf.constant(o.beta_1, tf.float32) ** t,
        beta2_power=tf.constant(o.beta_2, tf.float32) ** t,
        lr=lr,
        beta1=o.beta_1,
        beta2=o.beta_2,
        epsilon=o.epsilon * tf.sqrt(1 - tf.constant(o.beta_2, tf.float32) ** t),
        grad=g,
    )


def _tensorflow_ftrl(o, w, g, lr, slots, t):
    tf.raw_ops.ResourceApplyFtrlV2(
        var=w.handle,
        linear=slots[0].handle,
        accum=slots[1].handle,
        grad=g,
        lr=lr,
        l1=o.l1_regularization_strength,
        l2=o.l2_regularization_strength,
        l2_shrinkage=0.0,
        lr_power=-0.5,
    )


@pytest.mark.parametrize("dim", [3, 16])
@pytest.mark.parametrize(
    ("optimizer", "apply"),
    [
        (SGD(), _tensorflow_sgd),
        (Adagrad(initial_accumulator_value=0.1, epsilon=1e-3), _tensorflow_adagrad),
        # TensorFlow's epsilon is Kingma and Ba's "epsilon hat", so it is scaled above.
        (LazyAdam(epsilon=1e-3), _tensorflow_adam),
        (Ftrl(), _tensorflow_ftrl),
        (
            Ftrl(
                initial_accumulator_value=0.3,
                l1_regularization_strength=0.05,
                l2_regularization_strength=0.1,
            ),
            _tensorflow_ftrl,
        ),
    ],
    ids=lambda value: getattr(value, "__name__", repr(value)),  # a function's repr has its address
)
def test_optimizer_equals_tensorflow_where_it_has_one(optimizer, apply, dim, tmp_path):
    spec = make_table(embedding_dim=dim, optimizer=optimizer)
    collection = make_collection([spec])
    w = tf.Variable(initial_values(spec, range(NUM_IDS)))
    accumulator = optimizer.settings().get("initial_accumulator", 0.0)
    slots = [
        tf.Variable(tf.fill(w.shape, np.float32(accumulator if name == "accumulator" else 0)))
        for name in optimizer.optimizer_slot_widths(dim)
    ]
    for step, gradients, learning_rate in _steps(dim):
        batch = {"t": ids(*range(NUM_IDS))}
        train(collection, batch, {"t": gradients}, learning_rate=learning_rate, step=step)
        apply(optimizer, w, gradients, np.float32(learning_rate), slots, float(step))
    found = rows_of(collection, tmp_path)
    for i in range(NUM_IDS):
        np.testing.assert_allclose(found["t", i].embedding, w.numpy()[i], rtol=1e-4, atol=5e-6)
        for slot, expected in zip(found["t", i].slots, slots, strict=True):
            np.testing.assert_allclose(slot, expected.numpy()[i], rtol=1e-4, atol=5e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_zero_gradient_leaves_no_nan(optimizer):
    collection = make_collection([make_table(embedding_dim=4, optimizer=optimizer)])
    for step in range(1, 4):
        train(collection, {"t": ids(1, 2)}, {"t": np.zeros((2, 4), np.float32)}, step=step)
    assert np.isfinite(builders.look(collection, {"t": ids(1, 2)})["t"]).all()


def _update(collection, *, learning_rate=0.1, step=1, gradients=None):
    result = collection.lookup({"t": ids(1)}, insert=True)
    if gradients is None:
        gradients = [[tf.ones_like(r) for r in rows] for rows in result.rows]
    collection.update(
        result,
        gradients,
        learning_rate=tf.constant(learning_rate),
        step=tf.constant(step, tf.int64),
    )


@pytest.mark.parametrize(
    ("optimizer", "fields", "text"),
    [
        (SGD(), {"learning_rate": np.nan}, "'dim4-sgd': learning_rate must be finite and at least"),
        (SGD(), {"learning_rate": -0.1}, "at least 0 but got -0.1"),
        (Ftrl(), {"learning_rate": 0.0}, "above 0 but got 0"),
        (SGD(), {"step": -1}, r"step must be in \[0, 2\^32\) but got -1"),
        (SGD(), {"step": 2**32}, r"step must be in \[0, 2\^32\) but got 4294967296"),
        (SGD(), {"learning_rate": [0.1, 0.1]}, r"learning_rate must be a scalar .*\[2\]"),
        (SGD(), {"gradients": [[tf.ones([1, 5])]]}, r"gradients must be \[1, 4\] but got \[1,5\]"),
        (SGD(), {"gradients": [[tf.ones([2, 4])]]}, r"gradients must be \[1, 4\] but got \[2,4\]"),
    ],
)
def test_update_refuses_wrong_input_and_changes_nothing(optimizer, fields, text, tmp_path):
    collection = make_collection([make_table(embedding_dim=4, optimizer=optimizer)])
    collection.lookup({"t": ids(1)}, insert=True)
    before = rows_of(collection, tmp_path / "before")
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        _update(collection, **fields)
    assert rows_of(collection, tmp_path / "after") == before


def test_zero_learning_rate_moves_slots_only(tmp_path):
    spec = make_table(embedding_dim=4, optimizer=Adagrad())
    collection = make_collection([spec])
    _update(collection, learning_rate=0.0)
    row = rows_of(collection, tmp_path)["t", 1]
    np.testing.assert_array_equal(row.embedding, initial_values(spec, [1])[0])
    np.testing.assert_allclose(row.slots[0], 1.1, rtol=1e-6)


def test_unknown_optimizer_is_named():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"optimizer must be sgd.*'adamw'"):
        kernels.load().embedps_row_store(
            container="c",
            shared_name="s",
            group="g",
            dim=1,
            optimizer="optimizer=adamw",
            tables=["t"],
            table_settings=[""],
        )


def test_lazy_decay_gives_ids_of_all_frequencies_the_solution_of_an_l2_penalty(tmp_path):
    # 1 step in 4, and 1 in 2, show an id, whose gradient is w - 1 then: with a penalty of d / 2 w^2
    # in all steps, (w - 1) / period + d w is 0 in the mean.
    decay, rate = 0.125, 0.05
    collection = make_collection([make_table(embedding_dim=1, optimizer=SGD(lazy_decay=decay))])
    for step in range(1, 4001):
        here = [period for period in (2, 4) if step % period == 0]
        if not here:
            continue
        batch = {"t": ids(*here)}
        gradients = builders.look(collection, batch, insert=True)["t"] - 1
        train(collection, batch, {"t": gradients}, learning_rate=rate, step=step)
    found = rows_of(collection, tmp_path)
    for period in (2, 4):
        np.testing.assert_allclose(
            found["t", period].embedding, 1 / (1 + decay * period), rtol=1e-3
        )


def test_lazy_decay_makes_up_for_no_step_before_the_row_or_after_it(tmp_path):
    spec = make_table(embedding_dim=4, optimizer=SGD(lazy_decay=1.0))
    collection = make_collection([spec])
    zero = {"t": np.zeros((1, 4), np.float32)}
    for step in (100, 90):  # an asynchronous worker's step may come late
        train(collection, {"t": ids(1)}, zero, learning_rate=1.0, step=step)
    found = rows_of(collection, tmp_path)["t", 1]
    np.testing.assert_allclose(found.embedding, initial_values(spec, [1])[0] / 2, rtol=1e-6)
