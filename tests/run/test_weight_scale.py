"""Weights that are far from 1 are told before a model is trained with them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedps.run.weight_scale import far_weights
from tests import labelled
from tests.commands import finish, train


def columns_of(**weights: Any) -> dict[str, Any]:
    return {**labelled.make_columns(200, 3), **{n: np.float32(w) for n, w in weights.items()}}


@pytest.mark.parametrize("mean", [1e-6, 0.099, 10.1, 1e4])
def test_weights_far_from_1_are_told_by_name(tmp_path: Path, mean: float) -> None:
    weights = mean * np.linspace(0.5, 1.5, 200)
    one = labelled.write_dataset(tmp_path / "one", columns_of(weight=weights))
    said = far_weights(one)
    assert f"the weights weight have a mean of {mean:g} in the first 200 rows" in said
    other = labelled.write_dataset(tmp_path / "other", columns_of(watch_weight=weights))
    assert "the weights watch_weight have" in far_weights(other)
    unweighted = (dataclasses.replace(each, weight="") for each in other.labels)
    assert far_weights(dataclasses.replace(other, weight="", labels=tuple(unweighted))) == ""


@pytest.mark.parametrize("mean", [0.0, 0.101, 1.0, 9.9])
def test_weights_near_1_are_not_told(tmp_path: Path, mean: float) -> None:
    weights = mean * np.linspace(0.5, 1.5, 200)
    assert far_weights(labelled.write_dataset(tmp_path / "set", columns_of(weight=weights))) == ""


def test_a_dataset_without_files_has_no_weights_to_tell(tmp_path: Path) -> None:
    made = labelled.write_dataset(tmp_path / "set", columns_of(weight=np.full(200, 1e4)))
    assert far_weights(made)
    assert far_weights(dataclasses.replace(made, splits={})) == ""
    for path in made.paths("train"):
        path.unlink()
    assert far_weights(made) == ""


@pytest.mark.multiprocess
def test_a_run_says_so(tmp_path: Path) -> None:
    columns = columns_of(weight=np.full(200, 1e4))
    dataset = labelled.write_dataset(tmp_path / "set", columns, labelled.LABELS[:1])
    flags = ("--model=logistic_regression", "--eval=none", "--epochs=1")
    out = finish(train(dataset, tmp_path / "m", *flags))
    assert "warning: the weights weight have a mean of 10000 in the first 200 rows" in out
