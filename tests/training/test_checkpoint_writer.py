"""The saver under each policy: chains that replay to the live rows, and readers that go on."""

import random
import shutil
import threading

import numpy as np
import pytest
import tensorflow as tf

from embedps.checkpoint import Reached, Reset, Rows, follow
from embedps.checkpoint.chain import continuation, position_of
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.policies import Consecutive, Intermittent, OneShot
from embedps.checkpoint.retention import KeepNewest
from embedps.checkpoint.tools.compact import compact
from embedps.engine.rebound_handles import ReboundHandles
from embedps.errors import CheckpointError, DirectoryTakenError
from embedps.tables import Adagrad
from embedps.tables.ops import route
from embedps.training.checkpoint_writer import CheckpointWriter
from tests.checkpoint.readers import newest_of, read_chain
from tests.tables.builders import ids, make_collection, make_table, remove, rows_of, train

DIM = 2
TABLE = make_table("t", DIM, optimizer=Adagrad())
POLICIES = [OneShot(), Consecutive(max_read_cost=1.7), Intermittent()]


class Model:
    """A collection that trains at random, and its saver."""

    def __init__(self, path, policy, *, num_shards=2):
        self.directory = CheckpointDirectory(path / "chain")
        self.scratch = path / "scratch"
        self.policy = policy
        self.draw = random.Random(0)
        self.step = 0
        self.collection = make_collection([TABLE], num_shards=num_shards)
        self.saver = self._make_saver()

    def _make_saver(self):
        return CheckpointWriter(
            self.directory,
            self.collection,
            {"w": tf.Variable([1.0])},
            rebase=self.policy,
            keep=[KeepNewest(1)],
        )

    def train(self, most=80):
        self.step += 1
        touched = self.draw.sample(range(1500), self.draw.randint(1, most))
        upstream = {"t": np.full((len(touched), DIM), self.draw.choice([-1.0, 2.0]), np.float32)}
        train(self.collection, {"t": ids(*touched)}, upstream, step=self.step)
        remove(self.collection, "t", self.draw.sample(range(1500), 20))

    def save(self, *, final=False):
        return self.saver.save(
            step=self.step, ledger={}, partially_applied=dict, progress={}, final=final
        )

    def settle(self):
        """Waits for a base that is being written."""
        self.saver.new_base.wait()

    def live(self):
        self.scratch.mkdir(exist_ok=True)
        folder = self.scratch / str(len(list(self.scratch.iterdir())))
        rows = rows_of(self.collection, folder, since=self.saver._cuts)
        return {i: (*row.embedding, *row.slots[0]) for (_, i), row in rows.items()}

    def restart(self, num_shards):
        """As after a crash: onto other shards, from the newest manifest."""
        self.collection.drop()
        self.collection = make_collection([TABLE], num_shards=num_shards)
        self.saver = self._make_saver()
        self.saver.restore(self.directory.latest())


def stored(directory):
    newest = directory.latest()
    (group,) = {table["group"] for table in newest.tables}
    rows = read_chain(directory, newest, group).to_pylist()
    return {row["id"]: (*row["embedding"], *row["accumulator"]) for row in rows}


class Reader:
    """Holds rows and a position, and counts how often it had to begin again."""

    def __init__(self):
        self.rows, self.position, self.resets, self.saves = {}, None, 0, []

    def catch_up(self, directory):
        for change in follow(directory, self.position, idle_secs=0):
            match change:
                case Reset():
                    self.rows, self.resets = {}, self.resets + 1
                case Rows(batch=batch, save=save):
                    self.saves.append(save)
                    for row in batch.to_pylist():
                        self.rows.pop(row["id"], None)
                        if not row["removed"]:
                            self.rows[row["id"]] = (*row["embedding"], *row["accumulator"])
                case Reached(position=position):
                    self.position = position


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.kind)
def test_chain_is_the_live_rows_and_readers_go_on_across_bases_and_restarts(tmp_path, policy):
    model, reader = Model(tmp_path, policy), Reader()
    bases = set()
    for step in range(24):
        model.train(most=1400 if step == 0 else 80)
        if step in (9, 17):
            model.restart(num_shards=1 + step % 3)  # what was not saved is lost
            assert model.live() == stored(model.directory)
            model.train()
        manifest = model.save()
        if step % 2:
            model.settle()  # or the next delta may come before the base is there
        reader.catch_up(model.directory)
        assert stored(model.directory) == reader.rows == model.live()
        bases.add(manifest.base_number)
        deltas = [save for save in manifest.chain if save.kind == "delta"]
        if policy.kind == "one-shot":
            # One delta holds all since the base, and since each restart.
            assert len(deltas) <= 1 + (step >= 9) + (step >= 17)
    assert reader.resets == 1
    assert (len(bases) == 1) == (policy.kind == "one-shot")
    assert sum(save.kind == "base" for save in {s.number: s for s in reader.saves}.values()) == 1
    model.collection.drop()


def test_a_shard_that_began_anew_has_the_last_commit_and_readers_go_on(tmp_path):
    model, reader = Model(tmp_path, Consecutive(max_read_cost=1.7)), Reader()
    for step in range(12):
        model.train(most=1400 if step == 0 else 80)
        if step % 4 == 3:
            kept, committed = model.live(), stored(model.directory)
            handles = ReboundHandles("of another shard")
            for old, new in model.collection.replace_shards([1]):
                handles.replace(old, new)
            for function in model.collection.files.functions():
                handles.rebind(function)
            assert model.saver.restore_shards([1]) == model.directory.latest()
            lost = {int(i) for i in ids_of_shard(1)}
            expected = {i: row for i, row in kept.items() if i not in lost}
            expected |= {i: row for i, row in committed.items() if i in lost}
            assert expected != kept
            assert model.live() == expected
            model.train()
        model.save()
        if step % 2:
            model.settle()
        reader.catch_up(model.directory)
        assert stored(model.directory) == reader.rows == model.live()
    assert reader.resets == 1
    model.collection.drop()


def test_no_shard_is_restored_alone_where_the_next_save_would_lack_rows(tmp_path):
    model = Model(tmp_path / "none", Consecutive())
    assert model.saver.restore_shards([1]) is None  # there is no commit
    model.collection.drop()
    model = Model(tmp_path / "all", OneShot())  # whose deltas hold all since the base
    model.train()
    model.save()
    assert model.saver.restore_shards([1]) is None
    model.collection.drop()


def ids_of_shard(shard):
    routed = route([ids(*range(1500))], feature_tables=[0], tables=["t"], num_shards=2)
    return routed.shard_ids[shard].numpy()


def test_a_save_counts_whether_or_not_old_ones_can_be_removed(tmp_path, monkeypatch):
    model = Model(tmp_path, Consecutive(max_read_cost=1.01))
    model.train()
    first = model.save()
    monkeypatch.setattr(shutil, "rmtree", refuse)
    while (newest := model.save()).base_number == first.base_number:
        model.train()
        model.settle()
    model.train()
    newest = model.save()
    assert model.directory.latest() == newest
    said = [line for line in model.saver.news() if "garbage" in line]
    assert len(said) == 1
    assert "old checkpoints stay, and are removed after a later" in said[0]
    assert (model.directory.path / "base-1").exists()
    monkeypatch.undo()
    model.train()
    model.save()
    assert "old checkpoints are removed again" in model.saver.news()
    assert not (model.directory.path / "base-1").exists()
    model.collection.drop()


def refuse(path, *_, **__):
    raise PermissionError(13, "Permission denied", str(path))


def test_a_save_that_lies_elsewhere_is_removed_as_a_link(tmp_path):
    model = Model(tmp_path, Consecutive(max_read_cost=1.01))
    model.train()
    first = model.save()
    elsewhere, link = tmp_path / "elsewhere", model.directory.path / "base-1"
    link.rename(elsewhere)
    link.symlink_to(elsewhere)
    while model.save().base_number == first.base_number:
        model.train()
        model.settle()
    model.train()
    model.save()
    assert not model.saver.news()
    assert not link.is_symlink()
    assert list(elsewhere.rglob("*.arrow"))
    model.collection.drop()


class HeldBases:
    """Holds the second base of a run after its rows were copied, and while deltas go on."""

    def __init__(self, monkeypatch, collection):
        self.copied, self.go_on = threading.Event(), threading.Event()
        write = collection.files.write

        def held(kind, *args, **kwargs):
            files = write(kind, *args, **kwargs)
            if kind == "copy":
                self.copied.set()
                assert self.go_on.wait(60)
            return files

        monkeypatch.setattr(collection.files, "write", held)


@pytest.mark.parametrize("policy", POLICIES[1:], ids=lambda p: p.kind)
def test_deltas_go_on_while_a_base_is_written(tmp_path, monkeypatch, policy):
    model, reader = Model(tmp_path, policy), Reader()
    held = HeldBases(monkeypatch, model.collection)

    def save():
        model.train(most=80)
        manifest = model.save()
        reader.catch_up(model.directory)
        assert stored(model.directory) == reader.rows == model.live()
        return manifest

    while model.saver.new_base.name is None:
        first = save().base_number
    assert held.copied.wait(60)
    for _ in range(3):
        assert save().base_number == first
    held.go_on.set()
    model.settle()
    base, *deltas = save().chain
    assert base.number > first
    assert len(deltas) == (1 if policy.cumulative else 4)
    assert all(delta.number > base.number for delta in deltas)
    assert deltas[0].since < base.number
    assert reader.resets == 1
    assert not model.directory.base_dir(first).exists()
    model.collection.drop()


def test_base_given_up_leaves_nothing(tmp_path, monkeypatch):
    model = Model(tmp_path, Consecutive(max_read_cost=1.1))
    held = HeldBases(monkeypatch, model.collection)
    while not held.copied.is_set():
        model.train(most=80)
        before = model.save()
        model.saver.new_base.name and held.copied.wait(60)
    held.go_on.set()
    model.saver.close()
    names = {path.name for path in model.directory.path.glob("base-*")}
    assert names == {f"base-{before.base_number}"}
    model.train()
    model.save()
    assert stored(model.directory) == model.live()
    model.collection.drop()


def test_last_save_of_a_run_takes_the_base_that_is_being_written(tmp_path):
    model = Model(tmp_path, Consecutive(max_read_cost=1.1))
    while model.saver.new_base.name is None:
        model.train(most=80)
        before = model.save()
    model.train()
    last = model.save(final=True)
    assert last.base_number > before.base_number
    assert model.saver.new_base.name is None
    assert stored(model.directory) == model.live()
    model.collection.drop()


def test_chain_of_runs_that_save_once_does_not_grow_without_end(tmp_path):
    model = Model(tmp_path, Consecutive(max_read_cost=1.5))
    longest = 0
    for _ in range(12):
        model.train(most=80)
        longest = max(longest, len(model.save(final=True).chain))
        assert stored(model.directory) == model.live()
        model.restart(num_shards=2)
    assert 2 < longest < 8
    model.collection.drop()


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: p.kind)
def test_compaction_beside_the_saver_loses_and_brings_back_nothing(tmp_path, policy):
    """Between saves, and while one is written: it is committed before the saver commits."""
    model, reader = Model(tmp_path, policy), Reader()
    write = model.collection.files.write
    compacted = []
    for step in range(12):
        model.train(most=1400 if step == 0 else 80)
        if step % 3 == 2:
            # A compaction comes in the middle of the save.
            def write_and_compact(*args, **kwargs):
                files = write(*args, **kwargs)
                compacted.append(compact(model.directory))
                return files

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(model.collection.files, "write", write_and_compact)
                number = model.save().number
            assert number == max(model.directory.numbers())
        else:
            model.save()
        assert stored(model.directory) == model.live()
        if step % 4 == 1:
            compacted.append(compact(model.directory))
            assert stored(model.directory) == model.live()
        reader.catch_up(model.directory)
        assert reader.rows == model.live()
    assert sum(made is not None for made in compacted) >= 3
    assert reader.resets == 1
    model.collection.drop()


def test_other_writer_is_told_apart_from_a_compaction(tmp_path):
    model = Model(tmp_path, Consecutive())
    model.train(most=1400)
    model.save()
    other = CheckpointWriter(model.directory, model.collection, {"w": tf.Variable([1.0])})
    newest = newest_of(model.directory)
    other.restore(newest)
    model.train()
    other._cuts = model.saver._cuts = model.collection.mark_clean()
    other.save(step=5, ledger={}, partially_applied=dict, progress={}, final=False)
    model.train()
    with pytest.raises(DirectoryTakenError, match="another run writes here"):
        model.save()
    model.collection.drop()


@pytest.mark.parametrize("at", ["first", "delta", "with a base"])
def test_commit_that_fails_once_it_is_in_place_is_gone_on_from(tmp_path, monkeypatch, at):
    """As when the sync of its directory fails, or an object store's answer is lost."""
    model = Model(tmp_path, Consecutive(max_read_cost=1.01))
    if at != "first":
        model.train(most=1400)
        model.save()
        model.train()
    if at == "with a base":
        model.save()
        model.settle()
        model.train()
    commit = model.directory.commit

    def fail_late(manifest):
        commit(manifest)
        raise CheckpointError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(model.directory, "commit", fail_late)
        model.train()
        with pytest.raises(CheckpointError, match="no answer"):
            model.saver._attempt(
                model.saver.new_base.take(),
                step=model.step,
                ledger={},
                partially_applied=dict,
                progress={},
                final=False,
                rest_secs=0.0,
            )
    stands = newest_of(model.directory)
    model.directory.check_present(stands)
    model.train()
    assert model.save().number > stands.number
    assert stored(model.directory) == model.live()
    model.collection.drop()


def test_run_that_goes_back_begins_a_new_history(tmp_path):
    """Its numbers go on, and a reader of what it left behind must begin again."""
    model = Model(tmp_path, Consecutive(max_read_cost=1e9))
    model.saver._keep = (KeepNewest(9),)
    for step in range(3):
        model.train(most=1400 if step == 0 else 80)
        left = model.save()
    model.directory.manifest_path(3).unlink()
    model.restart(num_shards=2)
    model.train()
    newest = model.save()
    assert newest.number == 4
    assert newest.history != left.history
    assert continuation(newest, position_of(left)) is None
    model.collection.drop()
