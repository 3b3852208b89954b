"""The public name of a dataset's transforms, for serving code: `pipelines.transforms.Transforms`.

The implementation is in `pipelines/ingestion/transforms.py`. Import from here: this name stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .ingestion.transforms import Transforms

if TYPE_CHECKING:
    from embedps.data.dataset import Dataset

    from .ingestion.raw_records import RawReader

__all__ = ["Transforms", "raw_reader"]


def raw_reader(
    dataset: Dataset, columns: Sequence[str], keep: Sequence[str], batch_rows: int
) -> RawReader:
    """Makes the reader of files of what a dataset was made of; see RawReader."""
    from .ingestion.raw_records import RawReader

    return RawReader(Transforms.of(dataset), columns, keep, batch_rows)
