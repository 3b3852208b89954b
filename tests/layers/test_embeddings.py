"""embedps.Embeddings in Keras mode: its rows learn in the backward pass, or it says why not."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps.errors import UsageError
from embedps.tables.optimizers import SGD

NAMES = ("a", "b")
ROWS = 400


def features(**table: Any) -> list[embedps.FeatureSpec]:
    return [
        embedps.FeatureSpec(name=n, table=embedps.TableSpec(name=n, embedding_dim=4, **table))
        for n in NAMES
    ]


class Model(tf.keras.Model):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embeddings = embedps.Embeddings(features(), **options)
        self.dropout = tf.keras.layers.Dropout(0.1)
        self.last = tf.keras.layers.Dense(1)

    def call(self, batch: Any, training: bool = False) -> tf.Tensor:
        found = self.embeddings(batch)
        x = tf.concat([found[n] for n in NAMES], axis=1)
        return self.last(self.dropout(x, training=training))


@pytest.fixture(scope="module")
def data() -> tf.data.Dataset:
    rng = np.random.default_rng(0)
    ids = {name: rng.integers(0, 20, ROWS) for name in NAMES}
    labels = (ids["a"] % 2 == 1).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((ids, labels)).batch(50)


def compiled(model: tf.keras.Model, **options: Any) -> tf.keras.Model:
    loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(0.01), loss, metrics=["AUC"], **options)
    return model


def rows_of(model: Model) -> dict[str, int]:
    return dict(model.embeddings.own.collection.stats().rows)


def test_fit_evaluate_and_predict(data: tf.data.Dataset) -> None:
    model = compiled(Model(), steps_per_execution=3)
    history = model.fit(data, epochs=8, verbose=0, validation_data=data).history
    assert history["loss"][-1] < 0.7 * history["loss"][0]
    assert history["val_auc"][-1] > 0.99
    assert rows_of(model) == {"a": 20, "b": 20}
    assert int(model.embeddings.own.step) == 8 * 8
    loss, auc = model.evaluate(data, verbose=0)
    assert loss == pytest.approx(history["val_loss"][-1], rel=1e-6)
    assert auc > 0.99
    first = model.predict(data, verbose=0)
    assert first.shape == (ROWS, 1)
    unseen = {name: np.array([1000, 2000]) for name in NAMES}
    scores = model.predict(unseen, verbose=0)
    assert scores[0] == scores[1]
    assert rows_of(model) == {"a": 20, "b": 20}
    np.testing.assert_array_equal(model.predict(data, verbose=0), first)


def test_functional_models_train(data: tf.data.Dataset) -> None:
    inputs = {n: tf.keras.Input([], name=n, dtype=tf.int64) for n in NAMES}
    found = embedps.Embeddings(features())(inputs)
    x = tf.keras.layers.Concatenate()([found[n] for n in NAMES])
    model = compiled(tf.keras.Model(inputs, tf.keras.layers.Dense(1)(x)))
    history = model.fit(data, epochs=8, verbose=0).history
    assert history["loss"][-1] < 0.7 * history["loss"][0]


def test_summaries_count_the_rows_that_tables_hold(data: tf.data.Dataset) -> None:
    layer = embedps.Embeddings(features(row_dtype="bfloat16"), name="emb")
    inputs = {n: tf.keras.Input([], name=n, dtype=tf.int64) for n in NAMES}
    found = layer(inputs)
    last = tf.keras.layers.Dense(1)(tf.keras.layers.Concatenate()([found[n] for n in NAMES]))
    model = compiled(tf.keras.Model(inputs, last))
    for rows in (0, 20 + 20):
        lines: list[str] = []
        model.summary(print_fn=lambda line, lines=lines: lines.append(line))
        assert layer.count_params() == rows * 4
        assert model.count_params() == rows * 4 + 9
        [total] = [line for line in lines if line.startswith("Trainable params")]
        size = 9 * 4 + rows * 4 * 2
        assert total.startswith(f"Trainable params: {rows * 4 + 9} ({size}.00 B")
        model.fit(data, verbose=0)
    layer.trainable = False
    assert model.count_params() == 40 * 4 + 9


def step(model: Model, batch: Any, optimizer: Any, **options: Any) -> float:
    ids, labels = batch
    with tf.GradientTape() as tape:
        logits = model(ids, **options)
        loss = tf.reduce_mean(
            tf.keras.losses.binary_crossentropy(labels[:, None], logits, from_logits=True)
        )
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return loss


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_own_loops_train(data: tf.data.Dataset, wrap: Any) -> None:
    """Also with a call that does not say whether it trains: the tape does."""
    for options in ({"training": True}, {}):
        model, optimizer = Model(learning_rate=0.5), tf.keras.optimizers.SGD(0.1)
        batch = next(iter(data))
        model(batch[0])  # builds, and makes no rows
        assert rows_of(model) == {"a": 0, "b": 0}
        taken = wrap(lambda model=model, o=optimizer, b=batch, k=options: step(model, b, o, **k))
        losses = [float(taken()) for _ in range(20)]
        assert losses[-1] < losses[0] - 0.01
        assert int(model.embeddings.own.step) == 20


def test_a_call_that_is_a_function_trains(data: tf.data.Dataset) -> None:
    model, batch = Model(), next(iter(data))
    call = tf.function(lambda ids: model(ids, training=True))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(call(batch[0]))
    before = model.embeddings(batch[0])["a"].numpy()
    tape.gradient(loss, model.trainable_variables)
    assert np.any(model.embeddings(batch[0])["a"].numpy() != before)
    assert int(model.embeddings.own.step) == 1


def test_a_call_that_does_not_train_leaves_the_tables(data: tf.data.Dataset) -> None:
    model, optimizer = Model(), tf.keras.optimizers.SGD(0.1)
    model(next(iter(data))[0])
    assert rows_of(model) == {"a": 0, "b": 0}
    model.embeddings.trainable = False
    step(model, next(iter(data)), optimizer, training=True)
    assert rows_of(model) == {"a": 0, "b": 0}


def test_update_is_that_of_the_tables_optimizer_and_a_schedule_says_the_rate() -> None:
    rate = tf.keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.5, 0.25])
    layer = embedps.Embeddings(features(optimizer=SGD()), learning_rate=rate)
    batch = {"a": tf.constant([3, 3, 5], tf.int64)}
    before = layer(batch, training=True)["a"].numpy()
    moved = before.copy()
    for factor in (0.5, 0.25):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(batch, training=True)["a"])
        (gradient,) = tape.gradient(loss, layer.trainable_variables)
        assert float(gradient) == 0.0
        moved -= factor * np.array([[2.0], [2.0], [1.0]], np.float32)
        np.testing.assert_array_equal(layer(batch)["a"].numpy(), moved)


def fit(model: tf.keras.Model, data: tf.data.Dataset, **options: Any) -> None:
    compiled(model, **options).fit(data, verbose=0)


class Twice(Model):
    def call(self, batch: Any, training: bool = False) -> tf.Tensor:
        return super().call(batch, training) + super().call(batch, training)


@pytest.fixture
def policy() -> Any:
    yield tf.keras.mixed_precision.set_global_policy
    tf.keras.mixed_precision.set_global_policy("float32")


def refused(message: str) -> Any:
    return pytest.raises(UsageError, match=f"^[^\\n]*{message}[^\\n]*$")


def test_a_feature_that_is_looked_up_twice_is_refused(data: tf.data.Dataset) -> None:
    with refused("'a' is looked up twice in a step"):
        fit(Twice(), data)
    model, batch = Model(), next(iter(data))[0]
    with tf.GradientTape() as tape:
        first = model(batch)
        with refused("'a' is looked up twice"):
            model(batch)
    tape.gradient(first, model.trainable_variables)
    del tape
    with tf.GradientTape():
        model(batch)  # its gradient is never taken
    with tf.GradientTape():
        model(batch)


def test_gradients_that_are_taken_twice_are_refused(data: tf.data.Dataset) -> None:
    model = Model()
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(model(next(iter(data))[0]))
    tape.gradient(loss, model.last.trainable_variables)  # moves the rows too
    with refused("taken twice"):
        tape.gradient(loss, model.trainable_variables)


def test_a_scaled_loss_is_refused(data: tf.data.Dataset, policy: Any) -> None:
    scaling = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD())
    model = Model()
    with tf.GradientTape() as tape:
        loss = scaling.get_scaled_loss(tf.reduce_sum(model(next(iter(data))[0])))
    with refused("the loss is scaled"):
        tape.gradient(loss, model.trainable_variables)
    policy("mixed_float16")
    with refused("the loss is scaled"):
        fit(Model(), data)
    policy("mixed_bfloat16")
    fit(Model(), data)


def test_a_strategy_is_refused(data: tf.data.Dataset) -> None:
    with tf.distribute.MirroredStrategy(["cpu:0"]).scope():
        model = compiled(Model())
    with refused("got a MirroredStrategy: .* --replicas N --mirrored does the same"):
        model.fit(data, verbose=0)


def test_tables_are_freed_with_their_layer(data: tf.data.Dataset) -> None:
    layer = embedps.Embeddings(features())
    layer(next(iter(data))[0], training=True)
    collection = layer.own.collection
    assert min(collection.stats().rows.values()) > 10
    del layer
    import gc

    gc.collect()
    with pytest.raises(tf.errors.NotFoundError):
        collection.stats()


def test_tables_are_freed_while_a_graph_is_built(data: tf.data.Dataset) -> None:
    """The garbage collector may run where TensorFlow holds the graph's lock."""
    import gc

    layers = [embedps.Embeddings(features())]
    layers[0](next(iter(data))[0], training=True)
    collection = layers[0].own.collection

    @tf.function
    def built() -> tf.Tensor:
        with tf.compat.v1.get_default_graph()._mutation_lock():
            layers.clear()
            gc.collect()
        return tf.constant(0)

    graph = built.get_concrete_function().graph
    assert not [op for op in graph.get_operations() if "Drop" in op.type]
    with pytest.raises(tf.errors.NotFoundError):
        collection.stats()


@pytest.mark.parametrize("function", [lambda f: f, tf.function], ids=["eager", "graph"])
@pytest.mark.parametrize("legacy", [False, True])
def test_accumulated_gradients_are_refused(
    data: tf.data.Dataset, function: Any, legacy: bool
) -> None:
    model, kinds = Model(), tf.keras.optimizers
    optimizer = (kinds.legacy if legacy else kinds).Adam(0.01)

    @function
    def gradients(batch: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(batch, training=True)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels[:, None], logits))
        return tape.gradient(loss, model.trainable_variables)

    batches = list(data)
    for batch in batches[:3]:  # each step's gradients are applied, also outside of its function
        found = gradients(*batch)
        optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))
    before = gradients(*batches[3])
    with pytest.raises(tf.errors.InvalidArgumentError, match="they cannot be accumulated"):
        gradients(*batches[4])
    assert len(before) == len(model.trainable_variables)


def test_a_loop_without_an_optimizer_trains(data: tf.data.Dataset) -> None:
    model, losses = Model(learning_rate=0.5), []
    for batch, labels in data.repeat(8):
        with tf.GradientTape() as tape:
            logits = model(batch, training=True)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels[:, None], logits))
        variables = model.trainable_variables
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.1 * gradient)
        losses.append(float(loss))
    assert losses[-1] < losses[0]


def test_admission_reads_and_learns_alike_in_training_and_scoring() -> None:
    policy = embedps.MinCount(count=3)
    layer = embedps.Embeddings(features(admission=policy, optimizer=SGD()), learning_rate=0.5)
    ids = {n: tf.constant([4, 5], tf.int64) for n in NAMES}
    initial = {}
    for step in range(4):
        with tf.GradientTape() as tape:
            found = layer(ids, training=True)
            loss = tf.add_n([tf.reduce_sum(v) for v in found.values()])
        scored = layer(ids, training=False)
        for name in NAMES:
            if step < 2:
                np.testing.assert_array_equal(found[name], np.zeros((2, 4)))
                np.testing.assert_array_equal(scored[name], np.zeros((2, 4)))
            elif step == 2:  # the third example admits
                initial[name] = found[name].numpy()
                assert np.all(initial[name] != 0)
            else:
                np.testing.assert_array_equal(found[name], initial[name] - np.float32(0.5))
                np.testing.assert_array_equal(scored[name], found[name])
        tape.gradient(loss, layer.trainable_variables)
        layer.own.note_applied()


@pytest.mark.parametrize("subclassed", [True, False])
def test_a_model_of_keras_3_is_refused(subclassed: bool) -> None:
    import keras

    layer = embedps.Embeddings({"a": 4})

    class Other(keras.Model):
        def call(self, batch: Any) -> Any:
            return layer(batch)["a"]

    given = {"a": tf.range(3) if subclassed else keras.Input((), dtype="int64", name="a")}
    with pytest.raises(UsageError, match="but this model is one of Keras 3: build it with tf"):
        Other()(given) if subclassed else layer(given)
    assert layer({"a": tf.range(3)})["a"].shape == (3, 4)


def test_tf_keras_of_before_is_refused_by_one_line() -> None:
    program = """
import tensorflow as tf
tf.keras.layers.Dense
import embedps
try:
    embedps.Embeddings
except embedps.errors.UsageError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "tf.keras is Keras 3 in this process: import embedps before" in done.stdout


def test_callbacks_that_set_a_rate_say_that_rows_keep_theirs(
    data: tf.data.Dataset, capfd: pytest.CaptureFixture[str]
) -> None:
    halves = tf.keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    compiled(Model(learning_rate=0.25)).fit(data.take(1), verbose=0, callbacks=[halves])
    line = "LearningRateScheduler sets the rate of the model's optimizer; the embedding rows keep"
    assert capfd.readouterr().err.count(line) == 1
    rate = tf.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    compiled(Model(learning_rate=rate)).fit(data.take(1), verbose=0, callbacks=[halves])
    assert line not in capfd.readouterr().err
