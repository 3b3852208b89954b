"""Counts how often training visited each row of a dataset.

Every row of the dataset carries its own number. `--model benchmarks.row_visits` trains on it: the
number is an id of the table "row", which does not affect the prediction. Its updates are counted
like those of any table, so a checkpoint tells how often each row was visited.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.tools.replay import stream_table
from embedps.data.dataset import Dataset, describe_file
from embedps.data.dataset_metadata import CategoricalFeature, NumericFeature, Split
from embedps.engine.click_model import ClickModel
from embedps.engine.recommender import Recommender
from embedps.errors import CheckpointError
from embedps.layers.embeddings import Embeddings
from embedps.tables import FeatureSpec, MinCount, TableSpec

CARDINALITIES = {"C1": 50, "C2": 1000, "C3": 20000}
_ROW_GROUP_ROWS = 8192
_PRIME = np.uint64(0x9E3779B97F4A7C15)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """The widths of the network and the tables."""

    embedding_dim: int = dataclasses.field(default=8, metadata={"help": "floats per row"})
    row_dim: int = dataclasses.field(
        default=1, metadata={"help": "floats per row of the table of row numbers"}
    )
    hidden: int = dataclasses.field(default=32, metadata={"help": "width of the hidden layer"})
    min_count: int = dataclasses.field(
        default=1, metadata={"help": "visits after which the table of row numbers has a row"}
    )


class Visits(ClickModel):
    """One hidden layer over all features except the row numbers."""

    def __init__(self, config: Config, label: str) -> None:
        super().__init__(label=label)
        admission = MinCount(count=config.min_count) if config.min_count > 1 else None
        tables = [
            TableSpec(name=name, embedding_dim=config.embedding_dim) for name in CARDINALITIES
        ]
        tables.append(TableSpec(name="row", embedding_dim=config.row_dim, admission=admission))
        self.embeddings = Embeddings([FeatureSpec(name=t.name, table=t) for t in tables])
        self.hidden = tf.keras.layers.Dense(config.hidden, activation="relu")
        self.out = tf.keras.layers.Dense(1)

    def logits(self, features: Mapping[str, Any], *, training: bool) -> tf.Tensor:
        found = self.embeddings(features)
        rows = [found[name] for name in CARDINALITIES]
        out = self.out(self.hidden(tf.concat([features["I1"][:, None], *rows], axis=1)))
        return out[:, 0] + 0.0 * found["row"][:, 0]


def make(config: Config, dataset: Dataset) -> Recommender:
    """Makes the model of the columns of `write_dataset`."""
    return Recommender(build=lambda: Visits(config, dataset.label))


def write_dataset(
    directory: Path, *, train: Sequence[int], evaluation: Sequence[int], seed: int = 0
) -> Dataset:
    """Writes shards of the given numbers of rows; clicks follow from the ids."""
    splits, first, schema = {}, 0, {}
    for name, shards in (("train", train), ("eval", evaluation)):
        (directory / name).mkdir(parents=True, exist_ok=True)
        files, positives = [], 0
        for i, num_rows in enumerate(shards):
            table = make_rows(num_rows, seed=seed, first_row=first)
            first += num_rows
            schema = {field.name: str(field.type) for field in table.schema}
            positives += int(np.sum(table["label"].to_numpy()))
            path = directory / name / f"shard-{i:05d}-of-{len(shards):05d}.parquet"
            pq.write_table(table, path, row_group_size=_ROW_GROUP_ROWS, compression="zstd")
            files.append(describe_file(directory, path))
        splits[name] = Split(rows=sum(shards), positives=positives, files=tuple(files))
    Dataset(
        directory=directory,
        numeric=(NumericFeature(name="I1"),),
        categorical=tuple(
            CategoricalFeature(name=n, cardinality=c)
            for n, c in {**CARDINALITIES, "row": first}.items()
        ),
        schema=schema,
        splits=splits,
    ).save()
    return Dataset.open(directory)


def visits(model_dir: Path, num_rows: int) -> npt.NDArray[np.int64]:
    """Counts the updates of each training row in the newest checkpoint; int64 [num_rows]."""
    directory = CheckpointDirectory(model_dir)
    manifest = directory.latest()
    if manifest is None:
        raise CheckpointError(f"{model_dir} has no checkpoint")
    counts = np.zeros(num_rows, np.int64)
    _, batches = stream_table(directory, manifest, "row")
    for batch in batches:
        counts[batch["id"].to_numpy()] = batch["frequency"].to_numpy()
    return counts


def make_rows(num_rows: int, *, seed: int, first_row: int) -> pa.Table:
    """Makes rows that carry the numbers from `first_row` on."""
    rng = np.random.default_rng([seed, first_row])
    effects = np.random.default_rng(7)
    x = rng.exponential(1.0, num_rows)
    logits = 0.3 * (x - 1) - 0.5
    columns: dict[str, npt.NDArray[np.generic]] = {"I1": x.astype(np.float32)}
    for name, cardinality in CARDINALITIES.items():
        rank = np.minimum(rng.zipf(1.3, num_rows) - 1, cardinality - 1)
        logits += effects.normal(0, 1.0, cardinality)[rank]
        columns[name] = ((rank + 1).astype(np.uint64) * _PRIME).astype(np.int64)
    columns["row"] = np.arange(first_row, first_row + num_rows)
    columns["label"] = (rng.random(num_rows) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    schema = pa.schema(
        [pa.field(n, pa.from_numpy_dtype(c.dtype), nullable=False) for n, c in columns.items()]
    )
    return pa.table(columns, schema=schema)
