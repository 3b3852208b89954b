"""The field's tutorials train by the engine and by `fit`, with at most five changed lines each."""

from __future__ import annotations

import importlib
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.data.dataset import Dataset
from embedps.evaluation.evaluator import Evaluator
from examples.tutorials import movielens
from tests.builders import ROOT, make_config
from tests.commands import evaluations_of, run

RATINGS = ("tfrs_ranking", "tfrs_retrieval", "tfrs_multitask", "tfrs_dcn")
MODULES = (*RATINGS, "sasrec")
# The multitask model has the tasks of two others.
HEAVIEST = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("tfrs_multitask", "sasrec") else pytest.mark.slow)
        for name in MODULES
    ],
)


@pytest.fixture(
    scope="module", params=["generated", pytest.param("MovieLens 100K", marks=pytest.mark.slow)]
)
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("movielens")
    if request.param == "generated":
        movielens.main([str(directory), "--users", "60"])
        return directory
    samples = os.environ.get("EMBEDPS_SAMPLES")
    if not samples:
        pytest.skip("EMBEDPS_SAMPLES is unset: no real samples here")
    movielens.main([str(directory), "--samples", samples])
    return directory


GENERATED = pytest.mark.parametrize("data", ["generated"], indirect=True)


def recommender_of(name: str, dataset: Dataset) -> embedps.Recommender:
    module = importlib.import_module(f"examples.tutorials.{name}")
    found: embedps.Recommender = module.make(module.Config(), dataset)
    return found


def dataset_of(name: str, data: Path) -> Dataset:
    return Dataset.open(data / ("histories" if name == "sasrec" else "ratings"))


@pytest.mark.parametrize("name", MODULES)
def test_at_most_five_lines_differ_from_a_plain_keras_model(name: str) -> None:
    text = (ROOT / "examples" / "tutorials" / f"{name}.py").read_text()
    assert 1 <= text.count("# changed\n") <= 5
    for line in text.splitlines():
        if "embedps." in line and "def make" not in line and "embedps.Recommender" not in line:
            assert line.endswith("# changed"), line


@HEAVIEST
def test_engine_trains_a_tutorial(tmp_path: Path, data: Path, name: str) -> None:
    dataset = dataset_of(name, data)
    config = make_config(
        dataset, tmp_path, eval="inline", epochs=2, batch_size=128 if name != "sasrec" else 32,
        dense_optimizer="adagrad", dense_learning_rate=0.1,
    )  # fmt: skip
    recommender = recommender_of(name, dataset)
    result = embedps.Trainer(recommender, dataset, config).fit()
    first, last = result.scores[0].values, result.scores[-1].values
    if dataset.split("train").rows > 50_000 or name == "sasrec":  # the few generated are learned
        assert (last["loss"] or math.inf) < (first["loss"] or 0.0)  # by heart in an epoch
    if name in ("tfrs_ranking", "tfrs_multitask", "tfrs_dcn"):
        rmse = last["RMSE" if name == "tfrs_dcn" else "root_mean_squared_error"]
        assert 0 < (rmse or 0.0) < 1.4
    if name in ("tfrs_retrieval", "tfrs_multitask"):
        ranks = (1, 10, 100)
        found = [last[f"factorized_top_k/top_{k}_categorical_accuracy"] or 0.0 for k in ranks]
        assert 0 <= found[0] <= found[1] <= found[2] <= 1
        assert found[2] > 0.05
    if name != "tfrs_retrieval":
        model = embedps.load(tmp_path, recommender=recommender, data=dataset.directory)
        columns = {n: [[1, 2]] if name == "sasrec" else [1] for n in model.columns}
        assert all(np.isfinite(each).all() for each in model.predict(columns).values())


@HEAVIEST
@GENERATED
def test_fit_trains_a_tutorial(data: Path, name: str) -> None:
    dataset = dataset_of(name, data)
    model = recommender_of(name, dataset).build()
    optimizers = tf.keras.optimizers
    model.compile(optimizers.Adam(5e-3) if name == "sasrec" else optimizers.Adagrad(0.1))
    rows = 16 if name == "sasrec" else 512  # users are fewer than ratings

    def read(split: str) -> tf.data.Dataset:
        return embedps.read(dataset, split, batch_size=rows, targets=False).take(20)

    history = model.fit(
        read("train"), epochs=4 if name == "sasrec" else 3, validation_data=read("eval"), verbose=0
    ).history
    measured = history["val_loss" if name == "sasrec" else "loss"]  # TFRS logs the last batch's
    assert measured[-1] < measured[0]
    assert np.isfinite(history["val_loss"]).all()
    top = [name for name in history if name.startswith("val_factorized_top_k")]
    assert len(top) == (5 if name in ("tfrs_retrieval", "tfrs_multitask") else 0)


@pytest.mark.multiprocess
@pytest.mark.slow
@GENERATED
def test_a_cluster_trains_and_ranks_as_one_process_does(tmp_path: Path, data: Path) -> None:
    scores: dict[str, Any] = {}
    for name, more in {"one": (), "cluster": ("--num-ps=2", "--num-workers=2")}.items():
        # In processes of their own: TensorFlow keeps a cluster's servers in mind for good.
        run(
            *("-m", "embedps.train", "--model=examples.tutorials.tfrs_multitask", "--eval=inline"),
            *(f"--data={data / 'ratings'}", f"--model-dir={tmp_path / name}", "--batch-size=512"),
            *("--dense-optimizer=adagrad", "--dense-learning-rate=0.1", *more),
            timeout=None,
        )
        scores[name] = evaluations_of(tmp_path / name)[-1]
    key = "factorized_top_k/top_100_categorical_accuracy"
    assert scores["cluster"][key] == pytest.approx(scores["one"][key], abs=0.05)
    # The sidecar ranks the checkpoint's candidates as inline evaluation did.
    dataset = dataset_of("tfrs_multitask", data)
    recommender = recommender_of("tfrs_multitask", dataset)
    directory = CheckpointDirectory(tmp_path / "cluster")
    found = Evaluator(recommender, dataset, directory).evaluate_latest(newer_than=-1)
    assert found is not None
    assert found[1].metrics.values[key] == pytest.approx(scores["cluster"][key], abs=1e-6)
