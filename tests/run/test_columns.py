"""A recommender that names columns which the dataset lacks is refused before training."""

import dataclasses
from pathlib import Path

import pytest

from embedps.engine.recommender import Recommender
from embedps.engine.step_model import StepModel
from embedps.errors import UsageError
from embedps.models import dlrm
from embedps.run.preparation import check_columns
from embedps.tables import FeatureSpec, TableSpec
from tests.builders import SumNetwork, write_dataset


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": "click"}, "label is column 'click', but the label of"),
        ({"numerics": ("I1", "I99")}, "has no column 'I99', which the recommender reads"),
        (
            {"features": (FeatureSpec(name="C99", table="C1"),)},
            "has no column 'C99', which the recommender reads: its categorical columns are C1",
        ),
    ],
)
def test_an_absent_column_is_named(tmp_path: Path, change, message):
    dataset = write_dataset(tmp_path / "data")
    recommender = Recommender(
        tables=(TableSpec(name="C1", dim=2),),
        features=(FeatureSpec(name="C2", table="C1"),),
        numerics=("I1",),
        build=SumNetwork,
    )
    check_columns(recommender, dataset)
    with pytest.raises(UsageError, match=message):
        check_columns(dataclasses.replace(recommender, **change), dataset)


def test_an_absent_column_of_a_model_is_named(tmp_path: Path):
    dataset = write_dataset(tmp_path / "data")
    recommender = dlrm.make(dlrm.Config(), dataset)
    other = dataclasses.replace(recommender, columns=("label", "I1", "C77"))
    with pytest.raises(UsageError, match="has no column 'C77', which the model reads"):
        StepModel(other, dataset)
    fewer = dataclasses.replace(recommender, columns=("label", "I1", "C1"))
    with pytest.raises(UsageError, match="looks up feature 'C2', but the dataset has no such"):
        StepModel(fewer, dataset)
