"""A dataset's transforms, which only a package beside this one can read."""

from __future__ import annotations

from typing import Any

from embedps.data.dataset import Dataset
from embedps.run.shipped_packages import import_shipped


def transforms_of(dataset: Dataset) -> Any:
    """Gives the dataset's Transforms (pipelines/ingestion/transforms.py)."""
    return import_shipped("pipelines.transforms").Transforms.of(dataset)
