"""A local cluster's processes: dead workers are restarted, but not forever."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from embedps.cluster.interface import ScheduledCall
from embedps.cluster.local_processes import LocalProcesses
from embedps.data.dataset import Dataset
from embedps.errors import ClusterError, ServerLostError
from tests.builders import dataset_fixture
from tests.commands import run_program, train, wait_until_gone

# A worker says something and dies as the file `how` says; a parameter server stays.
SCRIPT = """#!/bin/sh
case "$TF_CONFIG" in
  *'"type": "ps"'*) exec sleep 100 ;;
esac
echo "embedps: worker 7 serves"
echo "out of luck"
echo
exec sh -c "$(cat %s)"
"""
ENDS = {"kill -KILL $$": "by SIGKILL", "kill -ABRT $$": "by SIGABRT", "exit 3": "with code 3"}


@pytest.fixture
def how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a worker does, as a shell's command."""
    program, command = tmp_path / "python", tmp_path / "how"
    program.write_text(SCRIPT % command)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    command.write_text("kill -KILL $$")
    return command


@pytest.fixture
def workers(how: Path, tmp_path: Path) -> Iterator[LocalProcesses]:
    processes = LocalProcesses(num_ps=1, num_workers=3, log_dir=tmp_path / "logs", grace_secs=5)
    yield processes
    processes.close()


def die(processes: LocalProcesses, *indexes: int) -> ClusterError | None:
    """Waits until workers are dead, and has them looked after."""
    for index in indexes:
        processes._processes["worker", index].wait(30)
    return processes._restart_dead()


@pytest.mark.parametrize(("command", "ended"), ENDS.items())
def test_worker_that_finishes_no_unit_ends_the_run_at_its_third_death(
    how: Path, tmp_path: Path, command: str, ended: str
) -> None:
    how.write_text(command)
    found: list[ClusterError] = []
    told = threading.Event()
    processes = LocalProcesses(num_ps=1, num_workers=1, log_dir=tmp_path / "logs", grace_secs=5)

    def on_lost(error: ClusterError) -> None:
        assert processes._processes["ps", 0].poll() is None  # no other loss hides the cause
        found.append(error)
        told.set()

    processes.watch(on_lost)
    assert told.wait(30)
    processes.close()
    (error,) = found
    log = tmp_path / "logs" / "worker-0.log"
    assert str(error) == (
        f"worker 0 ended {ended}, 3 times in a row without finishing a unit: out of luck; see {log}"
    )
    assert not isinstance(error, ServerLostError)  # which a client would answer by a new start
    assert error.exit_code == 1
    assert processes.restarts == 2
    assert log.read_text().count("out of luck") == 3


def test_worker_that_finishes_units_between_its_deaths_is_started_again(
    workers: LocalProcesses,
) -> None:
    for _ in range(4):
        for _ in range(2):
            assert die(workers, 0, 1, 2) is None
        for index in range(3):
            workers.unit_started(index, ScheduledCall())
            workers.unit_ended(index)
    assert workers.restarts == 3 * 4 * 2
    for _ in range(2):
        assert die(workers, 0, 1, 2) is None
    assert "3 times in a row" in str(die(workers, 0, 1, 2))


def test_unit_that_ends_worker_after_worker_ends_the_run(workers: LocalProcesses) -> None:
    deadly = ScheduledCall()
    for index in range(2):
        workers.unit_started(index, deadly)
        assert die(workers, 0, 1, 2) is None
        for each in range(3):  # all of them finish another one meanwhile
            workers.unit_started(each, ScheduledCall())
            workers.unit_ended(each)
    workers.unit_started(2, deadly)
    error = die(workers, 0, 1, 2)
    assert isinstance(error, ClusterError)
    assert "worker 2 ended by SIGKILL, as did the 2 that attempted the same unit" in str(error)


def test_worker_that_was_told_to_end_is_not_counted(how: Path, workers: LocalProcesses) -> None:
    how.write_text("exit 0")
    assert die(workers, 0, 1, 2) is None
    for index in range(3):  # those before read their orders earlier
        workers.unit_ended(index)
    for _ in range(5):
        assert die(workers, 0, 1, 2) is None


def test_process_that_is_killed_at_each_start_is_named_with_its_last_line(
    workers: LocalProcesses, tmp_path: Path
) -> None:
    del workers.cluster["ps"][:]  # which serves nobody here
    workers._processes["ps", 0].kill()
    workers._processes["ps", 0].wait()
    workers._processes.pop(("ps", 0))
    with pytest.raises(
        ClusterError, match=r"worker 0 ended by SIGKILL before it served: out of luck; see .*-0.log"
    ):
        workers.wait_until_serving(60)


dataset = dataset_fixture(train=(1000,), evaluation=(500,))


@pytest.mark.multiprocess
@pytest.mark.slow
def test_unit_that_kills_its_worker_ends_the_run_with_a_line(
    tmp_path: Path, dataset: Dataset
) -> None:
    """The command line, which does not begin anew."""
    model_dir = tmp_path / "m"
    more = (
        "--model=tests.deadly",
        "--num-ps=1",
        "--num-workers=1",
        "--deadly=train",
        "--eval=none",
    )
    run = train(dataset, model_dir, *more, "--batch-size=64", "--unit-rows=512")
    out, err = run.communicate(timeout=200)
    assert run.returncode == 1, f"{out}\n{err}"
    log = model_dir / "logs" / "worker-0.log"
    (line,) = err.splitlines()
    assert line.startswith("embedps: who trained the unit from row ")
    assert " died, 2 times each, and no unit ended well in between: " in line
    assert "going on from" not in out
    assert log.read_text().count("serves at") == 4
    assert log.read_text().count("this unit is deadly") == 4
    wait_until_gone(str(model_dir))


PROGRAM = """
import os, sys
import embedps
from embedps.run.config import TrainConfig
from embedps.errors import ClusterError
from embedps.training.trainer import Trainer
from tests import deadly

config = TrainConfig.from_options(
    data=sys.argv[1], model_dir=sys.argv[2], model="tests.deadly", batch_size=64, unit_rows=256,
    num_ps=1, num_workers=1, eval="inline",
)
try:
    Trainer.from_config(config, deadly.Config(deadly="eval")).fit()
except ClusterError as error:
    print(f"{type(error).__name__}: {error}", flush=True)
os._exit(0)  # not the coordinator's teardown: it waits for servers that are gone
"""


@pytest.mark.multiprocess
@pytest.mark.slow
def test_scored_unit_that_kills_its_worker_is_an_error_of_the_trainer(
    tmp_path: Path, dataset: Dataset
) -> None:
    """From Python, with inline evaluation."""
    shown = run_program("-c", PROGRAM, dataset.directory, tmp_path / "m", timeout_secs=200)
    last = shown.splitlines()[-1]
    assert re.match(r"ClusterError: worker 0 ended by SIGABRT, .* this unit is deadly; see", last)
    wait_until_gone(str(tmp_path / "m"))
