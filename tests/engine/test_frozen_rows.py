"""Rows of frozen layers and tables stay as they are, by the engine as by Keras."""

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
from tests.checkpoint.readers import read_table
from tests.engine.builders import force_messages
from tests.frozen import TABLES, Frozen
from tests.tables.builders import Rows, ids, make_collection, run_step
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
    "by table": lambda: Frozen(tables=TABLES),
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


def tables_of(model_dir: Path) -> dict[str, dict[str, Any]]:
    """All fields of all rows, with optimizer slots and steps, by table."""
    manifest, directory = latest(model_dir), CheckpointDirectory(model_dir)
    return {n: read_table(directory, manifest, n).to_pydict() for n in ("C1", "C2")}


def resume(trained: tuple[Dataset, Path], place: Path, build: Any, **fields: Any) -> None:
    dataset, before = trained
    shutil.copytree(before, place)
    train(dataset, place, build, epochs=2, **fields)
    assert latest(place).progress["examples"] == 2 * dataset.split("train").rows


@pytest.mark.parametrize("how", FROZEN)
def test_rows_stay_to_the_bit(trained: tuple[Dataset, Path], tmp_path: Path, how: str) -> None:
    resume(trained, tmp_path / "m", FROZEN[how])
    np.testing.assert_equal(tables_of(tmp_path / "m"), tables_of(trained[1]))


AGED: dict[str, Any] = {"eviction": (embedps.TimeToLive(steps=1),)}


@pytest.mark.parametrize(
    ("fields", "freeze"),
    [({"trainable": False}, ()), ({}, ("C2",)), ({}, ("C2:99",))],
    ids=["declared", "asked", "for a time"],
)
def test_rows_of_one_table_stay_and_others_learn_and_go(
    trained: tuple[Dataset, Path], tmp_path: Path, fields: dict[str, Any], freeze: tuple[str, ...]
) -> None:
    build = partial(Frozen, tables={"C1": AGED, "C2": AGED | fields})
    dataset, before = trained
    shutil.copytree(before, tmp_path / "m")
    options: dict[str, Any] = {"epochs": 2, "freeze": freeze, "dense_optimizer": "adagrad"}
    recommender = embedps.Recommender(build=build)
    trainer = make_trainer(dataset, tmp_path / "m", recommender=recommender, **options)
    names = "C2 before step 99" if freeze == ("C2:99",) else "C2"
    assert f"tables whose rows stay as they are: {names}" in trainer._setup.changes
    counted = trainer.collection.admission_stats()["C2"]
    trainer._loop.run()
    trainer.collection.sweep()
    assert trainer.collection.eviction_stats()["C1"]["age"] > 0
    assert not any(trainer.collection.eviction_stats()["C2"].values())
    assert trainer.collection.admission_stats()["C2"] == counted
    trainer.close()
    found, expected = tables_of(tmp_path / "m"), tables_of(before)
    np.testing.assert_equal(found["C2"], expected["C2"])
    assert found["C1"] != expected["C1"]
    manifest = latest(tmp_path / "m")
    (group,) = (t["group"] for t in manifest.tables if t["name"] == "C2")
    saves = manifest.chain[len(latest(before).chain) :]
    assert {save.kind for save in saves} == {"delta"}
    files = [file for save in saves for file in save.files if file.group == group]
    assert [file.rows + file.removed for file in files] == [0] * len(saves)


def test_a_table_learns_from_a_step_on(trained: tuple[Dataset, Path], tmp_path: Path) -> None:
    train(trained[0], tmp_path / "m", Frozen, freeze=("C1:5",))
    steps, whole = (tables_of(m)["C1"]["last_step"] for m in (tmp_path / "m", trained[1]))
    assert min(steps) >= 5 > min(whole)
    assert len(steps) < len(whole)


def test_sweeps_of_a_table_wait_for_its_step() -> None:
    table = embedps.TableSpec(name="t", embedding_dim=2, frozen_steps=5, **AGED)
    collection = make_collection([table])
    for step in (4, 5):
        run_step(collection, {"t": ids(step)}, lambda found: tf.reduce_sum(found["t"]), step=step)
    assert collection.ids("t").tolist() == [5]
    run_step(collection, {"t": ids(9)}, lambda found: tf.reduce_sum(found["t"]), step=9)
    collection.sweep()
    collection.hold_sweeps(False)
    assert sorted(collection.ids("t")) == [5, 9]
    collection.thaw(9)
    collection.sweep()
    assert collection.ids("t").tolist() == [9]
    collection.drop()


def test_a_table_that_is_not_there_is_named(trained: tuple[Dataset, Path], tmp_path: Path) -> None:
    recommender = embedps.Recommender(build=Frozen)
    for freeze, message in (
        ("C1,user", "--freeze user: there is no such table, the model has C1, C2"),
        ("C1:", r"freeze must have TABLE\[,TABLE\]\[:STEP\] but got 'C1:'"),
        ("C1,,C2", "but got 'C1,,C2'"),
    ):
        with pytest.raises(UsageError, match=message):
            make_trainer(trained[0], tmp_path / "m", recommender=recommender, freeze=(freeze,))
    spec = embedps.FeatureSpec(
        name="t", table=embedps.TableSpec(name="t", embedding_dim=2, frozen_steps=5)
    )
    with pytest.raises(UsageError, match="'t' has frozen_steps, which only embedps"):
        embedps.Embeddings([spec])({"t": ids(1)})


@pytest.mark.slow
@pytest.mark.parametrize("by", ["declared", "by table"])
@pytest.mark.parametrize("way", ["messages", "replicas", "devices"])
def test_rows_stay_however_a_step_is_exchanged(
    trained: tuple[Dataset, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    by: str,
) -> None:
    """Between workers in step: sync_program.py; by collectives: test_worker_cluster.py."""
    dataset, before = trained
    shutil.copytree(before, tmp_path / "m")
    if way == "devices":
        flags = ["--batch-size=64", "--unit-rows=512", "--dense-optimizer=adagrad", "--eval=none"]
        flags += ["--model=tests.frozen", "--replicas=2", "--mirrored", "--epochs=2"]
        flags += [] if by == "declared" else ["--by=tables"]
        commands.finish(commands.train(dataset, tmp_path / "m", *flags))
    else:
        if way == "messages":
            force_messages(monkeypatch)
        fields = {"replicas": 2} if way == "replicas" else {}
        train(dataset, tmp_path / "m", FROZEN[by], epochs=2, **fields)
    assert latest(tmp_path / "m").progress["examples"] == 2 * dataset.split("train").rows
    np.testing.assert_equal(tables_of(tmp_path / "m"), tables_of(before))


def test_new_ids_get_no_rows_as_in_keras_mode(
    trained: tuple[Dataset, Path], tmp_path: Path
) -> None:
    built = {"layer": FROZEN["declared"], "whole": frozen_whole, "tables": FROZEN["by table"]}
    for name, build in built.items():
        result = train(trained[0], tmp_path / name, build)
        assert result.summary["tables"] == {"C1": 0, "C2": 0}, name
    for keras in (Frozen(trainable=False), Frozen(tables={"C2": {"trainable": False}})):
        keras.compile("sgd")
        batches = embedps.read(trained[0].directory, "train", batch_size=64, targets=False)
        keras.fit(batches, verbose=0)
        rows = keras.embeddings.own.collection.stats().rows
        assert rows["C2"] == 0
        assert (rows["C1"] > 0) == keras.embeddings.trainable
    config = keras.embeddings.get_config()
    assert [t["trainable"] for t in config["tables"]] == [True, False]
    assert embedps.Embeddings.from_config(config).tables == keras.embeddings.tables


def test_rows_learn_again_once_they_may(trained: tuple[Dataset, Path], tmp_path: Path) -> None:
    resume(trained, tmp_path / "m", Frozen)
    with pytest.raises(AssertionError):
        np.testing.assert_equal(tables_of(tmp_path / "m"), tables_of(trained[1]))


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
