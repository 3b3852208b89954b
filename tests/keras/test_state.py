"""Keras' ways to keep a model's state carry the tables: rows, optimizer slots, counters, step."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.errors import CorruptCheckpointError, DimMismatchError, UsageError
from embedps.layers.dense import MLP
from embedps.tables import image

NAMES = ("a", "b")


def features(dim: int = 4) -> list[embedps.FeatureSpec]:
    tables = {
        "a": embedps.TableSpec(
            name="a",
            embedding_dim=dim,
            optimizer=embedps.LazyAdam(beta_1=0.8),
            eviction=(embedps.TimeToLive(steps=10_000),),
        ),
        "b": embedps.TableSpec(
            name="b", embedding_dim=dim, admission=embedps.MinCount(count=30), row_dtype="bfloat16"
        ),
    }
    return [embedps.FeatureSpec(name=n, table=tables[n]) for n in NAMES]


def build(dim: int = 4, **options: Any) -> tf.keras.Model:
    inputs = {n: tf.keras.Input((), dtype=tf.int64, name=n) for n in NAMES}
    found = embedps.Embeddings(features(dim), name="emb", **options)(inputs)
    x = tf.keras.layers.Concatenate()([found[n] for n in NAMES])
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(x))
    loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(0.01), loss)
    return model


@pytest.fixture(scope="module")
def data() -> tf.data.Dataset:
    rng = np.random.default_rng(0)
    ids = {n: rng.integers(0, 20, 200) for n in NAMES}
    labels = (ids["a"] % 2 == 1).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((ids, labels)).batch(50)


def fit(model: tf.keras.Model, data: tf.data.Dataset, epochs: int = 1, **options: Any) -> Any:
    return model.fit(data, epochs=epochs, verbose=0, **options).history


def json_of(config: dict[str, Any]) -> Any:
    return json.loads(json.dumps(config))


def trained(data: tf.data.Dataset) -> tf.keras.Model:
    model = build()
    fit(model, data, 2)
    return model


@pytest.fixture(scope="module")
def known(data: tf.data.Dataset) -> tf.keras.Model:
    """A model that its tests leave as it is."""
    return trained(data)


@pytest.fixture(scope="module")
def traced(data: tf.data.Dataset) -> tuple[Any, ...]:
    """Two models, and what the first has once it is trained: its weights and its optimizer's."""
    model = trained(data)
    return model, build(), model.get_weights(), [v.numpy() for v in model.optimizer.variables]


@pytest.fixture
def pair(traced: tuple[Any, ...]) -> tuple[tf.keras.Model, tf.keras.Model]:
    """A trained model, and another: both traced once, as that takes longest."""
    model, other, weights, slots = traced
    model.set_weights(weights)
    for variable, value in zip(model.optimizer.variables, slots, strict=True):
        variable.assign(value)
    return model, other


def by_checkpoint(model: tf.keras.Model, other: tf.keras.Model, folder: Path) -> None:
    path = tf.train.Checkpoint(model=model).save(str(folder / "ckpt"))
    tf.train.Checkpoint(model=other).restore(path).assert_consumed()


def by_file(name: str) -> Any:
    def move(model: tf.keras.Model, other: tf.keras.Model, folder: Path) -> None:
        model.save_weights(str(folder / name))
        other.load_weights(str(folder / name))

    return move


def by_arrays(model: tf.keras.Model, other: tf.keras.Model, folder: Path) -> None:
    other.set_weights(model.get_weights())


WAYS = {
    "checkpoint": by_checkpoint,
    "tf": by_file("weights"),
    "h5": by_file("weights.h5"),
    "v3": by_file("model.weights.h5"),
    "arrays": by_arrays,
}


@pytest.mark.parametrize("way", WAYS)
def test_another_model_gets_the_tables(
    way: str, pair: tuple[Any, Any], data: tf.data.Dataset, tmp_path: Path
) -> None:
    model, other = pair
    # What the other has goes: ids 100 to 119 too, which the first model has not.
    fit(other, data.map(lambda ids, y: ({n: v + 100 for n, v in ids.items()}, y)), 3)
    ours, theirs = (m.get_layer("emb").own for m in pair)
    assert int(theirs.step) != 8
    WAYS[way](model, other, tmp_path)
    assert int(theirs.step) == int(ours.step) == 8
    assert theirs.collection.stats().rows == ours.collection.stats().rows
    assert theirs.collection.admission_stats()["b"].counters > 0
    assert set(theirs.collection.ids("a")) == set(range(20))
    np.testing.assert_array_equal(*(m.predict(data, verbose=0) for m in pair))
    # Slots and counters decide what rows become.
    for mine, its in zip(model.optimizer.variables, other.optimizer.variables, strict=True):
        its.assign(mine)
    assert fit(other, data, 2) == fit(model, data, 2)


def test_early_stopping_restores_the_best_rows(data: tf.data.Dataset) -> None:
    model = build(learning_rate=5.0)
    stops = tf.keras.callbacks.EarlyStopping(
        "val_loss", patience=2, restore_best_weights=True, start_from_epoch=1
    )
    inverse = data.map(lambda ids, y: (ids, 1 - y))  # which gets worse with each step
    losses = fit(model, data, 8, validation_data=inverse, callbacks=[stops])["val_loss"]
    assert len(losses) == 4
    assert model.evaluate(inverse, verbose=0) == pytest.approx(losses[1], rel=1e-6)
    assert losses[1] < losses[-1]


def test_backup_and_restore_goes_on_where_it_was(data: tf.data.Dataset, tmp_path: Path) -> None:
    class Fails(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise KeyboardInterrupt

    def backup() -> Any:
        return tf.keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))

    tf.keras.utils.set_random_seed(1)
    wanted = fit(build(), data, 4)["loss"]
    tf.keras.utils.set_random_seed(1)
    with pytest.raises(KeyboardInterrupt):
        fit(build(), data, 4, callbacks=[backup(), Fails()])
    assert fit(build(), data, 4, callbacks=[backup()])["loss"] == wanted[2:]


@pytest.mark.parametrize("weights_only", [True, False])
def test_model_checkpoint(weights_only: bool, data: tf.data.Dataset, tmp_path: Path) -> None:
    path = str(tmp_path / ("m.weights.h5" if weights_only else "m.keras"))
    saves = tf.keras.callbacks.ModelCheckpoint(path, save_weights_only=weights_only)
    model = build()
    fit(model, data, 2, callbacks=[saves])
    if weights_only:
        other = build()
        other.load_weights(path)
    else:
        other = tf.keras.models.load_model(path)
    assert other.evaluate(data, verbose=0) == model.evaluate(data, verbose=0)
    assert not weights_only or fit(other, data)
    assert weights_only or fit(other, data) == fit(model, data)


def test_a_saved_model_keeps_shared_tables_and_a_schedule(
    data: tf.data.Dataset, tmp_path: Path
) -> None:
    rate = tf.keras.optimizers.schedules.ExponentialDecay(0.05, 4, 0.5)
    layer = embedps.Embeddings(features(), learning_rate=rate)
    inputs = {n: tf.keras.Input((), dtype=tf.int64, name=n) for n in NAMES}
    found = [layer.feature(n)(inputs[n]) for n in NAMES]
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(tf.keras.layers.Concatenate()(found)))
    model.compile("adam", tf.keras.losses.BinaryCrossentropy(from_logits=True))
    fit(model, data)
    model.save(tmp_path / "m.keras")
    other = tf.keras.models.load_model(tmp_path / "m.keras")
    assert len({id(each.embeddings) for each in other.layers if hasattr(each, "embeddings")}) == 1
    assert fit(other, data) == fit(model, data)
    with pytest.raises(UsageError, match="would no longer share their tables: use"):
        model.to_json()


def test_configs_are_json(known: tf.keras.Model) -> None:
    made = tf.keras.models.model_from_json(known.to_json()).get_layer("emb")
    assert made.features == known.get_layer("emb").features
    assert made.tables == known.get_layer("emb").tables
    assert made._own is None or not sum(made.own.collection.stats().rows.values())
    with pytest.raises(UsageError, match="must have a learning_rate that is a number or one of"):
        embedps.Embeddings({"a": 4}, learning_rate=lambda step: 0.1).get_config()


def test_a_model_of_our_layers_is_made_again_of_its_json() -> None:
    table = embedps.TableSpec(
        name="t",
        embedding_dim=3,
        optimizer=tf.keras.optimizers.Adagrad(0.1),
        admission=embedps.Chance(probability=0.5),
        eviction=(embedps.TimeToLive(steps=3), embedps.SizeLimit(max_rows=9)),
        row_dtype="bfloat16",
    )
    given = [
        embedps.FeatureSpec(name="a", table=table),
        embedps.FeatureSpec(name="b", table=table, ragged=True, combiner="sqrtn"),
    ]
    assert [embedps.FeatureSpec.from_config(json_of(f.get_config())) for f in given] == given
    layer = embedps.Embeddings(given, name="emb")
    inputs = {
        "a": tf.keras.Input((), dtype=tf.int64, name="a"),
        "b": tf.keras.Input((None,), dtype=tf.int64, ragged=True, name="b"),
    }
    found = layer(inputs)
    model = tf.keras.Model(inputs, MLP((4, 1), out_dtype="float32")([found["a"], found["b"]]))
    again = tf.keras.models.model_from_json(model.to_json())
    assert [e.get_config() for e in again.layers] == [e.get_config() for e in model.layers]
    assert again.get_layer("emb").tables == layer.tables == (table,)
    assert again.get_layer("emb").own.learning_rate == np.float32(0.1)
    # A config of before has the names that checkpoints have, and the rate is the layer's.
    before = layer.get_config() | {"tables": [json_of(table.to_json())], "learning_rate": 0.1}
    assert before["tables"][0].keys() >= {"dim"}
    layer = embedps.Embeddings.from_config(before)
    optimizer = dataclasses.replace(table.optimizer, learning_rate=None)
    assert layer.tables == (dataclasses.replace(table, optimizer=optimizer),)
    assert layer.own.learning_rate == np.float32(0.1)


@pytest.mark.parametrize("save", [tf.saved_model.save, lambda m, path: m.save(path)])
def test_a_saved_model_of_tensorflow_is_refused(
    save: Any, known: tf.keras.Model, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="embedps export` makes a SavedModel") as refused:
        save(known, str(tmp_path / "saved"))
    assert "\n" not in str(refused.value)


def test_others_states_are_refused(known: tf.keras.Model) -> None:
    state = known.get_layer("emb").table_state
    saved = state.numpy()
    with pytest.raises(DimMismatchError, match="embedding_dim 8, the checkpoint has 4"):
        build(8).get_layer("emb").table_state.assign(saved)
    for wrong in (saved[:-1], saved[1:], np.arange(40)):
        with pytest.raises(CorruptCheckpointError, match="rows of embedding tables must be as"):
            state.assign(wrong)
    damaged = saved.copy()
    damaged[-100] ^= 1
    with pytest.raises(CorruptCheckpointError, match="xxh3_64"):
        state.assign(damaged)


def test_a_copy_that_memory_has_no_room_for_is_refused(
    known: tf.keras.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = known.get_layer("emb").table_state.numpy().size
    (tmp_path / "memory.max").write_text(f"{10**6 + size - 1}\n")
    (tmp_path / "memory.current").write_text(f"{10**6}\n")
    monkeypatch.setattr(image, "_CGROUP", tmp_path)
    with pytest.raises(
        UsageError, match=f"needs {size:,} bytes of memory, of which {size - 1:,} are"
    ):
        known.get_weights()
    (tmp_path / "memory.max").write_text("max\n")
    assert known.get_weights()


def test_summary_counts_the_rows_of_now(known: tf.keras.Model) -> None:
    models = build(), known
    lines: list[str] = []
    for model in models:
        model.summary(print_fn=lines.append)
    print("\n".join(lines))
    counts = [int(each.split()[-2]) for each in lines if each.strip().startswith("emb (")]
    own = known.get_layer("emb").own.collection
    assert counts == [0, sum(n * 4 for n in own.stats().rows.values())]
    assert counts[1] > 0


def test_a_frozen_layer_has_as_many_weights(
    known: tf.keras.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = known.get_weights()
    monkeypatch.setattr(known, "trainable", False)
    assert len(known.get_weights()) == len(weights)


def test_fit_saves_without_a_dataset_and_after_rows_were_replaced(
    data: tf.data.Dataset, tmp_path: Path
) -> None:
    first = build().get_weights()

    class Replaces(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                self.model.set_weights(first)  # no rows

    few = data.map(lambda ids, y: ({n: v % 5 for n, v in ids.items()}, y))
    model = build()
    saves = embedps.SaveCheckpoints(tmp_path)
    fit(model, data, 2, callbacks=[saves])
    before = CheckpointDirectory(tmp_path).latest()
    fit(model, few, 3, callbacks=[saves, Replaces()])
    after = CheckpointDirectory(tmp_path).latest()
    assert before is not None
    assert after is not None
    assert [save.kind for save in after.chain] == ["base", "delta"]  # of the end
    assert after.history != before.history
    other = build()
    fit(other, few, 1, callbacks=[embedps.SaveCheckpoints(tmp_path), Stop()])
    assert set(other.get_layer("emb").own.collection.ids("a")) == set(range(5))
    with pytest.raises(UsageError, match="one of embedps, or its directory, but got a"):
        embedps.SaveCheckpoints(tmp_path, data)


class Stop(tf.keras.callbacks.Callback):
    def on_train_begin(self, logs: Any = None) -> None:
        self.model.stop_training = True


class Late(tf.keras.Model):
    """Is built by its first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = embedps.Embeddings(dict.fromkeys(NAMES, 4))
        self.last = tf.keras.layers.Dense(1)

    def call(self, batch: Any) -> tf.Tensor:
        return self.last(tf.concat(list(self.embeddings(batch).values()), axis=1))


def test_a_model_that_its_first_batch_builds(data: tf.data.Dataset, tmp_path: Path) -> None:
    def late() -> tf.keras.Model:
        model = Late()
        model.compile("adam", tf.keras.losses.BinaryCrossentropy(from_logits=True))
        return model

    fit(late(), data, callbacks=[embedps.SaveCheckpoints(tmp_path)])
    last = CheckpointDirectory(tmp_path).latest()
    assert last is not None
    assert last.step == 4
    with pytest.raises(UsageError, match="call the model on a batch before fit"):
        fit(late(), data, callbacks=[embedps.SaveCheckpoints(tmp_path)])
