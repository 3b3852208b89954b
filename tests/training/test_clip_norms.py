"""Limits of gradients' norms: a step moves by what NumPy computes from the step without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from embedps.data.dataset import Dataset
from tests.builders import dataset_fixture, make_dlrm, make_trainer

dataset = dataset_fixture(train=(256,))


def after_a_step(
    dataset: Dataset, folder: Path, rate: float, **clip: float
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The rows of C1's ids and the network's weights after one step of SGD."""
    options: dict[str, Any] = {
        "batch_size": 256,
        "unit_rows": 256,
        "shuffle": False,
        "sparse_learning_rate": rate,
        "dense_learning_rate": rate,
        "dense_optimizer": "sgd",
        **clip,
    }
    recommender = make_dlrm(dataset, sparse_optimizer="sgd")
    trainer = make_trainer(dataset, folder, recommender=recommender, **options)
    trainer.fit()
    assert trainer.ledger.steps_done() == 1
    ids = np.unique(pq.read_table(dataset.paths("train")[0])["C1"].to_numpy())
    found = trainer.collection.lookup({"C1": tf.constant(ids)}, insert=False, partial=True)
    rows = trainer.collection.combine(found)["C1"]
    assert isinstance(rows, tf.Tensor)
    return rows.numpy(), [w.numpy() for w in trainer.model.trainable_weights]


@pytest.fixture(scope="module")
def free(
    tmp_path_factory: pytest.TempPathFactory, dataset: Dataset
) -> tuple[np.ndarray, list[np.ndarray]]:
    return after_a_step(dataset, tmp_path_factory.mktemp("free"), 1.0)


def test_a_step_is_that_of_gradients_scaled_down(
    tmp_path: Path, dataset: Dataset, free: tuple[np.ndarray, list[np.ndarray]]
) -> None:
    start, start_dense = after_a_step(dataset, tmp_path / "start", 1e-30)
    gradients = free[0] - start
    dense = [a - b for a, b in zip(free[1], start_dense, strict=True)]
    norms = np.linalg.norm(gradients, axis=1)
    of_row, of_dense = (
        float(np.median(norms)),
        0.5 * float(np.sqrt(sum(np.sum(np.square(g, dtype=np.float64)) for g in dense))),
    )
    assert of_row > 0
    clip = {"row_clip_norm": of_row, "dense_clip_norm": of_dense}
    rows, weights = after_a_step(dataset, tmp_path / "clipped", 1.0, **clip)
    scale = np.minimum(1, of_row / np.maximum(norms, 1e-30))
    np.testing.assert_allclose(rows, start + gradients * scale[:, None], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(rows - start, axis=1).max(), of_row, rtol=1e-3)
    for found, before, gradient in zip(weights, start_dense, dense, strict=True):
        np.testing.assert_allclose(found, before + gradient / 2, atol=1e-6)


def test_a_limit_that_is_not_reached_changes_no_bit(
    tmp_path: Path, dataset: Dataset, free: tuple[np.ndarray, list[np.ndarray]]
) -> None:
    rows, weights = after_a_step(dataset, tmp_path, 1.0, row_clip_norm=1e6)
    np.testing.assert_array_equal(rows, free[0])
    for found, expected in zip(weights, free[1], strict=True):
        np.testing.assert_array_equal(found, expected)
