"""An export's `raw` signature takes what the dataset was made of: its transforms in stock ops."""

from __future__ import annotations

import csv
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
from embedps.serving.stock_transforms import StockTransforms
from pipelines.ingestion.table_schema import Table
from pipelines.transforms import Transforms
from tests.builders import make_config
from tests.pipelines.shop import load as load_table
from tests.pipelines.shop import make
from tests.serving.builders import Tensors, ask

SCHEMA = """
missing = ["", "NA"]
[[column]]
name = "bought"
as = "label"
[[column]]
name = "time"
as = "timestamp"
type = "seconds"
[[column]]
name = "price"
as = "numeric"
transform = ["log1p", { clip = [0.5, 4] }, "standardize"]
[[column]]
name = "the age"
as = "numeric"
type = "integer"
[[column]]
name = "item"
as = "categorical"
type = "integer"
transform = [{ hash = 50 }]
[[column]]
name = "site"
as = "categorical"
type = "hex"
transform = [{ min_count = 8 }]
[[column]]
name = "pages"
as = "list"
type = "hex"
separator = "|"
transform = [{ min_count = 30 }]
[[column]]
name = "rare"
as = "categorical"
type = "integer"
transform = [{ min_count = 100000 }]
[[column]]
name = "wishes"
as = "list"
type = "integer"
separator = "|"
[[feature]]
name = "age_group"
from = "the age"
transform = [{ bucketize = [18, 40, 65] }, { hash = 3 }]
[[feature]]
name = "item_site"
cross = ["item", "site"]
[[feature]]
name = "hour"
from = "time"
transform = ["hour"]
[[feature]]
name = "day"
from = "time"
transform = ["weekday"]
[[feature]]
name = "days_left"
from = "time"
transform = [{ age = 2026-01-01 }]
"""


def make_records(rows: int) -> list[dict[str, str]]:
    rng = np.random.default_rng(3)
    sites = [f"{site:x}" for site in rng.integers(0, 2**63, 9)] + ["00", "0" * 9 + "aBc", "", "NA"]
    return [
        {
            "bought": str(rng.integers(0, 2)),
            "time": str(rng.integers(-(10**8), 2 * 10**9)),
            "price": rng.choice(["", "NA", "-3.5", f"{rng.lognormal():.4f}"]),
            "the age": rng.choice(["", str(rng.integers(-3, 90))]),
            "item": rng.choice(["", str(rng.integers(0, 2**63))]),
            "site": rng.choice([*sites, f"{rng.integers(0, 2**40):x}"]),
            "pages": "|".join(rng.choice(sites[:-2], rng.integers(0, 4))),
            "rare": str(rng.integers(0, 9)),
            "wishes": "|".join(map(str, rng.integers(0, 30, rng.integers(0, 3)))),
        }
        for _ in range(rows)
    ]


def write_csv(path: Path, records: list[dict[str, str]]) -> Path:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, records[0])
        writer.writeheader()
        writer.writerows(records)
    return path


def request_of(records: list[dict[str, str]]) -> Tensors:
    """The tensors of the schema's columns."""

    def numbers(name: str) -> Any:
        return np.array(
            [float("nan") if r[name] in ("", "NA") else float(r[name]) for r in records]
        )

    lists = {name: [r[name].split("|") if r[name] else [] for r in records] for name in LISTS}
    return {
        "time": np.array([int(r["time"]) for r in records]),
        "price": numbers("price"),
        "the_age": numbers("the age"),
        "item": np.array([int(r["item"] or -1) for r in records]),
        "site": np.array([r["site"].encode() for r in records], object),
        "pages": np.array([text.encode() for each in lists["pages"] for text in each], object),
        "wishes": np.array([int(text) for each in lists["wishes"] for text in each]),
        "rare": np.array([int(r["rare"]) for r in records]),
        **{f"{name}_lengths": np.array(list(map(len, lists[name]))) for name in LISTS},
    }


LISTS = ("pages", "wishes")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    directory = tmp_path_factory.mktemp("raw")
    table = load_table(directory, SCHEMA)
    return make(table, write_csv(directory / "log.csv", make_records(600)), directory / "set")


def test_features_are_those_of_the_pipeline(dataset: Dataset) -> None:
    records = make_records(200)
    transforms = Transforms.load(dataset.directory)
    wanted = transforms.apply(pa.RecordBatch.from_pylist(records))
    stock = StockTransforms(transforms.table, Columns.of(dataset), missing_id=-1)
    made = tf.function(stock.batch)(
        {name: tf.constant(value) for name, value in request_of(records).items()}
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
    for text in ("xyz", "8000000000000000", "1" * 17, " 1"):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"site.*must have hexadecimal"):
            tf.function(stock.batch)({"site": tf.constant([text])})
    assert stock.batch({"site": tf.constant(["0" * 30 + "7", "NA"])})["site"].shape == (2,)


def test_texts_are_refused_by_name(tmp_path: Path) -> None:
    text = SCHEMA.replace('type = "hex"\ntransform = [{ min_count = 8 }]', 'type = "string"')
    table: Table = load_table(tmp_path, text)
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
    wanted = model.predict(transforms.apply(pa.RecordBatch.from_pylist(records)))["score"]
    path = tmp_path / "e" / str(model.number)
    (found,) = ask({path: {"raw": [request_of(records), request_of(records[:1])]}})
    for loader in ("load", "session"):
        np.testing.assert_allclose(found[f"{loader}/raw/0/score"], wanted, rtol=1e-6)
        np.testing.assert_allclose(found[f"{loader}/raw/1/score"], wanted[:1], rtol=1e-6)
    assert len(np.unique(wanted)) > 100
