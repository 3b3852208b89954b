"""A recommender that names columns which the dataset lacks is refused before training."""

import dataclasses
from pathlib import Path

import pytest

from embedps.errors import UsageError
from embedps.run.preparation import check_columns
from embedps.tables import FeatureSpec
from models import dlrm
from tests.builders import write_dataset


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
    recommender = dlrm.make(dlrm.Config(), dataset)
    check_columns(recommender, dataset)
    with pytest.raises(UsageError, match=message):
        check_columns(dataclasses.replace(recommender, **change), dataset)
