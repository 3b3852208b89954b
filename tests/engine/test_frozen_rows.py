"""Rows of layers with trainable=False stay as they are, by the engine as by Keras."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import embedps
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.tables import optimizers
from tests import commands
from tests.builders import latest, make_trainer, write_dataset
from tests.checkpoint.readers import read_chain, read_table
from tests.engine.builders import force_messages
from tests.frozen import Frozen
from tests.tables.builders import Rows
from tests.tables.builders import rows_of as collection_rows


def set_after() -> Frozen:
    model = Frozen()
    model.embeddings.trainable = False
    return model


def frozen_whole() -> Frozen:
    model = Frozen()
    model.trainable = False
    return model


FROZEN: dict[str, Callable[[], Frozen]] = {
    "declared": lambda: Frozen(trainable=False),
    "set after": set_after,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Path]:
    directory = tmp_path_factory.mktemp("frozen")
    dataset = write_dataset(directory / "set", train=(600,))
    train(dataset, directory / "m", Frozen)
    return dataset, directory / "m"


def train(dataset: Dataset, model_dir: Path, build: Callable[[], Any], **fields: Any) -> Any:
    recommender = embedps.Recommender(build=build)
    fields = {"dense_optimizer": "adagrad", **fields}
    return make_trainer(dataset, model_dir, recommender=recommender, **fields).fit()


def rows_of(model_dir: Path) -> dict[str, Any]:
    """All fields of all rows, with optimizer slots and steps, by group."""
    manifest = latest(model_dir)
    directory = CheckpointDirectory(model_dir)
    groups = sorted({table["group"] for table in manifest.tables})
    chains = {g: read_chain(directory, manifest, g).to_pandas() for g in groups}
    return {g: c.sort_values(["table", "id"]).to_dict("list") for g, c in chains.items()}


def resume(trained: tuple[Dataset, Path], place: Path, build: Any, **fields: Any) -> dict[str, Any]:
    dataset, before = trained
    shutil.copytree(before, place)
    train(dataset, place, build, epochs=2, **fields)
    assert latest(place).progress["examples"] == 2 * dataset.split("train").rows
    return rows_of(place)


@pytest.mark.parametrize("how", FROZEN)
def test_rows_stay_to_the_bit(trained: tuple[Dataset, Path], tmp_path: Path, how: str) -> None:
    before = rows_of(trained[1])
    np.testing.assert_equal(resume(trained, tmp_path / "m", FROZEN[how]), before)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["messages", "replicas", "devices"])
def test_rows_stay_however_a_step_is_exchanged(
    trained: tuple[Dataset, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Between workers in step: sync_program.py; by collectives: test_worker_cluster.py."""
    dataset, before = trained
    shutil.copytree(before, tmp_path / "m")
    if way == "devices":
        flags = ["--batch-size=64", "--unit-rows=512", "--dense-optimizer=adagrad", "--eval=none"]
        flags += ("--model=tests.frozen", "--replicas=2", "--mirrored", "--epochs=2")
        commands.finish(commands.train(dataset, tmp_path / "m", *flags))
    else:
        if way == "messages":
            force_messages(monkeypatch)
        fields = {"replicas": 2} if way == "replicas" else {}
        train(dataset, tmp_path / "m", FROZEN["declared"], epochs=2, **fields)
    assert latest(tmp_path / "m").progress["examples"] == 2 * dataset.split("train").rows
    np.testing.assert_equal(rows_of(tmp_path / "m"), rows_of(before))


def test_new_ids_get_no_rows_as_in_keras_mode(
    trained: tuple[Dataset, Path], tmp_path: Path
) -> None:
    for name, build in {"layer": FROZEN["declared"], "whole": frozen_whole}.items():
        result = train(trained[0], tmp_path / name, build)
        assert result.summary["tables"] == {"C1": 0, "C2": 0}, name
    keras = Frozen(trainable=False)
    keras.compile("sgd")
    keras.fit(embedps.read(trained[0].directory, "train", batch_size=64, targets=False), verbose=0)
    assert keras.embeddings.own.collection.stats().rows == {"C1": 0, "C2": 0}


def test_rows_learn_again_once_they_may(trained: tuple[Dataset, Path], tmp_path: Path) -> None:
    after = resume(trained, tmp_path / "m", Frozen)
    with pytest.raises(AssertionError):
        np.testing.assert_equal(after, rows_of(trained[1]))


class Stopped(embedps.ClickModel):
    """Stops the gradient of some features' rows: of C1, if not told otherwise."""

    def __init__(self, optimizer: Any, *, stops: bool = True, shares: bool = False) -> None:
        super().__init__(label="label")
        tables = {
            n: embedps.TableSpec(name=n, embedding_dim=4, optimizer=optimizer)
            for n in (("C2",) if shares else ("C1", "C2"))
        }
        self.embeddings = embedps.Embeddings(
            [embedps.FeatureSpec(name=n, table=tables.get(n, "C2")) for n in ("C1", "C2")]
        )
        self.out = tf.keras.layers.Dense(1)
        self.stops = stops

    def logits(self, features: Any, *, training: bool) -> tf.Tensor:
        found = self.embeddings(features)
        first = tf.stop_gradient(found["C1"]) if self.stops else found["C1"]
        return tf.reshape(self.out(tf.concat([first, found["C2"]], axis=1)), [-1])


MOVING = [optimizers.LazyAdam(weight_decay=0.1), optimizers.Ftrl(l1_regularization_strength=0.01)]
"""Those that change a row that has learned before, without a gradient too."""


def fit(model: Stopped, dataset: Dataset) -> None:
    model.compile("sgd")
    model.fit(embedps.read(dataset.directory, "train", batch_size=64, targets=False), verbose=0)


def test_rows_that_learned_stay_where_the_gradient_stops(
    trained: tuple[Dataset, Path], tmp_path: Path
) -> None:
    found: list[dict[str, Any]] = []
    for epochs, stops in ((1, False), (2, True)):
        train(trained[0], tmp_path, partial(Stopped, MOVING[0], stops=stops), epochs=epochs)
        directory = CheckpointDirectory(tmp_path)
        read = {n: read_table(directory, latest(tmp_path), n) for n in ("C1", "C2")}
        found.append({name: table.to_pydict() for name, table in read.items()})
    assert found[0]["C1"] == found[1]["C1"]
    assert all(found[0]["C2"][field] != v for field, v in found[1]["C2"].items() if field != "id")


@pytest.mark.parametrize(
    ("optimizer", "shares"), [*zip(MOVING, (True, False), strict=True)], ids=["shared", "own"]
)
def test_rows_stay_where_the_gradient_stops_in_keras_mode(
    trained: tuple[Dataset, Path], tmp_path: Path, optimizer: Any, shares: bool
) -> None:
    shown = pq.read_table(trained[0].paths("train")[0])
    learn = {("C2", each) for each in shown["C2"].to_pylist()}
    model = Stopped(optimizer, stops=False, shares=shares)
    found: list[Rows] = []
    for stops in (False, True):
        model.stops = stops
        fit(model, trained[0])
        found.append(collection_rows(model.embeddings.own.collection, tmp_path / str(stops)))
    assert {key for key, row in found[0].items() if found[1][key] == row} == found[0].keys() - learn
    assert found[0].keys() - learn


def test_rows_stay_in_an_eager_loop_and_of_lists() -> None:
    table = embedps.TableSpec(name="t", embedding_dim=2, optimizer=optimizers.SGD(weight_decay=0.5))
    lists = embedps.FeatureSpec(name="lists", table=table, ragged=True, combiner="none")
    layer = embedps.Embeddings([embedps.FeatureSpec(name="one", table="t"), lists])
    batch = {"one": tf.constant([1, 2], tf.int64), "lists": tf.ragged.constant([[2, 3], [4]])}
    before = layer(batch, training=True)["lists"].values.numpy()
    for _ in range(2):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(batch)["one"])
        tape.gradient(loss, layer.trainable_variables)
    after = layer(batch)["lists"].values.numpy()
    np.testing.assert_array_equal(after[1:], before[1:])
    assert np.all(after[0] != before[0])


@pytest.mark.parametrize("optimizer", MOVING, ids=lambda o: o.kind)
def test_a_table_of_which_a_feature_learns_and_another_stops_is_refused_if_rows_would_move(
    trained: tuple[Dataset, Path], tmp_path: Path, optimizer: Any
) -> None:
    build = embedps.Recommender(build=partial(Stopped, optimizer, shares=True))
    with pytest.raises(UsageError, match=r"'C1' gets no gradient: .* would change rows that only"):
        make_trainer(trained[0], tmp_path / "m", recommender=build)
