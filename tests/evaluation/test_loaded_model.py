"""`embedps.load`: a checkpoint's model scores records as its evaluation scored examples."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import embedps
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.metrics import Accumulator, click_scores, count
from embedps.models import dlrm
from tests.builders import (
    MIXED,
    TINY_DLRM,
    dataset_fixture,
    latest,
    make_config,
    make_trainer,
    read_split,
    write_dataset,
)


def scores_of(totals):
    found = click_scores(totals["sums"], totals["histograms"])
    return {name: float(value) for name, value in found.items()}


dataset = dataset_fixture()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> tuple[Path, Any]:
    """A run of a built-in model, by its name, and its last score."""
    model_dir = tmp_path_factory.mktemp("run") / "m"
    config = make_config(dataset, model_dir, eval="inline", model="dlrm")
    result = embedps.Trainer.from_config(config, TINY_DLRM).fit()
    return model_dir, result.scores[-1]


def test_scores_are_those_of_the_evaluation(dataset: Dataset, run: tuple[Path, Any]) -> None:
    model_dir, score = run
    model = embedps.load(model_dir)
    assert model.number == latest(model_dir).number == score.number
    table = read_split(dataset)
    found = model.predict(table)["score"]
    assert found.dtype == np.float32
    assert found.shape == (table.num_rows,)
    logits = np.log(found.astype(np.float64) / (1 - found.astype(np.float64)))
    counts = count(table["label"].to_numpy(), logits.astype(np.float32))
    total = Accumulator(scores_of)
    total.add({"examples": counts.sums[0], "loss": counts.sums[2], **counts._asdict()})
    assert total.result().auc == pytest.approx(score.auc, abs=1e-5)
    assert total.result().logloss == pytest.approx(score.logloss, rel=1e-5)
    # In parts, and as other kinds of records.
    few = table.slice(10, 7)
    for records in (few, few.combine_chunks().to_batches()[0], few.to_pydict()):
        np.testing.assert_array_equal(model.predict(records)["score"], found[10:17])
    for row in range(20):
        alone = model.predict(table.slice(row, 1))["score"]
        np.testing.assert_array_equal(alone, found[row : row + 1])


def test_what_is_missing_or_never_seen_is_scored(run: tuple[Path, Any]) -> None:
    model = embedps.load(run[0])
    rows = model.collection.stats().rows
    unseen: dict[str, Any] = {n: [10**15, 10**15 + 1] for n in ("C1", "C2", "C3")}
    none = {"C1": [None, -1], "C2": [None, -1], "C3": [None, -1]}
    numbers: dict[str, Any] = {"I1": [None, float("nan")], "I2": [0.5, 0.5]}
    for ids in (unseen, none):
        first, second = model.predict(ids | numbers)["score"]
        assert 0 < first == second < 1
    assert model.collection.stats().rows == rows
    empty = model.predict({**{n: pa.array([], pa.int64()) for n in none}, "I1": [], "I2": []})
    assert empty["score"].shape == (0,)


def test_lists_of_ids_are_scored(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", whole=True)
    make_trainer(dataset, tmp_path / "m", recommender=MIXED).fit()
    model = embedps.load(tmp_path / "m", recommender=MIXED, data=dataset.directory)
    table = read_split(dataset).slice(0, 50)
    whole = model.predict(table)["score"]
    records = table.to_pydict()
    records["tags"] = [tags or None for tags in records["tags"]]
    np.testing.assert_array_equal(model.predict(records)["score"], whole)
    assert len(np.unique(whole)) > 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"C1": None}, "have no column 'C1', which the model reads: they have I1, I2, C2, C3"),
        ({"C2": ["a"]}, "column 'C2' must have int64 ids but has string: make features of raw"),
        ({"C2": [1.5]}, "column 'C2' must have int64 ids but has double"),
        ({"I1": ["x"]}, "column 'I1' must have numbers but has string"),
        ({"I1": [1.0, 2.0]}, "records must be columns of equal length"),
        ({"C1": [2**64 - 1]}, "records must be columns of equal length: .*int too"),
    ],
)
def test_wrong_records_are_named(run: tuple[Path, Any], change: Any, message: str) -> None:
    records: dict[str, Any] = {"I1": [0.0], "I2": [1.0], "C1": [1], "C2": [2], "C3": [3]} | change
    model = embedps.load(run[0])
    with pytest.raises(UsageError, match=message) as refused:
        model.predict({k: v for k, v in records.items() if v is not None})
    assert "\n" not in str(refused.value)


def test_what_cannot_be_loaded_is_named(tmp_path: Path, dataset: Dataset) -> None:
    with pytest.raises(UsageError, match=r"config.json is not there: --model-dir must be one"):
        embedps.load(tmp_path)
    recommender = dlrm.make(TINY_DLRM, dataset)
    with pytest.raises(UsageError, match="has no checkpoint yet: train first"):
        embedps.load(tmp_path, recommender=recommender, data=dataset.directory)
    make_trainer(dataset, tmp_path, recommender=recommender).fit()
    with pytest.raises(UsageError, match="with a recommender, load needs data"):
        embedps.load(tmp_path, recommender=recommender)
