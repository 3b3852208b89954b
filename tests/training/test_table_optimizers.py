"""Tables learn by rates, schedules, decays and clip norms of their own, as a twin in NumPy does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import embedps
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from tests.builders import CARDINALITIES, dataset_fixture, make_trainer
from tests.engine.builders import force_messages
from tests.tables.builders import constant, rows_of

dataset = dataset_fixture(train=(256,), evaluation=(10,))
BATCH, DIM, START, RATE = 64, 4, 0.5, 0.5
SCHEDULE = tf.keras.optimizers.schedules.InverseTimeDecay(0.25, decay_steps=1, decay_rate=1.0)
OPTIMIZERS = {
    "C1": embedps.SGD(learning_rate=0.125, weight_decay=0.5),
    "C2": embedps.SGD(clip_norm=0.02),
    "C3": embedps.SGD(learning_rate=SCHEDULE),
}


class Sums(tf.keras.Model):
    """Its loss is the mean of the sums of its rows, so a row's gradient is how often it occurs."""

    def __init__(self, optimizers: Mapping[str, Any], **layer: Any) -> None:
        super().__init__()
        tables = [
            embedps.TableSpec(
                name=name, embedding_dim=DIM, optimizer=optimizer, initializer=constant(START)
            )
            for name, optimizer in optimizers.items()
        ]
        self.embeddings = embedps.Embeddings(
            [embedps.FeatureSpec(name=table.name, table=table) for table in tables], **layer
        )
        self.b = self.add_weight(name="b", shape=[], initializer="ones")

    def compute_loss(self, features: dict[str, Any], training: bool = False) -> tf.Tensor:
        found = self.embeddings({name: features[name] for name in CARDINALITIES})
        return tf.reduce_mean(tf.concat([*found.values()], 1)) * 3 * DIM + self.b**2


def twin(
    dataset: Dataset,
    rates: Mapping[str, Callable[[int], float]],
    *,
    decay: Mapping[str, float],
    clip: Mapping[str, float],
) -> dict[str, dict[int, float]]:
    """By table and id what each float of a row is after an epoch; rates are of a step's number."""
    columns = pq.read_table(dataset.paths("train")[0]).to_pydict()
    rows: dict[str, dict[int, float]] = {name: {} for name in CARDINALITIES}
    for step in range(256 // BATCH):
        for name, table in rows.items():
            shown = columns[name][step * BATCH : (step + 1) * BATCH]
            for each, count in zip(*np.unique(shown, return_counts=True), strict=True):
                gradient = count / BATCH
                norm = gradient * DIM**0.5
                gradient *= min(1.0, clip.get(name, np.inf) / norm)
                row, rate = table.get(int(each), START), rates[name](step)
                table[int(each)] = row - rate * decay.get(name, 0.0) * row - rate * gradient
    return rows


def check(collection: Any, folder: Path, expected: dict[str, dict[int, float]]) -> None:
    found = {key: row.embedding for key, row in rows_of(collection, folder).items()}
    keys = {(name, each) for name, rows in expected.items() for each in rows}
    assert found.keys() == keys
    for name, each in keys:
        expected_row = [expected[name][each]] * DIM
        np.testing.assert_allclose(found[name, each], expected_row, rtol=1e-5, err_msg=name)


def run(dataset: Dataset, folder: Path, optimizers: Mapping[str, Any], **fields: Any) -> Any:
    """A run that has trained an epoch of two units."""
    recommender = embedps.Recommender(build=lambda: Sums(optimizers))
    options = {"batch_size": BATCH, "unit_rows": 2 * BATCH, "shuffle": False, **fields}
    options |= {"sparse_learning_rate": RATE, "dense_optimizer": "sgd"}
    trainer = make_trainer(dataset, folder, recommender=recommender, **options)
    trainer.fit()
    return trainer


@pytest.mark.parametrize("way", ["process", "messages"])
def test_each_table_learns_by_its_own_numbers(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "messages":
        force_messages(monkeypatch)
    trainer = run(dataset, tmp_path / "m", OPTIMIZERS, row_clip_norm=0.05)
    rates = {"C1": lambda _: 0.125, "C2": lambda _: RATE, "C3": lambda step: 0.25 / (1 + step)}
    clip = {"C1": 0.05, "C2": 0.02, "C3": 0.05}
    expected = twin(dataset, rates, decay={"C1": 0.5}, clip=clip)
    check(trainer.collection, tmp_path / "rows", expected)


def test_a_run_sets_numbers_of_tables_and_its_schedule_holds_for_all(
    dataset: Dataset, tmp_path: Path
) -> None:
    asked = ("C1:learning_rate=0.125,weight_decay=0.5", "C2,C3:clip_norm=0.02")
    declared = dict.fromkeys(OPTIMIZERS, embedps.SGD())
    trainer = run(dataset, tmp_path / "m", declared, table_optimizer=asked, schedule="linear")

    def factor(step: int) -> float:
        return 0.75 if step < 2 else 0.25  # at the middle of the unit

    rates = {name: lambda step: RATE * factor(step) for name in OPTIMIZERS}
    rates["C1"] = lambda step: 0.125 * factor(step)
    expected = twin(dataset, rates, decay={"C1": 0.5}, clip={"C2": 0.02, "C3": 0.02})
    check(trainer.collection, tmp_path / "rows", expected)


def test_each_table_learns_by_its_own_numbers_in_keras_mode(
    dataset: Dataset, tmp_path: Path
) -> None:
    model = Sums(OPTIMIZERS, learning_rate=RATE)
    again = embedps.Embeddings.from_config(model.embeddings.get_config())
    optimizers: list[Any] = [table.optimizer for table in again.tables]
    assert optimizers[:2] == [OPTIMIZERS["C1"], OPTIMIZERS["C2"]]
    assert optimizers[2].learning_rate.get_config() == SCHEDULE.get_config()
    batches = embedps.read(
        dataset.directory, "train", batch_size=BATCH, targets=False, shuffle=False
    )
    for batch in batches:
        with tf.GradientTape() as tape:
            loss = model.compute_loss(batch, training=True)
        tape.gradient(loss, model.trainable_variables)
    rates = {"C1": lambda _: 0.125, "C2": lambda _: RATE, "C3": lambda step: 0.25 / (1 + step)}
    expected = twin(dataset, rates, decay={"C1": 0.5}, clip={"C2": 0.02})
    check(model.embeddings.own.collection, tmp_path / "rows", expected)


def test_mistakes_are_named(dataset: Dataset, tmp_path: Path) -> None:
    declared = dict.fromkeys(OPTIMIZERS, embedps.SGD())
    for optimizers, fields, message in (
        (declared, {"table_optimizer": ("user:clip_norm=1",)}, "--table-optimizer user: there is"),
        (declared, {"table_optimizer": ("C1:beta_1=0.5",)}, "C1: sgd has no beta_1, it has learn"),
        (declared, {"table_optimizer": ("C1:clip_norm=-1",)}, r"clip_norm must be in \[0, inf\)"),
        (declared, {"table_optimizer": ("C1:clip_norm",)}, "table_optimizer must have TABLE"),
        (OPTIMIZERS, {"schedule": "linear"}, "a table has a schedule of its own: leave out"),
    ):
        with pytest.raises(UsageError, match=message):
            run(dataset, tmp_path / "m", optimizers, **fields)
    with pytest.raises(UsageError, match=r"learning_rate is <.*the tables' optimizers have .*C1"):
        Sums(OPTIMIZERS, learning_rate=SCHEDULE)
    with pytest.raises(UsageError, match=r"SGD.learning_rate must be a number but got 'fast'"):
        embedps.SGD(learning_rate=cast(Any, "fast"))
    config = embedps.TableSpec(
        name="t", embedding_dim=2, optimizer=embedps.SGD(learning_rate=lambda step: 0.1)
    )
    with pytest.raises(UsageError, match="a function cannot be saved"):
        config.get_config()
