"""Counts of evicted rows, over the runs of a model directory."""

import dataclasses
import time

import numpy as np

from embedps.engine.recommender import Recommender
from embedps.tables import TimeToLive
from tests.builders import TABLES, SumModel, make_trainer, write_dataset
from tests.tables.builders import ids, make_collection, make_table, train


def evict_more_than(before, collection, *, secs: float) -> bool:
    """Waits until a row goes, for some seconds at most; tells whether one did."""
    deadline = time.monotonic() + secs
    while collection.eviction_stats() == before:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_a_row_that_goes_is_counted_by_one_run(tmp_path, monkeypatch):
    dataset = write_dataset(tmp_path / "data", train=(6000,), whole=True)
    aged = [dataclasses.replace(table, eviction=(TimeToLive(steps=1),)) for table in TABLES]
    recommender = Recommender(build=lambda: SumModel(tables=aged))

    def make(epochs: int):
        return make_trainer(dataset, tmp_path / "model", recommender=recommender, epochs=epochs)

    first = make(1)
    save = first.saver.save

    def save_and_wait(**what):
        before = first.collection.eviction_stats()
        manifest = save(**what)
        # Nearly all rows are too old. None may go now: the next run has them again.
        assert not evict_more_than(before, first.collection, secs=1)
        return manifest

    monkeypatch.setattr(first.saver, "save", save_and_wait)
    summary = first.fit().summary
    again = make(2)
    assert again.collection.stats().rows == summary["tables"]
    assert summary["tables"]["row"] + sum(summary["evicted"]["row"].values()) == 6000
    again.close()


def test_sweeps_go_on_after_a_hold():
    table = make_table("t", 2, eviction=(TimeToLive(steps=1),))
    collection = make_collection([table], num_shards=2)
    collection.hold_sweeps(True)
    for step, some in ((1, range(5000)), (9, range(10))):
        batch = {"t": ids(*some)}
        train(collection, batch, {"t": np.ones((len(some), 2), np.float32)}, step=step)
    before = collection.eviction_stats()
    assert not evict_more_than(before, collection, secs=1)
    collection.hold_sweeps(False)
    assert evict_more_than(before, collection, secs=60)
