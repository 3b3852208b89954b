"""An export's `raw` signature takes what the dataset was made of: its transforms in stock ops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps import export
from embedps.console import command_line
from embedps.data.columns import Columns
from embedps.data.dataset import Dataset
from embedps.features.transforms import Transforms
from embedps.serving.stock_transforms import StockTransforms
from tests.builders import make_config
from tests.pipelines.shop import RAW, RAW_NAMES, as_texts, load, make_raw, make_records
from tests.serving.builders import ask, raw_request


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make_raw(tmp_path_factory.mktemp("raw"))


def test_features_are_those_of_the_pipeline(dataset: Dataset) -> None:
    records = make_records(200)
    transforms = Transforms.load(dataset.directory)
    wanted = transforms.apply(as_texts(records, RAW_NAMES))
    stock = StockTransforms(transforms.table, Columns.of(dataset), missing_id=-1)
    made = tf.function(stock.batch)(
        {name: tf.constant(value) for name, value in raw_request(records).items()}
        | {"bought": tf.zeros([200])}
    )
    for feature in transforms.table.features:
        expected = wanted[feature.name]
        found = made[feature.name]
        if feature.kind == "list":
            assert found.to_list() == expected.to_pylist()
        elif feature.kind == "categorical":
            assert found.numpy().tolist() == expected.to_pylist()
        else:
            assert found.dtype == tf.float32
            np.testing.assert_allclose(found.numpy(), expected.to_numpy(), rtol=2e-7)
    ids = wanted["site"].to_pylist()
    assert {-1, -2} < set(ids)
    assert max(ids) > 2**32


def test_ids_that_are_not_hexadecimal_are_refused(dataset: Dataset) -> None:
    stock = StockTransforms(
        Transforms.load(dataset.directory).table,
        Columns.of(dataset, ["site"]),
        missing_id=-1,
    )
    assert list(stock.specs()) == ["site"]
    for text in ("xyz", "f" * 16, "1" * 17, " 1"):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"site.*must have hexadecimal"):
            tf.function(stock.batch)({"site": tf.constant([text])})
    assert stock.batch({"site": tf.constant(["0" * 30 + "7", "NA"])})["site"].shape == (2,)


def test_texts_are_refused_by_name(tmp_path: Path) -> None:
    table = load(tmp_path, RAW.replace("hex", "string", 1))
    with pytest.raises(embedps.errors.UsageError, match="column 'site' of ids of texts"):
        StockTransforms(table, Columns(ids=("site",)), missing_id=-1)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_raw_values_get_the_scores_of_their_features(
    tmp_path: Path, dataset: Dataset, capsys: Any
) -> None:
    config = make_config(dataset, tmp_path / "m", eval="none", model="logistic_regression")
    embedps.Trainer.from_config(config).fit()
    given = ["--model-dir", tmp_path / "m", "--output", tmp_path / "e", "--raw"]
    assert command_line.run(export.main, [str(flag) for flag in given]) == 0
    assert "signatures serving_default, examples, raw" in capsys.readouterr().out
    records = make_records(150)
    model = embedps.load(tmp_path / "m")
    transforms = Transforms.load(dataset.directory)
    wanted = model.predict(transforms.apply(as_texts(records, RAW_NAMES)))["score"]
    path = tmp_path / "e" / str(model.number)
    (found,) = ask({path: {"raw": [raw_request(records), raw_request(records[:1])]}})
    for loader in ("load", "session"):
        np.testing.assert_allclose(found[f"{loader}/raw/0/score"], wanted, rtol=1e-6)
        np.testing.assert_allclose(found[f"{loader}/raw/1/score"], wanted[:1], rtol=1e-6)
    assert len(np.unique(wanted)) > 100
