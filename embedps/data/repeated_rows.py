"""Tells whether rows that occur many times are all in one split.

Ingest holds rows out by a hash of their record, so equal records are in one split. If a dataset has
few kinds of rows, an id may have one label in one split, and the other label in the other.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from embedps.data.arrow_errors import naming
from embedps.data.dataset import Dataset

_MAX_ROWS = 200_000
_FEW = 0.5
"""Kinds of rows per row."""
SPLIT_APART = (
    "warning: most training rows are equal to others, and the eval split has none of them: its "
    "score is not that of rows like these. Equal records are in one split: give the input a column "
    "that tells them apart, such as a row's number"
)


def are_split_apart(dataset: Dataset) -> bool:
    """Tells whether the eval split has none of the training rows, most of which are repeated.

    It reads the first rows of each split. Of rows with lists this is not known. Where time or a key
    decides the split, that is as asked for.

    Raises:
      DatasetError: a file cannot be read.
    """
    if dataset.input.options.get("split_by") != "record":
        return False
    if not {"train", "eval"} <= dataset.splits.keys() or any(c.ragged for c in dataset.categorical):
        return False
    names = [dataset.label, *(c.name for c in dataset.numeric)]
    names += [c.name for c in dataset.categorical]
    train, held = (_first_rows(dataset, split, names) for split in ("train", "eval"))
    if train is None or held is None:
        return False
    kinds = _kinds(train)
    if kinds.num_rows > _FEW * train.num_rows:
        return False
    of_eval = _kinds(held)
    together = _kinds(pa.concat_tables([kinds, of_eval]))
    return bool(together.num_rows == kinds.num_rows + of_eval.num_rows)


def _first_rows(dataset: Dataset, split: str, names: list[str]) -> pa.Table | None:
    for path in dataset.paths(split):
        with naming(path), pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_MAX_ROWS, columns=names):
                return pa.Table.from_batches([batch])
    return None


def _kinds(rows: pa.Table) -> pa.Table:
    return rows.group_by(rows.column_names).aggregate([])
