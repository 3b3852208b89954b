"""Small datasets with a planted model, small recommenders, and runs over them."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import embedps
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.dense import read_dense
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.tools.replay import stream_table
from embedps.cluster.embedded import EmbeddedCluster
from embedps.cluster.interface import Cluster
from embedps.data.dataset import Dataset, describe_file
from embedps.data.dataset_function import DatasetSource
from embedps.data.dataset_metadata import CategoricalFeature, DataFile, NumericFeature, Split
from embedps.engine.recommender import Recommender
from embedps.models import dlrm
from embedps.run.config import TrainConfig
from embedps.tables import FeatureSpec, TableSpec
from embedps.training.callbacks import Callback
from embedps.training.trainer import Trainer
from tests.checkpoint.readers import newest_of

ROOT = Path(__file__).resolve().parents[1]
CARDINALITIES = {"C1": 40, "C2": 300, "C3": 2000}
NUMERICS = ("I1", "I2")
COLUMNS = (*NUMERICS, *CARDINALITIES)
LISTS = pa.list_(pa.field("element", pa.int64(), nullable=False))
TINY_DLRM = dlrm.Config(embedding_dim=4, bottom_mlp=(8,), top_mlp=(8,))
TINY_DLRM_FLAGS = ("--embedding-dim=4", "--bottom-mlp=8", "--top-mlp=8")
UNEVEN = ((100, 100, 37), (250,), (1,), (64, 64, 64, 64, 3), (999,))
LEARN: dict[str, Any] = {"sparse_learning_rate": 0.2, "dense_learning_rate": 0.05}
_PRIME = np.uint64(0x9E3779B97F4A7C15)


def make_rows(
    num_rows: int,
    *,
    seed: int,
    first_row: int = 0,
    bare: Container[int] = (),
    lists: pa.DataType = LISTS,
) -> pa.Table:
    """Examples whose clicks follow from their ids; `row` is unique and `tags` a ragged list.

    The `tags` of rows in `bare` are empty.
    """
    rng = np.random.default_rng(seed)
    effects = np.random.default_rng(7)
    logits = np.full(num_rows, -0.5)
    columns: dict[str, np.ndarray | list] = {}
    for name in NUMERICS:
        x = rng.exponential(1.0, num_rows)
        logits += 0.3 * (x - 1)
        columns[name] = np.where(rng.random(num_rows) < 0.1, np.nan, x).astype(np.float32)
    for name, cardinality in CARDINALITIES.items():
        rank = np.minimum(rng.zipf(1.3, num_rows) - 1, cardinality - 1)
        logits += effects.normal(0, 1.0, cardinality)[rank]
        ids = ((rank + 1).astype(np.uint64) * _PRIME).astype(np.int64)  # of all 64 bits
        columns[name] = np.where(rng.random(num_rows) < 0.05, -1, ids)
    columns["row"] = np.arange(first_row, first_row + num_rows)
    tags = [rng.integers(0, 30, n).tolist() for n in rng.integers(0, 4, num_rows)]
    columns["tags"] = [[] if first_row + i in bare else each for i, each in enumerate(tags)]
    columns["label"] = (rng.random(num_rows) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    types = {"label": pa.float32(), "row": pa.int64(), "tags": lists}
    types |= dict.fromkeys(NUMERICS, pa.float32()) | dict.fromkeys(CARDINALITIES, pa.int64())
    schema = pa.schema([pa.field(n, types[n], nullable=n == "tags") for n in columns])
    return pa.table(columns, schema=schema)


def write_dataset(
    directory: Path,
    *,
    train: Sequence[int] = (1500, 1500),
    evaluation: Sequence[int] = (1000,),
    row_group_rows: int = 500,
    seed: int = 0,
    untagged: Iterable[int] = (),
    whole: bool = False,
    lists: pa.DataType = LISTS,
) -> Dataset:
    """A dataset of shards of so many rows; some, by the numbers that rows carry, have no tags.

    It describes `tags` and `row` only if `whole`, for `SumModel`: `row` is a key.
    """
    splits, first, bare = {}, 0, frozenset(untagged)
    for name, shards in (("train", train), ("eval", evaluation)):
        (directory / name).mkdir(parents=True)
        files, positives = [], 0
        for i, num_rows in enumerate(shards):
            table = make_rows(
                num_rows, seed=1000 * seed + first, first_row=first, bare=bare, lists=lists
            )
            first += num_rows
            positives += int(np.sum(table["label"].to_numpy()))
            path = directory / name / f"shard-{i:05d}-of-{len(shards):05d}.parquet"
            pq.write_table(table, path, row_group_size=row_group_rows, compression="zstd")
            files.append(describe_file(directory, path))
        splits[name] = Split(rows=sum(shards), positives=positives, files=tuple(files))
    Dataset(
        directory=directory,
        numeric=tuple(NumericFeature(name=n) for n in NUMERICS),
        categorical=tuple(
            CategoricalFeature(name=n, cardinality=c, ragged=n == "tags")
            for n, c in (CARDINALITIES | ({"tags": 30} if whole else {})).items()
        ),
        keys=("row",) if whole else (),
        schema={f.name: str(f.type) for f in table.schema},
        splits=splits,
    ).save()
    return Dataset.open(directory)


def dataset_fixture(write: Callable[..., Dataset] = write_dataset, **fields: Any) -> Any:
    """Makes a module's fixture: a dataset, written once with these fields."""

    @pytest.fixture(scope="module")
    def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
        return write(tmp_path_factory.mktemp("data") / "set", **fields)

    return dataset


def read_split(dataset: Dataset, split: str = "eval") -> pa.Table:
    """Reads all rows of a split, in the order of its shards."""
    return pa.concat_tables([pq.read_table(path) for path in dataset.paths(split)])


def make_listed(
    files: Sequence[Sequence[int]] = UNEVEN, directory: str = "/data", checksum: int = 0
) -> Dataset:
    """A dataset that is not on disk: its training files by the rows of their row groups."""
    return Dataset(
        directory=Path(directory),
        numeric=(),
        categorical=(),
        schema={"label": "float"},
        splits={
            "train": Split(
                rows=sum(map(sum, files)),
                positives=0,
                files=tuple(
                    DataFile(
                        path=f"train/{i}.parquet",
                        rows=sum(groups),
                        bytes=1,
                        xxh3_64=f"{i + checksum:016x}",
                        row_groups=tuple(groups),
                    )
                    for i, groups in enumerate(files)
                ),
            )
        },
    )


def make_dlrm(dataset: Dataset, **options: Any) -> Recommender:
    """A tiny DLRM of a dataset's columns but `tags`."""
    columns = tuple(each for each in dataset.categorical if each.name != "tags")
    described = dataclasses.replace(dataset, categorical=columns)
    return dlrm.make(dataclasses.replace(TINY_DLRM, **options), described)


TABLES = (
    TableSpec(name="small", embedding_dim=3),
    TableSpec(name="wide", embedding_dim=6),
    TableSpec(name="row", embedding_dim=3),
)
FEATURES = (
    FeatureSpec(name="C1", table="small"),
    FeatureSpec(name="C2", table="small"),
    FeatureSpec(name="C3", table="wide"),
    FeatureSpec(name="tags", table="wide", ragged=True, combiner="mean"),
    FeatureSpec(name="row", table="row"),
)


class SumModel(embedps.ClickModel):
    """A layer over everything there is.

    By default it is of two dims, with a multi-hot feature and a table that two features share.
    """

    def __init__(
        self,
        features: Sequence[FeatureSpec] = FEATURES,
        tables: Sequence[TableSpec] = TABLES,
        label: str = "label",
    ) -> None:
        super().__init__(label=label)
        self.embeddings = embedps.Embeddings(features, tables=tables)
        self.last = tf.keras.layers.Dense(1)

    def numbers(self, features: Mapping[str, Any]) -> tf.Tensor:
        """The numeric columns, float32 [batch, columns], with 0 for what is missing."""
        numbers = features["numerics"]
        return tf.where(tf.math.is_nan(numbers), tf.zeros_like(numbers), numbers)

    def rows(self, features: Mapping[str, Any]) -> tf.Tensor:
        """The embeddings side by side, float32 [batch, floats]."""
        return tf.concat([*self.embeddings(features).values()], axis=1)

    def logits(self, features: Mapping[str, Any], *, training: bool) -> tf.Tensor:
        x = tf.concat([self.numbers(features), self.rows(features)], axis=1)
        return self.last(x)[:, 0]


MIXED = Recommender(build=SumModel)


def make_config(dataset: Dataset, model_dir: Path, **fields: Any) -> TrainConfig:
    """No checkpoint but the last, and units of a few batches."""
    values: dict[str, Any] = {
        "batch_size": 64,
        "unit_rows": 512,
        "delta_secs": 1e6,
        "log_secs": 1e6,
        "eval": "none",
    }
    return TrainConfig.from_options(
        data=str(dataset.directory), model_dir=str(model_dir), **(values | fields)
    )


def make_trainer(
    dataset: Dataset,
    model_dir: Path,
    *,
    recommender: Recommender | None = None,
    cluster: Cluster | None = None,
    callbacks: Sequence[Callback] = (),
    dataset_fn: DatasetSource | None = None,
    **fields: Any,
) -> Trainer:
    """A trainer of a tiny DLRM in this process, unless told otherwise."""
    config = make_config(dataset, model_dir, **fields)
    if cluster is None:
        cluster = EmbeddedCluster(
            num_workers=config.cluster.num_workers, num_shards=config.cluster.num_shards or 1
        )
    model = recommender or make_dlrm(dataset)
    return Trainer(model, dataset, config, cluster, callbacks=callbacks, dataset_fn=dataset_fn)


class Replay:
    """A copy of a finished run. Its manifests appear when a test commits them."""

    def __init__(self, source: Path, target: Path) -> None:
        shutil.copytree(source, target)
        self.source = CheckpointDirectory(source)
        self.directory = CheckpointDirectory(target)
        self.numbers = self.source.numbers()
        for number in self.numbers:
            self.directory.manifest_path(number).unlink()

    def commit(self, *numbers: int) -> None:
        for number in numbers:
            path = self.directory.manifest_path(number)
            hidden = path.with_name(f".{path.name}")
            shutil.copy(self.source.manifest_path(number), hidden)
            hidden.rename(path)


def latest(model_dir: Path) -> Manifest:
    return newest_of(CheckpointDirectory(model_dir))


def rows_of(model_dir: Path, table: str) -> dict[int, dict[str, Any]]:
    """Reads a table's rows of the last checkpoint by id, with their columns."""
    directory = CheckpointDirectory(model_dir)
    _, batches = stream_table(directory, latest(model_dir), table)
    return {row.pop("id"): row for batch in batches for row in batch.to_pylist()}


def dense_of(model_dir: Path) -> dict[str, np.ndarray]:
    """The network's variables of the newest checkpoint."""
    dense = latest(model_dir).dense
    assert dense is not None
    return read_dense(CheckpointDirectory(model_dir).file(dense))


def read_tags(folder: Path) -> set[str]:
    """The names of what a folder's TensorBoard events show."""
    return {
        value.tag
        for path in folder.glob("events.*")
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    }


class ActingCluster(EmbeddedCluster):
    """Does something with the number of each unit that is done, while none of the others ends."""

    def __init__(self, act: Callable[[int], object], **fields: int) -> None:
        super().__init__(**fields)
        self._numbers = itertools.count(1)
        self._act = act
        self._gate = threading.Lock()

    def fetch(self, result: Any) -> Any:
        value = super().fetch(result)
        with self._gate:
            self._act(next(self._numbers))
        return value
