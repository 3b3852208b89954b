"""What is made for another cluster beside a run, and takes over what the run saved."""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.row_visits import Config, make, write_dataset
from embedps.checkpoint.format.manifest import Manifest, SaveSet
from embedps.cluster.embedded import EmbeddedCluster
from embedps.engine.checkpoint_restore import load_rows
from embedps.engine.recommender import Recommender
from embedps.errors import CheckpointError
from embedps.run.checkpoint_config import CheckpointConfig
from embedps.run.config import TrainConfig
from embedps.scheduling.ledger import Ledger
from embedps.tables.table_use import ShardUse
from embedps.training import checkpoint_writer
from embedps.training.checkpoint_schedule import CheckpointSchedule
from embedps.training.rows_ahead import fits_twice, load_ahead
from embedps.training.save_failures import in_background
from embedps.training.training_setup import TrainingSetup, resume, set_up


def test_setup_beside_a_run_disturbs_nothing_and_resumes_what_it_saved(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", train=(500,), evaluation=(100,))
    config = TrainConfig(data=str(tmp_path / "data"), model_dir=str(tmp_path / "m"), batch_size=64)
    inner, drawn = make(Config(), dataset), []

    def build():
        drawn.append(np.random.normal())  # no checkpoint has it
        return inner.build()

    recommender = Recommender(build=build)
    cluster = EmbeddedCluster()
    first = set_up(recommender, dataset, config, cluster, [], run_id=1)
    saved = first.writer.save(
        step=0,
        ledger=first.ledger.state(),
        partially_applied=dict,
        progress={"examples": 0},
        final=False,
    )
    under_way = tmp_path / "m" / "delta-7"
    under_way.mkdir()
    (under_way / "part").write_text("not committed yet")
    second = set_up(recommender, dataset, config, cluster, [], run_id=2, before=first)
    assert under_way.is_dir()
    assert drawn[0] == drawn[1]
    assert second.ledger is first.ledger
    assert second.writer.last is None
    assert resume(second, config.seed) == (saved, 0)
    assert second.writer.last == saved
    assert not under_way.is_dir()
    for name, variable in first.variables.items():
        np.testing.assert_array_equal(second.variables[name].numpy(), variable.numpy())


class _Run:
    """A run that stands still unless a test has it go on, and setups beside it."""

    def __init__(self, tmp_path: Path) -> None:
        self.dataset = write_dataset(tmp_path / "data", train=(500,), evaluation=(100,))
        self.config = TrainConfig(
            data=str(tmp_path / "data"), model_dir=str(tmp_path / "m"), batch_size=64
        )
        self._recommender, self._cluster = make(Config(), self.dataset), EmbeddedCluster()
        self.setup = self.set_up(1)
        self.num_done, self.num_undone = 0, 0  # units, as its schedule of saves asks for them
        self.lines: list[str] = []
        self.saves = CheckpointSchedule(
            CheckpointConfig(), cast(Ledger, self), self.save, say=self.lines.append
        )

    def set_up(self, run_id: int, **more: Any) -> TrainingSetup:
        return set_up(
            self._recommender, self.dataset, self.config, self._cluster, [], run_id=run_id, **more
        )

    def steps_done(self) -> int:
        return self.num_done

    def save(self, *, final: bool = False, rest_secs: float = 0.0) -> Manifest:
        return self.setup.writer.save(
            step=self.num_done,
            ledger=self.setup.ledger.state(),
            partially_applied=dict,
            progress={"examples": 0},
            final=final,
        )

    def train(self, *ids: int) -> None:
        """Makes rows of ids in each table."""
        columns = {name: tf.constant(ids, tf.int64) for name in ("C1", "C2", "C3", "row")}
        self.setup.collection.lookup(columns, insert=True)
        self.num_done += 1

    def load_ahead(self, setup: TrainingSetup) -> None:
        """Does what a change does on another thread, while this one polls the schedule."""
        loading = in_background(
            lambda: load_ahead(setup, self.setup, self.saves, is_over=lambda: False)
        )
        while not loading.done():
            self.saves.poll()
            if self.saves.is_due():
                self.saves.begin()
            time.sleep(0.01)
        loading.result()


def _rows(setup: TrainingSetup) -> dict[str, list[int]]:
    return {t.name: sorted(setup.collection.ids(t.name)) for t in setup.collection.tables}


def test_rows_are_there_before_the_pause_which_loads_what_changed_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = _Run(tmp_path)
    run.train(*range(40))
    run.save()
    other = run.set_up(2, before=run.setup)
    run.train(*range(30, 45))
    run.load_ahead(other)
    assert _rows(other) == _rows(run.setup)  # of a save that it asked for
    run.load_ahead(other)  # nothing was trained since: it does not wait for a save
    assert run.setup.collection.evict("C2", before_step=100, max_frequency=100) == 45
    run.train(3, 49)
    last = run.save()
    loaded: list[SaveSet] = []

    def record(collection: Any, directory: Any, saves: Sequence[SaveSet]) -> int:
        loaded.extend(saves)
        return load_rows(collection, directory, saves)

    monkeypatch.setattr(checkpoint_writer, "load_rows", record)
    assert resume(other, run.config.seed) == (last, last.chain[-1].rows + last.chain[-1].removed)
    assert loaded == [last.chain[-1]]
    assert len(last.chain) == 3
    assert _rows(other) == _rows(run.setup)
    assert _rows(other)["C2"] == [3, 49]
    run.setup = other
    after = run.save()
    other.writer.close()
    assert after.chain[:-1] == last.chain
    assert after.chain[-1].rows == after.chain[-1].removed == 0  # nothing changed since


def test_rows_ahead_go_if_the_run_saved_others_in_their_place(tmp_path: Path) -> None:
    run = _Run(tmp_path)
    run.train(1, 2, 3)
    run.save()
    other = run.set_up(2, before=run.setup)
    run.load_ahead(other)
    run.setup.collection.clear()
    run.train(2, 4)
    run.setup.writer.restart()
    run.save()
    resume(other, run.config.seed)
    assert _rows(other) == _rows(run.setup) == {name: [2, 4] for name in _rows(other)}


def test_no_cluster_is_ready_if_the_run_cannot_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pause would last until it can."""
    run = _Run(tmp_path)
    run.train(1)
    run.save()
    other = run.set_up(2, before=run.setup)
    run.train(2)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint_writer, "write_dense", full)
    with pytest.raises(CheckpointError, match=r"could not be written: .*No space left"):
        run.load_ahead(other)


def test_rows_are_loaded_ahead_where_they_fit_once_more() -> None:
    def shard(memory: int, available: int | None) -> ShardUse:
        return ShardUse(
            device="", tables={}, memory_bytes=memory, resident_bytes=0, available_bytes=available
        )

    assert fits_twice([shard(100, 301), shard(100, 400)])
    assert not fits_twice([shard(100, 299), shard(100, 400)])
    assert not fits_twice([shard(100, None)])  # nobody knows
