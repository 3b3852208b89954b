"""Variables' names in checkpoints: a model whose layers moved restores by them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.dense import write_dense
from embedps.data.dataset import Dataset
from embedps.engine.variable_names import name_optimizer, name_variables
from embedps.errors import DimMismatchError
from tests.builders import dataset_fixture, dense_of, latest, make_config
from tests.engine.test_model_signature import rewrite
from tests.keras.models import features


class Model(embedps.ClickModel):
    """Two towers of one shape, declared in either order."""

    def __init__(self, order: str, names: tuple[str, str] = ("first", "second")) -> None:
        super().__init__(label="label")
        self.embeddings = embedps.Embeddings(features())
        self._names = names
        for name in names if order == "ab" else names[::-1]:
            setattr(self, name, tf.keras.layers.Dense(4, activation="relu"))
        self.last = tf.keras.layers.Dense(1)

    def logits(self, features: Any, *, training: bool) -> tf.Tensor:
        x = tf.concat(list(self.embeddings(features).values()), axis=1)
        first, second = (getattr(self, name)(x) for name in self._names)
        return tf.reshape(self.last(tf.concat([first, 2.0 * second], axis=1)), [-1])


dataset = dataset_fixture()


def trainer(dataset: Dataset, model_dir: Path, build: Any, **options: Any) -> embedps.Trainer:
    config = make_config(dataset, model_dir, eval="none", dense_optimizer="adamw", **options)
    return embedps.Trainer(embedps.Recommender(build=build), dataset, config)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    trainer(dataset, folder, lambda: Model("ab")).fit()
    return folder


@pytest.fixture(autouse=True)
def copied(tmp_path: Path, trained: Path) -> None:
    """Begins with what was trained."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)


def test_layers_in_another_order_restore_by_name(tmp_path: Path, dataset: Dataset) -> None:
    stored = dense_of(tmp_path)
    model = ["first/kernel", "first/bias", "second/kernel", "second/bias", "last/kernel"]
    model = [*model, "last/bias"]
    slots = [f"optimizer/{kind}/{name}" for kind in ("momentums", "velocities") for name in model]
    assert sorted(stored) == sorted([*model, "optimizer/iterations", *slots])
    other = trainer(dataset, tmp_path, lambda: Model("ba"), epochs=2)
    named = other._setup.model.named_variables
    assert next(iter(named)) == "second/kernel"
    for name in model:
        np.testing.assert_array_equal(named[name].numpy(), stored[name])
    other.fit()
    assert latest(tmp_path).final
    loaded = embedps.load(
        tmp_path, recommender=embedps.Recommender(build=lambda: Model("ab")), data=dataset.directory
    )
    ours = loaded._model.named_variables
    for name in model:
        np.testing.assert_array_equal(ours[name].numpy(), dense_of(tmp_path)[name])


def test_renamed_layers_and_files_of_before_restore_in_order(
    tmp_path: Path, dataset: Dataset
) -> None:
    stored = dense_of(tmp_path)
    renamed = trainer(dataset, tmp_path, lambda: Model("ab", ("first", "other")))
    for ours, theirs in zip(renamed._setup.model.variables, stored.values(), strict=False):
        np.testing.assert_array_equal(ours.numpy(), theirs)
    renamed.close()
    numbered = {f"{i:04d}": array for i, array in enumerate(stored.values())}
    directory, dense = CheckpointDirectory(tmp_path), latest(tmp_path).dense
    assert dense is not None
    path = directory.file(dense)
    rewrite(tmp_path, dense=write_dense(path, numbered, root=directory.path))
    before = trainer(dataset, tmp_path, lambda: Model("ab"))
    for ours, theirs in zip(before._setup.model.variables, stored.values(), strict=False):
        np.testing.assert_array_equal(ours.numpy(), theirs)
    before.close()


def test_a_variable_of_another_shape_is_named(tmp_path: Path, dataset: Dataset) -> None:
    class Wider(Model):
        def __init__(self) -> None:
            super().__init__("ab")
            self.second = tf.keras.layers.Dense(5)

    with pytest.raises(DimMismatchError, match=r"'last/kernel' has shape \(9, 1\)"):
        trainer(dataset, tmp_path, Wider)


@pytest.mark.parametrize(
    ("optimizer", "kinds"),
    [
        (tf.keras.optimizers.legacy.Adam(), ["m", "v"]),
        (tf.keras.optimizers.legacy.SGD(), []),
        (tf.keras.optimizers.SGD(momentum=0.9), ["momentums"]),
        (tf.keras.optimizers.Ftrl(), ["accumulators", "linears"]),
    ],
)
def test_slots_are_named_by_kind_and_variable(optimizer: Any, kinds: list[str]) -> None:
    model = tf.keras.Sequential([tf.keras.layers.Dense(2), tf.keras.layers.Dense(1)])
    model(tf.ones([1, 3]))
    named = name_variables(model, model.variables)
    assert len(named) == 4
    if isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
        optimizer._create_all_weights(model.trainable_variables)
    else:
        optimizer.build(model.trainable_variables)
    found = name_optimizer(optimizer, named)
    wanted = [f"optimizer/{kind}/{name}" for kind in kinds for name in named]
    assert sorted(found) == sorted(["optimizer/iterations", *wanted])
    for name, slot in found.items():
        if name != "optimizer/iterations":
            assert slot.shape == named[name.split("/", 2)[2]].shape


@pytest.mark.parametrize(
    ("kind", "slots"),
    [
        (tf.keras.optimizers.Adam, ("momentums", "velocities")),
        (tf.keras.optimizers.legacy.Adam, ("m", "v")),
        (tf.keras.optimizers.legacy.SGD, ()),
    ],
)
def test_partitioned_variable_has_one_name_and_each_of_its_slots_too(
    kind: Any, slots: tuple[str, ...]
) -> None:
    layer: Any = tf.keras.layers.Layer()
    parts = [
        tf.Variable(v, name=f"kernel/part_{i}") for i, v in enumerate(([[1.0], [2.0]], [[3.0]]))
    ]
    layer.kernel = tf.__internal__.distribute.ShardedVariable(parts)
    layer.bias = tf.Variable([0.5])
    variables, optimizer = [*parts, layer.bias], kind(0.5)
    optimizer.apply_gradients([(tf.ones_like(v), v) for v in variables])
    named = name_variables(layer, variables)
    assert {name: v.numpy().shape for name, v in named.items()} == {"kernel": (3, 1), "bias": (1,)}
    of_optimizer = name_optimizer(optimizer, named)
    names = {f"optimizer/{slot}/{name}" for slot in slots for name in named}
    assert of_optimizer.keys() == {"optimizer/iterations", *names}
    for slot in slots:
        whole = of_optimizer[f"optimizer/{slot}/kernel"]
        value = np.arange(3.0, dtype=np.float32)[:, None]
        whole.assign(value)
        assert np.array_equal(whole.numpy(), value)
        assert whole.shape == [3, 1]
