"""Labels that are missing, soft or weighed each for itself: losses and scores equal NumPy's."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embedps
from embedps.data.dataset import Dataset
from embedps.data.dataset_metadata import LabelColumn
from embedps.engine.step_model import StepModel
from embedps.errors import DatasetError, UsageError
from embedps.layers.embeddings import Embeddings
from embedps.models import esmm, fm, mmoe
from tests import plain_scores
from tests.builders import make_config, make_trainer
from tests.every_column import write_dataset as write_every_column
from tests.labelled import LABELS, make_columns, write_dataset

ROWS = 640


@pytest.fixture(scope="module")
def columns() -> dict[str, np.ndarray]:
    return make_columns(ROWS, 3)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory, columns: Any) -> Dataset:
    return write_dataset(tmp_path_factory.mktemp("labels") / "set", columns)


def losses_of(label: LabelColumn, answer: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    if label.kind == "classes":
        shares = np.exp(answer) / np.exp(answer).sum(1, keepdims=True)
        return -np.log(shares[np.arange(len(wanted)), np.maximum(wanted, 0)])
    answer = answer[:, 0].astype(np.float64)
    if label.kind == "number":
        return (answer - wanted) ** 2
    return np.logaddexp(0, answer) - wanted * answer


def test_each_task_has_the_loss_and_the_scores_of_its_own_examples(
    dataset: Dataset, columns: dict[str, np.ndarray]
) -> None:
    recommender = mmoe.make(mmoe.Config(num_experts=2, loss_weights=(1.0, 2.0, 0.5, 3.0)), dataset)
    built = StepModel(recommender, dataset)
    assert {"weight", "watch_weight"} <= set(built.columns.names)
    (batch,) = embedps.read(dataset, split="eval", batch_size=ROWS, targets=False)
    table = np.random.default_rng(1).normal(0, 2, [20, built.tables[0].embedding_dim]).astype("f4")
    rows = {"item": tf.constant(table[columns["item"]])}
    with built.embeddings.providing(rows):
        answers = [a.numpy() for a in built.model.answers(batch, training=False)]
    with built.metrics.collecting() as collected:
        loss = built.loss(batch, rows, training=False)
    scores = built.metrics.scores({n: v.numpy() for n, v in collected.counts.items()})

    expected = 0.0
    for label, answer, times in zip(LABELS, answers, (1.0, 2.0, 0.5, 3.0), strict=True):
        wanted = columns[label.name]
        there = wanted >= 0 if label.kind == "classes" else ~np.isnan(wanted)
        weight = columns[label.weight or "weight"]
        each = np.where(there, losses_of(label, answer, wanted), 0)
        expected += times * np.mean(each * weight)
        wanted, answer, weight = wanted[there], answer[there], weight[there]
        for prefix, w in (("", None), ("weighted_", weight)):
            found = {
                n.removeprefix(f"{label.name}_{prefix}"): v
                for n, v in scores.items()
                if n.startswith(f"{label.name}_{prefix}")
            }
            assert found == pytest.approx(
                plain_scores_of(label, wanted, answer, w) | found, abs=2e-3
            )
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def plain_scores_of(label: LabelColumn, y: Any, answer: Any, weight: Any) -> dict[str, float]:
    if label.kind == "binary":
        return plain_scores.click_scores(y, answer[:, 0], weight)
    if label.kind == "classes":
        return {"accuracy": np.average(answer.argmax(1) == y, weights=weight)}
    error = (answer[:, 0] - y).astype(np.float64)
    rmse = np.average(error**2, weights=weight) ** 0.5
    return {"rmse": rmse, "mae": np.average(np.abs(error), weights=weight)}


def test_a_model_of_clicks_leaves_missing_labels_out(
    dataset: Dataset, columns: dict[str, np.ndarray]
) -> None:
    built = StepModel(fm.make(fm.Config(embedding_dim=4), dataset), dataset)
    assert "watch_weight" not in built.columns.names
    (batch,) = embedps.read(dataset, split="eval", batch_size=ROWS, targets=False)
    dim = built.tables[0].embedding_dim
    rows = {f.name: tf.random.stateless_normal([ROWS, dim], (1, 2)) for f in built.features}
    with built.embeddings.providing(rows):
        logits = built.model.logits(batch, training=False).numpy()
    with built.metrics.collecting() as collected:
        loss = built.loss(batch, rows, training=False)
    scores = built.metrics.scores({n: v.numpy() for n, v in collected.counts.items()})
    there = ~np.isnan(columns["click"])
    each = losses_of(LABELS[0], logits[:, None], columns["click"])
    assert float(loss) == pytest.approx(np.mean(np.where(there, each * columns["weight"], 0)))
    wanted = plain_scores_of(LABELS[0], columns["click"][there], logits[there][:, None], None)
    assert {n: scores[n] for n in wanted} == pytest.approx(wanted, abs=1e-3)


def test_esmm_multiplies_chances_and_learns_conversions_of_all_impressions(
    tmp_path: Path, dataset: Dataset
) -> None:
    with pytest.raises(UsageError, match=r"two binary labels, .* has binary, binary, classes"):
        esmm.make(esmm.Config(), dataset)
    columns = make_columns(2000, 5)
    rng = np.random.default_rng(2)
    chance = np.where(columns["item"] >= 10, 0.8, 0.2)
    after = np.where(columns["item"] % 2 == 0, 0.9, 0.3)
    columns["click"] = (rng.random(2000) < chance).astype("f4")
    columns["watched"] = columns["click"] * (rng.random(2000) < after).astype("f4")
    two = write_dataset(tmp_path / "set", columns, LABELS[:2])
    config = make_config(
        two, tmp_path / "m", epochs=12, batch_size=50, unit_rows=500, dense_learning_rate=0.01
    )
    embedps.Trainer(esmm.make(esmm.Config(mlp=(16,)), two), two, config).fit()
    made = esmm.make(esmm.Config(mlp=(16,)), two)
    model = embedps.load(tmp_path / "m", data=two.directory, recommender=made)
    found = model.predict({"item": np.arange(20)})
    conversions = found["click"] * found["watched_after_click"]
    np.testing.assert_allclose(found["watched"], conversions, rtol=1e-4)
    items = np.arange(20)
    assert found["click"][items >= 10].min() > found["click"][items < 10].max()
    even = found["watched_after_click"][items % 2 == 0]
    assert even.mean() > found["watched_after_click"][items % 2 == 1].mean() + 0.3


class Compiled(tf.keras.Model):
    """Predicts two labels, by Keras' losses and metrics."""

    def __init__(self) -> None:
        super().__init__()
        table = embedps.TableSpec(name="item", embedding_dim=4)
        self.embeddings = Embeddings([embedps.FeatureSpec(name="item", table=table)])
        self.heads = {n: tf.keras.layers.Dense(1) for n in ("click", "secs")}

    def call(self, features: Any) -> Any:
        (x,) = self.embeddings(features).values()
        return {name: head(x) for name, head in self.heads.items()}


def test_a_compiled_model_leaves_missing_labels_out(
    dataset: Dataset, columns: dict[str, np.ndarray]
) -> None:
    def build() -> tf.keras.Model:
        model = Compiled()
        loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
        mean = tf.keras.metrics.MeanMetricWrapper
        error = lambda y, x: tf.abs(y - x)  # noqa: E731
        model.compile(loss={"click": loss, "secs": "mse"}, metrics={"secs": mean(error, name="e")})
        return model

    recommender = embedps.Recommender(build=build)
    built = StepModel(recommender, dataset)
    (batch,) = embedps.read(dataset, split="eval", batch_size=ROWS, targets=False)
    dim = built.tables[0].embedding_dim
    rows = {"item": tf.random.stateless_normal([ROWS, dim], (1, 2))}
    with built.embeddings.providing(rows):
        answers = {n: v.numpy()[:, 0] for n, v in built.model({"item": batch["item"]}).items()}
    with built.metrics.collecting() as collected:
        loss = built.loss(batch, rows, training=False)
    scores = built.metrics.scores({n: v.numpy() for n, v in collected.counts.items()})
    there = ~np.isnan(columns["secs"])
    error = np.abs(answers["secs"] - columns["secs"])[there].mean()
    assert next(v for n, v in scores.items() if n.endswith("e")) == pytest.approx(error, rel=1e-4)
    assert np.isfinite(float(loss))


def test_training_and_fit_see_labels_that_are_there(tmp_path: Path, dataset: Dataset) -> None:
    recommender = mmoe.make(mmoe.Config(num_experts=2), dataset)
    result = make_trainer(
        dataset, tmp_path / "m", recommender=recommender, epochs=3, eval="inline", batch_size=64,
        dense_learning_rate=0.01,
    ).fit()  # fmt: skip
    values = result.scores[-1].values
    assert (values["click_auc"] or 0) > 0.8
    assert all(v is not None for v in values.values())
    features, labels, weights = next(
        iter(embedps.read(dataset, batch_size=64, targets=True, shuffle=False))
    )
    assert set(features) == {"numerics", "item"}
    assert all(np.isfinite(v).all() for v in labels.values())
    there = ~np.isnan(make_columns(ROWS, 3)["secs"][:64])
    np.testing.assert_array_equal(
        weights["secs"] > 0, there & (make_columns(ROWS, 3)["weight"][:64] > 0)
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("click", 0.5, "label click must be 0 or 1, or missing, but is 0.5"),
        ("watched", 1.5, "label watched must be a number from 0 to 1, or missing, but is 1.5"),
        ("stars", 4, "label stars must be a class from 0 to 3, or missing, but is 4"),
    ],
)
def test_a_file_with_another_label_is_refused(
    tmp_path: Path, columns: dict[str, np.ndarray], name: str, value: float, message: str
) -> None:
    wrong = {n: v.copy() for n, v in columns.items()}
    wrong[name][7] = value
    dataset = write_dataset(tmp_path / "set", wrong)
    recommender = mmoe.make(mmoe.Config(num_experts=1), dataset)
    with pytest.raises(DatasetError, match=message):
        make_trainer(dataset, tmp_path / "m", recommender=recommender, epochs=1).fit()


def test_a_dataset_without_these_has_the_document_of_before(tmp_path: Path) -> None:
    made = write_every_column(tmp_path / "set", train=10, evaluation=10)
    text = (made.directory / "_dataset.json").read_text()
    assert "optional" not in text
    assert "soft" not in text
    assert dataclasses.replace(made) == Dataset.open(made.directory)
