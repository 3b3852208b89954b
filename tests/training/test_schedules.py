"""Schedules of the learning rates, and weight decay."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import embedps
from embedps.data.dataset import Dataset
from embedps.engine.dense_optimizer import make_dense_optimizer
from embedps.errors import UsageError
from embedps.run.optimizer_config import OptimizerConfig
from embedps.training import training_setup
from tests.builders import dataset_fixture, make_dlrm, make_trainer
from tests.tables.builders import rows_of

dataset = dataset_fixture(train=(1024,))


def test_factors_rise_and_fall() -> None:
    shares = np.linspace(0, 1, 11)
    of = lambda **fields: [OptimizerConfig(**fields).rate_factor(s) for s in shares]  # noqa: E731
    assert of() == [1.0] * 11
    np.testing.assert_allclose(of(schedule="linear"), 1 - shares)
    np.testing.assert_allclose(of(schedule="cosine"), (1 + np.cos(math.pi * shares)) / 2)
    warm = of(schedule="linear", warmup=0.5)
    np.testing.assert_allclose(warm, np.minimum(2 * shares, 2 * (1 - shares)))
    np.testing.assert_allclose(of(warmup=0.2), np.minimum(shares / 0.2, 1))


def rates(trainer: Any) -> list[tuple[float, float]]:
    """Trains; gives the rates of rows and of the network that each unit got, from end to end."""
    found: list[tuple[float, float]] = []
    setup = trainer._setup
    train_unit, variable = setup.train_unit, setup.dense_rate
    whole = float(setup.set_dense_rate(1.0))

    def noted(*arguments: Any) -> Any:
        before = float(variable)
        counts = train_unit(*arguments)
        assert float(variable) == before  # the next unit's is not set yet
        found.append((round(float(arguments[-1]), 6), round(before / whole, 6)))
        return counts

    object.__setattr__(setup, "train_unit", noted)
    trainer.fit()
    return found


def test_units_get_the_rates_of_their_place_in_the_run(tmp_path: Path, dataset: Dataset) -> None:
    options: dict[str, Any] = {
        "schedule": "linear",
        "warmup": 0.25,
        "sparse_learning_rate": 0.2,
        "unit_rows": 256,
    }
    trainer = make_trainer(dataset, tmp_path, epochs=2, **options)
    asked = OptimizerConfig(schedule="linear", warmup=0.25)
    units = trainer.ledger.num_units
    expected = [asked.rate_factor((i + 0.5) / units) for i in range(units)]
    assert rates(trainer) == [(round(0.2 * f, 6), round(f, 6)) for f in expected]


def test_a_resumed_run_goes_on_with_the_schedule(tmp_path: Path, dataset: Dataset) -> None:
    options: dict[str, Any] = {"schedule": "cosine", "unit_rows": 256}
    make_trainer(dataset, tmp_path, epochs=1, **options).fit()
    trainer = make_trainer(dataset, tmp_path, epochs=2, **options)
    units = trainer.ledger.num_units
    asked = OptimizerConfig(schedule="cosine")
    assert [dense for _, dense in rates(trainer)] == [
        round(asked.rate_factor((i + 0.5) / units), 6) for i in range(units // 2, units)
    ]


def test_a_model_with_its_own_schedule_is_refused_another(tmp_path: Path, dataset: Dataset) -> None:
    class Sum(embedps.ClickModel):
        def __init__(self) -> None:
            super().__init__(label="label")
            self.embeddings = embedps.Embeddings({"C1": 2})
            self.out = tf.keras.layers.Dense(1)

        def logits(self, features: Any, *, training: bool) -> tf.Tensor:
            return tf.reshape(self.out(self.embeddings(features)["C1"]), [-1])

    decay = tf.keras.optimizers.schedules.CosineDecay(0.1, 100)
    recommender = embedps.Recommender(build=Sum, optimizer=lambda: tf.keras.optimizers.Adam(decay))
    with pytest.raises(UsageError, match="a schedule of its own"):
        make_trainer(dataset, tmp_path, recommender=recommender, schedule="linear")


@pytest.mark.parametrize(("num_shards", "rate"), [(1, None), (3, None), (1, 0.25)])
def test_rows_follow_a_schedule_or_a_rate_of_keras_step_by_step(
    tmp_path: Path, dataset: Dataset, num_shards: int, rate: float | None
) -> None:
    """A gradient of 1 for each row of a step, by SGD: a row sums the rates of its steps."""
    table = embedps.TableSpec(
        name="C1",
        embedding_dim=1,
        optimizer=tf.keras.optimizers.SGD(rate) if rate else embedps.SGD(),
        initializer=embedps.Initializer(),
    )
    feature = embedps.FeatureSpec(name="C1", table="C1")

    class Sum(tf.keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.embeddings = embedps.Embeddings([feature], tables=[table])

        def compute_loss(self, features: Any, training: bool = False) -> tf.Tensor:
            rows = self.embeddings(features)["C1"]
            # Each distinct id's row has a gradient of -1, however many examples show it.
            _, index, count = tf.unique_with_counts(features["C1"])
            return -tf.reduce_sum(rows[:, 0] / tf.gather(tf.cast(count, tf.float32), index))

    decay = tf.keras.optimizers.schedules.ExponentialDecay(0.5, 3, 0.7)
    trainer = make_trainer(
        dataset,
        tmp_path,
        recommender=embedps.Recommender(build=Sum, row_schedule=None if rate else lambda: decay),
        shuffle=False,
        num_shards=num_shards,
        epochs=2,
    )
    trainer.fit()
    expected: dict[int, np.float32] = {}
    for unit in [*trainer.ledger.units_of(0), *trainer.ledger.units_of(1)]:
        ids = pq.read_table(unit.path)["C1"].to_numpy()[unit.first_row :][: unit.num_rows]
        for step, begin in enumerate(range(0, len(ids), 64), unit.first_step):
            for i in np.unique(ids[begin : begin + 64]).tolist():
                expected[i] = expected.get(i, np.float32(0)) + np.float32(rate or decay(step))
    rows = rows_of(trainer._setup.collection, tmp_path / "rows")
    assert {i for _, i in rows} == set(expected)
    for (_, i), row in rows.items():
        np.testing.assert_allclose(row.embedding, [expected[i]], rtol=1e-6)


def test_a_row_schedule_must_be_one_and_alone(tmp_path: Path, dataset: Dataset) -> None:
    def refused(message: str, *, make: Any, **fields: Any) -> None:
        recommender = dataclasses.replace(make_dlrm(dataset), row_schedule=make)
        with pytest.raises(UsageError, match=message):
            make_trainer(dataset, tmp_path, recommender=recommender, **fields)

    decay = tf.keras.optimizers.schedules.CosineDecay(0.1, 100)
    refused("must make a tf.keras.*but made a float", make=lambda: 0.1)
    refused("a schedule of its own", make=lambda: decay, warmup=0.5)
    refused("which --rates-batch-size cannot scale", make=lambda: decay, rates_batch_size=64)


def test_rates_grow_with_the_batch_size(
    tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[float] = []

    def make(kind: Any, learning_rate: float, network: Any, **options: Any) -> Any:
        made.append(learning_rate)
        return make_dense_optimizer(kind, learning_rate, network, **options)

    monkeypatch.setattr(training_setup, "make_dense_optimizer", make)
    options: dict[str, Any] = {"sparse_learning_rate": 0.2, "dense_learning_rate": 0.003}
    trainer = make_trainer(dataset, tmp_path, batch_size=256, rates_batch_size=64, **options)
    assert made == [pytest.approx(0.012)]
    assert {sparse for sparse, _ in rates(trainer)} == {0.8}


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_the_networks_weights_decay(tmp_path: Path, dataset: Dataset, kind: str) -> None:
    norms = {}
    for decay in (0.0, 30.0):
        trainer = make_trainer(
            dataset,
            tmp_path / str(decay),
            dense_optimizer=kind,
            dense_weight_decay=decay,
            dense_learning_rate=0.003,
        )
        trainer.fit()
        kernels = [v for v in trainer._setup.model.variables if v.shape.rank == 2]
        norms[decay] = float(sum(tf.norm(v) for v in kernels))
    resumed = {**trainer._config.to_options(), "epochs": 2}
    assert (
        embedps.Trainer(make_dlrm(dataset), dataset, embedps.TrainConfig.from_options(**resumed))
        .fit()
        .finished
    )
    assert norms[30.0] < 0.5 * norms[0.0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dense_weight_decay": -0.1}, "at least 0"),
        ({"schedule": "step"}, "schedule must be one of"),
        ({"warmup": 1.0}, "warmup must be below 1"),
    ],
)
def test_wrong_options_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        OptimizerConfig(**fields)


@pytest.mark.parametrize("name", ["weight_decay", "lazy_decay"])
def test_ftrl_has_no_decay(name: str) -> None:
    with pytest.raises(UsageError, match=f"ftrl has no {name}: use its l2_regularization_strength"):
        embedps.Ftrl(**{name: 0.1})
