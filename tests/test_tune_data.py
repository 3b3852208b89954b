"""`embedps tune` on data that is small or odd, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from embedps import tune
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.console import command_line
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.run.candidates import MODELS, Candidate, first_candidates
from embedps.run.summary import read_json, write_json
from tests import labelled
from tests.builders import write_dataset
from tests.tuning_helpers import only_tries, refused, write_rows


def test_dataset_of_50_rows_with_constant_columns_is_tuned_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = write_rows(tmp_path / "set", label=np.arange(50) % 3 == 0)
    known = first_candidates(dataset, MODELS)
    assert not any("cross" in each.options for each in known)  # one id has no pairs
    monkeypatch.setattr(tune, "_FOLDS_OF_FEW", 2)
    only_tries(monkeypatch, known[0])
    monkeypatch.setattr(tune, "are_split_apart", lambda of: of == dataset)
    flags = [f"--data={dataset.directory}", f"--model-dir={tmp_path / 'm'}", "--metric=auprc"]
    assert command_line.run(tune.main, flags) == 0
    assert capsys.readouterr().out.count("most training rows are equal to others") == 1
    record = read_json(tmp_path / "m" / tune.FILE_NAME)
    (scores,) = (t["scores"] for t in record["tried"].values() if len(t["scores"]) == 2)
    assert all(0 < score <= 1 for score in scores)
    assert read_json(tmp_path / "m" / "summary.json")["units"]["done"] == 2


def test_a_model_that_tells_held_out_labels_without_error_is_suspected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, labels = np.random.default_rng(0), np.arange(400) % 3 == 0
    honest, leaking = (
        write_rows(tmp_path / name, label=labels, x=noise)
        for name, noise in (("honest", rng.normal(labels, 1)), ("leaking", 100.0 * labels))
    )
    monkeypatch.setattr(tune, "_FOLDS_OF_FEW", 2)
    of_numbers = {"dense_learning_rate": 0.3, "sparse_learning_rate": 0.001}
    only_tries(monkeypatch, Candidate(model="logistic_regression", options=of_numbers))
    for dataset, wanted in ((honest, False), (leaking, True)):
        model_dir = tmp_path / f"m{wanted}"
        flags = [f"--data={dataset.directory}", f"--model-dir={model_dir}", "--metric=auc"]
        assert command_line.run(tune.main, flags) == 0
        assert ("column is made of the label" in capsys.readouterr().out) is wanted
    entropy = -math.log(1 / 3) / 3 - 2 * math.log(2 / 3) / 3
    for share, wanted in ((0.01, True), (0.1, False)):
        assert tune._is_too_good("inner_loss", share * entropy, honest) is wanted
    assert not tune._is_too_good("inner_gauc", 1.0, honest)


def test_weights_far_from_1_and_a_model_of_no_use_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = labelled.make_columns(640, 3)
    columns["weight"] = (1000 + columns["weight"]).astype(np.float32)
    dataset = labelled.write_dataset(tmp_path / "set", columns, labelled.LABELS[:1])
    monkeypatch.setattr(tune, "_FOLDS_OF_FEW", 2)
    only_tries(monkeypatch, Candidate(model="logistic_regression", options={}))
    flags = [f"--data={dataset.directory}", f"--model-dir={tmp_path / 'm'}"]
    assert command_line.run(tune.main, flags) == 0
    said = capsys.readouterr().out
    assert f"the weights weight have a mean of {columns['weight'].mean():g}, and multiply" in said
    there = columns["click"][np.isfinite(columns["click"])]
    share = float(there.mean())
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    for score, wanted in ((entropy * 1.001, True), (entropy * 0.999, False)):
        assert tune._is_useless("inner_loss", score, dataset) is wanted
    score = read_json(tmp_path / "m" / tune.FILE_NAME)["chosen"]["score"]
    assert ("better than the share of positives alone" in said) is (score >= entropy)
    assert tune._is_useless("inner_auc", 0.5, dataset)
    plain = dataclasses.replace(dataset, weight="")
    assert tune._of_weights(plain) is None


def test_what_cannot_be_tuned_is_refused_in_one_line(
    clicks: Dataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, where = f"--data={clicks.directory}", f"--model-dir={tmp_path / 'm'}"
    assert "must be of logistic_regression" in refused(capsys, data, where, "--models=sasrec")
    assert "needs --gauc COLUMN" in refused(capsys, data, where, "--metric=gauc")
    assert "--watch" in refused(capsys, data, where, "--watch=D")
    assert "minutes must be above 0" in refused(capsys, data, where, "--minutes=0")
    assert "needs a local --model-dir" in refused(capsys, data, "--model-dir=s3://b/m")
    few = write_dataset(tmp_path / "few", train=(12,), evaluation=(10,))
    assert "is too small to tune on" in refused(capsys, f"--data={few.directory}", where)
    same = write_rows(tmp_path / "same", label=np.ones(500))
    assert "label of" in (error := refused(capsys, f"--data={same.directory}", where))
    assert "is 1 in all training rows: there is nothing to learn" in error
    late = write_rows(tmp_path / "late", label=np.arange(500) < 400)
    error = refused(capsys, f"--data={late.directory}", where)
    assert "one of 100 rows has 0 positives" in error
    assert not (tmp_path / "m").exists()
    (tmp_path / "m").mkdir()
    for content, wanted in (
        ({}, "is not what embedps tune writes"),
        ({"format": "embedps.tuning", "rows": "x"}, "rows is"),
    ):
        write_json(tmp_path / "m" / tune.FILE_NAME, content)
        assert wanted in refused(capsys, data, where)
    cluster = {"cluster": {"chief": ["a:1"], "ps": ["b:1"]}, "task": {"type": "chief", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    assert "trains in one process" in refused(capsys, data, where)


def test_unknown_score_is_refused_with_those_that_there_are(
    clicks: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [f"--data={clicks.directory}", f"--model-dir={tmp_path}", "--metric=accuracy"]
    flags += ["--models=logistic_regression"]
    assert command_line.run(tune.main, flags) == UsageError.exit_code
    assert "no score 'inner_accuracy' to go by: the model has inner_loss, inner_auc" in (
        capsys.readouterr().err
    )
    assert CheckpointDirectory(tmp_path).latest() is None
