"""Units that really kill who trains them: the run goes on without them, wherever it trains."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from embedps.data.dataset import Dataset, describe_file
from embedps.errors import EmbedpsError
from embedps.scheduling.unit_deaths import FILE_NAME, DeadlyUnitsError
from embedps.training.fit_result import FitResult
from embedps.training.trainer import Trainer
from tests import deadly
from tests.builders import latest, make_config, write_dataset
from tests.commands import finish, read_until, summary_of, train

UNIT, NUM_UNITS = 256, 6


def poison(table: pa.Table, *rows: int) -> pa.Table:
    """Its first number becomes one that kills in some rows."""
    values = table["I1"].to_numpy().copy()
    values[list(rows)] = 2e6
    at = table.column_names.index("I1")
    return table.set_column(at, table.schema.field("I1"), pa.array(values, pa.float32()))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Six units; the third is deadly."""
    folder = tmp_path_factory.mktemp("data") / "set"
    made = write_dataset(folder, train=(UNIT * NUM_UNITS,), row_group_rows=UNIT)
    return _with_poison(made, 2 * UNIT + 7)


def _with_poison(dataset: Dataset, *rows: int) -> Dataset:
    (path,) = dataset.paths("train")
    pq.write_table(poison(pq.read_table(path), *rows), path, row_group_size=UNIT)
    split = dataclasses.replace(
        dataset.split("train"), files=(describe_file(dataset.directory, path),)
    )
    dataclasses.replace(dataset, splits={**dataset.splits, "train": split}).save()
    return Dataset.open(dataset.directory)


def fit(dataset: Dataset, model_dir: Path, *, cause: str = "error") -> FitResult:
    config = make_config(dataset, model_dir, unit_rows=UNIT, shuffle=False, model="tests.deadly")
    model = deadly.Config(deadly="number", cause=cause)
    return Trainer.from_config(config, model).fit()


def test_an_error_that_one_unit_gives_is_not_met_for_ever(tmp_path: Path, dataset: Dataset) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="deadly"):
        fit(dataset, tmp_path)
    result = fit(dataset, tmp_path)
    name = f"the unit from row {2 * UNIT} of train/shard-00000-of-00001.parquet"
    assert result.finished
    assert result.units.done == result.units.total == NUM_UNITS
    assert result.units.set_aside == 1
    assert result.examples == (NUM_UNITS - 1) * UNIT
    assert result.summary["set_aside"] == [name]
    assert (
        f"set aside, because who trained them died: {name}; remove {tmp_path / FILE_NAME} and run "
        "again to try them again" in str(result)
    )
    assert latest(tmp_path).ledger["set_aside"] == [2]
    # Taken back, it alone is trained.
    (tmp_path / FILE_NAME).unlink()
    mended = fit(dataset, tmp_path, cause="nothing")
    assert (mended.units.set_aside, mended.summary["set_aside"]) == (0, [])
    assert mended.examples == NUM_UNITS * UNIT
    assert latest(tmp_path).final
    assert latest(tmp_path).step == NUM_UNITS * UNIT // 64


def test_what_is_no_units_fault_blames_none(tmp_path: Path, dataset: Dataset) -> None:
    class WrongError(EmbedpsError):
        pass

    def fail() -> None:
        raise WrongError("of the user")

    config = make_config(dataset, tmp_path, model="tests.deadly", max_unit_deaths=1)
    trainer = Trainer.from_config(config, deadly.Config(deadly="number", cause="nothing"))
    trainer._loop._check_cluster = fail
    with pytest.raises(WrongError):
        trainer.fit()
    record = json.loads((tmp_path / FILE_NAME).read_text())
    assert (record["in_progress"], record["deaths"]) == ([], {})


def start(dataset: Dataset, model_dir: Path, *more: str) -> subprocess.Popen[str]:
    flags = ("--model=tests.deadly", "--deadly=number", "--eval=none", "--batch-size=64")
    return train(
        dataset, model_dir, *flags, f"--unit-rows={UNIT}", "--no-shuffle", "--delta-secs=0.1", *more
    )


@pytest.mark.slow
def test_a_file_that_kills_the_process_is_set_aside_at_its_third_start(tmp_path: Path) -> None:
    harmless = write_dataset(tmp_path / "data", train=(2 * UNIT,), row_group_rows=UNIT)
    (source,) = harmless.paths("train")
    watched, model_dir = tmp_path / "in", tmp_path / "m"
    watched.mkdir()
    pq.write_table(poison(pq.read_table(source), 5), watched / "bad.parquet", row_group_size=UNIT)
    more = (f"--watch={watched}", "--cause=kill")
    for _ in range(2):
        run = start(harmless, model_dir, *more)
        run.communicate(timeout=200)
        assert run.returncode == -signal.SIGKILL
    pq.write_table(pq.read_table(source), watched / "good.parquet", row_group_size=UNIT)
    run = start(harmless, model_dir, *more)
    read_until(
        run,
        "bad.parquet is set aside: who trained it died 2 times in a row. Remove ",
        "good.parquet: 512 examples",
        "units 6/6",
    )
    run.send_signal(signal.SIGTERM)
    out = finish(run)
    assert "set aside, because who trained them died: bad.parquet; remove" in out
    summary = summary_of(model_dir)
    assert summary["units"]["set_aside"] == 2  # the whole file
    assert summary["examples"] == 4 * UNIT
    assert latest(model_dir).ledger["set_aside"] == [2, 3]


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("sync", ["none", "full"])
def test_a_unit_that_kills_workers_is_set_aside_by_the_run(
    tmp_path: Path, dataset: Dataset, sync: str
) -> None:
    run = start(dataset, tmp_path, "--num-ps=1", "--num-workers=2", f"--sync={sync}")
    out, err = run.communicate(timeout=200)  # TensorFlow tells of lost workers
    assert run.returncode == 0, f"{out}\n{err}"
    assert "Traceback" not in err
    name = f"the unit from row {2 * UNIT} of train/shard-00000-of-00001.parquet"
    assert f"{name} is set aside: who trained it died 2 times in a row." in out
    summary = summary_of(tmp_path)
    assert summary["finished"]
    assert summary["units"]["set_aside"] == 1
    assert summary["set_aside"] == [name]
    assert summary["examples"] == (NUM_UNITS - 1) * UNIT
    assert summary["worker_restarts"] >= 2


def test_a_run_that_dies_at_each_unit_from_one_on_ends(tmp_path: Path) -> None:
    """It saved nothing, so that the units before end well again and again."""
    made = write_dataset(tmp_path / "data", train=(UNIT * NUM_UNITS,), row_group_rows=UNIT)
    made = _with_poison(made, *[k * UNIT for k in range(2, NUM_UNITS)])
    for _ in range(4):
        with pytest.raises((tf.errors.InvalidArgumentError, DeadlyUnitsError)) as caught:
            fit(made, tmp_path / "m")
        if caught.type is DeadlyUnitsError:
            break
    assert "died, 2 times each, and no unit ended well in between" in str(caught.value)
    record = json.loads((tmp_path / "m" / FILE_NAME).read_text())
    assert record["set_aside"] == {}
