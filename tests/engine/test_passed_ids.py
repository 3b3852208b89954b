"""The engine refuses a model that looks other ids up than the batch's own column."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import embedps
from embedps.data.dataset import Dataset
from embedps.engine.step_model import StepModel
from embedps.errors import UsageError
from tests.builders import dataset_fixture

layers = tf.keras.layers
LISTS = embedps.FeatureSpec(
    name="L1", table=embedps.TableSpec(name="L1", embedding_dim=4), ragged=True
)


dataset = dataset_fixture(train=(60,), evaluation=(10,))


class Passing(embedps.ClickModel):
    """Passes on what a function makes of its columns; by default that of C1 only."""

    def __init__(self, ids: Callable[[Any], dict[str, Any]], columns: Any = None) -> None:
        super().__init__(label="label")
        self.embeddings = embedps.Embeddings(columns or {"C1": 4, "C2": 4})
        self.ids, self.out = ids, layers.Dense(1)

    def logits(self, features: Any, *, training: bool) -> tf.Tensor:
        found = self.embeddings({"C2": features["C2"], **self.ids(features)})
        return tf.reshape(self.out(tf.concat(list(found.values()), axis=1)), [-1])


class InTraining(Passing):
    """Computes ids in training only."""

    def __init__(self) -> None:
        super().__init__(lambda f: {"C1": f["C1"]})

    def logits(self, features: Any, *, training: bool) -> tf.Tensor:
        if training:
            features = {**features, "C1": features["C1"] % 10}
        return super().logits(features, training=training)


class InCall(Passing):
    """Computes ids where it predicts only."""

    def __init__(self) -> None:
        super().__init__(lambda f: {"C1": f["C1"]})

    def call(self, features: Any, training: bool = False) -> tf.Tensor:
        return self.logits({**features, "C1": features["C1"] % 10}, training=training)


class FailsToPredict(Passing):
    """Trains, and has a call that cannot be traced."""

    def call(self, features: Any, training: bool = False) -> tf.Tensor:
        return self.logits(features, training=training).numpy()


class Alone(Passing):
    """Looks one feature up by its layer of its own."""

    def logits(self, features: Any, *, training: bool) -> tf.Tensor:
        found = self.embeddings.feature("C1")(features["C1"] % 10)
        return tf.reshape(self.out(found), [-1])


def functional(shape: list[int], layer: Callable[[Any], Any], **table: Any) -> tf.keras.Model:
    inputs = {name: tf.keras.Input(shape, dtype=tf.int64, name=name) for name in ("C1", "C2")}
    ids = {"C1": layer(inputs["C1"]), "C2": inputs["C2"]}
    found = embedps.Embeddings({"C1": 4, "C2": 4})(ids)
    x = layers.Concatenate()([tf.reshape(v, [-1, 4]) for v in found.values()])
    model = tf.keras.Model(inputs, layers.Dense(1, "sigmoid")(x))
    model.compile(loss="binary_crossentropy")
    return model


OTHERS: dict[str, Callable[[], tf.keras.Model]] = {
    "modulo": lambda: Passing(lambda f: {"C1": f["C1"] % 10}),
    "narrowed": lambda: Passing(lambda f: {"C1": tf.cast(tf.cast(f["C1"], tf.int32), tf.int64)}),
    "another column": lambda: Passing(lambda f: {"C1": f["C2"]}),
    "from a branch": lambda: Passing(
        lambda f: {"C1": tf.cond(f["C1"][0] > 0, lambda: f["C1"], lambda: -f["C1"])}
    ),
    "shorter": lambda: Passing(lambda f: {"C1": f["C1"][1:]}),
    "reversed": lambda: Passing(lambda f: {"C1": f["C1"][::-1]}),
    "shifted rows": lambda: Passing(lambda f: {"C1": tf.roll(f["C1"], 1, axis=0)}),
    "one feature": lambda: Alone(lambda f: f),
    "in training": InTraining,
    "in call": InCall,
    "hashing layer": lambda: functional([], layers.Hashing(10)),
    "lookup layer": lambda: functional([], layers.IntegerLookup(vocabulary=[1, 2, 3])),
    "int32 input": lambda: functional([], lambda x: tf.cast(tf.cast(x, tf.int32), tf.int64)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_ids_are_refused_before_training(dataset: Dataset, name: str) -> None:
    with pytest.raises(UsageError, match="feature 'C1' must be looked up by the batch's own") as e:
        StepModel(embedps.Recommender(build=OTHERS[name]), dataset)
    assert "prepare(features, training)" in str(e.value)
    assert "\n" not in str(e.value)


def test_named_columns_make_no_exception(dataset: Dataset) -> None:
    columns = ("C1", "C2", "label")
    with pytest.raises(UsageError, match="feature 'C1' must be looked up by the batch's own"):
        StepModel(embedps.Recommender(build=OTHERS["modulo"], columns=columns), dataset)


SAME: dict[str, Callable[[], tf.keras.Model]] = {
    "a call that fails": lambda: FailsToPredict(lambda f: {"C1": f["C1"]}),
    "identity": lambda: Passing(lambda f: {"C1": tf.identity(f["C1"])}),
    "cast": lambda: Passing(lambda f: {"C1": tf.cast(f["C1"], tf.int64)}),
    "column of ids": lambda: Passing(lambda f: {"C1": tf.reshape(f["C1"], [-1, 1])}),
    "there and back": lambda: Passing(lambda f: {"C1": tf.squeeze(f["C1"][:, None], 1)[..., None]}),
    "functional": lambda: functional([], lambda x: x),
    "functional, a column of ids": lambda: functional([1], lambda x: x),
}


@pytest.mark.parametrize("name", SAME)
def test_the_column_in_another_shape_is_not(dataset: Dataset, name: str) -> None:
    assert StepModel(embedps.Recommender(build=SAME[name]), dataset).columns.ids == ("C1", "C2")
