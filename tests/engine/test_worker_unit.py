"""A worker's unit trains as a process does; here a single worker, without collectives."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from embedps.data.dataset import Dataset
from embedps.engine.dense_optimizer import make_dense_optimizer
from embedps.engine.recommender import Recommender
from embedps.engine.step_model import StepModel
from embedps.engine.steps.step_workers import StepWorkers
from embedps.engine.unit_functions import make_train_unit
from embedps.tables import FeatureSpec, MinCount, TableSpec
from embedps.tables.collection import EmbeddingCollection
from tests.builders import SumModel, write_dataset
from tests.tables.builders import Rows, rows_of

pytestmark = pytest.mark.slow
_numbers = itertools.count()


class _Alone(StepWorkers):
    """A group of one, which gets what it sends."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def all_gather(self, value: tf.Tensor, *, key: int) -> tf.Tensor:
        return value

    def all_to_all(self, values: tf.Tensor, *, key: int) -> tf.Tensor:
        return values


class _Normalized(SumModel):
    """A model with moving statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = tf.keras.layers.BatchNormalization()

    def logits(self, features: Mapping[str, Any], *, training: bool) -> tf.Tensor:
        rows = self.norm(self.rows(features), training=training)
        return self.last(tf.concat([self.numbers(features), rows], axis=1))[:, 0]


def _admitting() -> SumModel:
    ids = TableSpec(name="ids", embedding_dim=3, admission=MinCount(count=2))
    tags = FeatureSpec(name="tags", table="ids", ragged=True, combiner="sum")
    return SumModel((FeatureSpec(name="C3", table=ids), tags), ())


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_dataset(
        tmp_path_factory.mktemp("data") / "set", train=(300,), evaluation=(10,), whole=True
    )


def _train(
    dataset: Dataset, build: Callable[[], SumModel], folder: Path, *, as_worker: bool
) -> tuple[dict[str, np.ndarray], Rows, list[np.ndarray]]:
    tf.keras.utils.set_random_seed(5)
    model = StepModel(Recommender(build=build), dataset)
    optimizer = make_dense_optimizer("adam", 0.01, model.model)
    collection = EmbeddingCollection(
        model.tables,
        model.features,
        devices=["/device:CPU:0"],
        container=f"worker-{next(_numbers)}",
    )
    unit_input = model.input(batch_rows=64, shuffle_rows=300)
    strategy = tf.distribute.get_strategy()
    workers = _Alone() if as_worker else None
    unit = make_train_unit(model, optimizer, collection, strategy, unit_input, workers=workers)
    path = str(dataset.absolute_path(dataset.split("train").files[0]))
    numbers = [tf.constant(n, tf.int64) for n in (0, 300, 3, 0)]
    counts = unit(tf.constant(path), *numbers, tf.constant(0.1))
    weights = [v.numpy() for v in (*model.variables, *optimizer.variables())]
    return {k: v.numpy() for k, v in counts.items()}, rows_of(collection, folder), weights


@pytest.mark.parametrize(
    "build",
    [SumModel, _Normalized, _admitting],
    ids=["two dims and lists", "moving statistics", "admission"],
)
def test_a_single_worker_trains_as_a_process_does(dataset, tmp_path, build):
    counts, rows, weights = _train(dataset, build, tmp_path / "w", as_worker=True)
    expected = _train(dataset, build, tmp_path / "p", as_worker=False)
    assert counts.keys() == expected[0].keys()
    for name, value in expected[0].items():
        np.testing.assert_allclose(counts[name], value, rtol=1e-6, err_msg=name)
    assert rows.keys() == expected[1].keys()
    for key, row in expected[1].items():
        assert (rows[key].last_step, rows[key].frequency) == (row.last_step, row.frequency)
        np.testing.assert_allclose(rows[key].embedding, row.embedding, rtol=1e-5, atol=1e-7)
    for ours, theirs in zip(weights, expected[2], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
