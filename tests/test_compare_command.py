"""`embedps compare`: which of two checkpoints is better, on which slices, and whether by chance."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedps
from embedps import compare
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.console import command_line
from embedps.data.dataset import Dataset
from embedps.evaluation.sliced_scores import gauc
from embedps.models import mmoe
from tests import labelled, plain_scores
from tests.builders import make_config, read_split


def command(*flags: object) -> int:
    return command_line.run(compare.main, [str(flag) for flag in flags])


def logit(p: np.ndarray) -> np.ndarray:
    return np.log(p / (1 - p.astype(np.float64)))


def test_two_checkpoints_have_the_scores_of_each_and_of_each_slice(
    tmp_path: Path, history: Path, clicks: Dataset, scores: Any, capsys: Any
) -> None:
    first, *_, last = CheckpointDirectory(history).numbers()
    flags = (history, history, "--first-number", first, "--slices", "C1", "--max-slices", 3)
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, batch in zip(files, (97, 4096), strict=True):
        assert command(*flags, "--gauc", "C2", "--output", file, "--batch-size", batch) == 0
    assert files[0].read_text() == files[1].read_text()
    told = json.loads(files[0].read_text())
    assert (told["first"]["number"], told["second"]["number"]) == (first, last)
    table = read_split(clicks)
    labels, column = table["label"].to_numpy(), table["C1"].to_numpy()
    whole, *parts = told["results"]
    assert [part["slice"]["column"] for part in parts] == ["C1"] * 4
    assert parts[-1]["slice"]["value"] == "rest"
    assert sum(part["examples"] for part in parts) == whole["examples"] == len(labels)
    named = [int(part["slice"]["value"]) for part in parts[:-1]]
    rows = [np.ones(len(labels), bool), *(column == v for v in named), ~np.isin(column, named)]
    for result, chosen in zip(told["results"], rows, strict=True):
        assert result["examples"] == chosen.sum()
        for i, (which, number) in enumerate((("first", first), ("second", last))):
            y, p = labels[chosen], scores(number)[chosen]
            plain = plain_scores.click_scores(y, logit(p))
            assert result["scores"]["auc"][which] == pytest.approx(plain_scores.auc(y, p))
            assert result["scores"]["logloss"][which] == pytest.approx(plain["logloss"], rel=1e-5)
            assert result["calibration"][i] == pytest.approx(plain["calibration"], rel=1e-5)
    group = table["C2"].to_numpy()
    there = group != -1  # missing ids are no group
    assert 0 < there.sum() < len(there)
    for which, number in (("first", first), ("second", last)):
        wanted = gauc(group[there], scores(number)[there], labels[there].astype("f8"))
        assert whole["scores"]["gauc"][which] == pytest.approx(wanted)
    out = capsys.readouterr().out
    assert "label: model 2 has the better AUC: +0." in out
    assert "C1 rest" in out


def test_a_model_against_itself_is_noise(history: Path, capsys: Any) -> None:
    assert command(history, history, "--slices", "C2", "--max-slices", 100) == 0
    out = capsys.readouterr().out
    assert "the difference in AUC, +0.00000 (+0.00000 to +0.00000), may be noise" in out
    assert "C2 missing" in out
    assert "C2 -1 " not in out


def test_labels_that_are_missing_or_soft_or_weighed_are_compared_where_they_are(
    tmp_path: Path, capsys: Any
) -> None:
    columns = labelled.make_columns(640, 3)
    dataset = labelled.write_dataset(tmp_path / "set", columns)
    for name, epochs in (("a", 1), ("b", 4)):
        config = make_config(dataset, tmp_path / name, epochs=epochs, dense_learning_rate=0.01)
        embedps.Trainer.from_config(
            dataclasses.replace(config, model="mmoe"), mmoe.Config(num_experts=2)
        ).fit()
    compared = compare.compare(
        compare.CompareConfig(first=str(tmp_path / "a"), second=str(tmp_path / "b"))
    )
    found = {result["label"]: result for result in compared["results"]}
    assert found.keys() == {"click", "watched"}
    assert found["click"]["examples"] == np.isfinite(columns["click"]).sum()
    assert found["click"]["scores"].keys() == {"auc", "logloss", "weighted_logloss"}
    assert found["watched"]["scores"].keys() == {"logloss", "weighted_logloss"}
    model = embedps.load(tmp_path / "b")
    there = np.isfinite(columns["watched"])
    p = model.predict({"item": columns["item"]})["watched"][there]
    y, w = columns["watched"][there], columns["watch_weight"][there]
    plain = plain_scores.click_scores(y, logit(p), w)["logloss"]
    assert found["watched"]["scores"]["weighted_logloss"]["second"] == pytest.approx(plain)
    assert command(tmp_path / "a", tmp_path / "b", "--label", "watched") == 0
    assert "watched: there is no AUC or GAUC of labels between 0 and 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--slices", "I1"), "slices and groups go by columns of one id, key or time per example"),
        (("--gauc", "nope"), "but 'nope' is none of"),
        (("--label", "I1"), "--label I1 must be a binary label of"),
        (("--max-slices", "0"), "max_slices must be at least 1"),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    history: Path, capsys: Any, flags: tuple[str, ...], message: str
) -> None:
    assert command(history, history, *flags) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
