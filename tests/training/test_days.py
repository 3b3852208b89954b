"""A model that goes on: with the next day's data, in other batches, with more columns."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import embedps
from benchmarks import row_visits
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.tools.verify import verify
from embedps.cluster.embedded import EmbeddedCluster
from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.evaluation.loaded_model import load
from embedps.run.preparation import open_dataset
from embedps.run.summary import SUMMARY_NAME, read_json
from embedps.scheduling.division import LedgerOptions
from embedps.scheduling.ledger import Ledger
from embedps.training.trainer import Trainer
from tests.builders import MIXED, latest, make_config, make_trainer, write_dataset
from tests.commands import finish, train, until
from tests.training.test_trainer import chain_rows, visits

ROWS = 1300


def make_day(tmp_path: Path, day: int) -> Dataset:
    """Rows of their own, which carry the same numbers on each day."""
    return write_dataset(tmp_path / f"day-{day}", train=(900, 400), seed=day, whole=True)


class DyingCluster(EmbeddedCluster):
    """Does something once five units are done, while none of the others ends."""

    def __init__(self, die: Callable[[], None]) -> None:
        super().__init__(num_workers=2)
        self._numbers, self._die, self._gate = itertools.count(1), die, threading.Lock()

    def fetch(self, result: Any) -> Any:
        value = super().fetch(result)
        with self._gate:
            if next(self._numbers) == 5:
                self._die()
        return value


def train_and_die(dataset: Dataset, model_dir: Path, **fields: Any) -> Trainer:
    """Trains until a checkpoint was cut beside units in progress, and a few units were done."""

    def die() -> None:
        deadline = time.monotonic() + 60
        while trainer.ledger.num_done < 4:
            assert time.monotonic() < deadline
            threading.Event().wait(0.001)
        trainer._loop.save(final=False)  # what the clock would have done
        raise RuntimeError("killed")

    cluster = DyingCluster(die)
    trainer = make_trainer(dataset, model_dir, cluster=cluster, **fields)
    with pytest.raises(RuntimeError, match="killed"):
        trainer.fit()
    return trainer


def last_steps(model_dir: Path) -> list[int]:
    """The last steps of the rows that count visits."""
    group = {t["name"]: t["group"] for t in latest(model_dir).tables}["row"]
    rows = chain_rows(model_dir, str(group), ["table", "id", "last_step"])
    columns = (rows[name].to_pylist() for name in ("table", "last_step"))
    return [step for table, step in zip(*columns, strict=True) if table == "row"]


def test_each_row_of_each_day_is_visited_over_kills(tmp_path: Path, capfd: Any) -> None:
    """Each day's run dies beside a checkpoint and is resumed: on day 2 in other units."""
    model_dir = tmp_path / "m"
    days = [make_day(tmp_path, day) for day in range(3)]
    in_doubt, last_step = 0, -1
    for day, dataset in enumerate(days):
        fields: dict[str, Any] = {"recommender": MIXED, "epochs": 2, "num_workers": 2}
        fields |= {"unit_rows": 128, "schedule": "cosine"}
        first = train_and_die(dataset, model_dir, **fields).ledger.first_step
        killed = latest(model_dir)
        assert first >= last_step
        assert killed.step > last_step
        in_doubt += 128 * len(killed.ledger["doing"])
        if day == 1:
            fields |= {"unit_rows": 200, "batch_size": 50, "seed": 5}
        second = make_trainer(dataset, model_dir, **fields)
        assert second.ledger.first_step_of_rows == first
        assert second.unsaved()["units"] == second.unsaved()["steps"] == 0
        summary = second.fit().summary
        assert summary["finished"]
        assert summary["examples"] == 2 * ROWS * (day + 1)
        seen = visits(model_dir)
        assert set(seen) == set(range(ROWS))
        assert min(seen.values()) == 2 * (day + 1)
        assert sum(seen.values()) <= 2 * ROWS * (day + 1) + in_doubt
        assert latest(model_dir).step > killed.step
        last_step = latest(model_dir).step
        assert first <= min(last_steps(model_dir)) <= max(last_steps(model_dir)) < last_step
    said = capfd.readouterr().out
    assert f"goes on with other data, {days[1].directory}, from step" in said
    assert f"not visited of {days[0].directory}: nothing" in said
    assert "batch_size is 50, the checkpoint has 64; unit_rows is 200, the checkpoint" in said
    before = read_json(model_dir / SUMMARY_NAME)["stages_before"]
    assert [each["data"] for each in before] == [str(days[i].directory) for i in (0, 1, 1)]
    assert [each["rows"] for each in before] == [ROWS] * 3
    assert sum(each["visited_rows"] for each in before) == 2 * 2 * ROWS
    directory = CheckpointDirectory(model_dir)
    assert not verify(directory, directory.numbers()).problems


@pytest.mark.multiprocess
@pytest.mark.slow
def test_each_row_of_each_day_is_visited_over_killed_processes(tmp_path: Path) -> None:
    """Each day's process is killed as soon as it has saved something, and begun again."""
    rows, epochs, model_dir = 30_000, 10, tmp_path / "m"
    before = np.zeros(rows, np.int64)
    flags = (
        *("--model=benchmarks.row_visits", "--batch-size=64", "--unit-rows=1024", "--eval=none"),
        *(f"--epochs={epochs}", "--delta-secs=0.1", "--log-secs=600"),
    )
    for day in range(3):
        shards = {"train": [rows], "evaluation": [500]}
        dataset = row_visits.write_dataset(tmp_path / f"day-{day}", seed=day, **shards)
        process = train(dataset, model_dir, *flags)
        until(functools.partial(holds_more, model_dir, epochs * rows * day))
        process.kill()
        process.communicate()
        killed = latest(model_dir)
        assert not killed.final
        assert "resumes from checkpoint" in finish(train(dataset, model_dir, *flags))
        assert latest(model_dir).progress["examples"] == epochs * rows * (day + 1)
        seen = row_visits.visits(model_dir, rows)
        again = seen - before - epochs  # of the units that were in progress, once more
        assert again.min() == 0
        assert (again <= in_doubt(killed, dataset, epochs)).all()
        before = seen
    stages = read_json(model_dir / SUMMARY_NAME)["stages_before"]
    assert [each["visited_rows"] for each in stages] == [epochs * rows] * 2


def in_doubt(killed: Manifest, dataset: Dataset, epochs: int) -> npt.NDArray[np.int64]:
    """Counts the units of each row that a checkpoint may have a part of; int64 [rows].

    One of an epoch's end may have the rows of one of the next epoch's beginning.
    """
    options = LedgerOptions(batch_rows=64, unit_rows=1024)
    ledger = Ledger(dataset, options, epochs=epochs)
    ledger.restore({"visited": {"rows": 0, "steps": 0}, **killed.ledger})
    units = {u.position: u for epoch in range(epochs) for u in ledger.units_of(epoch)}
    counts = np.zeros(dataset.split("train").rows, np.int64)
    for position in killed.ledger["doing"]:
        unit = units[position]
        counts[unit.first_row : unit.first_row + unit.num_rows] += 1
    return counts


def holds_more(model_dir: Path, examples: int) -> bool:
    """Tells whether the newest checkpoint holds more examples."""
    manifest = CheckpointDirectory(model_dir).latest()
    return manifest is not None and manifest.progress["examples"] > examples


def test_rows_that_are_left_are_told(tmp_path: Path, capfd: Any) -> None:
    first, second = make_day(tmp_path, 0), make_day(tmp_path, 1)
    trainer = train_and_die(first, tmp_path / "m", unit_rows=128, num_workers=2)
    left = ROWS - latest(tmp_path / "m").ledger["visited"]["rows"]
    assert left
    after = make_trainer(second, tmp_path / "m", unit_rows=128)
    assert after.ledger.first_step <= trainer.ledger.steps_per_epoch
    after.fit()
    assert f"not visited of {first.directory}: {left:,} rows\n" in capfd.readouterr().out


def test_a_finished_run_has_nothing_to_do_in_other_units(tmp_path: Path) -> None:
    dataset = make_day(tmp_path, 0)
    make_trainer(dataset, tmp_path / "m").fit()
    number = latest(tmp_path / "m").number
    summary = make_trainer(dataset, tmp_path / "m", batch_size=32).fit().summary
    assert summary["finished"]
    assert summary["units"]["total"] == 0
    assert latest(tmp_path / "m").number == number
    more = make_trainer(dataset, tmp_path / "m", batch_size=32, epochs=2).fit().summary
    assert more["examples"] == 2 * ROWS


def narrow(dataset: Dataset, *names: str) -> Dataset:
    """Has the dataset describe these features only."""
    features = tuple(f for f in dataset.categorical if f.name in names)
    dataclasses.replace(dataset, categorical=features).save()
    return Dataset.open(dataset.directory)


def test_columns_that_are_new_are_left_out_and_those_that_lack_are_named(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"model": "dlrm", "delta_secs": 1e6}
    first = narrow(make_day(tmp_path, 0), "C2", "C1")
    model_dir = tmp_path / "m"
    Trainer.from_config(make_config(first, model_dir, **fields)).fit()
    tables = [t["name"] for t in latest(model_dir).tables]
    assert sorted(tables) == ["C1", "C2"]

    second = narrow(make_day(tmp_path, 1), "C1", "C2", "C3")
    config = make_config(second, model_dir, **fields)
    assert [f.name for f in open_dataset(config).categorical] == ["C1", "C2"]
    Trainer.from_config(config).fit()
    assert [t["name"] for t in latest(model_dir).tables] == tables
    assert latest(model_dir).ledger["stage"]["history"][0]["visited_rows"] == ROWS
    assert "C3" not in load(model_dir).columns  # its config names the data with the new column

    third = narrow(make_day(tmp_path, 2), "C2")
    message = r"column 'C1' has type none, the checkpoint was trained on int64: give data with"
    with pytest.raises(UsageError, match=message):
        Trainer.from_config(make_config(third, model_dir, **fields))
    assert latest(model_dir).ledger["data"] == str(second.directory)


class Listens(embedps.Callback):
    """Notes the steps that it hears of."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_evaluation(self, run: Any, entry: Any) -> None:
        self.steps.append(entry["step"])


def test_callbacks_hear_of_the_scores_on_the_same_data_only(tmp_path: Path) -> None:
    days = [make_day(tmp_path, day) for day in range(2)]
    heard = []
    for day, epochs in ((0, 1), (1, 1), (1, 2)):
        callback = Listens()
        fields: dict[str, Any] = {"eval": "inline", "epochs": epochs}
        make_trainer(days[day], tmp_path / "m", callbacks=[callback], **fields).fit()
        heard.append(callback.steps)
    (first,), (second,), (again, third) = heard
    assert first < second == again < third
