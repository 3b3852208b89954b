"""Describes the columns of a Parquet file of generated examples, as a dataset does."""

from pathlib import Path

from embedps.data.dataset import Dataset
from embedps.data.dataset_metadata import CategoricalFeature, NumericFeature


def describe(num_numerics: int, num_categoricals: int) -> Dataset:
    """Describes label, I1, I2, ... and C1, C2, ...; the dataset lists no files."""
    numerics = tuple(f"I{i + 1}" for i in range(num_numerics))
    categoricals = tuple(f"C{i + 1}" for i in range(num_categoricals))
    return Dataset(
        directory=Path("generated"),
        numeric=tuple(NumericFeature(name=n) for n in numerics),
        categorical=tuple(CategoricalFeature(name=n, cardinality=0) for n in categoricals),
        schema={
            "label": "float",
            **dict.fromkeys(numerics, "float"),
            **dict.fromkeys(categoricals, "int64"),
        },
        splits={},
    )
