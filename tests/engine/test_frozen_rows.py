"""Rows of layers with trainable=False stay as they are, by the engine as by Keras."""

import shutil
from collections.abc import Callable
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
from tests.builders import latest, make_trainer, write_dataset
from tests.checkpoint.readers import read_chain
from tests.engine.test_step_exchange import force_messages

ADMITTED = embedps.MinCount(count=2)


class Frozen(embedps.ClickModel):
    def __init__(self, **layer: Any) -> None:
        super().__init__(label="label")
        tables = [
            embedps.TableSpec(name="C1", dim=4),
            embedps.TableSpec(name="C2", dim=4, admission=ADMITTED),
        ]
        features = [embedps.FeatureSpec(name=t.name, table=t) for t in tables]
        self.embeddings = embedps.Embeddings(features, **layer)
        self.out = tf.keras.layers.Dense(1)

    def logits(self, features: Any, *, training: bool) -> tf.Tensor:
        found = self.embeddings(features)
        return tf.reshape(self.out(tf.concat(list(found.values()), axis=1)), [-1])


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
@pytest.mark.parametrize("way", ["messages", "replicas"])
def test_rows_stay_however_a_step_is_exchanged(
    trained: tuple[Dataset, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    fields = {}
    if way == "messages":
        force_messages(monkeypatch)
    else:
        fields["replicas"] = 2
    after = resume(trained, tmp_path / "m", FROZEN["declared"], **fields)
    np.testing.assert_equal(after, rows_of(trained[1]))


def test_new_ids_get_no_rows_as_in_keras_mode(
    trained: tuple[Dataset, Path], tmp_path: Path
) -> None:
    for name, build in {"layer": FROZEN["declared"], "whole": frozen_whole}.items():
        result = train(trained[0], tmp_path / name, build)
        assert result.summary["tables"] == {"C1": 0, "C2": 0}, name
    keras = Frozen(trainable=False)
    keras.compile("sgd")
    keras.fit(embedps.read(trained[0].directory, "train", batch_rows=64, targets=False), verbose=0)
    assert keras.embeddings.own.collection.stats().rows == {"C1": 0, "C2": 0}


def test_rows_learn_again_once_they_may(trained: tuple[Dataset, Path], tmp_path: Path) -> None:
    after = resume(trained, tmp_path / "m", Frozen)
    with pytest.raises(AssertionError):
        np.testing.assert_equal(after, rows_of(trained[1]))


class Stopped(embedps.ClickModel):
    """Stops the gradient of C1's rows."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__(label="label")
        tables = [embedps.TableSpec(name=n, dim=4, optimizer=optimizer) for n in ("C1", "C2")]
        features = [embedps.FeatureSpec(name=t.name, table=t) for t in tables]
        self.embeddings = embedps.Embeddings(features)
        self.out = tf.keras.layers.Dense(1)

    def logits(self, features: Any, *, training: bool) -> tf.Tensor:
        found = self.embeddings(features)
        both = [tf.stop_gradient(found["C1"]), found["C2"]]
        return tf.reshape(self.out(tf.concat(both, axis=1)), [-1])


@pytest.mark.parametrize("optimizer", [optimizers.SGD(), optimizers.LazyAdam()])
def test_rows_stay_where_the_gradient_stops_as_in_keras_mode(
    trained: tuple[Dataset, Path], tmp_path: Path, optimizer: Any
) -> None:
    read = pq.read_table(trained[0].paths("train")[0])

    def rows(collection: Any, name: str, *, insert: bool) -> np.ndarray:
        step = tf.zeros([], tf.int64)
        ids = {name: tf.constant(np.unique(read[name].to_numpy()))}
        found = collection.lookup(ids, insert=insert, step=step, partial=True)
        return collection.combine(found)[name].numpy()

    first = Stopped(optimizer)  # a row's first value is by its id alone
    start = {n: rows(first.embeddings.own.collection, n, insert=True) for n in ("C1", "C2")}
    build = embedps.Recommender(build=lambda: Stopped(optimizer))
    trainer = make_trainer(trained[0], tmp_path / "m", recommender=build)
    trainer.fit()
    keras = Stopped(optimizer)
    keras.compile("sgd")
    keras.fit(embedps.read(trained[0].directory, "train", batch_rows=64, targets=False), verbose=0)
    for collection in (trainer.collection, keras.embeddings.own.collection):
        found = {name: rows(collection, name, insert=False) for name in start}
        np.testing.assert_array_equal(found["C1"], start["C1"])
        assert np.all(np.any(found["C2"] != start["C2"], axis=1))


@pytest.mark.parametrize("optimizer", [optimizers.SGD(weight_decay=0.1), optimizers.Ftrl()])
def test_an_optimizer_that_changes_rows_without_a_gradient_is_refused(
    trained: tuple[Dataset, Path], tmp_path: Path, optimizer: Any
) -> None:
    build = embedps.Recommender(build=lambda: Stopped(optimizer))
    with pytest.raises(UsageError, match=r"table 'C1' gets no gradient: .* would change them"):
        make_trainer(trained[0], tmp_path / "m", recommender=build)
