"""Storage faults: training goes on, says so, and stops in time; what was committed stays good."""

import functools
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.errors import CheckpointError
from embedps.training import checkpoint_schedule
from embedps.training.save_failures import (
    EXIT_CODE,
    CheckpointsStalledError,
    SaveFailures,
    in_background,
)
from tests.builders import (
    ROOT,
    TINY_DLRM_FLAGS,
    ActingCluster,
    dataset_fixture,
    latest,
    make_trainer,
)
from tests.commands import until
from tests.disks import Disk, assert_nothing_is_left_over

FIELDS: dict[str, Any] = {"delta_secs": 0.01, "unit_rows": 128, "epochs": 6}


dataset = dataset_fixture()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make_failing(max_secs: float = 600) -> tuple[SaveFailures, Clock, list[str]]:
    said: list[str] = []
    clock = Clock()
    return SaveFailures(max_secs=max_secs, say=said.append, clock=clock), clock, said


# ---- what is said, and when it is too long ------------------------------------------------------


def test_failure_is_said_at_once_then_once_a_minute_until_it_is_over():
    failing, clock, said = make_failing()
    for second in range(0, 150, 10):
        clock.now = second
        failing.began()
        failing.failed(CheckpointError(f"no space for delta-{second}"))
    assert len(said) == 3  # at 0, 60 and 120 s
    assert "0 s: no space for delta-0; training goes on for 600 s more" in said[0]
    assert "60 s: no space for delta-60; training goes on for 540 s more" in said[1]
    since = {line.split(",")[0] for line in said}
    assert len(since) == 1
    assert since.pop().startswith("checkpoints are failing since ")
    assert failing.secs == 140
    failing.committed()
    assert failing.secs == 0
    assert said[3:] == ["checkpoints are written again, after 140 s"]
    clock.now = 10_000
    failing.check()


def test_failure_ends_the_run_after_the_stated_time_since_the_first():
    failing, clock, _ = make_failing(max_secs=100)
    for clock.now in (0.0, 60.0, 99.0):
        failing.began()
        failing.failed(CheckpointError("no space"))
    clock.now = 100.0
    with pytest.raises(CheckpointsStalledError, match=r"100 s, .* no space; .* run the same") as e:
        failing.check()
    assert e.value.exit_code == EXIT_CODE == 74


def test_save_that_does_not_end_is_told_after_a_minute_and_ends_the_run_too():
    failing, clock, said = make_failing(max_secs=100)
    failing.began()
    clock.now = 59
    failing.check()
    assert said == []
    clock.now = 60
    failing.check()
    assert "the save that was begun then has not ended" in said[0]
    clock.now = 100
    with pytest.raises(CheckpointsStalledError):
        failing.check()


def test_slow_save_is_no_failure():
    failing, clock, said = make_failing(max_secs=100)
    failing.began()
    clock.now = 50
    failing.check()
    failing.committed()
    clock.now = 149
    failing.began()
    clock.now = 200
    failing.check()
    assert said == []


def test_background_thread_gives_what_the_function_does():
    assert in_background(lambda: 3).result(10) == 3
    assert isinstance(in_background(lambda: 1 / 0).exception(10), ZeroDivisionError)


# ---- disks --------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path) -> Iterator[Disk]:
    made = Disk(tmp_path / "disk", 16 << 20)
    yield made
    made.close()


def at_saves(trainer, **actions) -> list[str]:
    """Does something before the n-th save; returns what comes of each save."""
    save = trainer._loop.save
    outcomes: list[str] = []
    lock = threading.Lock()

    def acting(**arguments):
        with lock:
            actions.get(f"at_{len(outcomes) + 1}", lambda: None)()
            try:
                manifest = save(**arguments)
            except CheckpointError as error:
                outcomes.append(str(error))
                raise
            outcomes.append("ok")
            return manifest

    trainer._loop.save = acting
    return outcomes


def awaiting(outcomes: Callable[[], list[str]]) -> ActingCluster:
    """Goes on with every fourth unit once another save was tried, up to the fifth."""
    return ActingCluster(lambda unit: until(lambda: len(outcomes()) >= min(unit // 4, 5)))


def verified(model_dir: Path) -> None:
    directory = CheckpointDirectory(model_dir)
    for number in directory.numbers():
        manifest = directory.read(number)
        directory.check_content(manifest, manifest.files)


@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_run_goes_on_over_a_fault_and_its_checkpoints_too_when_that_is_over(
    disk, dataset, capfd, fault
):
    model_dir = disk.path / "m"
    model_dir.mkdir()
    elsewhere = disk.path.with_name("tensorboard")
    elsewhere.mkdir()
    (model_dir / "tensorboard").symlink_to(elsewhere)  # an open file keeps a disk writable
    cluster = awaiting(lambda: outcomes)
    fields = {**FIELDS, "epochs": 1, "max_secs_without_checkpoint": 40.0}
    trainer = make_trainer(dataset, model_dir, cluster=cluster, **fields)

    def read_only():
        trainer._run_lock.release()  # an open file keeps a disk writable
        disk.read_only(True)

    begin, end = {
        "full": (disk.fill, disk.free),
        "read-only": (read_only, lambda: disk.read_only(False)),
    }[fault]
    outcomes = at_saves(trainer, at_2=begin, at_4=end)
    summary = trainer.fit().summary
    assert summary["finished"]
    assert outcomes[0] == "ok"
    word = {"full": "No space left on device", "read-only": "Read-only file system"}[fault]
    assert [word in outcome for outcome in outcomes[1:3]] == [True, True]
    assert set(outcomes[3:]) == {"ok"}
    out = capfd.readouterr().out
    assert out.count("checkpoints are failing since") == 1
    assert out.count("checkpoints are written again, after") == 1
    verified(model_dir)
    assert latest(model_dir).final
    assert summary["units"]["done"] == summary["units"]["total"]
    assert_nothing_is_left_over(model_dir)


def set_clock(monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]) -> None:
    """Sets the clock by which a run's saves fail for too long."""
    timed = functools.partial(SaveFailures, clock=clock)
    monkeypatch.setattr(checkpoint_schedule, "SaveFailures", timed)


def test_failed_saves_leave_nothing_that_fills_the_disk_further(disk, dataset, monkeypatch):
    model_dir = disk.path / "m"
    fields = {**FIELDS, "epochs": 3}
    cluster = awaiting(lambda: outcomes)
    trainer = make_trainer(
        dataset, model_dir, cluster=cluster, **fields, max_secs_without_checkpoint=2.0
    )
    outcomes = at_saves(trainer, at_2=disk.fill)
    with monkeypatch.context() as patch:
        set_clock(patch, lambda: 0.5 * len(outcomes))  # so no save is under way at the end
        with pytest.raises(CheckpointsStalledError, match="No space left on device"):
            trainer.fit()
    assert len(outcomes) == 1 + 4
    assert all("No space left on device" in outcome for outcome in outcomes[1:])
    assert_nothing_is_left_over(model_dir)
    verified(model_dir)
    disk.free()
    last = latest(model_dir)
    resumed = make_trainer(dataset, model_dir, **fields)
    assert resumed.ledger.num_done == last.ledger["prefix"] + len(last.ledger["beyond"])
    assert resumed.fit().summary["finished"]
    verified(model_dir)


def test_disk_that_hangs_ends_the_run_in_time(tmp_path, dataset, monkeypatch):
    """The thread that hangs stays; the run does not wait for it."""
    hangs = threading.Event()
    hangs_since: list[float] = []  # the first save may take its time

    def hang():
        hangs_since.append(time.monotonic())
        hangs.wait()

    set_clock(monkeypatch, lambda: time.monotonic() - hangs_since[0] if hangs_since else 0.0)
    trainer = make_trainer(dataset, tmp_path, **FIELDS, max_secs_without_checkpoint=1.0)
    outcomes = at_saves(trainer, at_2=hang)
    with pytest.raises(CheckpointsStalledError, match="has not ended"):
        trainer.fit()
    assert outcomes == ["ok"]
    verified(tmp_path)
    hangs.set()


# A second is a failed save, so no save is under way when there are too many.
COMMAND = """
import sys
from embedps import train
from embedps.console import command_line
from embedps.training import checkpoint_schedule

class Counted(checkpoint_schedule.SaveFailures):
    def __init__(self, **fields):
        self.count = 0
        super().__init__(**fields, clock=lambda: float(self.count))

    def failed(self, error):
        self.count += 1
        super().failed(error)

checkpoint_schedule.SaveFailures = Counted
sys.exit(command_line.run(train.main, sys.argv[1:]))
"""


@pytest.mark.multiprocess
@pytest.mark.slow
def test_command_on_a_disk_that_takes_no_more_ends_with_its_code_and_one_line(tmp_path, dataset):
    """A limit on the size of a file is a disk's fault to who writes: EFBIG in every writer.

    After half a unit the rows take 13 kB, and the network 15.
    """
    model_dir = tmp_path / "m"
    flags = [f"--data={dataset.directory}", f"--model-dir={model_dir}"]
    flags += ["--delta-secs=0.05", "--max-secs-without-checkpoint=3", "--eval=none", "--epochs=3"]
    flags += ["--batch-size=64", "--unit-rows=128", *TINY_DLRM_FLAGS]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000)),
    )
    assert done.returncode == EXIT_CODE, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    (line,) = lines
    assert line.startswith("embedps: no checkpoint could be written since ")
    assert "File too large" in line
    assert CheckpointDirectory(model_dir).numbers() == []
    assert_nothing_is_left_over(model_dir)
