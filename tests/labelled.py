"""A dataset of labels that are missing, soft or weighed each for itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embedps.data.dataset import Dataset, describe_file
from embedps.data.dataset_metadata import CategoricalFeature, LabelColumn, Split

LABELS = (
    LabelColumn(name="click", optional=True),
    LabelColumn(name="watched", optional=True, soft=True, weight="watch_weight"),
    LabelColumn(name="stars", kind="classes", classes=4, optional=True),
    LabelColumn(name="secs", kind="number", optional=True),
)


def make_columns(rows: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    item = rng.integers(0, 20, rows)
    signal = item / 10 - 1 + rng.normal(0, 0.5, rows)
    missing = {label.name: rng.random(rows) < 0.4 for label in LABELS}
    given: dict[str, Any] = {
        "click": (signal > 0).astype(np.float32),
        "watched": np.clip(0.5 + signal / 3, 0, 1).astype(np.float32),
        "stars": np.clip(signal + 2, 0, 3).astype(np.int64),
        "secs": signal.astype(np.float32),
    }
    labels = {n: np.where(missing[n], -1 if n == "stars" else np.nan, v) for n, v in given.items()}
    labels = {n: v.astype(given[n].dtype) for n, v in labels.items()}
    weights = {n: rng.integers(0, 4, rows).astype(np.float32) for n in ("weight", "watch_weight")}
    return {**labels, **weights, "item": item}


def write_dataset(directory: Path, columns: dict[str, np.ndarray], labels: Any = LABELS) -> Dataset:
    splits = {}
    for name in ("train", "eval"):
        path = directory / name / "shard-00000-of-00001.parquet"
        path.parent.mkdir(parents=True)
        fields = [pa.field(n, pa.array(v).type, nullable=False) for n, v in columns.items()]
        pq.write_table(pa.table(columns, pa.schema(fields)), path)
        rows = len(columns["item"])
        splits[name] = Split(rows=rows, positives=0, files=(describe_file(directory, path),))
    Dataset(
        directory=directory,
        label=labels[0].name,
        labels=labels,
        weight="weight",
        numeric=(),
        categorical=(CategoricalFeature(name="item", cardinality=20),),
        schema={n: str(pa.array(v).type) for n, v in columns.items()},
        splits=splits,
    ).save()
    return Dataset.open(directory)
