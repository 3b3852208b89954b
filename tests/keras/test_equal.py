"""The engine, `fit` over our tables and `fit` over tf.keras.layers.Embedding train alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps.data.dataset import Dataset
from tests.builders import make_config, read_split, write_dataset
from tests.keras.fitting import BATCH_ROWS, RATE, READ, fit_losses, optimizer
from tests.keras.models import FEATURES, MODELS, PlainEmbeddings, features

STEPS = 50


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    rows = BATCH_ROWS * STEPS // 2
    return write_dataset(tmp_path_factory.mktemp("data") / "set", train=(rows, rows))


def made(build: Callable[[Any], tf.keras.Model], layer: Any, batch: Any) -> tf.keras.Model:
    """Makes a model and its variables, equal for each layer."""
    model = build(layer)
    tf.keras.utils.set_random_seed(7)
    model.test_step(batch)
    return model


def dense_of(model: tf.keras.Model) -> list[tf.Variable]:
    rows = {id(v) for v in model.embeddings.trainable_variables}
    return [v for v in model.trainable_variables if id(v) not in rows]


@pytest.fixture(params=MODELS)
def build(request: pytest.FixtureRequest) -> Callable[[Any], tf.keras.Model]:
    return MODELS[request.param]


def test_engine_and_fit_and_plain_keras_have_the_same_losses(
    tmp_path: Path, dataset: Dataset, build: Callable[[Any], tf.keras.Model]
) -> None:
    data = embedps.read(dataset, **READ)
    batch = next(iter(embedps.read(dataset, shuffle=False, **READ)))
    ours = made(build, embedps.Embeddings(features(), learning_rate=RATE), batch)
    start = [v.numpy() for v in dense_of(ours)]

    table = read_split(dataset, "train")
    ids = {name: np.unique(table[name].to_numpy()) for name in FEATURES}
    rows = {
        name: ours.embeddings(
            {name: tf.constant(each)},
            training=True,  # which makes the rows
        )[name].numpy()
        for name, each in ids.items()
    }
    plain = made(build, PlainEmbeddings(ids, rows), batch)
    for variable, value in zip(dense_of(plain), start, strict=True):
        variable.assign(value)

    ours = made(build, embedps.Embeddings(features(), learning_rate=RATE), batch)
    for variable, value in zip(dense_of(ours), start, strict=True):
        variable.assign(value)
    config = make_config(
        dataset, tmp_path, eval="none", epochs=1, batch_size=BATCH_ROWS, unit_rows=BATCH_ROWS,
        sparse_learning_rate=RATE,
    )  # fmt: skip
    recommender = embedps.Recommender(
        build=lambda: build(embedps.Embeddings(features())), optimizer=optimizer
    )
    trainer = embedps.Trainer(recommender, dataset, config)
    trained = trainer._setup.model.model
    for variable, value in zip(trained.trainable_variables, start, strict=True):
        variable.assign(value)

    found = {
        "fit": fit_losses(ours, data),
        "plain": fit_losses(plain, embedps.read(dataset, **READ)),
    }
    found["engine"] = []
    while (unit := trainer.ledger.take()) is not None:
        counts = trainer._setup.train_unit(*trainer._loop.unit_arguments(unit))
        found["engine"].append(float(counts["loss"] / counts["examples"]))
    trainer.close()
    assert all(len(losses) >= STEPS for losses in found.values())
    assert found["engine"][-1] < found["engine"][0]
    np.testing.assert_allclose(found["fit"], found["engine"], atol=1e-5, rtol=0)
    np.testing.assert_allclose(found["plain"], found["engine"], atol=1e-5, rtol=0)
