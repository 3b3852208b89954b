"""`embedps.load`: a checkpoint's model scores records as its evaluation scored examples."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import embedps
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.evaluation.evaluator import Evaluator
from embedps.evaluation.loaded_model import LoadedModel
from embedps.metrics import click_scores, count
from tests.builders import MIXED, latest, make_dlrm, read_split


@pytest.fixture(scope="module")
def model(history: Path) -> LoadedModel:
    return embedps.load(history)


def test_scores_are_those_of_the_evaluation(
    clicks: Dataset, history: Path, model: LoadedModel
) -> None:
    evaluator = Evaluator(make_dlrm(clicks), clicks, CheckpointDirectory(history))
    evaluated = evaluator.evaluate_latest(newer_than=-1)
    assert evaluated is not None
    assert model.number == latest(history).number == evaluated[1].number
    table = read_split(clicks)
    found = model.predict(table)["score"]
    assert found.dtype == np.float32
    assert found.shape == (table.num_rows,)
    logits = np.log(found.astype(np.float64) / (1 - found.astype(np.float64)))
    counts = count(table["label"].to_numpy(), logits.astype(np.float32))
    total = click_scores(counts.sums, counts.histograms)
    score = evaluated[1].metrics
    assert float(total["auc"]) == pytest.approx(score.auc, abs=1e-5)
    assert float(total["logloss"]) == pytest.approx(score.logloss, rel=1e-5)
    # In parts, and as other kinds of records.
    few = table.slice(10, 7)
    for records in (few, few.combine_chunks().to_batches()[0], few.to_pydict()):
        np.testing.assert_array_equal(model.predict(records)["score"], found[10:17])
    for row in range(20):
        alone = model.predict(table.slice(row, 1))["score"]
        np.testing.assert_array_equal(alone, found[row : row + 1])


def test_what_is_missing_or_never_seen_is_scored(model: LoadedModel) -> None:
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


def test_lists_of_ids_are_scored(mixed: tuple[Dataset, Path]) -> None:
    dataset, model_dir = mixed
    model = embedps.load(model_dir, recommender=MIXED, data=dataset.directory)
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
        ({"I1": [np.inf]}, "column 'I1' must have numbers that are finite .*, but value 0 is inf"),
        ({"I2": [-1e39]}, "'I2' must have numbers that are finite in float32, .* is -1e[+]39"),
        ({"I1": [1.0, 2.0]}, "records must be columns of equal length"),
        ({"C1": [2**64 - 1]}, "records must be columns of equal length: .*int too"),
    ],
)
def test_wrong_records_are_named(model: LoadedModel, change: Any, message: str) -> None:
    records: dict[str, Any] = {"I1": [0.0], "I2": [1.0], "C1": [1], "C2": [2], "C3": [3]} | change
    with pytest.raises(UsageError, match=message) as refused:
        model.predict({k: v for k, v in records.items() if v is not None})
    assert "\n" not in str(refused.value)


def test_a_column_that_is_there_twice_is_named(model: LoadedModel) -> None:
    names = ["I1", "I2", "C1", "C2", "C3", "C2"]
    values = [[0.5], [1.0], [1], [2], [3], [4]]
    with pytest.raises(UsageError, match="must have column 'C2' once but have it 2 times"):
        model.predict(pa.table([pa.array(each) for each in values], names=names))


def test_what_cannot_be_loaded_is_named(tmp_path: Path, clicks: Dataset, history: Path) -> None:
    with pytest.raises(UsageError, match=r"config.json is not there: --model-dir must be one"):
        embedps.load(tmp_path)
    recommender = make_dlrm(clicks)
    with pytest.raises(UsageError, match="has no checkpoint yet: train first"):
        embedps.load(tmp_path, recommender=recommender, data=clicks.directory)
    with pytest.raises(UsageError, match="with a recommender, load needs data"):
        embedps.load(history, recommender=recommender)
