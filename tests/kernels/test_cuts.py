"""Bases and deltas of shards: replayed onto any number of shards they yield the live rows."""

import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from embedps.errors import CheckpointError, CorruptCheckpointError, DimMismatchError, UsageError
from embedps.tables import SGD, Adagrad, FeatureSpec, Ftrl, LazyAdam
from embedps.tables.row_files import StoredFile
from tests.tables.builders import (
    as_stored,
    cuts_of,
    group_files,
    ids,
    look,
    make_collection,
    make_table,
    num_records,
    remove,
    rows_in,
    rows_of,
    train,
)

TABLES = [
    make_table("a", 3),
    make_table("b", 3),
    make_table("c", 5, optimizer=LazyAdam()),
    make_table("d", 5, optimizer=Ftrl()),
    make_table("e", 1, optimizer=SGD()),
]
SPAN = 300


def _train_some(collection, step, *, span=SPAN, size=64):
    random = np.random.default_rng(step)
    batch, upstream = {}, {}
    for table in collection.tables:
        batch[table.name] = ids(-1, -(2**63), 2**63 - 1, *random.integers(0, span, size))
        shape = (size + 3, table.embedding_dim)
        upstream[table.name] = random.standard_normal(shape).astype(np.float32)
    train(collection, batch, upstream, step=step)


def _written_chain(collection, folder):
    """Writes a base and three deltas: rows are touched, removed, created again and evicted."""
    files = []
    for step in range(1, 4):
        _train_some(collection, step)
    files.append(collection.files.write("base", str(folder / "base"), since={}))
    for step in range(4, 6):
        _train_some(collection, step, span=50)
    files.append(collection.files.write("delta", str(folder / "delta-1"), since=cuts_of(files[-1])))

    assert remove(collection, "a", range(40)) > 10
    assert remove(collection, "c", [-1, -(2**63), 2**63 - 1]) == 3
    assert remove(collection, "c", [-1]) == 0
    assert collection.evict("b", before_step=3, max_frequency=2) > 0
    assert collection.evict("e", before_step=100, max_frequency=2**32 - 1) > 100
    _train_some(collection, 6, span=20)  # creates some removed rows again
    files.append(collection.files.write("delta", str(folder / "delta-2"), since=cuts_of(files[-1])))

    remove(collection, "a", range(10))
    _train_some(collection, 7, span=8)
    remove(collection, "d", range(3))
    files.append(collection.files.write("delta", str(folder / "delta-3"), since=cuts_of(files[-1])))
    return files


@pytest.mark.parametrize("num_shards", [1, 3])
def test_base_and_deltas_equal_live_rows_on_any_shards(num_shards, tmp_path):
    live = make_collection(TABLES, num_shards=num_shards)
    files = _written_chain(live, tmp_path)
    expected = rows_of(live, tmp_path / "full", since=cuts_of(files[-1]))
    assert {name for name, _ in expected} == {t.name for t in TABLES}
    # Read in order with pyarrow alone.
    assert rows_in([f.path for part in files for f in part]) == expected
    for restored_shards in (1, 2, 5):
        restored = make_collection(TABLES, num_shards=restored_shards)
        for part in files:
            assert restored.files.load(group_files(part)) == num_records([f.path for f in part])
        assert rows_of(restored, tmp_path / f"on-{restored_shards}") == expected
        assert restored.stats().rows == live.stats().rows
        at_once = make_collection(TABLES, num_shards=restored_shards)
        records = at_once.files.load_cuts([group_files(part) for part in files])
        assert records == sum(num_records([f.path for f in part]) for part in files)
        assert rows_of(at_once, tmp_path / f"at-once-{restored_shards}") == expected


def test_long_chain_loads_at_once_into_the_same_places(tmp_path):
    """Windows of batches end within a stripe, or with their file."""
    tables = [make_table("t", 16, optimizer=Adagrad()), make_table("u", 16, optimizer=Adagrad())]
    live = make_collection(tables)
    look(live, {"t": ids(*range(200_000)), "u": ids(*range(5000))}, insert=True)
    files = [live.files.write("base", str(tmp_path / "base"), since={})]
    for turn in range(3):
        remove(live, "t", range(turn, 60_000, 7))
        look(live, {"t": ids(*range(turn, 60_000, 14)), "u": ids(turn)}, insert=True)
        folder = str(tmp_path / f"delta-{turn}")
        files.append(live.files.write("delta", folder, since=cuts_of(files[-1])))
    loaded, at_once = make_collection(tables), make_collection(tables)
    records = sum(loaded.files.load(group_files(part)) for part in files)
    assert at_once.files.load_cuts([group_files(part) for part in files]) == records
    assert rows_of(at_once, tmp_path / "rows") == rows_of(live, tmp_path / "live")
    # Bytes depend on the places of rows, which later cuts and evictions go by.
    (one,), (all_,) = (
        each.files.write("base", str(tmp_path / name), since={})
        for each, name in ((loaded, "loaded"), (at_once, "at-once"))
    )
    assert one.xxh3_64 == all_.xxh3_64


def test_shard_reads_its_own_file_alone_where_there_are_as_many(tmp_path):
    live = make_collection(TABLES, num_shards=2)
    _train_some(live, 1)
    files = live.files.write("base", str(tmp_path / "base"), since={})
    expected = rows_of(live, tmp_path / "full")
    restored = make_collection(TABLES, num_shards=2)
    assert restored.files.load(group_files(files)) == num_records([f.path for f in files])
    assert rows_of(restored, tmp_path / "restored") == expected
    # With exchanged names no shard finds rows of its own. With another count all shards do.
    swapped: dict[str, list[StoredFile]] = {}
    for f in files:
        path = Path(f.path.replace("/base/", "/swapped/"))
        path = path.with_name(f"shard-{1 - f.shard}-of-2.arrow")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(Path(f.path).read_bytes())
        swapped.setdefault(f.group, []).append(as_stored(path))
    assert make_collection(TABLES, num_shards=2).files.load(swapped) == 0
    three = make_collection(TABLES, num_shards=3)
    assert three.files.load(swapped) == num_records([f.path for f in files])
    assert rows_of(three, tmp_path / "three") == expected


def test_long_file_is_verified_while_it_is_loaded(tmp_path):
    """The file exceeds the 4 MB that are read at once before any record is loaded."""
    live = make_collection([make_table("t", 64, optimizer=SGD())])
    look(live, {"t": ids(*range(20_000))}, insert=True)
    (file,) = live.files.write("base", str(tmp_path / "base"), since={})
    assert file.bytes > 4 << 20
    other = make_collection([make_table("t", 64, optimizer=SGD())])
    assert other.files.load(group_files([file])) == 20_000
    assert rows_of(other, tmp_path / "other") == rows_of(live, tmp_path / "live")
    whole = Path(file.path).read_bytes()
    for at in (file.bytes // 2, file.bytes - 1):
        damaged = whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :]
        Path(file.path).write_bytes(damaged)
        with pytest.raises(CorruptCheckpointError, match=r"shard-0-of-1\.arrow'.*'xxh3_64': exp"):
            other.files.load(group_files([file]))


def test_training_goes_on_alike_after_restore_onto_other_shards(tmp_path):
    live = make_collection(TABLES, num_shards=2)
    files = _written_chain(live, tmp_path)
    restored = make_collection(TABLES, num_shards=3)
    for part in files:
        restored.files.load(group_files(part))
    clean = restored.mark_clean()
    for step in range(10, 13):
        _train_some(live, step)
        _train_some(restored, step)
    delta = restored.files.write("delta", str(tmp_path / "next"), since=clean)
    assert rows_of(restored, tmp_path / "restored", since=cuts_of(delta)) == rows_of(
        live, tmp_path / "live"
    )
    # The restored collection's delta continues the chain.
    chain = [f.path for part in [*files, delta] for f in part]
    assert rows_in(chain) == rows_of(live, tmp_path / "live-2")


def test_delta_holds_what_was_touched_and_no_more(tmp_path):
    collection = make_collection([make_table("t", 4)], num_shards=2)
    look(collection, {"t": ids(*range(10_000))}, insert=True)
    base = collection.files.write("base", str(tmp_path / "base"), since={})
    assert sum(f.rows for f in base) == 10_000
    look(
        collection, {"t": ids(*range(10_000))}, insert=True
    )  # lookups of existing rows touch nothing
    quiet = collection.files.write("delta", str(tmp_path / "quiet"), since=cuts_of(base))
    assert sum(f.rows + f.removed for f in quiet) == 0
    for step in (1, 2):  # touched twice, listed once
        train(collection, {"t": ids(*range(50))}, {"t": np.ones((50, 4), np.float32)}, step=step)
    remove(collection, "t", range(100, 107))
    delta = collection.files.write("delta", str(tmp_path / "delta"), since=cuts_of(quiet))
    assert (sum(f.rows for f in delta), sum(f.removed for f in delta)) == (50, 7)
    assert sum(f.bytes for f in delta) < sum(f.bytes for f in base) / 20
    assert {i for _, i in rows_in([f.path for f in delta])} == set(range(50))


def test_uncommitted_cuts_are_given_again(tmp_path):
    collection = make_collection([make_table("t", 2)], num_shards=2)
    train(collection, {"t": ids(*range(20))}, {"t": np.ones((20, 2), np.float32)})
    base = collection.files.write("base", str(tmp_path / "base"), since={})
    train(collection, {"t": ids(1, 2, 3)}, {"t": np.ones((3, 2), np.float32)}, step=2)
    remove(collection, "t", [9])
    collection.files.write("delta", str(tmp_path / "lost-1"), since=cuts_of(base))
    train(collection, {"t": ids(3, 4)}, {"t": np.ones((2, 2), np.float32)}, step=3)
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder must be")
    with pytest.raises(CheckpointError, match=r"could not write the delta in .*blocked"):
        collection.files.write("delta", str(blocked), since=cuts_of(base))
    remove(collection, "t", [10])
    delta = collection.files.write("delta", str(tmp_path / "kept"), since=cuts_of(base))
    assert {i for _, i in rows_in([f.path for f in delta])} == {1, 2, 3, 4}
    assert sum(f.removed for f in delta) == 2
    chain = [f.path for f in [*base, *delta]]
    assert rows_in(chain) == rows_of(collection, tmp_path / "full")


def test_delta_since_unknown_cut_is_refused_and_a_base_helps(tmp_path):
    collection = make_collection([make_table("t", 2)])
    look(collection, {"t": ids(1, 2)}, insert=True)
    since = cuts_of(collection.files.write("base", str(tmp_path / "0"), since={}))
    for i in range(1, 4):
        since = cuts_of(collection.files.write("delta", str(tmp_path / str(i)), since=since))
    with pytest.raises(CheckpointError, match=r"must be since 4 .* but got 77: write a base"):
        collection.files.write("delta", str(tmp_path / "no"), since=dict.fromkeys(since, 77))
    with pytest.raises(CheckpointError, match="but got -1: write a base"):
        collection.files.write("delta", str(tmp_path / "no"), since={})
    assert len(rows_of(collection, tmp_path / "base")) == 2
    # The base's `since` belongs to an earlier store. The chain continues from the base anyway.
    base = collection.files.write("base", str(tmp_path / "again"), since=dict.fromkeys(since, 77))
    look(collection, {"t": ids(3)}, insert=True)
    delta = collection.files.write("delta", str(tmp_path / "after"), since=cuts_of(base))
    assert {i for _, i in rows_in([f.path for f in base])} == {1, 2}
    assert {i for _, i in rows_in([f.path for f in delta])} == {3}


def test_untrainable_collection_follows_deltas_without_slots(tmp_path):
    live = make_collection(TABLES, num_shards=2)
    files = _written_chain(live, tmp_path)
    reader = make_collection(TABLES, num_shards=1, trainable=False)
    for part in files:
        reader.files.load(group_files(part))
    expected = rows_of(live, tmp_path / "full", since=cuts_of(files[-1]))
    found = rows_of(reader, tmp_path / "reader")
    assert found.keys() == expected.keys()
    for key, row in found.items():
        assert row.embedding == expected[key].embedding
        assert row.slots == ()
    batch = {t.name: ids(*range(-1, SPAN)) for t in TABLES}
    for name, value in look(live, batch).items():
        np.testing.assert_array_equal(look(reader, batch)[name], value)


def test_clear_and_drop_leave_nothing(tmp_path):
    collection = make_collection(TABLES, num_shards=2)
    _train_some(collection, 1)
    collection.clear()
    assert set(collection.stats().rows.values()) == {0}
    assert rows_of(collection, tmp_path) == {}


@pytest.mark.parametrize("merges", [False, True])
def test_load_finds_tables_in_whichever_group_they_are_stacked_now(merges, tmp_path):
    first, second = Adagrad(epsilon=1e-7), Adagrad(epsilon=1e-3)
    tables = [make_table("a", 4, optimizer=first), make_table("b", 4, optimizer=second)]
    source = make_collection(tables, num_shards=2)
    batch = {"a": ids(*range(100)), "b": ids(*range(50, 200))}
    upstream = {n: np.ones((len(i), 4), np.float32) for n, i in batch.items()}
    train(source, batch, upstream)
    files = source.files.write("base", str(tmp_path / "base"), since={})
    assert {f.group for f in files} == {"dim4-adagrad", "dim4-adagrad-2"}
    expected = rows_of(source, tmp_path / "source")

    now = [make_table("b", 4, optimizer=first if merges else second), tables[0]]
    target = make_collection(now)
    assert len(target.groups) == (1 if merges else 2)
    assert target.files.load(group_files(files)) == 250
    assert rows_of(target, tmp_path / "target") == expected

    other = make_collection([make_table("a", 4, optimizer=Ftrl())])
    with pytest.raises(DimMismatchError, match=r"rows of group 'dim4-adagrad'.*\['dim4-ftrl'\]"):
        other.files.load(group_files(files))


def test_evict_names_unknown_table():
    collection = make_collection([make_table("t", 4)])
    with pytest.raises(UsageError, match=r"no table 'u': the tables are \['t'\]"):
        collection.evict("u", before_step=1, max_frequency=1)


def test_cuts_while_training_replay_to_the_last_row(tmp_path):
    """Deltas are written while two threads train. The chain yields the rows at the end."""
    tables = [make_table("t", 4, optimizer=Adagrad()), make_table("u", 4, optimizer=Adagrad())]
    features = [
        FeatureSpec(name="t", table="t"),
        FeatureSpec(name="t2", table="t"),
        FeatureSpec(name="u", table="u"),
    ]
    collection = make_collection(tables, features, num_shards=2)
    started, failures = threading.Barrier(3), []

    def work(worker):
        random = np.random.default_rng(worker)
        try:
            started.wait(timeout=60)
            for step in range(1, 40):
                batch = {f.name: ids(*random.integers(0, 30 * step, 100)) for f in features}
                upstream = {f.name: np.ones((100, 4), np.float32) for f in features}
                train(collection, batch, upstream, step=step)
                if step % 8 == 0:
                    remove(collection, "t", random.integers(0, 30 * step, 50).tolist())
        except Exception as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    started.wait(timeout=60)
    files = [collection.files.write("base", str(tmp_path / "0"), since={})]
    while any(thread.is_alive() for thread in threads):
        folder = str(tmp_path / str(len(files)))
        files.append(collection.files.write("delta", folder, since=cuts_of(files[-1])))
    for thread in threads:
        thread.join()
    assert not failures
    last = collection.files.write("delta", str(tmp_path / "last"), since=cuts_of(files[-1]))
    files.append(last)
    expected = rows_of(collection, tmp_path / "full", since=cuts_of(last))
    assert len(expected) > 1000
    assert rows_in([f.path for part in files for f in part]) == expected
    restored = make_collection(tables, features, num_shards=5)
    for part in files:
        restored.files.load(group_files(part))
    assert rows_of(restored, tmp_path / "restored") == expected


def test_file_work_of_a_dropped_store_fails(tmp_path):
    collection = make_collection([make_table("t", 4)])
    collection.drop()
    with pytest.raises(CheckpointError, match="could not write the base"):
        collection.files.write("base", str(tmp_path), since={})
    with pytest.raises((CorruptCheckpointError, tf.errors.NotFoundError)):
        collection.files.load({"dim4-rowwise_adagrad": [StoredFile("x.arrow", 1, "0" * 16)]})


def test_base_that_rests_while_rows_are_used_is_whole(tmp_path):
    collection = make_collection([make_table("t", 8)])
    look(collection, {"t": ids(*range(30_000))}, insert=True)
    done = threading.Event()

    def use() -> None:
        while not done.is_set():
            look(collection, {"t": ids(*range(100))})

    user = threading.Thread(target=use)
    user.start()
    try:
        files = collection.files.write(
            "base", str(tmp_path / "base"), since={}, max_pause_secs=60.0
        )
    finally:
        done.set()
        user.join()
    assert rows_in([f.path for f in files]) == rows_of(collection, tmp_path / "again")
