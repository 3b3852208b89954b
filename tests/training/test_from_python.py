"""Runs that a user's own script starts: what the command does with a config, they do too."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tensorflow as tf

import embedps
from embedps.cluster.embedded import EmbeddedCluster
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.models import dlrm
from embedps.run.run_config import read_run
from embedps.training.trainer import Trainer
from tests import forked
from tests.builders import (
    ROOT,
    TINY_DLRM,
    SumModel,
    dataset_fixture,
    make_config,
    make_dlrm,
    make_listed,
    write_dataset,
)
from tests.commands import environment, evaluations_of, summary_of, train, wait_until_gone

BY_NAME = """
import sys
from embedps.run.config import TrainConfig
from embedps.training.trainer import Trainer
from embedps.models import dlrm

config = TrainConfig.from_options(
    data=sys.argv[1],
    model_dir=sys.argv[2],
    num_ps=2,
    num_workers=2,
    num_shards=3,
    batch_size=64,
    unit_rows=512,
    epochs=500,
    delta_secs=0.3,
    stop_patience=2,
    min_delta=0.9,
)
small = dlrm.Config(embedding_dim=4, bottom_mlp=(8,), top_mlp=(8,))
if __name__ == "__main__":
    summary = Trainer.from_config(config, small).fit().summary
    print("stopped early:", summary["stopped_early"])
"""

OWN = """
import sys
import tensorflow as tf
from embedps import ClickModel, Embeddings
from embedps.run.checkpoint_config import CheckpointConfig
from embedps.run.config import TrainConfig
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.training.trainer import Trainer


class Own(ClickModel):
    def __init__(self, label):
        super().__init__(label=label)
        self.embeddings = Embeddings({"C1": 3})
        self.out = tf.keras.layers.Dense(1)

    def logits(self, features, *, training):
        return self.out(self.embeddings(features)["C1"])[:, 0]


def make(config, dataset):
    return Recommender(build=lambda: Own(dataset.label))


if __name__ == "__main__":
    config = TrainConfig(
        data=sys.argv[1],
        model_dir=sys.argv[2],
        batch_size=64,
        unit_rows=512,
        checkpoint=CheckpointConfig(delta_secs=1e6),  # only the last one, so one score
    )
    print(Trainer(make(None, Dataset.open(config.data)), Dataset.open(config.data), config).fit())
"""

MODULE = """
import dataclasses
from script import make


@dataclasses.dataclass(frozen=True)
class Config:
    pass
"""

CANNOT_SCORE = """
import dataclasses
import sys
from embedps.errors import UsageError
from embedps.models import dlrm


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    width: int = 8


def make(config, dataset):
    if "embedps.evaluate" in " ".join(sys.orig_argv):
        raise UsageError("this model is not to be had here")
    made = dlrm.Config(embedding_dim=4, bottom_mlp=(config.width,), top_mlp=(8,))
    return dlrm.make(made, dataset)
"""


dataset = dataset_fixture()


@pytest.fixture(scope="module")
def unscored(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A dataset without eval rows."""
    return write_dataset(tmp_path_factory.mktemp("unscored") / "set", evaluation=())


def python(*arguments: str | Path, folder: Path = ROOT, **env: str) -> tuple[int, str, str]:
    done = forked.run(
        [*map(str, arguments)],
        cwd=folder,
        env=environment(**{"PYTHONPATH": str(ROOT), **env}),
        capture_output=True,
        timeout=200,
    )
    return done.returncode, done.stdout, done.stderr


# ---- a script's run is the command's -----------------------------------------------------------


@pytest.mark.multiprocess
@pytest.mark.slow
def test_script_gets_a_cluster_an_evaluator_and_its_stop_and_leaves_what_others_read(
    tmp_path, dataset
):
    (tmp_path / "script.py").write_text(BY_NAME)
    model_dir = tmp_path / "m"
    code, out, err = python("script.py", dataset.directory, model_dir, folder=tmp_path)
    assert code == 0, err
    assert "stopped early: auc has not been better than" in out
    assert (model_dir / "logs/ps-1.log").exists()  # it had the cluster that the config asks for
    wait_until_gone(str(model_dir))
    assert len(evaluations_of(model_dir)) >= 3

    run = read_run(model_dir)
    assert (run.config.model, run.config.cluster.num_ps, run.config.cluster.num_shards) == (
        "dlrm",
        2,
        3,
    )
    assert run.model_config == TINY_DLRM
    assert summary_of(model_dir)["config"] == json.loads((model_dir / "config.json").read_text())
    code, out, err = python("-m", "embedps.evaluate", "--model-dir", model_dir, "--once")
    assert code == 0, err
    assert re.search(r"step \d+: .*AUC", out)


@pytest.mark.multiprocess
@pytest.mark.slow
def test_model_of_a_script_is_scored_beside_the_run_and_later_by_the_module_that_makes_it(
    tmp_path, dataset
):
    (tmp_path / "script.py").write_text(OWN)
    (tmp_path / "own").mkdir()
    (tmp_path / "own/ranker.py").write_text(MODULE)
    model_dir = tmp_path / "m"
    code, out, err = python("script.py", dataset.directory, model_dir, folder=tmp_path)
    assert code == 0, err
    assert "Held-out scores" in out
    assert "scores are missing" not in out
    (score,) = evaluations_of(model_dir)
    assert score["examples"] == dataset.split("eval").rows

    again = ("-m", "embedps.evaluate", "--model-dir", model_dir, "--once")
    code, _, err = python(*again)
    assert code == 2
    assert err.strip().count("\n") == 0
    assert "give --model mymodel or package.module" in err
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    code, _, err = python(*again, "--model=own.ranker", PYTHONPATH=path)
    assert code == 0, err
    assert evaluations_of(model_dir)[-1]["auc"] == score["auc"]


@pytest.mark.multiprocess
@pytest.mark.slow
def test_evaluator_that_ends_for_good_is_one_line_and_the_summary_is_written(tmp_path, dataset):
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/broken.py").write_text(CANNOT_SCORE)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    same = ("--model=shop.broken", "--batch-size=64", "--unit-rows=512", "--epochs=2")
    process = train(dataset, tmp_path / "m", *same, PYTHONPATH=path)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 1, out + err
    said = "the evaluator ended with code 2: this model is not to be had here"
    (line,) = err.splitlines()  # and one of its output, where it ended before training did
    assert line.startswith(f"embedps: {said}; see {tmp_path}/m/logs/evaluator.log; ")
    summary = summary_of(tmp_path / "m")
    assert summary["finished"]
    assert summary["evaluation"] is None
    assert summary["evaluator_problem"] == line.removeprefix("embedps: ")
    assert summary["evaluator_restarts"] == 0
    assert "done: " in out.splitlines()[-1]


# ---- a field that cannot be done is refused ----------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_ps", 2, "config.cluster.num_ps is 2, but the cluster that was passed has"),
        (
            "num_workers",
            3,
            "config.cluster.num_workers is 3, but the cluster that was passed has",
        ),
        ("num_shards", 5, "config.cluster.num_shards is 5, but the cluster that was passed has"),
        ("data", "elsewhere", "config.data is 'elsewhere', but the dataset that is given lies in"),
        ("model", "mine", "config.model is 'mine', but the recommender was made by module dlrm"),
    ],
)
def test_field_that_another_argument_contradicts_is_refused(
    tmp_path, dataset, field, value, message
):
    config = make_config(dataset, tmp_path / "m")
    given = EmbeddedCluster(num_workers=2, num_shards=4)
    given_config = type(config).from_options(**{**config.to_options(), field: value})
    with pytest.raises(UsageError, match=re.escape(message)):
        Trainer(make_dlrm(dataset), dataset, given_config, given)


def test_fields_make_the_cluster_where_none_is_given(tmp_path, dataset):
    config = make_config(dataset, tmp_path, num_workers=3, num_shards=5)
    trainer = Trainer(make_dlrm(dataset), dataset, config)
    try:
        assert trainer._cluster.num_workers == 3
        assert len(trainer._cluster.shard_devices) == 5
    finally:
        trainer.close()


def test_model_is_the_one_that_the_config_names(tmp_path, dataset):
    def make(name: str | None, model_config: Any = None) -> Trainer:
        config = make_config(dataset, tmp_path, model=name)
        return Trainer.from_config(config, model_config)

    with pytest.raises(UsageError, match=r"there is no module absent"):
        make("absent")
    with pytest.raises(
        UsageError, match=r"model_config must be a embedps.models.dlrm.Config but got a"
    ):
        make("dlrm", {"embedding_dim": 4})
    trainer = make(None, dlrm.Config(embedding_dim=2, bottom_mlp=(3,), top_mlp=(3,)))
    trainer.close()
    assert {table.embedding_dim for table in trainer.collection.tables} == {2}


def test_model_that_no_other_process_can_get_is_refused_before_anything_is_trained(tmp_path):
    dataset = write_dataset(tmp_path / "data", whole=True)
    lock = threading.Lock()

    class Locked(SumModel):
        held = lock

    def build():
        with lock:
            return Locked()

    unsendable = embedps.Recommender(build=build)
    config = make_config(dataset, tmp_path / "m", eval="sidecar")
    with pytest.raises(UsageError, match=r"cannot be sent there \(TypeError: .*lock.*\): put the"):
        Trainer(unsendable, dataset, config).fit()
    assert not list(tmp_path.glob("m/manifests/*"))


# ---- nothing to score --------------------------------------------------------------------------


@pytest.mark.parametrize("evaluation", ["sidecar", "inline"])
def test_run_that_would_score_nothing_is_refused_at_its_start(tmp_path, unscored, evaluation):
    config = make_config(unscored, tmp_path / "m", eval=evaluation)
    for begin in (
        lambda: Trainer(make_dlrm(unscored), unscored, config),
        lambda: Trainer.from_config(config),
    ):
        with pytest.raises(
            UsageError, match=f"has no rows in split 'eval', so --eval {evaluation}"
        ):
            begin()
    assert not (tmp_path / "m").exists()


def test_run_that_is_not_scored_needs_no_eval_rows(tmp_path, unscored):
    summary = Trainer(make_dlrm(unscored), unscored, make_config(unscored, tmp_path)).fit().summary
    assert summary["finished"]
    assert summary["evaluation"] is None


@pytest.mark.multiprocess
@pytest.mark.slow
def test_command_says_that_there_is_nothing_to_score(tmp_path, unscored):
    process = train(unscored, tmp_path / "m")
    out, err = process.communicate(timeout=100)
    assert process.returncode == 2, out
    (line,) = err.splitlines()
    assert "has no rows in split 'eval', so --eval sidecar has nothing to score" in line
    assert "use --eval none, or make the dataset with --eval-fraction above 0" in line


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dataset": tf.data.Dataset.range(3)}, "must be an embedps.Dataset but got a tensorflow"),
        ({"dataset": pd.DataFrame({"a": [1]})}, "must be an embedps.Dataset but got a pandas Data"),
        ({"dataset": Path("data")}, "must be an embedps.Dataset but got a pathlib PosixPath"),
        ({"recommender": tf.keras.Sequential()}, "must be an embedps.Recommender but got a tf_k"),
    ],
)
def test_arguments_of_other_types_are_named(wrong: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"recommender": embedps.Recommender(build=tf.keras.Sequential)}
    with pytest.raises(UsageError, match=message) as refused:
        embedps.Trainer(**{**given, "dataset": None, "config": None, **wrong})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("config", [None, {"batch_size": 64}, "model-dir"])
def test_a_config_of_another_type_is_named(config: Any) -> None:
    empty = make_listed([])
    build = embedps.Recommender(build=tf.keras.Sequential)
    for make in (
        lambda: embedps.Trainer(build, empty, config),
        lambda: embedps.Trainer.from_config(config),
    ):
        with pytest.raises(UsageError, match=r"config must be an embedps.TrainConfig but") as e:
            make()
        assert "\n" not in str(e.value)


def test_a_recommender_takes_a_function_not_a_model() -> None:
    with pytest.raises(UsageError, match="must be a function that makes the model but got a Seq"):
        embedps.Recommender(build=tf.keras.Sequential())
