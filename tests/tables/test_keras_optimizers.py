"""Keras optimizers as the optimizers of rows: what has a twin, and that it does the same."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps.errors import UsageError
from embedps.tables import SGD, Adagrad, Ftrl, TableSpec
from tests.tables.builders import ids, make_collection, make_table, rows_of, train

KERAS = pytest.mark.parametrize(
    "optimizers", [tf.keras.optimizers, keras.optimizers], ids=["keras2", "keras3"]
)
NUM_IDS, DIM = 6, 4
FTRL: dict[str, Any] = {
    "initial_accumulator_value": 0.5,
    "l1_regularization_strength": 0.01,
    "l2_regularization_strength": 0.25,
}


@KERAS
def test_twins_have_the_same_numbers(optimizers: Any) -> None:
    def made(optimizer: Any) -> Any:
        return TableSpec(name="t", embedding_dim=2, optimizer=optimizer).optimizer

    sgd = made(optimizers.SGD(0.25))
    assert sgd == SGD(learning_rate=0.25)
    assert made(optimizers.Ftrl(0.25, **FTRL)) == Ftrl(learning_rate=0.25, **FTRL)
    adagrad = made(optimizers.Adagrad(0.25, initial_accumulator_value=0.5, epsilon=0.125))
    twin = Adagrad(learning_rate=0.25, initial_accumulator_value=0.625, epsilon=0)
    assert adagrad == twin


@pytest.mark.parametrize(
    "optimizer",
    [
        tf.keras.optimizers.SGD(0.1),
        tf.keras.optimizers.Adagrad(0.1),
        tf.keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.0, epsilon=0.01),
        tf.keras.optimizers.Ftrl(0.1, **FTRL),
    ],
    ids=lambda optimizer: type(optimizer).__name__,
)
def test_rows_learn_as_keras_has_it(optimizer: Any, tmp_path: Any) -> None:
    spec = make_table(embedding_dim=DIM, optimizer=optimizer, initializer=embedps.Initializer())
    collection = make_collection([spec])
    w = tf.Variable(tf.zeros([NUM_IDS, DIM]))
    random = np.random.default_rng(1)
    for step in range(1, 6):
        here = [i for i in range(NUM_IDS) if (i + step) % 3 or step == 1]
        gradients = random.standard_normal((len(here), DIM)).astype(np.float32)
        train(collection, {"t": ids(*here)}, {"t": gradients}, learning_rate=0.1, step=step)
        optimizer.apply_gradients([(tf.IndexedSlices(gradients, here, [NUM_IDS, DIM]), w)])
    found = rows_of(collection, tmp_path)
    for i in range(NUM_IDS):
        np.testing.assert_allclose(found["t", i].embedding, w.numpy()[i], rtol=1e-5, atol=1e-6)


@KERAS
def test_what_has_no_twin_is_refused_in_a_line(optimizers: Any) -> None:
    decay = optimizers.schedules.ExponentialDecay(0.1, 4, 0.5)
    for optimizer, text in (
        (optimizers.Adam(), r"'t': Keras' Adam has no twin for rows; .* use embedps.LazyAdam\(\)"),
        (optimizers.RMSprop(), "Keras' RMSprop has no twin for rows; SGD, Adagrad, Ftrl have"),
        (optimizers.SGD(momentum=0.9), r"Keras' SGD\(momentum=0.9\) has no twin: leave it out"),
        (optimizers.Ftrl(beta=0.5), r"Keras' Ftrl\(beta=0.5\) has no twin"),
        (optimizers.Ftrl(learning_rate_power=-0.25), r"\(learning_rate_power=-0.25\) has no twin"),
        (optimizers.Adagrad(weight_decay=0.1), r"weight_decay=0.1\) has no twin: use an embedps"),
        (optimizers.SGD(clipnorm=1.0), r"clipnorm=1.0\) has no twin: use the run's row_clip_norm"),
        (optimizers.SGD(use_ema=True), r"use_ema=True\) has no twin"),
        (optimizers.SGD(decay), "learning_rate of Keras' SGD must be a number for rows but is"),
    ):
        with pytest.raises(UsageError, match=text) as refused:
            TableSpec(name="t", embedding_dim=2, optimizer=optimizer)
        assert "\n" not in str(refused.value)


def test_the_layer_has_the_rate_of_its_tables() -> None:
    def layer(*rates: float, **options: Any) -> Any:
        features = [
            embedps.FeatureSpec(
                name=f"f{i}",
                table=TableSpec(
                    name=f"t{i}", embedding_dim=2, optimizer=tf.keras.optimizers.SGD(rate)
                ),
            )
            for i, rate in enumerate(rates)
        ]
        return embedps.Embeddings(features, **options)

    assert layer(0.5, 0.5).own.learning_rate == 0.5
    assert layer(0.5, learning_rate=0.5).own.learning_rate == 0.5
    assert embedps.Embeddings({"a": 2}).own.learning_rate == np.float32(0.05)
    made = embedps.Embeddings.from_config(layer(0.5).get_config())
    assert made.own.learning_rate == 0.5
    assert layer(0.5, 0.25).own.learning_rate == np.float32(0.05)  # of tables without their own
    with pytest.raises(UsageError, match=r"learning_rate is 0.1, the tables' optimizers have 0.5"):
        layer(0.5, learning_rate=0.1)
