"""Evaluators that share a scoring: the scores of one, once, whoever comes, goes or dies."""

import itertools
import shutil
import threading

import numpy as np
import pytest

import embedps
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.evaluation.evaluator import Evaluation, EvaluationLog, Evaluator
from embedps.evaluation.shared_scoring import FOLDER, SharedScoring
from embedps.run.summary import append_evaluation, read_evaluations
from tests.builders import LEARN, TINY_DLRM, latest, make_config, make_dlrm, write_dataset
from tests.commands import start

SHARDS = (150, 90, 200, 40, 170, 60)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A dataset whose held-out split has six units, and a run on it."""
    root = tmp_path_factory.mktemp("shared")
    dataset = write_dataset(root / "set", train=(500,), evaluation=SHARDS)
    config = make_config(dataset, root / "m", model="dlrm", **LEARN)
    embedps.Trainer.from_config(config, TINY_DLRM).fit()
    return dataset, root / "m"


@pytest.fixture
def copied(trained, tmp_path):
    dataset, model_dir = trained
    shutil.copytree(model_dir, tmp_path / "m")
    (tmp_path / "m/evaluation.jsonl").unlink(missing_ok=True)
    return dataset, tmp_path / "m"


def make_evaluator(dataset, model_dir, **fields) -> Evaluator:
    return Evaluator(make_dlrm(dataset), dataset, CheckpointDirectory(model_dir), **fields)


@pytest.fixture(scope="module")
def alone(trained) -> Evaluation:
    found = make_evaluator(*trained).evaluate_latest(newer_than=-1)
    assert found is not None
    return found[1]


def test_evaluators_log_the_scores_of_one_once(copied, alone):
    dataset, model_dir = copied
    reports: list[Evaluation] = []
    log = EvaluationLog(model_dir)

    def report(evaluation):
        reports.append(evaluation)
        log.add(evaluation)

    evaluators = [make_evaluator(dataset, model_dir, is_shared=True) for _ in range(3)]
    threads = [threading.Thread(target=each.follow, args=(report,)) for each in evaluators]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
        assert not each.is_alive()
    assert {each.number for each in reports} == {latest(model_dir).number}
    assert all(each.metrics == alone.metrics for each in reports)  # to the last bit
    assert [e["number"] for e in read_evaluations(model_dir)] == [each.number for each in reports]
    assert list((model_dir / FOLDER).iterdir()) == []


def counts_of(unit):
    return {"examples": np.float64(SHARDS[unit]), "loss": np.float64(1 / (unit + 3))}


def test_units_of_one_that_died_are_scored_once_by_who_is_left(tmp_path):
    def dies(unit):
        if next(calls) == 2:
            raise KeyboardInterrupt
        return counts_of(unit)

    calls = itertools.count()
    with pytest.raises(KeyboardInterrupt):
        SharedScoring(tmp_path, split="s").counts(7, range(6), dies)
    scored: list[int] = []

    def score(unit):
        scored.append(unit)
        return counts_of(unit)

    other = SharedScoring(tmp_path, split="s", patience_secs=0)
    assert other.begun() == 7
    assert SharedScoring(tmp_path, split="other").begun() is None
    found = other.counts(7, range(6), score)
    assert found == [counts_of(unit) for unit in range(6)]
    assert len(scored) == len(set(scored)) == 4  # three that none had claimed, and the claimed one


def test_what_was_scored_meanwhile_is_not_scored_again(tmp_path):
    def score(unit):
        append_evaluation(tmp_path, {"number": 9, "step": 1})
        return counts_of(unit)

    shared = SharedScoring(tmp_path, split="s")
    assert shared.counts(8, range(6), score) is None
    assert shared.scored() == 9
    assert shared.begun() is None
    shared.clean()
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_counts_that_are_damaged_are_scored_again(tmp_path):
    folder = tmp_path / FOLDER / "3-s"
    folder.mkdir(parents=True)
    (folder / "1-aa.claim").touch()
    (folder / "1-aa.counts").write_bytes(b"no counts")
    found = SharedScoring(tmp_path, split="s", patience_secs=0).counts(3, range(2), counts_of)
    assert found == [counts_of(0), counts_of(1)]


def test_processes_share_the_scoring_of_a_run(copied, alone):
    dataset, model_dir = copied
    flags = (f"--model-dir={model_dir}", f"--data={dataset.directory}", "--shared")
    processes = [start("embedps.evaluate", *flags) for _ in range(2)]
    for each in processes:
        out, err = each.communicate(timeout=120)
        assert each.returncode == 0, out + err
        assert "the scores of all processes are in " in out
    (line,) = read_evaluations(model_dir)
    assert {k: line[k] for k in alone.metrics.values} == dict(alone.metrics.values)
