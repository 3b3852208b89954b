"""Every model of the zoo exports, over datasets of each kind; its scores are those of load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.serving.export_model import export_model
from models import (
    dcn_v2,
    deepfm,
    dlrm,
    fm,
    logistic_regression,
    mmoe,
    ple,
    sasrec,
    two_tower,
    wide_deep,
)
from tests import every_column, shipped
from tests.builders import SumNetwork, latest, make_mixed, make_trainer, write_dataset
from tests.models import planted_interactions
from tests.serving.builders import Tensors, ask, evaluated, examples, split_of, tensors

DEEP: dict[str, Any] = {"embedding_dim": 4, "deep_mlp": (8,)}
EXPERTS: dict[str, Any] = {"embedding_dim": 4, "expert_mlp": (8,), "tower_mlp": (5,)}


def recommenders(directory: Path) -> dict[str, tuple[Recommender, Dataset]]:
    """Each model with a dataset: numbers and ids, ids and lists only, several labels, histories."""
    clicks = write_dataset(directory / "clicks", train=(512,), evaluation=(300,))
    genres = shipped.write_dataset("movielens_genres", directory / "genres")
    every = every_column.write_dataset(directory / "every", train=512, evaluation=300)
    users = planted_interactions.write_dataset(directory / "users")
    of_labels = {
        "mmoe": mmoe.make(mmoe.Config(**EXPERTS, num_experts=3), every),
        "ple": ple.make(ple.Config(**EXPERTS, shared_experts=2, own_experts=1), every),
        "every_column": Recommender(build=every_column.EveryColumn),
    }
    towers = two_tower.Config(embedding_dim=8, tower_mlp=(16,), num_negatives=20, history="history")
    retrieval = {
        "two_tower": two_tower.make(towers, users),
        "sasrec": sasrec.make(sasrec.Config(embedding_dim=8, max_length=6), users),
    }
    of_clicks = {
        "logistic_regression": logistic_regression.make(logistic_regression.Config(), clicks),
        "fm": fm.make(fm.Config(embedding_dim=4), clicks),
        "wide_deep": wide_deep.make(wide_deep.Config(**DEEP), clicks),
        "dcn_v2": dcn_v2.make(dcn_v2.Config(**DEEP, cross_layers=2), clicks),
        "own": make_mixed(),
    }
    narrow: dict[str, Any] = {"embedding_dim": 4, "top_mlp": (8,)}
    of_genres = {
        "deepfm": deepfm.make(deepfm.Config(**DEEP), genres),
        "dlrm": dlrm.make(dlrm.Config(**narrow), genres),
    }
    datasets = ((of_clicks, clicks), (of_genres, genres), (of_labels, every), (retrieval, users))
    return {name: (each, data) for found, data in datasets for name, each in found.items()}


@pytest.mark.slow
@pytest.mark.multiprocess
def test_every_model_gives_the_evaluators_predictions(tmp_path: Path) -> None:
    asked: dict[Path, dict[str, list[Tensors]]] = {}
    wanted: dict[str, dict[str, np.ndarray]] = {}
    for name, (recommender, dataset) in recommenders(tmp_path).items():
        run_dir = tmp_path / name
        make_trainer(dataset, run_dir, recommender=recommender, unit_rows=256).fit()
        model = embedps.load(run_dir, recommender=recommender, data=dataset.directory)
        directory = CheckpointDirectory(run_dir)
        output = tmp_path / "exports" / name
        done = export_model(recommender, dataset, directory, output, model.number)
        table = split_of(dataset).slice(0, 300)
        assert done.rows > 0
        wanted[name] = evaluated(model, table)
        few, one = table.slice(20, 9), table.slice(5, 1)
        asked[done.path] = {
            "serving_default": [tensors(each, model.columns) for each in (table, few, one)],
            "examples": [examples(few, model.columns)],
        }
    differing = {}
    for (name, want), found in zip(wanted.items(), ask(asked), strict=True):
        for loader in ("load", "session"):
            for output_name, values in want.items():
                expected = {
                    "serving_default/0": values,
                    "serving_default/1": values[20:29],
                    "serving_default/2": values[5:6],
                    "examples/0": values[20:29],
                }
                for request, rows in expected.items():
                    ours = found[f"{loader}/{request}/{output_name}"]
                    if not np.array_equal(ours, rows):
                        where = (name, loader, request, output_name)
                        differing[where] = float(np.abs(ours - rows).max())
    assert differing == {}


class CallsPython(SumNetwork):
    def call(self, numerics: tf.Tensor, embeddings: dict[str, tf.Tensor]) -> tf.Tensor:
        x = super().call(numerics, embeddings)
        return tf.ensure_shape(tf.numpy_function(lambda v: v, [x], tf.float32), x.shape)


def test_a_model_that_calls_python_is_refused_by_name(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "set", train=(200,), evaluation=(100,))
    trained = make_mixed()
    make_trainer(dataset, tmp_path / "m", recommender=trained).fit()
    refused = make_mixed(build=CallsPython)
    directory = CheckpointDirectory(tmp_path / "m")
    number = latest(tmp_path / "m").number
    with pytest.raises(UsageError, match=r"needs \w*PyFunc\w*, which calls Python") as error:
        export_model(refused, dataset, directory, tmp_path / "out", number)
    assert "\n" not in str(error.value)
    assert list((tmp_path / "out").iterdir()) == []
