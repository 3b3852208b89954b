"""Models as TFRS and Keras users write them train by the engine, or are refused in one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tensorflow_recommenders as tfrs

import embedps
from embedps.data.dataset import Dataset
from embedps.engine.step_model import StepModel
from embedps.errors import UsageError
from tests.builders import dataset_fixture, make_trainer

layers = tf.keras.layers


def features(*names: str, dim: int = 8) -> list[embedps.FeatureSpec]:
    return [
        embedps.FeatureSpec(name=name, table=embedps.TableSpec(name=name, embedding_dim=dim))
        for name in names or ("C1", "C2")
    ]


def functional() -> tf.keras.Model:
    ids = {name: tf.keras.Input([], dtype=tf.int64, name=name) for name in ("C1", "C2")}
    inputs = ids | {"I1": tf.keras.Input([], name="I1")}
    found = embedps.Embeddings(features())(inputs)
    number = tf.where(tf.math.is_nan(inputs["I1"]), 0.0, inputs["I1"])
    x = tf.concat([*found.values(), number[:, None]], axis=1)
    model = tf.keras.Model(
        inputs, layers.Dense(1, "sigmoid")(layers.Dense(8, "relu")(x)), name="functional"
    )
    model.compile(loss="binary_crossentropy", metrics=["AUC", "accuracy"])
    return model


class Subclassed(tf.keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = embedps.Embeddings(features())
        self.out = layers.Dense(1, "sigmoid", kernel_regularizer="l2")

    def call(self, batch: dict[str, Any]) -> tf.Tensor:
        return self.out(tf.concat(list(self.embeddings(batch).values()), axis=1))


def subclassed(**compiled: Any) -> tf.keras.Model:
    model = Subclassed()
    model.compile(
        **{
            "loss": tf.keras.losses.BinaryCrossentropy(),
            "metrics": [tf.keras.metrics.Precision(), tf.keras.metrics.Recall()],
            **compiled,
        }
    )
    return model


class Ranking(tfrs.Model):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = embedps.Embeddings(features())
        self.tower = tf.keras.Sequential([layers.Dense(8, "relu"), layers.Dense(1)])
        self.task = tfrs.tasks.Ranking(
            loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
            metrics=[tf.keras.metrics.AUC(from_logits=True, name="auc")],
        )

    def call(self, batch: dict[str, Any]) -> tf.Tensor:
        return self.tower(tf.concat(list(self.embeddings(batch).values()), axis=1))

    def compute_loss(self, batch: dict[str, Any], training: bool = False) -> tf.Tensor:
        labels = batch.pop("label")
        return self.task(labels=labels, predictions=self(batch))


class Retrieval(tfrs.Model):
    """Looks each tower's feature up by a call of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = embedps.Embeddings(features())
        self.query, self.candidate = layers.Dense(4), layers.Dense(4)
        ids = tf.data.Dataset.from_tensor_slices({"C2": tf.range(20, dtype=tf.int64)})
        self.task = tfrs.tasks.Retrieval(
            metrics=tfrs.metrics.FactorizedTopK(embedps.Candidates(ids.batch(5), self.encode))
        )

    def compute_loss(self, batch: dict[str, Any], training: bool = False) -> tf.Tensor:
        query = self.query(self.embeddings({"C1": batch["C1"]})["C1"])
        return self.task(query, self.encode(batch))

    def encode(self, batch: dict[str, Any]) -> tf.Tensor:
        found: tf.Tensor = self.candidate(self.embeddings({"C2": batch["C2"]})["C2"])
        return found


MODELS: dict[str, tuple[Callable[[], tf.keras.Model], tuple[str, ...], set[str]]] = {
    "functional": (functional, ("label", "I1"), {"loss", "auc", "accuracy"}),
    "subclassed": (subclassed, ("label",), {"loss", "precision", "recall"}),
    "ranking": (Ranking, ("label",), {"loss", "auc"}),
    "retrieval": (
        Retrieval,
        (),
        {"loss"} | {f"factorized_top_k/top_{k}_categorical_accuracy" for k in (1, 5, 10, 50, 100)},
    ),
}


dataset = dataset_fixture()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_reads_its_columns_and_reports_its_metrics(
    tmp_path: Path, dataset: Dataset, name: str
) -> None:
    build, columns, scores = MODELS[name]
    recommender = embedps.Recommender(build=build)
    tf.keras.backend.clear_session()
    trainer = make_trainer(
        dataset,
        tmp_path,
        recommender=recommender,
        eval="inline",
        epochs=3,
        sparse_learning_rate=0.2,
    )
    read = trainer._setup.model.columns
    assert {*read.label_names, *read.numerics} == set(columns)
    assert read.ids == ("C1", "C2")
    result = trainer.fit()
    assert result.finished
    assert set(result.scores[-1].values) == scores
    last = result.scores[-1].get("loss")
    assert last is not None
    if name != "retrieval":
        assert last < 0.69
    if "auc" in scores:
        assert result.scores.best("auc").get("auc") > 0.6  # type: ignore[union-attr, operator]


def test_scores_are_those_of_keras(tmp_path: Path, dataset: Dataset) -> None:
    """Counts that were added up give what a metric gives that saw all examples."""
    recommender = embedps.Recommender(build=Ranking)
    trainer = make_trainer(dataset, tmp_path, recommender=recommender, eval="inline")
    scores = trainer.fit().scores[-1]
    model, collection = trainer._setup.model, trainer.collection
    reader = model.input(batch_rows=1000, shuffle_rows=0)
    path = str(dataset.paths("eval")[0])
    batch = reader.next(reader.open(path, 0, 1000))
    found = collection.combine(collection.lookup(batch.columns, insert=False))
    logits = model.outputs(batch.columns, found)["score"]
    plain = tf.keras.metrics.AUC(from_logits=True)
    plain.update_state(batch.columns["label"][:, None], logits)
    assert scores.get("auc") == pytest.approx(float(plain.result()), abs=1e-7)
    assert scores.examples == 1000


class Twice(Ranking):
    def call(self, batch: dict[str, Any]) -> tf.Tensor:
        return super().call(batch) + super().call(batch)


class Minimum(tf.keras.metrics.Metric):
    def __init__(self) -> None:
        super().__init__(name="least")
        self._value = self.add_weight("value", initializer="zeros")

    def update_state(self, labels: Any, predicted: Any, sample_weight: Any = None) -> None:
        self._value.assign(tf.minimum(self._value, tf.reduce_min(predicted)))

    def result(self) -> tf.Tensor:
        return self._value


class Decaying(Minimum):
    def update_state(self, labels: Any, predicted: Any, sample_weight: Any = None) -> None:
        self._value.assign_add(0.1 * (tf.reduce_mean(predicted) - self._value))


class WithoutEmbeddings(tfrs.Model):
    def compute_loss(self, batch: dict[str, Any], training: bool = False) -> tf.Tensor:
        return tf.constant(0.0)


class OfAbsentColumn(Ranking):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = embedps.Embeddings(features("C1", "C9"))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a feature twice": (Twice, "feature 'C1' is looked up twice in a step: call the Embeddings"),
    "a minimum": (
        lambda: subclassed(metrics=[Minimum()]),
        r"metric 'least' \(Minimum\) cannot be added over workers, as it assigns its state",
    ),
    "a moving average": (
        lambda: subclassed(metrics=[Decaying()]),
        r"metric 'least' \(Decaying\) cannot be added .* what it adds depends on its state",
    ),
    "no loss": (Subclassed, r"Subclassed has no loss: give it compute_loss\(self, features, "),
    "no embeddings": (WithoutEmbeddings, "must have one embedps.Embeddings layer, .* has 0"),
    "no model": (
        lambda: 3,
        r"return a tf.keras.Model \(Keras 2\) but returned a builtins.int",
    ),
    "an absent column": (OfAbsentColumn, "looks up feature 'C9', but the dataset has no such"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_be_right_is_refused_in_one_line(dataset: Dataset, name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(UsageError, match=message) as refused:
        StepModel(embedps.Recommender(build=build), dataset)
    assert "\n" not in str(refused.value)
