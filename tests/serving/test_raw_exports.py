"""An export's `raw` signature takes what the dataset was made of: its transforms in stock ops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
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
from tests.serving.builders import Tensors, ask, raw_request, tensors


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


@pytest.mark.parametrize(
    ("name", "values", "rule"),
    [
        ("price", [1.0, 1e39], "numbers that are finite in float32, or NaN .*not: *. .price"),
        ("the_age", [-np.inf], "numbers that are finite in float32, or NaN .*not: *. .the age"),
        ("time", [(2**63 - 1) // 1000 + 1], "times within 64 bits of milliseconds.*not: *. .time"),
        ("time", [0, -(2**63)], "times within 64 bits of milliseconds.*not: *. .time"),
    ],
)
def test_values_that_ingestion_refuses_are_refused(
    dataset: Dataset, name: str, values: list[Any], rule: str
) -> None:
    transforms = Transforms.load(dataset.directory)
    stock = StockTransforms(transforms.table, Columns.of(dataset), missing_id=-1)
    made = tf.function(stock.batch)
    given = raw_request(make_records(2)) | {"bought": np.zeros(2, np.float32)}
    made(given)
    wrong = np.array(values, given[name].dtype)
    with pytest.raises(tf.errors.InvalidArgumentError, match=rule):
        made(given | {name: wrong})


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
    features = transforms.apply(as_texts(records[:2], RAW_NAMES))
    made = tensors(pa.Table.from_batches([features]), model.columns)
    made["the_age"] = made.pop("the age")
    infinite = np.array([0.5, np.inf], np.float32)
    check_refused(path, "serving_default", {**made, "price": infinite})
    check_refused(path, "raw", {**raw_request(records[:2]), "price": infinite.astype(np.float64)})


def check_refused(path: Path, signature: str, given: Tensors) -> None:
    """Both loaders refuse an infinite price, and no other."""
    rule = "finite in float32, or NaN where they are missing.*not: *. .price"
    called = tf.saved_model.load(str(path)).signatures[signature]
    called(**{n: tf.constant(a) for n, a in (given | {"price": given["price"][:1]}).items()})
    with pytest.raises(tf.errors.InvalidArgumentError, match=rule):
        called(**{name: tf.constant(array) for name, array in given.items()})
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], str(path))
        declared = loaded.signature_def[signature]
        fetched = [each.name for each in declared.outputs.values()]
        with pytest.raises(tf.errors.InvalidArgumentError, match=rule):
            session.run(fetched, {declared.inputs[n].name: a for n, a in given.items()})
