"""Inline evaluation: the same counts as one process has, whoever scores and dies meanwhile."""

import hashlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import row_visits
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.cluster.embedded import EmbeddedCluster
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.evaluation.evaluator import Evaluator
from embedps.run.summary import read_evaluations
from embedps.score_names import scores_of
from tests import two_tasks
from tests.builders import (
    SumModel,
    dataset_fixture,
    latest,
    make_config,
    make_dlrm,
    make_trainer,
    write_dataset,
)
from tests.commands import run_program

EVALUATION = (700, 433, 900)
SAME = ("number", "step", "examples", "auc", "logloss", "normalized_entropy", "calibration")


dataset = dataset_fixture(evaluation=EVALUATION, whole=True)


def sidecar_scores(dataset: Dataset, model_dir: Path) -> dict[str, Any]:
    """What the sidecar would write of the newest checkpoint."""
    evaluator = Evaluator(make_dlrm(dataset), dataset, CheckpointDirectory(model_dir))
    found = evaluator.evaluate_latest(newer_than=-1)
    assert found is not None
    return found[1].to_json()


def test_scores_are_those_of_the_sidecar(tmp_path, dataset):
    fields: dict[str, Any] = {"eval": "inline", "num_shards": 2, "num_workers": 3}
    make_trainer(dataset, tmp_path, epochs=2, sparse_learning_rate=0.2, **fields).fit()
    first, last = read_evaluations(tmp_path)
    assert first["number"] < last["number"]
    wanted = sidecar_scores(dataset, tmp_path)
    assert {k: last[k] for k in SAME} == {k: wanted[k] for k in SAME}
    assert last.keys() == wanted.keys()
    assert last["examples"] == sum(EVALUATION)
    assert latest(tmp_path).final
    shown = points_of(tmp_path / "tensorboard/eval")
    assert shown["auc"] == {e["step"]: np.float32(e["auc"]) for e in (first, last)}
    assert shown.keys() == scores_of(last).keys()


class Projected(SumModel):
    """Has a constant that is drawn at random, and is no variable: no checkpoint has it."""

    def __init__(self) -> None:
        super().__init__()
        self._mix = np.random.normal(size=2).astype(np.float32)

    def numbers(self, features: Mapping[str, Any]) -> tf.Tensor:
        return super().numbers(features) * self._mix


def test_constant_that_a_network_draws_is_the_same_in_the_evaluators_process(tmp_path, dataset):
    recommender = Recommender(build=Projected)
    fields: dict[str, Any] = {"eval": "inline", "seed": 3}
    make_trainer(dataset, tmp_path, recommender=recommender, **fields).fit()
    (inline,) = read_evaluations(tmp_path)
    np.random.seed(77)  # as another process has it
    directory = CheckpointDirectory(tmp_path)
    found = Evaluator(recommender, dataset, directory, seed=3).evaluate_latest(newer_than=-1)
    assert found is not None
    assert found[1].to_json()["logloss"] == inline["logloss"]


def points_of(folder: Path) -> dict[str, dict[int, Any]]:
    """TensorBoard's scalars by their names and steps."""
    found: dict[str, dict[int, Any]] = {}
    for path in folder.glob("events.*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                number = tf.make_ndarray(value.tensor)
                found.setdefault(value.tag, {})[event.step] = number
    return found


@pytest.mark.parametrize(
    ("fields", "due"),
    [
        ({"epochs": 2, "eval_units": 4}, [4, 6, 10, 12]),
        ({"epochs": 5, "eval_epochs": 2}, [12, 24, 30]),
        ({"epochs": 3, "eval_epochs": 9}, [18]),
        ({"epochs": 2, "eval_epochs": 2, "eval_units": 4}, [4, 10, 12]),
    ],
)
def test_scoring_is_due_at_ends_of_epochs_and_every_so_many_units(tmp_path, dataset, fields, due):
    trainer = make_trainer(dataset, tmp_path, eval="inline", **fields)
    pauses: list[int] = []
    count = trainer._loop.scoring.inline.count  # type: ignore[union-attr]

    def counted(*arguments):
        pauses.append(trainer.ledger.num_done)
        return count(*arguments)

    trainer._loop.scoring.inline.count = counted  # type: ignore[union-attr, method-assign]
    trainer.fit()
    assert trainer.ledger.units_per_epoch == 6
    assert pauses == due
    steps = [e["step"] for e in read_evaluations(tmp_path)]
    assert steps == sorted(set(steps))
    assert len(steps) == len(pauses)


def test_run_that_ended_between_save_and_score_is_scored_when_it_is_resumed(tmp_path, dataset):
    fields: dict[str, Any] = {"epochs": 2, "eval": "inline"}
    trainer = make_trainer(dataset, tmp_path, **fields)
    trainer._loop.scoring.inline.score = lambda *_: 1 / 0  # type: ignore[union-attr, method-assign]
    with pytest.raises(ZeroDivisionError):
        trainer.fit()
    saved = latest(tmp_path)
    assert saved.ledger["prefix"] == trainer.ledger.units_per_epoch
    assert read_evaluations(tmp_path) == []
    make_trainer(dataset, tmp_path, **fields).fit()
    first, last = read_evaluations(tmp_path)
    assert (first["number"], first["step"]) == (saved.number, saved.step)
    assert last["number"] == latest(tmp_path).number


def test_scoring_that_is_stopped_leaves_no_line(tmp_path, dataset):
    """A part of the examples is no score."""
    trainer = make_trainer(dataset, tmp_path, eval="inline", cluster=EmbeddedCluster())
    schedule = trainer._cluster.schedule
    stop = trainer._notices.stop

    def stopping(function, args, **more):
        if function is trainer._loop.scoring.inline._eval_unit:  # type: ignore[union-attr]
            stop.set()
        return schedule(function, args, **more)

    trainer._cluster.schedule = stopping  # type: ignore[method-assign]
    summary = trainer.fit().summary
    assert summary["units"]["done"] == summary["units"]["total"]
    entries = read_evaluations(tmp_path)
    assert all(e["examples"] == sum(EVALUATION) for e in entries)


def test_options_of_evaluation_must_fit_together(tmp_path, dataset):
    with pytest.raises(UsageError, match="eval_units needs --eval inline"):
        make_config(dataset, tmp_path, eval="sidecar", eval_units=2)
    with pytest.raises(UsageError, match="eval_epochs above 1 needs --eval inline"):
        make_config(dataset, tmp_path, eval="sidecar", eval_epochs=2)
    with pytest.raises(UsageError, match="need --eval sidecar or inline"):
        make_config(dataset, tmp_path, eval="none", stop_patience=2)


PROGRAM = """
import json, os, signal, sys, threading
from pathlib import Path
import embedps
import tensorflow as tf
from embedps.cluster.local_cluster import LocalCluster
from embedps.data.dataset import Dataset
from tests.builders import SumModel, make_trainer
from tests.evaluation.test_inline import RECOMMENDERS, SLICED, digest

data, model_dir = map(Path, sys.argv[1:3])
cluster = LocalCluster(num_ps=2, num_workers=2, log_dir=model_dir / "logs")
dataset = Dataset.open(data)
recommender = RECOMMENDERS[sys.argv[3]](dataset)
trainer = make_trainer(
    dataset, model_dir, cluster=cluster, eval="inline", recommender=recommender,
    **SLICED[sys.argv[3]],
)
inline = trainer._loop.scoring.inline
calm = inline.count(threading.Event())
killed = []
fetch = cluster.fetch

def killing(result):
    if not killed:
        killed.append(cluster.processes.pid("worker", 0))
        os.kill(killed[0], signal.SIGKILL)
    return fetch(result)

cluster.fetch = killing
found = inline.count(threading.Event())
print("found", json.dumps([digest(calm), digest(found), killed]), flush=True)
os._exit(0)
"""


def digest(counts: dict[int, Any]) -> list[Any]:
    """Of a scoring: positions, sums and histograms to the last bit."""
    h = hashlib.sha256()
    for each in counts.values():
        for name in sorted(each):
            h.update(np.asarray(each[name]).tobytes())
    examples = sum(int(each["examples"]) for each in counts.values())
    return [list(counts), examples, h.hexdigest()]


RECOMMENDERS = {
    "dlrm": make_dlrm,
    # Two tasks, BatchNormalization and Keras metrics.
    "two tasks": lambda dataset: two_tasks.make(two_tasks.Config(), dataset),
}

SLICED: dict[str, Any] = {
    "dlrm": {"gauc": "C2", "slices": ["C1", "known:C3"]},
    "two tasks": {},
}


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize("name", RECOMMENDERS)
def test_every_example_counts_once_while_a_worker_is_killed(tmp_path, name):
    """Two servers and two workers, one killed in a scoring: the counts are one process's."""
    evaluation = tuple(range(300, 500, 10))  # a unit each
    write = write_dataset if name == "dlrm" else row_visits.write_dataset
    dataset = write(tmp_path / "set", train=(1500, 1500), evaluation=evaluation)
    model_dir = tmp_path / "m"
    options: dict[str, Any] = {"eval": "inline", "sparse_learning_rate": 0.2, **SLICED[name]}
    recommender = RECOMMENDERS[name](dataset)
    trainer = make_trainer(dataset, model_dir, recommender=recommender, **options)
    trainer.fit()
    alone = trainer._loop.scoring.inline.count(threading.Event())  # type: ignore[union-attr]
    assert alone is not None
    shown = run_program("-c", PROGRAM, dataset.directory, model_dir, name, timeout_secs=240)
    line = next(line for line in shown.splitlines() if line.startswith("found "))
    calm, found, killed = json.loads(line.removeprefix("found "))
    assert killed
    assert found == calm == digest(alone)
    assert found[:2] == [list(range(len(evaluation))), sum(evaluation)]
