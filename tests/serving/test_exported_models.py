"""Every model of the zoo exports, over datasets of each kind; its scores are those of load."""

from __future__ import annotations

from collections.abc import Mapping
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
from embedps.evaluation.item_file import read_items
from embedps.models import (
    dcn_v2,
    deepfm,
    din,
    dlrm,
    fm,
    logistic_regression,
    mmoe,
    ple,
    sasrec,
    two_tower,
    wide_deep,
)
from embedps.serving.export_model import export_model
from embedps.serving.stock_index import StockIndex
from tests import every_column, shipped
from tests.builders import MIXED, SumModel, latest, make_trainer, read_split, write_dataset
from tests.models import planted_interactions
from tests.processors import check_stock
from tests.serving.builders import Tensors, ask, evaluated, examples, tensors
from tests.serving.warm_up_replay import replay

TOP_K = 7
TINY: dict[str, Any] = {"embedding_dim": 4, "max_length": 3}
DEEP: dict[str, Any] = {"embedding_dim": 4, "deep_mlp": (8,)}
EXPERTS: dict[str, Any] = {"embedding_dim": 4, "expert_mlp": (8,), "tower_mlp": (5,)}

CROSSES = ("C1+C2", "C2+I1/0.3+I2/0.5")
ENCODED: dict[str, Any] = {"numeric_bins": 4, "numeric_waves": 3}


def recommenders(directory: Path) -> dict[str, tuple[Recommender, Dataset]]:
    """Each model with a dataset: numbers and ids, ids and lists only, several labels, histories."""
    clicks = write_dataset(directory / "clicks", train=(512,), evaluation=(300,))
    whole = write_dataset(directory / "whole", train=(512,), evaluation=(300,), whole=True)
    genres = shipped.write_dataset("movielens_genres", directory / "genres")
    every = every_column.write_dataset(directory / "every", train=512, evaluation=300)
    users = planted_interactions.write_dataset(directory / "users")
    of_labels = {
        "mmoe": mmoe.make(mmoe.Config(**EXPERTS, num_experts=3), every),
        "ple": ple.make(ple.Config(**EXPERTS, **ENCODED, shared_experts=2, own_experts=1), every),
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
        "wide_deep of crosses": wide_deep.make(wide_deep.Config(**DEEP, cross=CROSSES), clicks),
        "dcn_v2": dcn_v2.make(dcn_v2.Config(**DEEP, **ENCODED, cross_layers=2), clicks),
    }
    narrow: dict[str, Any] = {"embedding_dim": 4, "top_mlp": (8,)}
    of_genres = {
        "deepfm": deepfm.make(deepfm.Config(**DEEP), genres),
        "dlrm": dlrm.make(dlrm.Config(**narrow), genres),
        "din": din.make(
            din.Config(
                history=("genres",), target=("item_id",), attention_mlp=(6,), deep_mlp=(8,), **TINY
            ),
            genres,
        ),
    }
    datasets = (
        ({"own": MIXED}, whole),
        (of_clicks, clicks),
        (of_genres, genres),
        (of_labels, every),
        (retrieval, users),
    )
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
        done = export_model(recommender, dataset, directory, output, model.number, top_k=TOP_K)
        table = read_split(dataset).slice(0, 300)
        assert done.rows > 0
        wanted[name] = evaluated(model, table)
        few, one = table.slice(20, 9), table.slice(5, 1)
        asked[done.path] = {
            "serving_default": [tensors(each, model.columns) for each in (table, few, one)],
            "examples": [examples(few, model.columns)],
        }
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
                    check_stock(found[f"{loader}/{request}/{output_name}"], rows, name)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_the_best_items_are_those_of_an_exact_search(tmp_path: Path) -> None:
    users = planted_interactions.write_dataset(tmp_path / "users")
    table = read_split(users).slice(0, 40)
    towers = two_tower.Config(embedding_dim=8, tower_mlp=(16,), history="history")
    made = {
        "two_tower": two_tower.make(towers, users),
        "sasrec": sasrec.make(sasrec.Config(embedding_dim=8, max_length=6), users),
    }
    asked: dict[Path, dict[str, list[Tensors]]] = {}
    wanted: list[tuple[np.ndarray, np.ndarray]] = []
    for name, recommender in made.items():
        run_dir = tmp_path / name
        make_trainer(users, run_dir, recommender=recommender, unit_rows=256).fit()
        model = embedps.load(run_dir, recommender=recommender, data=users.directory)
        directory, output = CheckpointDirectory(run_dir), tmp_path / "exports" / name
        done = export_model(recommender, users, directory, output, model.number, top_k=TOP_K)
        assert done.signatures[2:] == ("query", "top_k", "top_k_examples")
        assert replay(done.path).keys() == set(done.signatures)
        model.export_items(tmp_path / f"{name}.parquet")
        ids, vectors = read_items(tmp_path / f"{name}.parquet")
        queries = evaluated(model, table)["query"]
        wanted.append((ids, queries @ vectors.numpy().T))
        columns = [c for c in ("user", "history") if c in model.columns]
        given = tensors(table, columns)
        seen = tensors(table, ["seen"])
        nothing = {"seen": np.zeros(0, np.int64), "seen_lengths": np.zeros(40, np.int64)}
        unknown = {"seen": np.array([10**9, -1]), "seen_lengths": np.array([2])}
        asked[done.path] = {
            "query": [given],
            "top_k": [given | seen, given | nothing, given | unknown],
            "top_k_examples": [examples(table, [*columns, "seen"])],
        }
        (of_query,) = ask({done.path: {"query": [given]}})
        check_stock(of_query["load/query/0/query"], queries)
    for (ids, scores), found in zip(wanted, ask(asked), strict=True):
        unseen = scores.copy()
        for row, seen_ids in zip(unseen, table["seen"].to_pylist(), strict=True):
            row[np.isin(ids, seen_ids)] = -np.inf
        for loader in ("load", "session"):
            for request, expected in {
                "top_k/0": unseen,
                "top_k/1": scores,
                "top_k/2": scores,
                "top_k_examples/0": unseen,
            }.items():
                best = np.argsort(-expected, axis=1)[:, :TOP_K]
                np.testing.assert_array_equal(found[f"{loader}/{request}/ids"], ids[best])
                np.testing.assert_allclose(
                    found[f"{loader}/{request}/scores"],
                    np.take_along_axis(expected, best, axis=1),
                    rtol=1e-5,
                )


def test_what_is_left_out_comes_last() -> None:
    vectors = np.eye(3, dtype=np.float32)
    index = StockIndex((tf.constant(vectors), tf.constant([7, 5, 9], tf.int64)), k=10)
    seen = tf.ragged.constant([[5, 5, 6], []], dtype=tf.int64)
    found = index.top_k(tf.constant([[1.0, 2.0, 0.5], [1.0, 2.0, 0.5]]), seen)
    assert found["ids"].numpy().tolist() == [[7, 9, 5], [5, 7, 9]]
    assert found["scores"].numpy()[0, 2] == np.finfo(np.float32).min
    named = StockIndex((tf.constant(vectors), tf.constant(["a", "b", "c"])), k=1)
    assert not named.excludes
    assert named.top_k(tf.constant([[0.0, 0.0, 1.0]]), None)["ids"].numpy() == [[b"c"]]


class CallsPython(SumModel):
    def rows(self, features: Mapping[str, Any]) -> tf.Tensor:
        x = super().rows(features)
        return tf.ensure_shape(tf.numpy_function(lambda v: v, [x], tf.float32), x.shape)


def test_a_model_that_calls_python_is_refused_by_name(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "set", train=(200,), evaluation=(100,), whole=True)
    make_trainer(dataset, tmp_path / "m", recommender=MIXED).fit()
    refused = Recommender(build=CallsPython)
    directory = CheckpointDirectory(tmp_path / "m")
    number = latest(tmp_path / "m").number
    with pytest.raises(UsageError, match=r"needs \w*PyFunc\w*, which calls Python") as error:
        export_model(refused, dataset, directory, tmp_path / "out", number, top_k=TOP_K)
    assert "\n" not in str(error.value)
    assert list((tmp_path / "out").iterdir()) == []
