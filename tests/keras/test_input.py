"""embedps.read: every row once per epoch, in the engine's order, as Keras or TFRS takes it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps.data.dataset import RAGGED_TYPE, Dataset
from embedps.data.dataset_metadata import CategoricalFeature
from embedps.errors import DatasetError, UsageError
from tests.builders import dataset_fixture, read_split, write_dataset

dataset = dataset_fixture(train=(700, 333))


def rows(batches: Any, name: str) -> np.ndarray:
    return np.concatenate([batch[name].numpy() for batch in batches])


def test_batches_have_every_column_in_the_files_order(dataset: Dataset) -> None:
    table = read_split(dataset)
    data = embedps.read(str(dataset.directory), "eval", batch_size=64, targets=False)
    batches = list(data)
    assert len(batches) == data.cardinality().numpy()
    for name in ("label", "I1", "C1", "C3"):
        np.testing.assert_array_equal(rows(batches, name), table[name].to_numpy())
    numbers = np.stack([table[n].to_numpy() for n in ("I1", "I2")], axis=1)
    np.testing.assert_array_equal(rows(batches, "numerics"), numbers)


def test_lists_are_ragged(tmp_path: Path) -> None:
    plain = write_dataset(tmp_path / "set")
    tags = CategoricalFeature(name="tags", cardinality=30, ragged=True)
    dataset = dataclasses.replace(
        plain,
        categorical=(*plain.categorical, tags),
        schema={**plain.schema, "tags": RAGGED_TYPE},
    )
    data = embedps.read(dataset, "eval", batch_size=64, targets=False)
    found = [each for batch in data for each in batch["tags"].to_list()]
    assert found == read_split(dataset)["tags"].to_pylist()


def test_targets_are_apart_and_columns_can_be_chosen(dataset: Dataset) -> None:
    data = embedps.read(dataset, "eval", batch_size=100, columns=["label", "C2"])
    features, labels = next(iter(data))
    assert set(features) == {"C2", "numerics"}
    assert labels.shape == (100,)
    batch = next(iter(embedps.read(dataset, columns=["C2"], targets=False)))
    assert "label" not in batch


def test_each_epoch_has_each_row_once_in_an_order_of_its_own(dataset: Dataset) -> None:
    data = embedps.read(dataset, batch_size=32, unit_rows=128, targets=False, seed=5)
    epochs = [rows(list(data), "C1") for _ in range(2)]
    again = embedps.read(dataset, batch_size=32, unit_rows=128, targets=False, seed=5)
    np.testing.assert_array_equal(rows(list(again), "C1"), epochs[0])
    assert not np.array_equal(epochs[0], epochs[1])
    wanted = np.sort(read_split(dataset, "train")["C1"].to_numpy())
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), wanted)
    plain = embedps.read(dataset, batch_size=32, shuffle=False, targets=False)
    for _ in range(2):
        np.testing.assert_array_equal(
            rows(list(plain), "C1"), read_split(dataset, "train")["C1"].to_numpy()
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be an integer from 1 on but got 0"),
        ({"batch_size": 2.5}, "batch_size must be an integer"),
        ({"columns": ["C9"]}, "has no column 'C9'"),
        ({"columns": ["C1"]}, "must have a label among the columns"),
        ({"batch_size": 64, "unit_rows": 32}, "at least one batch"),
    ],
)
def test_mistakes_are_named(dataset: Dataset, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        embedps.read(dataset, **options)


def test_what_is_not_there_is_named(tmp_path: Path, dataset: Dataset) -> None:
    with pytest.raises(DatasetError, match="no split 'test'"):
        embedps.read(dataset, "test")
    with pytest.raises(DatasetError):
        embedps.read(tmp_path)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "set")
    data = embedps.read(dataset, batch_size=64)
    dataset.paths("train")[0].unlink()
    with pytest.raises(tf.errors.NotFoundError, match=r"shard-.*\.parquet"):
        list(data)
