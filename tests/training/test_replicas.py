"""Runs of one process that take each step in parts: on devices or not, resumed in another mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.run.config import TrainConfig
from tests import commands
from tests.builders import dataset_fixture, latest, make_trainer
from tests.training.same_bits import FIELDS, assert_same_checkpoint

# Its units end with steps of fewer parts, and with shorter batches.
dataset = dataset_fixture(train=(1200, 700))


def run(dataset: Dataset, model_dir: Path, **fields: Any) -> dict[str, Any]:
    return make_trainer(dataset, model_dir, **FIELDS, **fields).fit().summary


@pytest.mark.slow
def test_mirrored_run_resumes_without_devices_to_the_same_bits(
    dataset: Dataset, tmp_path: Path
) -> None:
    flags = ("--replicas=2", "--mirrored", "--eval=inline")
    commands.finish(commands.train(dataset, tmp_path / "ours", *commands.SMALL, *flags))
    summary = run(dataset, tmp_path / "ours", replicas=2, epochs=2)
    expected = run(dataset, tmp_path / "theirs", replicas=2, epochs=2)
    assert summary["examples"] == expected["examples"] == 2 * dataset.split("train").rows
    assert summary["units"]["repeated"] == 0
    assert_same_checkpoint(tmp_path / "ours", tmp_path / "theirs")


def test_run_resumes_with_other_replicas(dataset: Dataset, tmp_path: Path) -> None:
    losses = [
        run(dataset, tmp_path, replicas=replicas, epochs=epochs)["training"]["logloss"]
        for epochs, replicas in ((1, 1), (2, 3))
    ]
    assert losses == sorted(losses, reverse=True)
    assert latest(tmp_path).progress["examples"] == 2 * dataset.split("train").rows


def test_learning_rates_are_of_the_examples_of_a_step(dataset: Dataset, tmp_path: Path) -> None:
    trainer = make_trainer(dataset, tmp_path, replicas=2, batch_size=64, rates_batch_size=256)
    assert trainer._config.dense_rate_scale(1) == trainer._config.row_rate_scale(1) == 0.5
    trainer.close()


@pytest.mark.parametrize(
    ("sync", "dense", "row"), [("none", 1, 1), ("dense", 3, 1), ("full", 3, 3)]
)
def test_learning_rates_are_of_the_examples_of_an_update_of_workers(
    sync: str, dense: float, row: float
) -> None:
    config = TrainConfig.from_options(
        data="d", model_dir="m", batch_size=64, rates_batch_size=64, num_ps=1, sync=sync
    )
    assert (config.dense_rate_scale(3), config.row_rate_scale(3)) == (dense, row)


def test_learning_rates_do_not_count_backup_workers() -> None:
    config = TrainConfig.from_options(
        data="d",
        model_dir="m",
        batch_size=64,
        rates_batch_size=64,
        num_ps=1,
        num_workers=3,
        sync="full",
        on_lost_worker="continue",
        backup_workers=1,
    )
    assert (config.dense_rate_scale(3), config.row_rate_scale(3)) == (2, 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mirrored": True}, "--mirrored needs the number of devices: give --replicas 2 or more"),
        ({"replicas": 2, "num_ps": 1}, "--replicas divides the steps of one process: leave out"),
        ({"replicas": 2, "num_workers": 2}, "leave out --num-ps and --num-workers"),
        ({"replicas": 9}, "at least the 576 rows of a step of 9 replicas but got 512"),
        ({"replicas": 0}, "replicas must be at least 1 but got 0"),
        # TensorFlow has started in this process, with one CPU.
        (
            {"replicas": 2, "mirrored": True},
            "needs 2 logical CPUs but TensorFlow has started with 1",
        ),
    ],
)
def test_what_replicas_cannot_do_is_refused(
    dataset: Dataset, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    import tensorflow as tf

    tf.zeros([])
    with pytest.raises(UsageError, match=message):
        make_trainer(dataset, tmp_path / "m", **fields)
