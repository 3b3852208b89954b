"""Rows that are staged and applied are those that are loaded."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from embedps import kernels
from embedps.errors import CorruptCheckpointError, DimMismatchError
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.optimizers import Adagrad
from tests.tables.builders import (
    cuts_of,
    group_files,
    ids,
    look,
    make_collection,
    make_table,
    remove,
    train,
)

SPAN = 300
TABLES = [make_table("a", 4, optimizer=Adagrad()), make_table("b", 4, optimizer=Adagrad())]


def frozen(num_shards: int = 1) -> EmbeddingCollection:
    return make_collection(TABLES, num_shards=num_shards, trainable=False)


def values(collection: EmbeddingCollection) -> dict[str, np.ndarray]:
    batch = {name: ids(*range(SPAN)) for name in ("a", "b")}
    return look(collection, batch, insert=False)


def written(folder: Path, *, num_shards: int) -> list[list]:
    """Writes a base and two deltas with removals; each has other rows."""
    live = make_collection(TABLES, num_shards=num_shards)
    parts: list[list] = []
    for turn in range(3):
        batch = {"a": ids(*range(turn * 40, 200)), "b": ids(*range(50, 100 + turn * 100))}
        train(
            live, batch, {n: np.full((len(i), 4), turn + 1, np.float32) for n, i in batch.items()}
        )
        if turn:
            remove(live, "a", range(20 * turn, 20 * turn + 30))
        since = cuts_of(parts[-1]) if turn else {}
        where = str(folder / f"{turn}")
        parts.append(live.files.write("delta" if turn else "base", where, since=since))
    return parts


@pytest.mark.parametrize("num_writers", [1, 2])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_staged_files_give_the_rows_of_a_load(
    num_shards: int, num_writers: int, tmp_path: Path
) -> None:
    parts = written(tmp_path, num_shards=num_writers)
    loaded, applied = frozen(num_shards), frozen(num_shards)
    for part in parts:
        records = loaded.files.load(group_files(part))
        before = values(applied)
        staged = applied.files.stage([group_files(part)])
        assert staged.records == records
        for name, value in values(applied).items():
            np.testing.assert_array_equal(value, before[name])
        staged.apply()
        for name, value in values(applied).items():
            np.testing.assert_array_equal(value, values(loaded)[name])
        assert applied.stats().rows == loaded.stats().rows
        again = applied.files.stage([group_files(part)]).changes("a")
        assert len(again.set) > len(again.differing) == 0


@pytest.mark.parametrize("num_shards", [1, 3])
def test_staged_rows_are_looked_up_before_they_are_applied(num_shards: int, tmp_path: Path) -> None:
    base, *deltas = written(tmp_path, num_shards=2)
    collection, loaded = frozen(num_shards), frozen(num_shards)
    for part in (base, *deltas):
        loaded.files.load(group_files(part))
    collection.files.stage([group_files(base)]).apply()
    before = values(collection)
    staged = collection.files.stage([group_files(part) for part in deltas])  # both at once
    batch = {name: ids(*range(SPAN)) for name in ("a", "b")}
    found = collection.combine(collection.lookup_staged(batch, staged.handles))
    for name, value in values(loaded).items():
        np.testing.assert_array_equal(found[name], value)
        np.testing.assert_array_equal(values(collection)[name], before[name])
        assert not np.array_equal(value, before[name])
    for name in ("a", "b"):
        changes, ours, theirs = staged.changes(name), collection.ids(name), loaded.ids(name)
        assert (np.diff(changes.set) > 0).all()
        assert (np.diff(changes.removed) > 0).all()
        left = np.setdiff1d(np.union1d(ours, changes.set), changes.removed)
        np.testing.assert_array_equal(left, np.sort(theirs))
        assert name == "b" or len(changes.removed) > 0
        moved = (before[name] != values(loaded)[name]).any(axis=1)
        np.testing.assert_array_equal(changes.differing, np.flatnonzero(moved))
    staged.apply()
    for name, value in values(loaded).items():
        np.testing.assert_array_equal(values(collection)[name], value)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_shown_rows_are_looked_up_before_and_while_they_are_applied(
    num_shards: int, tmp_path: Path
) -> None:
    base, *deltas = written(tmp_path, num_shards=2)
    collection, loaded = frozen(num_shards), frozen(num_shards)
    collection.files.stage([group_files(base)]).apply()
    loaded.files.load(group_files(base))
    for part in deltas:
        loaded.files.load(group_files(part))
        want, rows = values(loaded), collection.stats().rows
        staged = collection.files.stage([group_files(part)])
        staged.show()
        for name, value in values(collection).items():
            np.testing.assert_array_equal(value, want[name])
        assert collection.stats().rows == rows != loaded.stats().rows
        thread = threading.Thread(target=staged.apply)
        thread.start()
        while thread.is_alive():
            for name, value in values(collection).items():
                np.testing.assert_array_equal(value, want[name])
        thread.join()
        for name, value in values(collection).items():
            np.testing.assert_array_equal(value, want[name])
        assert collection.stats().rows == loaded.stats().rows


def test_a_damaged_file_is_not_staged(tmp_path: Path) -> None:
    base, delta, _ = written(tmp_path, num_shards=1)
    applied = frozen()
    applied.files.stage([group_files(base)]).apply()
    path = Path(delta[0].path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] + bytes(9))
    before = values(applied)
    with pytest.raises(CorruptCheckpointError, match=r"shard-0-of-1\.arrow"):
        applied.files.stage([group_files(delta)])
    for name, value in values(applied).items():
        np.testing.assert_array_equal(value, before[name])
    other = make_collection([make_table("a", 5, optimizer=Adagrad())], trainable=False)
    with pytest.raises(DimMismatchError, match="dim"):
        other.files.stage([{other.groups[0].name: group_files(base)["dim4-adagrad"]}])


def test_staged_rows_are_applied_to_their_own_tables(tmp_path: Path) -> None:
    base, *_ = written(tmp_path, num_shards=1)
    staged = frozen().files.stage([group_files(base)])
    other = make_collection([make_table("a", 4, optimizer=Adagrad())], trainable=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="other tables or another dim"):
        kernels.load().embedps_apply_rows(other._stores[0][0], staged.handles[0][0])
