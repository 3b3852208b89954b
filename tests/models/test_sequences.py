"""DIN and SASRec: equal to plain loops and plain Keras, and they learn from the order of items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from embedps.data.dataset import RAGGED_TYPE, Dataset, describe_file
from embedps.data.dataset_metadata import CategoricalFeature, Split
from embedps.engine.step_model import StepModel
from embedps.errors import DatasetError, UsageError
from embedps.features.table_schema import Table
from embedps.models import din, sasrec
from embedps.models.networks.names import NEGATIVES
from tests import commands
from tests.builders import make_trainer
from tests.pipelines.shop import make

ITEMS, KINDS = 40, 4
COLUMNS = {"user": False, "item": False, "history": True}


def write_dataset(directory: Path, rows: dict[str, list[dict[str, Any]]]) -> Dataset:
    types = {"label": pa.float32(), "user": pa.int64(), "item": pa.int64()}
    types["history"] = pa.list_(pa.field("element", pa.int64(), nullable=False))
    schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in types.items()])
    splits = {}
    for split, records in rows.items():
        path = directory / split / "shard-00000-of-00001.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(records, schema), path, row_group_size=10**6)
        file = describe_file(directory, path)
        positives = sum(int(record["label"]) for record in records)
        splits[split] = Split(rows=len(records), positives=positives, files=(file,))
    Dataset(
        directory=directory,
        numeric=(),
        categorical=tuple(
            CategoricalFeature(name=name, cardinality=ITEMS, ragged=ragged)
            for name, ragged in COLUMNS.items()
        ),
        schema={**{name: str(types[name]) for name in types}, "history": RAGGED_TYPE},
        splits=splits,
    ).save()
    return Dataset.open(directory)


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A click is likely if the item's kind is in the history; some histories are empty."""
    rng = np.random.default_rng(2)

    def rows(count: int) -> list[dict[str, Any]]:
        found = []
        for i in range(count):
            history = rng.integers(0, ITEMS, rng.integers(0, 5)).tolist()
            item = int(rng.integers(0, ITEMS))
            fits = item % KINDS in {each % KINDS for each in history}
            label = float(rng.random() < (0.9 if fits else 0.1))
            found.append({"label": label, "user": i % 20, "item": item, "history": history})
        return found

    directory = tmp_path_factory.mktemp("clicks") / "set"
    return write_dataset(directory, {"train": rows(3000), "eval": rows(800)})


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The next item follows from the last one: a walk along a fixed permutation, with jumps."""
    rng = np.random.default_rng(3)
    following = rng.permutation(ITEMS)

    def rows(count: int) -> list[dict[str, Any]]:
        found = []
        for i in range(count):
            walk = [int(rng.integers(0, ITEMS))]
            for _ in range(rng.integers(1, 9)):
                jumps = rng.random() < 0.05
                walk.append(int(rng.integers(0, ITEMS) if jumps else following[walk[-1]]))
            found.append({"label": 1.0, "user": i % 20, "item": walk[-1], "history": walk[:-1]})
        return found

    directory = tmp_path_factory.mktemp("walks") / "set"
    return write_dataset(directory, {"train": rows(1500), "eval": rows(300)})


def make_din(dataset: Dataset, **options: Any) -> Any:
    fields: dict[str, Any] = {
        "embedding_dim": 4,
        "max_length": 6,
        "attention_mlp": (8,),
        "deep_mlp": (8,),
    }
    return din.make(din.Config(**fields | options), dataset)


def test_din_equals_loops_over_positions(clicks: Dataset) -> None:
    built = StepModel(make_din(clicks), clicks)
    rng = np.random.default_rng(3)
    for variable in built.model.trainable_variables:
        variable.assign(rng.normal(0, 0.5, variable.shape))
    lengths = [1, 2]  # of the sample's lists
    found = {name: rng.normal(size=(2, 4)).astype(np.float32) for name in ("user", "item")}
    found["history"] = np.zeros((2, 6, 4), np.float32)
    for row, length in enumerate(lengths):
        found["history"][row, :length] = rng.normal(size=(length, 4))
    with built.embeddings.providing({n: tf.constant(v) for n, v in found.items()}):
        logits = built.model.logits(built.columns.sample(), training=False).numpy()

    model = built.model
    (hidden,) = model.attention
    for row, length in enumerate(lengths):
        target, interest = found["item"][row], np.zeros(4)
        for each in found["history"][row, :length]:
            x = np.concatenate([each, target, each - target, each * target])
            x = 1 / (1 + np.exp(-(x @ hidden.kernel.numpy() + hidden.bias.numpy())))
            weight = x @ model.attend.kernel.numpy() + model.attend.bias.numpy()
            interest += weight * each
        x = np.concatenate([found["user"][row], target, interest, interest * target])
        kernel, bias = (v.numpy() for v in model.hidden.trainable_variables)
        x = np.maximum(x @ kernel + bias, 0)
        kernel, bias = (v.numpy() for v in model.out.trainable_variables)
        assert logits[row] == pytest.approx((x @ kernel + bias)[0], rel=1e-4)


def test_din_learns_what_a_mean_of_the_history_hides(tmp_path: Path, clicks: Dataset) -> None:
    trainer = make_trainer(
        clicks,
        tmp_path,
        recommender=make_din(clicks, embedding_dim=8, deep_mlp=(32,), attention_mlp=(16,)),
        epochs=5,
        eval="inline",
        sparse_learning_rate=0.1,
        dense_learning_rate=0.01,
    )
    scores = trainer.fit().scores
    assert max(score.auc or 0 for score in scores) > 0.75


def test_din_takes_several_histories(clicks: Dataset) -> None:
    config = {"history": ("history",), "target": ("user",)}
    assert StepModel(make_din(clicks, **config), clicks).features[-1].table_name == "user"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"history": ("item",)}, "'item' must be a column of lists of ids"),
        ({"target": ("history",)}, "'history' must be a column of one id per row"),
        ({"target": ()}, "target must name a column for each of history"),
    ],
)
def test_wrong_columns_of_din_are_named(
    clicks: Dataset, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        make_din(clicks, **options)


def test_din_refuses_histories_of_unequal_lengths(tmp_path: Path) -> None:
    """Each place of them is of one event; an event without a kind is in one of them only."""
    events = [
        {"click": i % 2, "user": i % 3, "item": i % 7, "kind": i % 2 if i != 4 else None, "time": i}
        for i in range(120)
    ]
    pq.write_table(pa.Table.from_pylist(events), tmp_path / "events.parquet")
    columns: list[dict[str, Any]] = [
        {"name": "click", "as": "label"},
        {"name": "time", "as": "timestamp"},
        *({"name": n, "as": "categorical", "type": "integer"} for n in ("user", "item", "kind")),
    ]
    columns += [
        {"name": f"{of}s", "as": "list", "type": "integer", "history": {"of": of, "by": "user"}}
        for of in ("item", "kind")
    ]
    table = Table.parse({"format": "parquet", "column": columns})
    dataset = make(table, tmp_path / "events.parquet", tmp_path / "set", num_shards=1)
    made = make_din(dataset, history=("items", "kinds"), target=("item", "kind"))
    with pytest.raises(DatasetError, match=r"^the lists of items and kinds must be equally long"):
        make_trainer(dataset, tmp_path / "model", recommender=made).fit()
    with pytest.raises(UsageError, match="history must name each column once but is items, items"):
        make_din(dataset, history=("items", "items"), target=("item", "kind"))


def make_sasrec(dataset: Dataset, **options: Any) -> Any:
    fields: dict[str, Any] = {
        "embedding_dim": 16,
        "max_length": 8,
        "num_negatives": 30,
        "at": (1, 10),
    }
    return sasrec.make(sasrec.Config(**fields | options), dataset)


def test_sasrec_equals_plain_keras_over_one_history_at_a_time(walks: Dataset) -> None:
    built = StepModel(make_sasrec(walks, dropout=0.0, heads=2), walks)
    model, rng = built.model, np.random.default_rng(1)
    table = rng.normal(size=(ITEMS, 16)).astype(np.float32)
    lists, items = [[3, 9, 9], list(range(10, 21)), [7], []], [5, 21, 3, 4]
    drawn = np.array([0, 9, 21, 30])
    history = tf.ragged.constant(lists, tf.int64, row_splits_dtype=tf.int64)
    padded = np.zeros((4, 8, 16), np.float32)
    for row, each in enumerate(lists):
        kept = each[-8:]
        padded[row, : len(kept)] = table[kept]
    given = {"history": padded, "item": table[items], NEGATIVES: table[drawn]}
    batch = {
        "history": history,
        "item": tf.constant(items, tf.int64),
        NEGATIVES: tf.constant(drawn, tf.int64),
    }
    provided = {n: tf.constant(v) for n, v in given.items()}
    with built.embeddings.providing(provided), model.scores.paused():
        loss = float(model.compute_loss(batch, training=False))
    with built.embeddings.providing(provided):
        queries = model(batch)["query"].numpy()

    losses = []
    for row, each in enumerate(lists):
        kept = each[-8:]
        if not kept:
            assert not queries[row].any()
            continue
        # Without padding, and without a mask but the causal one.
        x = table[kept] + model.positions.embeddings.numpy()[: len(kept)]
        x = tf.constant(x[None])
        for block in model.blocks:
            y = block.attention(block.first_norm(x), x, use_causal_mask=True)
            x = x + y
            x = x + block.narrow(block.widen(block.second_norm(x)))
        x = model.norm(x).numpy()[0]
        np.testing.assert_allclose(queries[row], x[-1], rtol=1e-4, atol=1e-4)
        for vector, following in zip(x, [*kept[1:], items[row]], strict=True):
            own = vector @ table[following]
            others = [
                vector @ table[i] + np.log(model._catalog.shape[0] / 30)
                for i in drawn
                if i != following
            ]
            losses.append(np.log(np.exp(np.array([own, *others])).sum()) - own)
    assert loss == pytest.approx(np.mean(losses), rel=1e-4)


def test_sasrec_learns_the_walk(tmp_path: Path, walks: Dataset) -> None:
    result = make_trainer(
        walks,
        tmp_path,
        recommender=make_sasrec(walks, dropout=0.1),
        epochs=3,
        eval="inline",
        sparse_learning_rate=0.1,
        dense_learning_rate=0.003,
    ).fit()
    assert (result.scores[-1].get("hit_rate@1") or 0) > 0.6, result.scores


@pytest.mark.multiprocess
@pytest.mark.slow
def test_sasrec_and_din_train_on_a_cluster(tmp_path: Path, walks: Dataset, clicks: Dataset) -> None:
    cluster = ["--num-ps=2", "--num-workers=2", "--eval=inline", "--batch-size=64"]
    cluster += ["--unit-rows=512", "--epochs=3"]
    for name, dataset in (("sasrec", walks), ("din", clicks)):
        flags = (f"--model={name}", "--max-length=8", "--embedding-dim=16")
        commands.finish(commands.train(dataset, tmp_path / name, *flags, *cluster))
        scores = commands.evaluations_of(tmp_path / name)
        assert scores[-1]["loss" if name == "sasrec" else "logloss"] > 0
        assert len(scores) == 3


@pytest.mark.slow
def test_sequences_without_a_label_are_made_and_learned(tmp_path: Path, walks: Dataset) -> None:
    columns = [
        {"name": "item", "as": "categorical", "type": "integer"},
        {"name": "history", "as": "list", "type": "integer"},
    ]
    table = Table.parse({"format": "parquet", "column": columns})
    (log,) = walks.paths("eval")
    dataset = make(table, log, tmp_path / "set", num_shards=1, eval_fraction=0.2)
    assert (dataset.label, dataset.labels, "label" in dataset.schema) == ("", (), False)
    assert sum(split.rows for split in dataset.splits.values()) == 300
    result = make_trainer(
        dataset, tmp_path / "model", recommender=make_sasrec(dataset), eval="inline"
    ).fit()
    assert 0 < (result.scores[-1].get("mrr") or 0) <= 1
    with pytest.raises(UsageError, match=r"din must have a label, but the dataset .* has none"):
        make_din(dataset)


def test_wrong_options_of_sasrec_are_refused(walks: Dataset) -> None:
    with pytest.raises(UsageError, match="heads must divide embedding_dim 16 but is 3"):
        make_sasrec(walks, heads=3)
    with pytest.raises(UsageError, match="'item' must be a column of lists"):
        make_sasrec(walks, history="item")


def test_rows_without_an_item_are_refused_and_histories_may_be_what_is_left_out(
    tmp_path: Path,
) -> None:
    def dataset(name: str, items: list[int]) -> Dataset:
        rows = [{"label": 1.0, "user": 1, "item": item, "history": [3, 4]} for item in items]
        return write_dataset(tmp_path / name, {"train": rows, "eval": rows[:1]})

    wanted = sasrec.Config(embedding_dim=4, max_length=4, seen="history")
    assert sasrec.make(wanted, dataset("whole", [1, 2])).build() is not None
    with pytest.raises(UsageError, match=r"must have an item in 'item', but 2 have none"):
        sasrec.make(wanted, dataset("lacking", [2, -1, 1, -1])).build()
