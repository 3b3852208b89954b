"""Two towers: what they learn of planted tastes, by each loss, alone and on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import embedps
from embedps.cluster.embedded import EmbeddedCluster
from embedps.data.corpus import Corpus
from embedps.data.dataset import Dataset
from embedps.engine.step_model import StepModel
from embedps.errors import UsageError
from embedps.models import two_tower
from embedps.models.networks.names import (
    COUNTED,
    NEGATIVES,
    NEGATIVES_COUNTED,
    NEGATIVES_RATE,
    RATE,
)
from embedps.tables import Initializer
from tests import commands
from tests.builders import dataset_fixture, make_trainer
from tests.models.planted_interactions import popularity_recall, write_dataset

LEARN: dict[str, Any] = {
    "batch_size": 128,
    "unit_rows": 512,
    "sparse_learning_rate": 0.3,
    "dense_learning_rate": 0.01,
}
FLAGS = ("--held-out=held_out", "--seen=seen", "--at=10", "--embedding-dim=8")
VARIANTS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "cosine without log q": {"normalize": True, "temperature": 0.2, "log_q": False},
    "mixed negatives of layers": {"num_negatives": 50, "tower_mlp": (16,), "dropout": 0.1},
    "ccl of histories": {
        "loss": "ccl",
        "normalize": True,
        "num_negatives": 60,
        "history": "history",
        "margin": 0.2,
        "negative_weight": 5.0,
    },
    "histories of the items' rows": {
        "normalize": True,
        "temperature": 0.2,
        "num_negatives": 60,
        "history": "history",
        "history_table": "item",
        "row_stddev": 0.005,
    },
    "bpr": {"loss": "bpr", "num_negatives": 40},
    "hard negatives": {"hard_negatives": "seen", "num_negatives": 20},
}


dataset = dataset_fixture(write_dataset)


def config(**changes: Any) -> two_tower.Config:
    fields: dict[str, Any] = {
        "embedding_dim": 8,
        "held_out": "held_out",
        "seen": "seen",
        "at": (10,),
    }
    return two_tower.Config(**fields | changes)


def test_a_history_has_a_table_of_its_own_or_the_items_and_a_table_of_counts(
    dataset: Dataset,
) -> None:
    """It updates the items' rows then, whose updates would tell how often items are negatives."""
    made = two_tower.make(config(history="history", history_table="item"), dataset)
    shared = {f.name: f.table_name for f in StepModel(made, dataset).features}
    assert shared == {
        "user": "user",
        "item": "item",
        "history": "item",
        COUNTED: "_item_counts",
    }
    built = StepModel(two_tower.make(config(history="history"), dataset), dataset)
    assert {feature.name: feature.table_name for feature in built.features} == {
        "user": "user",
        "item": "item",
        "history": "history",
    }


def test_a_query_needs_no_item_where_items_are_counted(dataset: Dataset) -> None:
    made = two_tower.make(config(history="history", history_table="item"), dataset)
    built = StepModel(made, dataset)
    assert COUNTED in built.prepared_features
    assert set(built.columns_of(built.output_inputs("query")).names) == {"user", "history"}
    assert set(built.output_columns.names) == {"user", "history", "item"}


def test_rows_of_vectors_begin_near_zero_if_asked(dataset: Dataset) -> None:
    wanted = config(
        history="history", history_table="item", num_negatives=5, row_stddev=0.005, log_q=True
    )
    built = StepModel(two_tower.make(wanted, dataset), dataset)
    firsts = {table.name: table.initializer for table in built.tables}
    small = Initializer.normal(0.005)
    assert firsts == {"user": small, "item": small, "_item_counts": Initializer()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_finds_what_is_held_out(tmp_path: Path, dataset: Dataset, variant: str) -> None:
    recommender = two_tower.make(config(**VARIANTS[variant]), dataset)
    result = make_trainer(
        dataset, tmp_path, recommender=recommender, epochs=15, eval="inline", **LEARN
    ).fit()
    recalls = [score.get("recall@10") or 0 for score in result.scores]
    assert max(recalls) > popularity_recall(dataset, 10) + 0.05, recalls
    assert set(result.scores[-1].values) == {
        "loss",
        "recall@10",
        "ndcg@10",
        "hit_rate@10",
        "mrr",
    }


class Tracing(EmbeddedCluster):
    """A cluster that traces at the start, as one of processes does."""

    def __init__(self) -> None:
        super().__init__()
        self.traced: list[Any] = []

    def trace(self, function: Any, args: tuple[Any, ...]) -> Any:
        self.traced.append(function)
        return function.get_concrete_function(*args)


def test_inline_scores_trace_nothing_once_a_run_has_begun(tmp_path: Path, dataset: Dataset) -> None:
    """A worker that is silent while TensorFlow sends it a function stops the client for good."""
    recommender, cluster = two_tower.make(config(), dataset), Tracing()
    result = make_trainer(
        dataset,
        tmp_path,
        recommender=recommender,
        epochs=3,
        eval="inline",
        cluster=cluster,
        **LEARN,
    ).fit()
    assert len(result.scores) == 3
    encode, score = cluster.traced
    assert (encode.__name__, score.__name__) == ("encode", "eval_unit")
    assert encode.experimental_get_tracing_count() == 1
    assert score.experimental_get_tracing_count() == 1


def test_scores_equal_a_sorted_list_of_exported_vectors(tmp_path: Path, dataset: Dataset) -> None:
    recommender = two_tower.make(config(tower_mlp=(16,)), dataset)
    result = make_trainer(
        dataset, tmp_path, recommender=recommender, epochs=3, eval="inline", **LEARN
    ).fit()
    loaded = embedps.load(tmp_path, recommender=recommender, data=dataset.directory)
    loaded.export_items(tmp_path / "items.parquet")
    items = pq.read_table(tmp_path / "items.parquet")
    ids, vectors = items["item"].to_numpy(), np.array(items["vector"].to_pylist())
    assert ids.tolist() == Corpus.of(dataset, "item", lists=["held_out"]).ids.tolist()
    held_out = pq.read_table(dataset.paths("eval")[0])
    queries = loaded.predict(held_out)["query"]
    recalls = []
    for query, row in zip(queries, held_out.to_pylist(), strict=True):
        scores = vectors @ query
        scores[np.isin(ids, row["seen"])] = -np.inf
        best = set(ids[np.argsort(-scores)[:10]])
        recalls.append(len(best & set(row["held_out"])) / len(row["held_out"]))
    assert result.scores[-1].values["recall@10"] == pytest.approx(np.mean(recalls), abs=1e-9)


def test_each_step_draws_anew_and_shares_the_items_rows(dataset: Dataset) -> None:
    built = StepModel(two_tower.make(config(num_negatives=30), dataset), dataset)
    assert {table.name for table in built.tables} == {"user", "item"}
    assert built.columns.names == ("user", "item", "held_out", "seen")
    batch = built.columns.sample()
    first, second = (built.prepare(batch, training=True)[NEGATIVES].numpy() for _ in range(2))
    assert first.shape == (30,)
    assert first.tolist() != second.tolist()
    assert set(first) <= set(range(120))
    assert built.prepare(batch, training=False)[NEGATIVES].shape == (0,)
    specs = built.activation_specs()
    assert specs[NEGATIVES].shape.as_list() == [None, 8]
    assert {RATE, NEGATIVES_RATE} <= set(specs)


def test_keras_mode_draws_and_corrects_too(dataset: Dataset) -> None:
    recommender = two_tower.make(config(num_negatives=30), dataset)
    model = recommender.build()
    model.compile(optimizer=tf.keras.optimizers.Adam(0.01))
    batches = embedps.read(dataset, batch_size=128, targets=False)
    history = model.fit(batches, epochs=4, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]


@pytest.mark.parametrize(("table", "is_mean"), [("item", True), ("own", False)])
def test_a_history_of_the_items_rows_begins_as_their_mean(
    dataset: Dataset, table: str, is_mean: bool
) -> None:
    changes = {"history": "history", "history_table": table, "history_weight": 1.0}
    model = two_tower.make(config(**changes), dataset).build()
    model.compile(optimizer=tf.keras.optimizers.SGD(0.0))  # only rows move
    batches = embedps.read(dataset, batch_size=128, targets=False)
    model.fit(batches, epochs=1, verbose=0)
    batch = next(iter(batches))
    history = batch["history"]
    rows = tf.RaggedTensor.from_row_splits(
        model.encode_items({"item": history.values}), history.row_splits
    )
    means = tf.math.divide_no_nan(
        tf.reduce_sum(rows, axis=1), tf.cast(history.row_lengths(), tf.float32)[:, None]
    )
    assert np.linalg.norm(means) > 0.1
    queries = model(batch)["query"]
    assert np.allclose(queries, means, atol=1e-5) == is_mean


def test_hard_negatives_do_not_count_as_items_of_a_batch(dataset: Dataset) -> None:
    """Rates are shares of steps with the item in the batch, though hard negatives update rows."""
    model = two_tower.make(config(hard_negatives="seen"), dataset).build()
    model.compile(optimizer=tf.keras.optimizers.Adam(0.01))
    rows = {
        "user": tf.constant([0, 1] * 3, tf.int64),
        "item": tf.constant([1, 2, 1, 4, 1, 1], tf.int64),
        "held_out": tf.RaggedTensor.from_row_lengths(tf.zeros([0], tf.int64), [0] * 6),
        "seen": tf.ragged.constant([[3], [2, 3]] * 3, tf.int64),
    }
    model.fit(tf.data.Dataset.from_tensor_slices(rows).batch(2, drop_remainder=True), verbose=0)
    asked = {COUNTED: tf.constant([1, 2, 3, 4, 5], tf.int64)}
    steps = np.array([3, 1, 0, 1, 0])
    np.testing.assert_allclose(model.embeddings(asked)[RATE], (steps + 1) / (3 + 2), rtol=1e-6)


def test_what_fills_shorter_lists_of_hard_negatives_is_no_negative(dataset: Dataset) -> None:
    model = two_tower.make(config(hard_negatives="seen", seen=None), dataset).build()

    def loss(first: list[int]) -> float:
        rows = {
            "user": tf.constant([0, 1], tf.int64),
            "item": tf.constant([1, 4], tf.int64),
            "held_out": tf.ragged.constant([[], []], tf.int64),
            "seen": tf.ragged.constant([first, [2, 3]], tf.int64),
        }
        return float(model.compute_loss(rows, training=True))

    own = 1  # never a negative of its row
    assert loss([3]) == pytest.approx(loss([3, own]), rel=1e-6)
    assert loss([]) == pytest.approx(loss([own, own]), rel=1e-6)


def test_hard_and_drawn_negatives_have_counts_beside_the_rows(dataset: Dataset) -> None:
    wanted = config(hard_negatives="seen", num_negatives=30, min_row_norm=0.1)
    built = StepModel(two_tower.make(wanted, dataset), dataset)
    tables = {table.name: table for table in built.tables}
    assert list(tables) == ["user", "item", "_item_counts"]
    assert tables["_item_counts"].eviction == ()
    rates = {f.name: f.rate_as for f in built.features if f.rate_as is not None}
    assert rates == {COUNTED: RATE, NEGATIVES_COUNTED: NEGATIVES_RATE}
    made = built.prepare(built.columns.sample(), training=True)
    np.testing.assert_array_equal(made[NEGATIVES], made[NEGATIVES_COUNTED])


@pytest.mark.multiprocess
@pytest.mark.slow
def test_on_a_cluster_both_evaluations_agree(tmp_path: Path, dataset: Dataset) -> None:
    """Rates travel with the rows, drawn ids are each worker's own, and the corpus is ranked."""
    flags = [*FLAGS, "--model=two_tower", "--num-negatives=40", "--epochs=12", "--metric=recall@10"]
    flags += ["--batch-size=128", "--unit-rows=512", "--sparse-learning-rate=0.3"]
    cluster = ("--num-ps=2", "--num-workers=2")
    commands.finish(commands.train(dataset, tmp_path, *flags, *cluster, "--eval=inline"))
    found = commands.evaluations_of(tmp_path)[-1]["recall@10"]
    assert found > popularity_recall(dataset, 10) + 0.05
    commands.finish(
        commands.start("embedps.evaluate", f"--model-dir={tmp_path}", "--once", "--num-shards=3")
    )
    assert commands.evaluations_of(tmp_path)[-1]["recall@10"] == pytest.approx(found, abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss": "ccl"}, "needs num_negatives above 0"),
        ({"query": ()}, "query must not be empty"),
        ({"num_negatives": 5, "item": ("item", "user")}, "items without further columns"),
    ],
)
def test_wrong_options_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        config(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"query": ("person",)}, "'person' must be a column of ids .* there are user, item"),
        ({"seen": "user"}, "'user' must be a column of lists of ids .* history, held_out, seen"),
        ({"item": ("seen",)}, "the item's id must be one id per row"),
    ],
)
def test_columns_that_are_not_there_are_named(
    dataset: Dataset, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        two_tower.make(config(**fields), dataset)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": ("user", "item")}, "query must not have item, the item's id, which tells"),
        ({"query": ("user", "user")}, "query must name each column once but is user, user"),
        ({"item": ("item", "item")}, "item must name each column once but is item, item"),
        ({"seen": "held_out"}, "seen must be another column than held_out, but both are held_out"),
    ],
)
def test_columns_that_tell_the_answer_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        config(**changes)
