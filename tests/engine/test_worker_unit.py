"""A worker's unit trains as a process does; here a single worker, without collectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.engine.steps.step_workers import StepWorkers
from embedps.tables import FeatureSpec, MinCount, TableSpec
from tests.builders import SumModel, dataset_fixture
from tests.engine.builders import Trained, check_close, check_rows_close
from tests.tables.builders import Rows, rows_of

pytestmark = pytest.mark.slow


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


dataset = dataset_fixture(train=(300,), evaluation=(10,), whole=True)


def _train(
    dataset: Dataset, build: Callable[[], SumModel], folder: Path, *, as_worker: bool
) -> tuple[dict[str, np.ndarray], Rows, list[np.ndarray]]:
    model = Trained(Recommender(build=build), dataset, kind="adam", rate=0.01)
    workers = _Alone() if as_worker else None
    unit = model.make_unit(64, shuffle_rows=300, workers=workers)
    counts = model.run(unit, *model.arguments(seed=3))
    return counts, rows_of(model.collection, folder), model.weights()


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
    check_rows_close(rows, expected[1], rtol=1e-5, atol=1e-7)
    check_close(weights, expected[2], rtol=1e-5, atol=1e-7)
