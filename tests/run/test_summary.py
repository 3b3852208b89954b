"""What summary.json and restarts.json have of a run."""

import json

import pytest

from embedps.errors import CheckpointError
from embedps.run.summary import (
    RESTARTS_NAME,
    SUMMARY_NAME,
    Restarts,
    read_evaluations,
    read_json,
    write_json,
)
from embedps.storage import file_io
from tests.builders import make_trainer, write_dataset


def test_summary_keeps_what_the_run_measured_that_had_something_to_do(tmp_path):
    dataset = write_dataset(tmp_path / "data")
    first = make_trainer(dataset, tmp_path / "m").fit().summary
    assert first == read_json(tmp_path / "m" / SUMMARY_NAME)
    again = make_trainer(dataset, tmp_path / "m").fit().summary
    assert again == read_json(tmp_path / "m" / SUMMARY_NAME)
    assert first["training"]["auc"] is not None
    for measured in ("wall_secs", "examples_per_sec", "training", "checkpoint"):
        assert again[measured] == first[measured], measured


def test_restarts_of_all_runs_are_counted_and_kept_at_once(tmp_path):
    restarts = Restarts(tmp_path)
    assert restarts.count(workers=0, evaluator=0) == {
        "worker_restarts": 0,
        "evaluator_restarts": 0,
    }
    assert not (tmp_path / RESTARTS_NAME).exists()
    restarts.count(workers=2, evaluator=0)  # and then it is killed
    assert Restarts(tmp_path).count(workers=1, evaluator=3) == {
        "worker_restarts": 3,
        "evaluator_restarts": 3,
    }
    assert json.loads((tmp_path / RESTARTS_NAME).read_text())["worker_restarts"] == 3


def test_counts_that_are_none_are_taken_as_zero(tmp_path):
    (tmp_path / RESTARTS_NAME).write_text('{"worker_restarts": "x", "evaluator_restarts": null}')
    assert Restarts(tmp_path).count(workers=1, evaluator=0)["worker_restarts"] == 1


def test_line_that_is_no_evaluation_is_passed_over(tmp_path):
    good = {"number": 3, "step": 9, "auc": None, "logloss": 0.5, "examples": 4}
    wrong = [{**good, "auc": "high"}, {**good, "examples": "4"}, {**good, "step": 9.5}, [good], 3]
    lines = [json.dumps(line) for line in (*wrong, good, {**good, "number": True})]
    (tmp_path / "evaluation.jsonl").write_text("\n".join(lines) + "\n")
    assert read_evaluations(tmp_path) == [good]


def test_two_processes_may_write_the_summary_at_once(tmp_path, monkeypatch):
    def rename_after_the_other(source, target):
        monkeypatch.undo()
        write_json(path, {"by": "the other"})
        file_io.rename(source, target)

    path = tmp_path / SUMMARY_NAME
    monkeypatch.setattr(file_io, "rename", rename_after_the_other)
    write_json(path, {"by": "this one"})
    assert read_json(path) == {"by": "this one"}
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(CheckpointError, match=r"cannot write '.*/none/summary.json'"):
        write_json(tmp_path / "none" / SUMMARY_NAME, {})
