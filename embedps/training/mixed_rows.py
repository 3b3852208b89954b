"""Copies the rows to train on, mixed within units, so that a unit's inner rows are any of it.

Inner rows are the end of a unit. Where a file is in the order of its users, that holds all rows of
a few users out: it scores how new users do, and not what an eval split of single rows is about.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embedps.data.arrow_errors import naming
from embedps.data.dataset import Dataset, describe_file
from embedps.errors import CheckpointError
from embedps.scheduling.division import LedgerOptions, split_into_ranges

_MOST_BYTES = 1 << 30


def are_single(dataset: Dataset) -> bool:
    """Tells whether a dataset's eval split is of single rows, and it is small enough to be copied.

    Of one that was split by users, by time or elsewhere, this is not known.
    """
    size = sum(file.bytes for file in dataset.split("train").files)
    return dataset.input.options.get("split_by") == "record" and size <= _MOST_BYTES


def write_mixed(dataset: Dataset, directory: Path, options: LedgerOptions) -> Dataset:
    """Writes the split "train" with the rows of each unit in another order.

    Which rows a unit has does not change. It needs the memory of a file.

    Args:
      dataset: of local files.
      directory: is written anew.
      options: how the split is divided; the order follows from its seed.

    Returns:
      The dataset of that split alone.

    Raises:
      DatasetError: a file cannot be read.
      CheckpointError: the directory cannot be written.
    """
    rng = np.random.default_rng(options.seed)
    whole = dataclasses.replace(options, inner_share=0.0, inner_fold=0, inner=False)
    ranges = split_into_ranges(dataset, whole)
    shutil.rmtree(directory, ignore_errors=True)
    files = []
    for file in dataset.split("train").files:
        source, target = dataset.absolute_path(file), directory / file.path
        order = np.arange(file.rows)
        for _, first, rows in (each for each in ranges if each[0] == str(source)):
            rng.shuffle(order[first : first + rows])
        with naming(source):
            table = pq.read_table(source).take(pa.array(order))
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with pq.ParquetWriter(target, table.schema) as writer:
                first = 0
                for rows in file.row_groups:
                    writer.write_table(table.slice(first, rows), row_group_size=max(1, rows))
                    first += rows
        except OSError as error:
            raise CheckpointError(f"{target}: cannot be written ({error.strerror})") from error
        files.append(describe_file(directory, target))
    split = dataclasses.replace(dataset.split("train"), files=tuple(files))
    return dataclasses.replace(dataset, directory=directory, splits={"train": split})
