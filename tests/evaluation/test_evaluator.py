"""The sidecar evaluator: the same scores from any shards, by newer deltas only, to the last one."""

import json
import math
import os
import shutil
import threading
from typing import Any

import numpy as np
import pytest

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.lease import read_leases
from embedps.checkpoint.policies import Consecutive
from embedps.checkpoint.tools.compact import compact
from embedps.errors import CorruptCheckpointError, DatasetError, DimMismatchError
from embedps.evaluation.evaluator import Evaluation, Evaluator
from embedps.metrics import ClickScores
from embedps.run.summary import read_evaluations
from embedps.tables import TableSpec
from embedps.training.checkpoint_writer import CheckpointWriter
from tests.builders import (
    LEARN,
    MIXED,
    Replay,
    latest,
    make_dlrm,
    make_trainer,
    write_dataset,
)
from tests.commands import run
from tests.tables.builders import ids, make_collection, train


def make_evaluator(dataset, model_dir, *, recommender=None, **fields) -> Evaluator:
    return Evaluator(
        recommender or make_dlrm(dataset), dataset, CheckpointDirectory(model_dir), **fields
    )


def score_latest(dataset, model_dir, **fields) -> ClickScores:
    found = make_evaluator(dataset, model_dir, **fields).evaluate_latest(newer_than=-1)
    assert found is not None
    return found[1].metrics


def refuse(evaluation: Evaluation) -> None:
    pytest.fail(f"scored {evaluation}")


@pytest.fixture(scope="module")
def scored(clicks, history) -> ClickScores:
    """The scores by an evaluator of one shard, of a run on two."""
    return score_latest(clicks, history)


@pytest.mark.parametrize("fields", [{"num_shards": 5}, {"batch_rows": 64}])
def test_scores_depend_neither_on_the_evaluators_shards_nor_on_the_batch(
    clicks, history, scored, fields
):
    other = score_latest(clicks, history, **fields)
    assert other.examples == scored.examples == 1133
    for name in ("auc", "logloss", "calibration"):
        assert getattr(other, name) == pytest.approx(getattr(scored, name), abs=1e-6)


def test_scores_of_a_trained_model_beat_the_base_rate(scored):
    assert scored.normalized_entropy < 0.97
    assert scored.auc > 0.65
    assert 0.8 < scored.calibration < 1.25


def test_scoring_creates_no_rows_and_repeats(clicks, history):
    evaluator = make_evaluator(clicks, history)
    evaluator.apply(latest(history))
    before = evaluator.collection.stats().rows
    assert evaluator.score() == evaluator.score()
    assert evaluator.collection.stats().rows == before


def test_newer_manifest_is_applied_by_its_deltas_alone(clicks, history):
    directory = CheckpointDirectory(history)
    follower = make_evaluator(clicks, history, num_shards=3)
    for number in directory.numbers():
        manifest = directory.read(number)
        newest = manifest.chain[-1]
        assert follower.apply(manifest) == newest.rows + newest.removed
        assert follower.apply(manifest) == 0
        if number >= directory.numbers()[-2]:
            fresh = make_evaluator(clicks, history)
            assert fresh.apply(manifest) == sum(s.rows + s.removed for s in manifest.chain)
            assert follower.score() == fresh.score()
            assert follower.collection.stats().rows == fresh.collection.stats().rows
    before = directory.read(directory.numbers()[-2])
    assert len(before.chain) == 3
    assert manifest.base_number > before.number  # a new chain came, and its delta led on to it


def test_compaction_under_the_evaluator_costs_it_nothing(copied, clicks):
    """It goes on by the deltas that it lacks, and scores what a fresh one does."""
    evaluator = make_evaluator(clicks, copied, num_shards=2)
    assert evaluator.evaluate_latest(newer_than=-1) is not None
    made = compact(CheckpointDirectory(copied))
    assert made is not None
    assert evaluator.apply(made.manifest) == 0
    make_trainer(clicks, copied, epochs=4, max_read_cost=1e6, **LEARN).fit()
    newest = latest(copied)
    assert [save.kind for save in newest.chain] == ["base", "delta"]
    assert newest.chain[0] == made.base
    delta = newest.chain[1]
    assert evaluator.apply(newest) == delta.rows + delta.removed
    assert evaluator.score() == score_latest(clicks, copied)


def test_removed_rows_go_from_the_evaluator(tmp_path, mixed):
    dataset, model_dir = mixed
    shutil.copytree(model_dir, tmp_path, dirs_exist_ok=True)
    model: dict[str, Any] = {"recommender": MIXED}
    trainer = make_trainer(dataset, tmp_path, **model)
    evaluator = make_evaluator(dataset, tmp_path, **model)
    evaluator.apply(latest(tmp_path))
    assert trainer.collection.evict("wide", before_step=2**31, max_frequency=3) > 0
    save: dict[str, Any] = {
        "step": 1,
        "ledger": trainer.ledger.state(),
        "partially_applied": dict,
        "progress": {},
    }
    manifest = trainer.saver.save(**save, final=True)
    assert manifest.chain[-1].removed > 0
    evaluator.apply(manifest)
    assert evaluator.collection.stats().rows == trainer.collection.stats().rows


def test_follower_scores_while_training_goes_on_and_ends_with_the_last(
    tmp_path, clicks, monkeypatch
):
    first_report = threading.Event()
    reports: list[Evaluation] = []

    def report(evaluation):
        reports.append(evaluation)
        first_report.set()

    follower = threading.Thread(
        target=lambda: make_evaluator(clicks, tmp_path).follow(report), daemon=True
    )
    follower.start()
    fields: dict[str, Any] = {"delta_secs": 0.05, "unit_rows": 128, **LEARN}
    epochs = 0
    while not first_report.is_set():  # trains until the follower has seen it
        epochs += 4
        trainer = make_trainer(clicks, tmp_path, epochs=epochs, **fields)
        monkeypatch.setattr(trainer._loop, "save", not_final(trainer))
        trainer.fit()
    trainer = make_trainer(clicks, tmp_path, epochs=epochs + 4, **fields)
    assert trainer.fit().summary["finished"]
    follower.join(60)
    assert not follower.is_alive()
    numbers = [e.number for e in reports]
    assert numbers == sorted(set(numbers))
    assert len(numbers) >= 2
    last = latest(tmp_path)
    assert reports[-1].step == last.step
    assert last.number - reports[-1].number in (0, 1)  # then came a new base of the same rows
    assert reports[-1].metrics == score_latest(clicks, tmp_path)
    assert reports[-1].metrics.examples == 1133


def not_final(trainer):
    """The trainer's save, never the last one: more is to come."""
    save = trainer._loop.save
    return lambda **arguments: save(**{**arguments, "final": False})


def test_follower_of_a_resumed_run_does_not_end_with_the_old_last(tmp_path, clicks, history):
    replay = Replay(history, tmp_path / "m")
    old, new = replay.numbers[:2]
    assert replay.source.read(old).final
    replay.commit(old)
    reports: list[int] = []
    seen_old = threading.Event()

    def report(evaluation):
        reports.append(evaluation.number)
        seen_old.set()

    evaluator = make_evaluator(clicks, tmp_path / "m")
    follower = threading.Thread(
        target=evaluator.follow, args=(report,), kwargs={"final_after": old}, daemon=True
    )
    follower.start()
    assert seen_old.wait(60)
    replay.commit(new)
    follower.join(60)
    assert not follower.is_alive()
    assert reports == [old, new]


def test_follower_of_a_run_scored_to_its_end_ends_at_once(clicks, history):
    last = latest(history).number
    make_evaluator(clicks, history).follow(refuse, newer_than=last)


def test_idle_follower_ends(tmp_path, clicks):
    make_evaluator(clicks, tmp_path).follow(refuse, idle_secs=0.0)


def test_lease_is_held_while_scoring_and_released(clicks, history, monkeypatch):
    directory = CheckpointDirectory(history)
    evaluator = make_evaluator(clicks, history)
    score, held = evaluator.score, []

    def look_and_score():
        held.append(read_leases(directory))
        return score()

    monkeypatch.setattr(evaluator, "score", look_and_score)
    evaluator.evaluate_latest(newer_than=-1)
    ((lease,),) = held
    assert lease.number == latest(directory.path).number
    assert lease.pid == os.getpid()
    assert read_leases(directory) == []

    monkeypatch.setattr(evaluator, "score", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        evaluator.evaluate_latest(newer_than=-1)
    assert read_leases(directory) == []
    assert evaluator.evaluate_latest(newer_than=lease.number) is None
    assert read_leases(directory) == []


def test_evaluator_recovers_after_a_chain_that_could_not_be_read(copied, clicks):
    directory, manifest = CheckpointDirectory(copied), latest(copied)
    evaluator = make_evaluator(clicks, copied)
    path = directory.file(manifest.chain[-1].files[0])
    good = path.read_bytes()
    path.write_bytes(good[:100] + bytes(len(good) - 200) + good[-100:])
    with pytest.raises(CorruptCheckpointError, match=path.name):
        evaluator.apply(manifest)
    path.unlink()
    with pytest.raises(
        CorruptCheckpointError, match=f"{path}: manifest {manifest.number} names it"
    ):
        evaluator.apply(manifest)
    path.write_bytes(good)
    evaluator.apply(manifest)
    assert evaluator.score() == score_latest(clicks, copied)


def test_checkpoint_of_another_model_is_refused(clicks, history):
    other = make_dlrm(clicks, embedding_dim=8)
    with pytest.raises(
        DimMismatchError, match="table 'C1' has embedding_dim 8, the checkpoint has 4"
    ):
        make_evaluator(clicks, history, recommender=other).evaluate_latest(newer_than=-1)


def test_damaged_shard_of_the_split_is_named(tmp_path, history):
    dataset = write_dataset(tmp_path / "set", evaluation=(700, 433))
    path = dataset.paths("eval")[1]
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes(len(data) // 2) + data[100 + len(data) // 2 :])
    with pytest.raises(DatasetError, match=path.name):
        score_latest(dataset, history)


@pytest.mark.slow
def test_memory_is_flat_over_five_hundred_deltas(tmp_path, clicks):
    """The same rows change again and again, some go and come back; no base comes between."""
    num_ids, dim = 2000, 32
    collection = make_collection([TableSpec(name="t", embedding_dim=dim)], num_shards=1)
    saver = CheckpointWriter(
        CheckpointDirectory(tmp_path), collection, {}, rebase=Consecutive(max_read_cost=math.inf)
    )
    for step in range(1, 561):
        batch = ids(*np.arange(step % 7, num_ids, 2))
        train(collection, {"t": batch}, {"t": np.ones([len(batch), dim], np.float32)}, step=step)
        collection.evict("t", before_step=step, max_frequency=2 if step % 5 == 0 else 0)
        saver.save(step=step, ledger={}, partially_applied=dict, progress={}, final=False)
    done = run("-m", "tests.follower_program", tmp_path, clicks.directory, 60, 560)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["rows"] == collection.stats().rows
    before, after = found["rss_bytes"]
    # A delta holds about 1000 rows of 32 floats: 500 of them are 64 MB.
    assert after - before < 0.02 * before


def test_paused_evaluator_catches_up_by_the_chain_also_across_a_compaction(
    tmp_path, clicks, history
):
    """What it lacks is read, not what it has, and the scores are those of one that began anew."""
    replay = Replay(history, tmp_path / "m")
    directory, (first, second, third) = replay.directory, replay.numbers[:3]
    replay.commit(first)
    evaluator = make_evaluator(clicks, directory.path, num_shards=2)
    assert evaluator.evaluate_latest(newer_than=-1) is not None
    taken: list[int] = []
    apply = evaluator._apply

    def counted(step):
        taken.append(apply(step))
        return taken[-1]

    evaluator._apply = counted  # type: ignore[method-assign]
    replay.commit(second, third)
    missed = latest(directory.path).chain[1:]
    assert len(missed) == 2
    assert compact(directory) is not None
    assert len(latest(directory.path).chain) == 1
    found = evaluator.evaluate_latest(newer_than=first)
    assert found is not None
    assert found[1].metrics == score_latest(clicks, directory.path)
    assert found[1].number == latest(directory.path).number
    assert sum(taken) == sum(save.rows + save.removed for save in missed)
    assert read_leases(directory) == []


def test_lines_cut_short_are_left_out(tmp_path):
    assert read_evaluations(tmp_path) == []
    evaluation = Evaluation(
        number=3,
        step=9,
        metrics=ClickScores(values={"auc": float("nan"), "logloss": 0.5}, examples=4),
        secs=1.0,
        lag_secs=2.0,
    )
    line = json.dumps(evaluation.to_json())
    (tmp_path / "evaluation.jsonl").write_text(f"{line}\n{line[:20]}")
    (read,) = read_evaluations(tmp_path)
    assert read["auc"] is None
    assert (read["number"], read["step"], read["logloss"], read["examples"]) == (3, 9, 0.5, 4)
