"""Builders of collections on this process's CPU; reads their rows from the files they write."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import tensorflow as tf

from embedps import kernels
from embedps.checkpoint.format.quantize import decode
from embedps.storage import file_io
from embedps.tables import FeatureSpec, Initializer, TableSpec
from embedps.tables.byte_limits import ServerLimit
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.row_files import StoredFile

_containers = itertools.count()


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a checkpoint."""

    embedding: tuple[float, ...]
    slots: tuple[tuple[float, ...], ...]
    last_step: int
    frequency: int


Rows = dict[tuple[str, int], Row]


def make_collection(
    tables: Sequence[TableSpec],
    features: Sequence[FeatureSpec] | None = None,
    *,
    num_shards: int = 1,
    trainable: bool = True,
    server_limit: ServerLimit | None = None,
    keeps_evicted: bool = False,
) -> EmbeddingCollection:
    """Makes a collection in its own container. By default each table has one feature."""
    if features is None:
        features = [FeatureSpec(name=t.name, table=t.name) for t in tables]
    return EmbeddingCollection(
        tables,
        features,
        devices=["/device:CPU:0"] * num_shards,
        container=f"test-{next(_containers)}",
        trainable=trainable,
        server_limit=server_limit,
        keeps_evicted=keeps_evicted,
    )


def make_table(name: str = "t", embedding_dim: int = 4, **fields) -> TableSpec:
    return TableSpec(name=name, embedding_dim=embedding_dim, **fields)


def constant(value: float) -> Initializer:
    return Initializer(kind="constant", low=value)


def ids(*values: int) -> tf.Tensor:
    return tf.constant(values, tf.int64)


def ragged(bags: Sequence[Sequence[int]]) -> tf.RaggedTensor:
    return tf.ragged.constant(bags, dtype=tf.int64, ragged_rank=1, row_splits_dtype=tf.int64)


def run_step(
    collection: EmbeddingCollection,
    batch: Mapping[str, tf.Tensor],
    loss_of: Callable[[Mapping[str, tf.Tensor]], tf.Tensor],
    *,
    learning_rate: float = 0.5,
    step: int | tf.Tensor = 1,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Runs a step, eagerly or in a graph; returns its loss and each feature's vectors."""
    number = tf.convert_to_tensor(step, tf.int64)
    result = collection.lookup(batch, insert=True, step=number)
    with tf.GradientTape() as tape:
        tape.watch(result.rows)
        vectors = collection.combine(result)
        loss = loss_of(vectors)
    gradients, rate = tape.gradient(loss, result.rows), tf.constant(learning_rate)
    collection.update(result, gradients, learning_rate=rate, step=number)
    return loss, vectors


def train(
    collection: EmbeddingCollection,
    batch: Mapping[str, tf.Tensor],
    upstream: Mapping[str, np.ndarray],
    *,
    learning_rate: float = 0.5,
    step: int = 1,
) -> dict[str, np.ndarray]:
    """Runs a step whose loss has the gradient `upstream`; returns each feature's vectors."""
    _, vectors = run_step(
        collection,
        batch,
        lambda found: tf.add_n([tf.reduce_sum(found[f] * upstream[f]) for f in found]),
        learning_rate=learning_rate,
        step=step,
    )
    return {name: value.numpy() for name, value in vectors.items()}


def look(
    collection: EmbeddingCollection, batch: Mapping[str, tf.Tensor], *, insert: bool = False
) -> dict[str, np.ndarray]:
    """Looks up each feature's vectors."""
    vectors = collection.combine(collection.lookup(batch, insert=insert))
    return {name: value.numpy() for name, value in vectors.items()}


def remove(collection: EmbeddingCollection, table: str, gone: Sequence[int]) -> int:
    """Removes rows by id from all shards."""
    removed = 0
    for group, stores in zip(collection.groups, collection._stores, strict=True):
        names = [t.name for t in group.tables]
        if table in names:
            for store in stores:
                index = names.index(table)
                removed += int(kernels.load().embedps_remove(store, ids(*gone), table=index))
    return removed


def _records(path: str) -> Iterator[tuple[str, int, bool, Row]]:
    with pa.OSFile(path) as file:
        table = decode(path, pa.ipc.open_file(file).read_all())
    fixed = {"table", "id", "embedding", "last_step", "frequency", "removed"}
    slots = [n for n in table.column_names if n not in fixed]
    columns = {name: table[name].to_pylist() for name in table.column_names}
    for i in range(table.num_rows):
        row = Row(
            embedding=tuple(columns["embedding"][i]),
            slots=tuple(tuple(columns[s][i]) for s in slots),
            last_step=columns["last_step"][i],
            frequency=columns["frequency"][i],
        )
        yield columns["table"][i], columns["id"][i], columns["removed"][i], row


def rows_in(paths: Sequence[str]) -> Rows:
    """Returns the rows of a reader that applies the files' records in order."""
    rows: Rows = {}
    for path in paths:
        for table, id_, removed, row in _records(path):
            if removed:
                rows.pop((table, id_), None)
            else:
                rows[table, id_] = row
    return rows


def num_records(paths: Sequence[str]) -> int:
    return sum(1 for path in paths for _ in _records(path))


def rows_of(collection: EmbeddingCollection, folder: Path, since=None) -> Rows:
    """Writes a base and returns every row."""
    files = collection.files.write("base", str(folder), since=since or {})
    assert sum(f.rows for f in files) == num_records([f.path for f in files])
    return rows_in([f.path for f in files])


def group_files(files) -> dict[str, list[StoredFile]]:
    """Turns the result of `RowFiles.write` into the argument of `RowFiles.load`."""
    by_group: dict[str, list[StoredFile]] = {}
    for file in files:
        by_group.setdefault(file.group, []).append(file.stored)
    return by_group


def as_stored(path: Path | str) -> StoredFile:
    """Describes a file as it is now."""
    return StoredFile(str(path), *file_io.checksum_file(Path(path)))


def cuts_of(files) -> dict[tuple[str, int], int]:
    """Returns the `since` for the next `RowFiles.write`."""
    return {(f.group, f.shard): f.cut for f in files}
