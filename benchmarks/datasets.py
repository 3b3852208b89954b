"""Makes datasets for measurements: of generated clicks, and of tables of ids and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import child
from embedps.data.dataset import ROW_GROUP_ROWS, Dataset, describe_file
from embedps.data.dataset_metadata import CategoricalFeature, LabelColumn, Split


def generate_clicks(folder: Path, rows: int) -> Dataset:
    """Generates a log of clicks in a folder, and makes FOLDER/data of it."""
    log, data = str(folder / "day_0.tsv"), folder / "data"
    child.run("embedps.pipelines.generate", "--rows", str(rows), "--output", log)
    child.run("embedps.pipelines.criteo", "--input", log, "--output", str(data))
    return Dataset.open(data)


def write_dataset(
    directory: Path, tables: Mapping[str, pa.Table], *, labels: Sequence[LabelColumn]
) -> Dataset:
    """Writes the tables of the splits, one file each; columns other than labels are ids."""
    splits = {}
    for name, table in tables.items():
        path = directory / name / "shard-00000-of-00001.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(table, path, row_group_size=ROW_GROUP_ROWS, compression="zstd")
        file = describe_file(directory, path)
        positives = int(np.count_nonzero(table[labels[0].name].to_numpy()))
        splits[name] = Split(rows=table.num_rows, positives=positives, files=(file,))
    schema = next(iter(tables.values())).schema
    names = [label.name for label in labels]
    Dataset(
        directory=directory,
        label=names[0],
        labels=tuple(labels),
        numeric=(),
        categorical=tuple(
            CategoricalFeature(name=f.name, cardinality=1, ragged=pa.types.is_list(f.type))
            for f in schema
            if f.name not in names
        ),
        schema={field.name: str(field.type) for field in schema},
        splits=splits,
    ).save()
    return Dataset.open(directory)
