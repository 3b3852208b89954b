"""A run that watches inner rows: it never trains on them, stops by them, and ends with its best."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.tools.rollback import rollback
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.evaluation.evaluator import Evaluator
from embedps.run.summary import read_evaluations
from tests.builders import (
    SumModel,
    dataset_fixture,
    latest,
    make_config,
    make_dlrm,
    make_trainer,
    read_split,
    rows_of,
)

FIELDS: dict[str, Any] = {
    "epochs": 12,
    "eval": "inline",
    "inner_share": 0.2,
    "metric": "inner_loss",
    "stop_patience": 2,
    "sparse_learning_rate": 0.6,  # so that rows of one example learn its label by heart
}
SCORES = ("auc", "logloss", "normalized_entropy", "calibration")

dataset = dataset_fixture(whole=True)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Path:
    """A run that overfits from some epoch on, stops, and ends with its best."""
    model_dir = tmp_path_factory.mktemp("run")
    result = make_trainer(dataset, model_dir, end_with="best", **FIELDS).fit()
    told = result.summary["ended_with"]
    assert told["score"] < told["last_score"]
    assert f"ends with the best checkpoint again, inner_loss {told['score']:.5f}" in str(result)
    assert "ends clearly worse" not in str(result)
    assert result.checkpoint == latest(model_dir).number
    return model_dir


def test_newest_checkpoint_has_the_rows_and_the_network_of_the_best(dataset, ended):
    lines, directory = read_evaluations(ended), CheckpointDirectory(ended)
    best = min(lines, key=lambda line: line["inner_loss"])
    assert best["step"] < lines[-2]["step"]
    newest = latest(ended)
    assert newest.final
    assert (newest.step, newest.dense) == (best["step"], directory.read(best["number"]).dense)
    evaluator = Evaluator(make_dlrm(dataset), dataset, directory)
    found = evaluator.evaluate_latest(newer_than=-1)
    assert found is not None
    scored = found[1].to_json()
    assert {n: scored[n] for n in SCORES} == {n: best[n] for n in SCORES}
    assert {**best, "number": newest.number, "time": 0} == {**lines[-1], "time": 0}


def test_rerun_of_a_run_that_ended_with_its_best_changes_nothing(dataset, ended):
    numbers, lines = CheckpointDirectory(ended).numbers(), read_evaluations(ended)
    again = make_trainer(dataset, ended, end_with="best", **FIELDS)
    assert again.finished
    result = again.fit()
    assert (CheckpointDirectory(ended).numbers(), read_evaluations(ended)) == (numbers, lines)
    assert result.checkpoint == numbers[-1]
    assert "ends with the best checkpoint again" in str(result)


def test_run_goes_on_from_its_best(tmp_path, dataset, capfd):
    fields = FIELDS | {"epochs": 3, "stop_patience": 0, "end_with": "best"}
    first = make_trainer(dataset, tmp_path, **fields).fit()
    step = first.summary["ended_with"]["step"]
    more = make_trainer(dataset, tmp_path, **fields | {"epochs": 4}).fit()
    assert f"resumes from checkpoint {first.checkpoint}, step {step}" in capfd.readouterr().out
    assert more.units.done == more.units.total == first.units.total // 3 * 4


def test_run_that_ends_far_below_its_best_says_so_and_the_way_back_works(tmp_path, dataset):
    fields = FIELDS | {"eval": "none", "stop_patience": 0, "epochs": 9}
    result = make_trainer(dataset, tmp_path, **fields, keep_best=1).fit()
    best = min(result.scores, key=lambda score: score.get("inner_loss") or 9)
    names = ("loss", "auc", "auprc", "rmse", "mae")
    assert result.scores[-1].values.keys() == {f"inner_{name}" for name in names}
    assert best != result.scores[-1]
    found = re.search(r"ends clearly worse than it was: .* --to (\d+)`", str(result))
    assert found, str(result)
    directory = CheckpointDirectory(tmp_path)
    rollback(directory, int(found[1]))
    assert latest(tmp_path).step == directory.read(int(found[1])).step < result.scores[-1].step


def test_inner_rows_are_not_trained_on_and_all_others_are(tmp_path, dataset):
    """A table by the number of the row tells which rows were trained on."""
    recommender = Recommender(build=SumModel)
    fields: dict[str, Any] = {"inner_share": 0.1, "eval_units": 2, "num_workers": 3}
    trainer = make_trainer(dataset, tmp_path, recommender=recommender, **fields)
    assert trainer.fit().examples == 3000 - 6 * 50
    lines = read_evaluations(tmp_path)
    assert [line["examples"] for line in lines] == [300] * 3
    inner = {500 * unit + row for unit in range(6) for row in range(450, 500)}
    numbers = read_split(dataset, "train")["row"].to_pylist()
    held = {numbers[place] for place in inner}
    assert {*rows_of(tmp_path, "row")} == {*numbers} - held


def test_inner_rows_that_a_run_cannot_have_are_refused(tmp_path, dataset):
    with pytest.raises(UsageError, match="inner_share needs --eval inline or none"):
        make_config(dataset, tmp_path, inner_share=0.1, eval="sidecar")
    with pytest.raises(UsageError, match=r"end_with best need .* or --inner-share"):
        make_config(dataset, tmp_path, end_with="best")
    with pytest.raises(UsageError, match="eval_units needs --eval inline"):
        make_config(dataset, tmp_path, eval_units=2)
    with pytest.raises(UsageError, match=r"split 'train' has no 0.001 of a unit's rows"):
        make_trainer(dataset, tmp_path, inner_share=0.001)
    with pytest.raises(UsageError, match="which dataset_fn replaces"):
        make_trainer(dataset, tmp_path, inner_share=0.1, dataset_fn=lambda context: None)
