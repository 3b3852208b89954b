"""The zoo's models weigh examples by the dataset's weight column, as Keras does."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps.data.dataset import Dataset
from embedps.engine.step_model import StepModel
from embedps.models import fm, logistic_regression, mmoe, two_tower
from tests import every_column
from tests.builders import make_config
from tests.keras.fitting import BATCH_ROWS, READ, fit_losses

RATE = 0.05


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Weights of 0, 1 and 2; the first label is binary."""
    made = every_column.write_dataset(tmp_path_factory.mktemp("every") / "set", train=640)
    labels = (made.labels[2], *made.labels[:2])
    made = dataclasses.replace(made, label=labels[0].name, labels=labels)
    made.save()
    return Dataset.open(made.directory)


def test_the_loss_is_that_of_keras_with_sample_weights(dataset: Dataset) -> None:
    model = fm.make(fm.Config(embedding_dim=4), dataset).build()
    batch = next(iter(embedps.read(dataset, **READ)))
    logits = model.logits(batch, training=False)
    keras = tf.keras.losses.BinaryCrossentropy(from_logits=True)
    expected = keras(batch["bought"][:, None], logits[:, None], sample_weight=batch["weight"])
    np.testing.assert_allclose(model.compute_loss(batch), expected, rtol=1e-6)
    assert abs(float(expected) - float(keras(batch["bought"][:, None], logits[:, None]))) > 1e-3


def test_several_labels_are_weighed_too(dataset: Dataset) -> None:
    model = mmoe.make(mmoe.Config(num_experts=2, loss_weights=(1.0, 2.0, 0.5)), dataset).build()
    batch = next(iter(embedps.read(dataset, **READ)))
    bought, stars, seconds = model.answers(batch, training=False)
    losses = tf.keras.losses
    weight = batch["weight"]
    expected = (
        losses.BinaryCrossentropy(from_logits=True)(batch["bought"][:, None], bought, weight)
        + 2 * losses.SparseCategoricalCrossentropy(from_logits=True)(batch["stars"], stars, weight)
        + 0.5 * losses.MeanSquaredError()(batch["seconds"][:, None], seconds, weight)
    )
    np.testing.assert_allclose(model.compute_loss(batch), expected, rtol=1e-5)


def test_the_engine_trains_as_fit_does(tmp_path: Path, dataset: Dataset) -> None:
    config = logistic_regression.Config(sparse_optimizer="adagrad")

    def build() -> Any:
        model = logistic_regression.make(config, dataset).build()
        model.embeddings = embedps.Embeddings(
            model.embeddings.features, tables=model.embeddings.tables, learning_rate=RATE
        )
        return model

    def optimizer() -> Any:
        return tf.keras.optimizers.Adagrad(0.05)

    fitted = fit_losses(build(), embedps.read(dataset, **READ))
    run = make_config(
        dataset, tmp_path, epochs=1, batch_size=BATCH_ROWS, unit_rows=BATCH_ROWS,
        sparse_learning_rate=RATE,
    )  # fmt: skip
    recommender = dataclasses.replace(
        logistic_regression.make(config, dataset), optimizer=optimizer
    )
    trainer = embedps.Trainer(recommender, dataset, run)
    trained = []
    while (unit := trainer.ledger.take()) is not None:
        counts = trainer._setup.train_unit(*trainer._loop.unit_arguments(unit))
        trained.append(float(counts["loss"] / counts["examples"]))
    trainer.close()
    assert len(trained) == 640 // BATCH_ROWS
    assert trained[-1] < trained[0]
    np.testing.assert_allclose(trained, fitted, atol=1e-5, rtol=0)


def test_rows_without_weight_do_not_count_in_retrieval(dataset: Dataset) -> None:
    config = two_tower.Config(query=("tags",), item=("item",), embedding_dim=4)
    built = StepModel(two_tower.make(config, dataset), dataset)
    assert "weight" in built.columns.names
    model = two_tower.make(config, dataset).build()
    batch = dict(next(iter(embedps.read(dataset, **READ))))
    batch["weight"] = tf.one_hot(3, BATCH_ROWS)
    alone = model.compute_loss(batch, training=True)
    batch["weight"] = 5.0 * batch["weight"]
    np.testing.assert_allclose(model.compute_loss(batch, training=True), alone, rtol=1e-6)
    batch["weight"] = tf.ones([BATCH_ROWS])
    assert abs(float(model.compute_loss(batch, training=True)) - float(alone)) > 1e-3
