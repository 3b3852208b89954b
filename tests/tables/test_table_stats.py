"""Counts per table and shard add up, and a table's bytes are those of a store of it alone."""

import numpy as np
import tensorflow as tf

from embedps.tables import FeatureSpec, TableSpec
from tests.kernels import twins
from tests.tables.builders import make_collection

TABLES = [
    TableSpec(name="a", embedding_dim=4),
    TableSpec(name="b", embedding_dim=4),
    TableSpec(name="c", embedding_dim=8),
]


def insert(tables: list[TableSpec], ids: dict[str, np.ndarray], num_shards: int):
    features = [FeatureSpec(name=t.name, table=t.name, ragged=True) for t in tables]
    collection = make_collection(tables, features, num_shards=num_shards)
    lists = {
        name: tf.RaggedTensor.from_row_splits(values, tf.constant([0, len(values)], tf.int64))
        for name, values in ids.items()
    }
    collection.lookup(lists, insert=True)
    return collection


def test_each_shard_counts_its_own_rows_and_bytes():
    ids = {"a": np.arange(500), "b": np.arange(70_000), "c": np.arange(3)}
    collection = insert(TABLES, ids, 2)
    shards, total = collection.shard_stats(), collection.stats()
    for name, values in ids.items():
        expected = np.bincount(twins.shard_of(name, values, 2), minlength=2)
        assert [shard.rows[name] for shard in shards] == expected.tolist()
        assert total.rows[name] == len(values)
        assert total.table_bytes[name] == sum(shard.table_bytes[name] for shard in shards)
    assert total.memory_bytes == sum(shard.memory_bytes for shard in shards)
    for shard in shards:
        assert shard.memory_bytes >= sum(shard.table_bytes.values())


def test_bytes_of_a_table_do_not_depend_on_the_tables_beside_it():
    ids = {"a": np.arange(500), "b": np.arange(70_000), "c": np.arange(3)}
    beside = insert(TABLES, ids, 1).stats().table_bytes
    for table in TABLES:
        alone = insert([table], {table.name: ids[table.name]}, 1).stats().table_bytes
        assert alone[table.name] == beside[table.name]
