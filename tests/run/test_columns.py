"""A recommender that names columns which the dataset lacks is refused before training."""

import dataclasses
from pathlib import Path

import pytest

from embedps.engine.step_model import StepModel
from embedps.errors import UsageError
from embedps.models import dlrm
from tests.builders import write_dataset


def test_an_absent_column_of_a_model_is_named(tmp_path: Path):
    dataset = write_dataset(tmp_path / "data")
    recommender = dlrm.make(dlrm.Config(), dataset)
    other = dataclasses.replace(recommender, columns=("label", "I1", "C77"))
    with pytest.raises(UsageError, match="has no column 'C77', which the model reads"):
        StepModel(other, dataset)
    fewer = dataclasses.replace(recommender, columns=("label", "I1", "C1"))
    with pytest.raises(UsageError, match="looks up feature 'C2', but the dataset has no such"):
        StepModel(fewer, dataset)
