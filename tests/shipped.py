"""Small datasets in the shape of each schema that ships, with planted effects of every column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embedps.data.dataset import Dataset, describe_file
from embedps.data.dataset_metadata import CategoricalFeature, NumericFeature, Split
from embedps.features.table_schema import SCHEMAS, Table

NAMES = tuple(sorted(path.stem for path in SCHEMAS.glob("*.toml")))
ROWS = {"train": 1024, "eval": 512}
LEARN: dict[str, Any] = {
    "sparse_learning_rate": 0.2,
    "dense_learning_rate": 0.01,
    "unit_rows": 256,
}
_CARDINALITY = 20


def write_dataset(name: str, directory: Path) -> Dataset:
    """Rows whose clicks follow from every column; some numbers and ids are missing."""
    table = Table.load(name)
    (label,) = (column.name for column in table.columns if column.role == "label")
    rng = np.random.default_rng(len(name))
    effects = rng.normal(0, 1.0, (len(table.features), _CARDINALITY))
    splits = {}
    for split, num_rows in ROWS.items():
        logits = np.zeros(num_rows)
        columns: dict[str, pa.Array] = {}
        for feature, of_id in zip(table.features, effects, strict=True):
            values: Any
            ids = rng.integers(0, _CARDINALITY, num_rows)
            if feature.kind == "numeric":
                values = np.where(rng.random(num_rows) < 0.1, np.nan, ids / 10).astype(np.float32)
                logits += ids / 10 - 1
            elif feature.kind == "categorical":
                values = np.where(rng.random(num_rows) < 0.05, -1, ids)
                logits += of_id[ids]
            else:
                values = [ids[i : i + n].tolist() for i, n in enumerate(ids % 4)]
                logits += [of_id[list_].sum() for list_ in values]
            columns[feature.name] = pa.array(values, feature.arrow_type, from_pandas=False)
        clicks = rng.random(num_rows) < 1 / (1 + np.exp(-logits))
        for field in table.output_schema:
            if field.name not in columns:  # the label, a weight, a time
                numbers = clicks.astype(np.int64) if field.name == label else np.arange(num_rows)
                columns[field.name] = pa.array(numbers).cast(field.type)
        path = directory / split / "shard-00000-of-00001.parquet"
        path.parent.mkdir(parents=True)
        arrays = [columns[field.name] for field in table.output_schema]
        pq.write_table(pa.table(arrays, table.output_schema), path, compression="zstd")
        file = describe_file(directory, path)
        splits[split] = Split(rows=num_rows, positives=int(clicks.sum()), files=(file,))
    weight, timestamp = table.role("weight"), table.role("timestamp")
    Dataset(
        directory=directory,
        numeric=tuple(NumericFeature(name=f.name) for f in table.features if f.kind == "numeric"),
        categorical=tuple(
            CategoricalFeature(name=f.name, cardinality=_CARDINALITY, ragged=f.kind == "list")
            for kind in ("categorical", "list")
            for f in table.features
            if f.kind == kind
        ),
        schema={field.name: str(field.type) for field in table.output_schema},
        splits=splits,
        source=name,
        label=label,
        weight="" if weight is None else weight.name,
        timestamp="" if timestamp is None else timestamp.name,
    ).save()
    return Dataset.open(directory)
