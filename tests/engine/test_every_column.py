"""Models train with labels of every kind, weights, keys, times and lists of floats."""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import embedps
from embedps.cluster.interface import Cluster
from embedps.cluster.local_cluster import LocalCluster
from embedps.data.dataset import Dataset, describe_file
from embedps.data.unit_reader import NUMERICS
from embedps.engine.step_model import StepModel
from embedps.engine.unit_functions import explain
from embedps.errors import DatasetError, UsageError
from embedps.models import dlrm
from tests.builders import SumModel, dataset_fixture, make_trainer, read_split
from tests.commands import run_program
from tests.every_column import EveryColumn, plain_losses, write_dataset

layers, losses = tf.keras.layers, tf.keras.losses
COLUMNS = ("stars", "seconds", "weight", "I1", "user", "time", "item", "tags", "vector")


dataset = dataset_fixture(write_dataset)


def test_loss_of_a_training_step_equals_a_plain_computation(dataset: Dataset) -> None:
    step = StepModel(embedps.Recommender(build=EveryColumn), dataset)
    assert {*step.columns.names} == {*COLUMNS}  # neither "bought" nor "request"
    reader = step.input(batch_rows=100, shuffle_rows=0)
    batch = reader.next(reader.open(str(dataset.paths("train")[0]), 0, 100))
    rng = np.random.default_rng(0)
    activations = {n: tf.constant(rng.normal(size=[100, 4]), tf.float32) for n in ("item", "tags")}
    predicted = step.outputs(batch.columns, activations)
    expected = plain_losses(
        read_split(dataset, "train").slice(0, 100), {n: v.numpy() for n, v in predicted.items()}
    )
    for training in (True, False):
        loss = step.loss(batch.columns, activations, training=training)
        assert float(loss) == pytest.approx(expected["stars"] + 0.1 * expected["seconds"], rel=1e-5)


def check_run(dataset: Dataset, model_dir: Path, cluster: Cluster | None = None) -> None:
    """Trains, and compares the last score with a plain computation over the predictions."""
    trainer = make_trainer(
        dataset,
        model_dir,
        recommender=embedps.Recommender(build=EveryColumn),
        cluster=cluster,
        eval="inline",
        epochs=10,
        dense_optimizer="adam",
        dense_learning_rate=0.01,
        sparse_learning_rate=0.1,
    )
    first, *_, last = trainer.fit().scores
    assert last.examples == dataset.split("eval").rows
    model = embedps.load(
        model_dir, recommender=embedps.Recommender(build=EveryColumn), data=dataset.directory
    )
    table = read_split(dataset)
    features = table.drop_columns(["stars", "seconds", "bought", "weight", "request"])
    predicted = model.predict(features)
    expected = plain_losses(table, predicted)
    assert last.get("loss") == pytest.approx(
        expected["stars"] + 0.1 * expected["seconds"], rel=1e-5
    )
    assert last.get("loss") < 0.7 * first.get("loss")  # type: ignore[operator]
    weight = table["weight"].to_numpy()
    right = predicted["stars"].argmax(axis=1) == table["stars"].to_numpy()
    assert last.get("accuracy") == pytest.approx(np.sum(weight * right) / np.sum(weight), rel=1e-6)


def test_a_model_of_every_column_trains_and_is_scored(tmp_path: Path, dataset: Dataset) -> None:
    check_run(dataset, tmp_path)


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_server_and_a_worker_train_a_model_of_every_column(tmp_path: Path) -> None:
    run_program("-m", "tests.engine.test_every_column", tmp_path)


# ---- compiled models ---------------------------------------------------------------------------


def features() -> list[embedps.FeatureSpec]:
    return [embedps.FeatureSpec(name="item", table=embedps.TableSpec(name="item", embedding_dim=4))]


def functional(*outputs: str) -> tf.keras.Model:
    """A model with an output per label, by its layer's name."""
    inputs = {
        "item": tf.keras.Input([], dtype=tf.int64, name="item"),
        "user": tf.keras.Input([], dtype=tf.int64, name="user"),
        "I1": tf.keras.Input([], name="I1"),
    }
    found = embedps.Embeddings(features())(inputs)
    parity = tf.cast(inputs["user"] % 2, tf.float32)
    x = tf.concat([found["item"], parity[:, None], inputs["I1"][:, None]], axis=1)
    made = {"stars": lambda: layers.Dense(5, name="stars")(x)}
    made["seconds"] = lambda: layers.Dense(1, name="seconds")(x)
    made["other"] = lambda: layers.Dense(1, name="other")(x)
    return tf.keras.Model(inputs, [made[name]() for name in outputs])


LOSSES: dict[str, Any] = {
    "stars": losses.SparseCategoricalCrossentropy(from_logits=True),
    "seconds": "mse",
}


class Compiled(tf.keras.Model):
    """Returns a dict by label; with `named` false, one tensor."""

    def __init__(self, outputs: tuple[str, ...], *, named: bool = True) -> None:
        super().__init__()
        self.embeddings = embedps.Embeddings(features())
        self.heads = {name: layers.Dense(5 if name == "stars" else 1) for name in outputs}
        self._named = named

    def call(self, batch: dict[str, Any]) -> Any:
        assert not {"stars", "seconds", "bought", "weight"} & batch.keys()
        found = self.embeddings(batch)["item"]
        made = {name: head(found) for name, head in self.heads.items()}
        return made if self._named else next(iter(made.values()))


def compiled(model: tf.keras.Model, **settings: Any) -> tf.keras.Model:
    model.compile(**settings)
    return model


@pytest.mark.parametrize("kind", ["functional", "subclassed"])
def test_a_compiled_model_of_several_labels_gets_them_by_name_and_the_weights(
    tmp_path: Path, dataset: Dataset, kind: str
) -> None:
    def build() -> tf.keras.Model:
        names = ("stars", "seconds")
        model = functional(*names) if kind == "functional" else Compiled(names)
        return compiled(
            model,
            loss=LOSSES,
            loss_weights={"stars": 1.0, "seconds": 0.1},
            weighted_metrics={"stars": [tf.keras.metrics.SparseCategoricalAccuracy("accuracy")]},
        )

    trainer = make_trainer(
        dataset,
        tmp_path,
        recommender=embedps.Recommender(build=build),
        eval="inline",
        epochs=2,
        sparse_learning_rate=0.1,
    )
    step = trainer._setup.model
    assert step.columns.label_names == ("stars", "seconds")
    assert step.columns.weight == "weight"
    score = trainer.fit().scores[-1]
    model = embedps.load(
        tmp_path, recommender=embedps.Recommender(build=build), data=dataset.directory
    )
    table = read_split(dataset)
    found = model.predict(table.select(["item", "user", "I1"]))
    expected = plain_losses(table, found)
    total = expected["stars"] + 0.1 * expected["seconds"]
    assert score.get("loss") == pytest.approx(total, rel=1e-5)
    weight = table["weight"].to_numpy()
    right = found["stars"].argmax(axis=1) == table["stars"].to_numpy()
    (accuracy,) = (value for name, value in score.values.items() if name.endswith("accuracy"))
    assert accuracy == pytest.approx(np.sum(weight * right) / np.sum(weight), rel=1e-6)


@pytest.mark.parametrize("columns", [None, ("seconds", "item"), ("seconds", "item", "weight")])
def test_a_label_can_be_chosen_by_name_or_by_the_recommenders_columns(
    dataset: Dataset, columns: tuple[str, ...] | None
) -> None:
    named = columns is None
    recommender = embedps.Recommender(
        build=lambda: compiled(Compiled(("seconds",), named=named), loss="mse"), columns=columns
    )
    step = StepModel(recommender, dataset)
    assert step.columns.label_names == ("seconds",)
    assert step.columns.weight == ("weight" if named or "weight" in (columns or ()) else "")
    assert step.output_columns.names == ("item",)


def test_embeddings_of_a_key(dataset: Dataset) -> None:
    class OfKey(EveryColumn):
        def __init__(self) -> None:
            super().__init__()
            table = embedps.TableSpec(name="user", embedding_dim=4)
            self.embeddings = embedps.Embeddings(
                [
                    *self.embeddings.features[:0],
                    embedps.FeatureSpec(name="item", table=table),
                    embedps.FeatureSpec(name="user", table=table),
                ]
            )

    step = StepModel(embedps.Recommender(build=OfKey), dataset)
    assert "user" in step.columns.integers
    assert "tags" not in step.columns.names


# ---- what a prediction needs -------------------------------------------------------------------


class Reading(EveryColumn):
    """Touches columns that its outputs do not depend on, and returns the key."""

    def call(self, features: dict[str, Any]) -> dict[str, tf.Tensor]:
        predicted = super().call(features)
        tf.cast(features["bought"], tf.int32)
        return {**predicted, "request": features["request"]}


def test_predictions_need_the_columns_that_the_call_depends_on(
    tmp_path: Path, dataset: Dataset
) -> None:
    recommender = embedps.Recommender(build=Reading)
    make_trainer(dataset, tmp_path, recommender=recommender).fit()
    model = embedps.load(tmp_path, recommender=recommender, data=dataset.directory)
    names = ["I1", "user", "request", "time", "item", "tags", "vector"]
    table = read_split(dataset).select(names).slice(0, 20)
    found = model.predict(table)
    assert found["request"].tolist() == table["request"].to_pylist()
    listed = {n: [[v] for v in table[n].to_pylist()] for n in ("I1", "user", "item")}
    again = model.predict({**table.to_pydict(), **listed})
    np.testing.assert_array_equal(again["stars"], found["stars"])
    missing = {"item": None, "tags": None, "vector": None, "I1": None}
    assert model.predict({**table.slice(0, 1).to_pydict(), **{n: [None] for n in missing}})

    def refused(change: dict[str, Any]) -> str:
        with pytest.raises(UsageError) as error:
            model.predict({**table.slice(0, 2).to_pydict(), **change})
        return str(error.value)

    assert "column 'user' must not have nulls but has 1 in 2 records" in refused(
        {"user": [1, None]}
    )
    assert "column 'time' must have int64 numbers but has double" in refused({"time": [0.5, 1.0]})
    assert "column 'vector' must have lists of numbers but has double" in refused(
        {"vector": [0.5, 1.0]}
    )
    assert "column 'vector' must have lists of numbers but has string" in refused(
        {"vector": [["a"], []]}
    )
    assert "one element but record 1 has 2" in refused({"item": [[1], [1, 2]]})
    with pytest.raises(UsageError, match="have no column 'time', which the model reads"):
        model.predict(table.drop_columns(["time"]))


def test_a_model_without_call_cannot_predict(tmp_path: Path, dataset: Dataset) -> None:
    class Silent(EveryColumn):
        call = tf.keras.Model.call

        def compute_loss(self, features: dict[str, Any], training: bool = False) -> tf.Tensor:
            found = self.embeddings(features)
            return tf.reduce_mean(self.shared(tf.concat([*found.values()], axis=1)) ** 2)

    recommender = embedps.Recommender(build=Silent)
    make_trainer(dataset, tmp_path, recommender=recommender).fit()
    model = embedps.load(tmp_path, recommender=recommender, data=dataset.directory)
    with pytest.raises(
        UsageError, match=r"Silent predicts nothing: give it call\(self, features\)"
    ):
        model.predict(read_split(dataset))


# ---- user errors -------------------------------------------------------------------------------


class OfAbsent(EveryColumn):
    def call(self, features: dict[str, Any]) -> dict[str, tf.Tensor]:
        return {**super().call(features), "x": features["nope"]}


class FewClasses(EveryColumn):
    def __init__(self) -> None:
        super().__init__()
        self.stars = layers.Dense(3)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "absent": (
        OfAbsent,
        "the model reads column 'nope', but the dataset has no such column: there are stars, ",
    ),
    "classes": (
        FewClasses,
        r"the model predicts classes \[0, 3\), but .* have others: .* are \{'stars': 5\}",
    ),
    "one tensor": (
        lambda: compiled(Compiled(("seconds",), named=False), loss="mse"),
        "Compiled must predict a label: the dataset has stars, seconds, bought, the model's "
        "outputs are not named; return a dict by label",
    ),
    "other outputs": (
        lambda: compiled(functional("other"), loss="mse"),
        "must predict a label: .*, the model's outputs are other; return a dict by label",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_does_not_fit_its_columns_is_refused_in_one_line(
    dataset: Dataset, name: str
) -> None:
    build, message = REFUSED[name]
    with pytest.raises(UsageError, match=message) as refused:
        StepModel(embedps.Recommender(build=build), dataset)
    assert "\n" not in str(refused.value)


def test_a_model_of_clicks_needs_a_binary_label(dataset: Dataset) -> None:
    message = "label of a model of clicks must be binary, but 'stars' of .* is declared as classes"
    spec = embedps.FeatureSpec(name="item", table=embedps.TableSpec(name="item", embedding_dim=2))
    of = {
        label: embedps.Recommender(build=functools.partial(SumModel, (spec,), (), label))
        for label in ("stars", "bought")
    }
    for recommender in (dlrm.make(dlrm.Config(), dataset), of["stars"]):
        with pytest.raises(UsageError, match=message) as refused:
            StepModel(recommender, dataset)
        assert "\n" not in str(refused.value)
    StepModel(of["bought"], dataset)


def spoilt(directory: Path, column: str, value: float) -> Dataset:
    """Writes a dataset with a wrong value at row 1234."""
    dataset = write_dataset(directory)
    (path,) = dataset.paths("train")
    table = pq.read_table(path)
    values = table[column].to_numpy().copy()
    values[1234] = value
    table = table.set_column(table.column_names.index(column), table.field(column), [values])
    pq.write_table(table, path)
    train = dataclasses.replace(dataset.split("train"), files=(describe_file(directory, path),))
    dataclasses.replace(dataset, splits={**dataset.splits, "train": train}).save()
    return Dataset.open(directory)


WRONG = {
    ("stars", 5): r"column 'stars' must be in \[0, 5\) but is 5 at row 1234",
    ("stars", -1): r"column 'stars' must be in \[0, 5\) but is -1 at row 1234",
    ("seconds", np.nan): "column 'seconds' must be finite in float32 but is NaN at row 1234",
    ("weight", -1.0): "column 'weight' must be finite .* at least 0 but is -1 at row 1234",
}


@pytest.mark.parametrize(("column", "value"), WRONG)
def test_a_label_outside_its_task_is_one_line(
    tmp_path: Path, dataset: Dataset, column: str, value: float
) -> None:
    path = str(spoilt(tmp_path, column, value).paths("train")[0])
    reader = StepModel(embedps.Recommender(build=EveryColumn), dataset).input(
        batch_rows=2000, shuffle_rows=0
    )
    with pytest.raises(tf.errors.DataLossError) as refused:
        reader.next(reader.open(path, 0, 2000))
    found = explain(refused.value)
    assert isinstance(found, DatasetError)
    assert re.search(WRONG[column, value], str(found))
    assert "\n" not in str(found)


def test_a_run_ends_by_a_label_outside_its_task(tmp_path: Path) -> None:
    changed = spoilt(tmp_path / "set", "stars", 5)
    recommender = embedps.Recommender(build=EveryColumn)
    with pytest.raises(DatasetError, match=WRONG["stars", 5]):
        make_trainer(changed, tmp_path / "m", recommender=recommender).fit()


def test_read_gives_several_targets_and_the_weights(dataset: Dataset) -> None:
    (found, targets, weights), *_ = embedps.read(dataset, "eval", batch_size=50)
    table = read_split(dataset).slice(0, 50)
    assert {*targets} == {"stars", "seconds", "bought"}
    assert {*found} == {NUMERICS, "I1", "user", "request", "time", "item", "tags", "vector"}
    np.testing.assert_array_equal(targets["stars"], table["stars"].to_numpy())
    np.testing.assert_array_equal(weights, table["weight"].to_numpy())
    assert found["vector"].to_list() == table["vector"].to_pylist()


def check_server_and_worker(directory: Path) -> None:
    """Trains on a cluster of processes."""
    cluster = LocalCluster(num_ps=1, num_workers=1, log_dir=directory / "logs")
    check_run(write_dataset(directory / "data"), directory / "model", cluster)


if __name__ == "__main__":
    check_server_and_worker(Path(sys.argv[1]))
