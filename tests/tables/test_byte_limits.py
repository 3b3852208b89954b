"""The limit of bytes that all tables of a server share."""

import dataclasses

import pytest
import tensorflow as tf

from embedps.errors import UsageError
from embedps.tables import Adagrad, LazyAdam, MinCount, RowwiseAdagrad, SizeLimit
from embedps.tables.byte_limits import ServerLimit, evicted_bytes, least_bytes, limited_bytes
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.groups import group_tables
from embedps.tables.new_store import make_store
from embedps.tables.specs import FeatureSpec
from tests.tables.builders import group_files, ids, look, make_collection, make_table

TABLES = (
    make_table("small", 4),
    make_table("adam", 5, optimizer=LazyAdam(), slot_dtype="bfloat16"),
    make_table("half", 7, optimizer=Adagrad(), row_dtype="float16"),
)
COUNTING = (*TABLES, make_table("counting", 6, admission=MinCount(count=2)))


def least(num_shards: int = 1) -> int:
    return num_shards * sum(least_bytes(table) for table in COUNTING)


def test_the_least_limit_is_that_of_all_tables_of_a_server():
    make_collection(COUNTING, server_limit=ServerLimit(max_bytes=least()))
    with pytest.raises(
        UsageError,
        match=f"max_server_bytes must be at least {least(2)} for 4 tables with 2 shards on a "
        f"server but got {least(2) - 1}$",
    ):
        make_collection(COUNTING, num_shards=2, server_limit=ServerLimit(max_bytes=least(2) - 1))


def test_files_of_evicted_rows_are_in_the_least_limit():
    pair = (make_table("one", 4), make_table("other", 4))
    groups = group_tables(pair, [FeatureSpec(name=t.name, table=t) for t in pair])
    of_files = evicted_bytes(groups, keeps_evicted=True)
    assert of_files == {"one": 3 << 19, "other": 3 << 19}
    limit = sum(least_bytes(t) + of_files[t.name] for t in pair)
    make_collection(pair, server_limit=ServerLimit(max_bytes=limit), keeps_evicted=True)
    with pytest.raises(UsageError, match=f"max_server_bytes must be at least {limit} for 2 tables"):
        make_collection(pair, server_limit=ServerLimit(max_bytes=limit - 1), keeps_evicted=True)


def test_files_of_evicted_rows_are_in_the_least_limit_of_a_table():
    table = make_table("t", 16, optimizer=RowwiseAdagrad())
    least_limit = 64 * 1152 + 1024 * (84 + 40) + (3 << 20)

    def limited(max_bytes: int):
        spec = dataclasses.replace(table, eviction=(SizeLimit(max_bytes=max_bytes),))
        return make_collection([spec], keeps_evicted=True)

    assert limited(least_limit).stats().memory_bytes <= least_limit
    with pytest.raises(UsageError, match=f"max_bytes must be at least {least_limit} per"):
        limited(least_limit - 1)


@pytest.mark.parametrize("keeps_evicted", [False, True])
@pytest.mark.parametrize("table", COUNTING, ids=lambda t: t.name)
def test_the_kernels_agree_on_the_least_limit(table, keeps_evicted):
    (group,) = group_tables([table], [FeatureSpec(name="f", table=table)])

    def make(max_bytes: int) -> None:
        make_store(
            group,
            shard=0,
            num_shards=1,
            device="/device:CPU:0",
            container="test-least-limit",
            name=f"{table.name}-{max_bytes}-{keeps_evicted}",
            trainable=True,
            sweeps_itself=False,
            server_limit=ServerLimit(max_bytes=max_bytes),
            keeps_evicted=keeps_evicted,
        )

    of_files = evicted_bytes([group], keeps_evicted=keeps_evicted)
    of_table = least_bytes(table) + of_files[table.name]
    make(of_table)
    with pytest.raises(UsageError, match=f"must be at least {of_table} for the tables up to here"):
        make(of_table - 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_bytes": 0}, r"max_server_bytes must be in \[1, 2\^63\) but got 0"),
        (
            {"max_bytes": 1, "order": "oldest"},
            "server_eviction_order must be one of least_recent, least_frequent but got 'oldest'",
        ),
    ],
)
def test_a_bad_limit_gets_one_line(fields, message):
    with pytest.raises(UsageError, match=message):
        ServerLimit(**fields)


@pytest.mark.parametrize("num_shards", [1, 2])
def test_all_tables_stay_below_a_servers_limit(num_shards):
    limit = 4 << 20
    server_limit = ServerLimit(max_bytes=limit)
    collection = make_collection(TABLES, num_shards=num_shards, server_limit=server_limit)
    for first in range(0, 40_000, 4000):
        new = tf.range(first, first + 4000, dtype=tf.int64)
        look(collection, {"small": new, "adam": new, "half": new}, insert=True)
        assert collection.stats().memory_bytes <= limit
    stats, evicted = collection.stats(), collection.eviction_stats()
    for name, rows in stats.rows.items():
        assert rows > 1000
        assert rows + evicted[name]["limit"] == 40_000
    assert limit * 0.9 < sum(
        limited_bytes(t, s.rows[t.name], server_limit.part(len(TABLES)))
        for t in TABLES
        for s in collection.shard_stats()
    )


@pytest.mark.parametrize(
    ("of", "before", "after"),
    [("table", 1, 2), ("table", 2, 1), ("table", 2, 3), ("server", 1, 1), ("server", 2, 2)],
)
def test_rows_at_a_limit_come_back_on_another_number_of_shards(of, before, after, tmp_path):
    limit = 8 << 20
    policies = (SizeLimit(max_bytes=limit),) if of == "table" else ()
    server_limit = ServerLimit(max_bytes=limit) if of == "server" else None
    table = make_table("t", 9, optimizer=RowwiseAdagrad(), eviction=policies)

    def make(num_shards: int) -> EmbeddingCollection:
        return make_collection([table], num_shards=num_shards, server_limit=server_limit)

    source = make(before)
    for first in range(0, 200_000, 10_000):
        new = tf.range(first, first + 10_000, dtype=tf.int64)
        source.lookup({"t": new}, insert=True)
    assert source.eviction_stats()["t"]["limit"] > 100_000
    files = source.files.write("base", str(tmp_path), since={})
    restored = make(after)
    restored.files.load(group_files(files))
    restored.mark_clean()
    assert restored.stats().rows == source.stats().rows
    assert restored.eviction_stats()["t"]["limit"] == 0
    assert restored.stats().memory_bytes <= limit * 1.03


def test_a_table_keeps_its_own_order_and_its_own_limit():
    frequent = make_table(
        "frequent", 4, eviction=(SizeLimit(max_rows=1500, order="least_frequent"),)
    )
    collection = make_collection(
        [frequent, make_table("any", 4)], server_limit=ServerLimit(max_bytes=1 << 20)
    )
    look(collection, {"frequent": ids(*range(4000)), "any": ids(*range(4000))}, insert=True)
    rows = collection.stats().rows
    assert rows["frequent"] == 1500
    assert 1500 < rows["any"] <= 4000


def test_a_follower_has_no_limit():
    collection = make_collection(
        [make_table("t", 4, optimizer=RowwiseAdagrad())],
        server_limit=ServerLimit(max_bytes=200_000),
        trainable=False,
    )
    look(collection, {"t": ids(*range(5000))}, insert=True)
    assert collection.stats().rows == {"t": 5000}
