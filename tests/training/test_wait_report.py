"""Whom the workers wait for is told if the wait lasts; the same is told again rarely."""

import os
import re
import signal
import subprocess
import time

import pytest

from embedps.scheduling.unit_threads import Wait
from embedps.training.wait_report import WaitReport
from tests.builders import write_dataset
from tests.commands import SMALL, finish, processes_with, read_until, train


@pytest.fixture
def told(monkeypatch):
    """Says what is told of waits that are each looked at once per second."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    report = WaitReport()

    def look(where: str | None, why: str = "worker 1 hangs", *, secs: int) -> list[str]:
        nonlocal now
        shown = []
        for _ in range(secs):
            shown += report.news([] if where is None else [Wait(where, why)])
            now += 1
        return shown

    return look


def test_wait_is_told_after_it_has_lasted_and_then_once_per_minute(told):
    assert told("step 1", secs=10) == []
    assert told("step 2", secs=10) == []
    assert told("step 2", secs=1) == ["step 2: worker 1 hangs, for 10 s now"]
    assert told("step 2", secs=59) == []
    assert told("step 2", secs=30) == ["step 2: worker 1 hangs, for 70 s now"]
    assert told(None, secs=100) == []


def test_another_cause_is_told_at_once_and_the_same_one_of_the_next_steps_is_not(told):
    assert told("step 1", secs=11) == ["step 1: worker 1 hangs, for 10 s now"]
    assert told("step 1", "worker 1 is lost", secs=3) == ["step 1: worker 1 is lost, for 11 s now"]
    assert told("step 2", secs=20) == []  # a slow worker, which each step waits for
    assert told("step 3", secs=20) == []
    assert told("step 4", "worker 2 hangs", secs=11) == ["step 4: worker 2 hangs, for 10 s now"]
    assert told("step 5", secs=20) == ["step 5: worker 1 hangs, for 10 s now"]


def stop_within_a_unit(run: subprocess.Popen[str], worker: int) -> str:
    """Stops a worker until a line says that others wait for it; returns that line.

    The groups of `continue` go on without a worker that was between two units. Then it goes on,
    and is stopped again.
    """
    assert run.stdout is not None
    while True:
        os.kill(worker, signal.SIGSTOP)
        first = None
        for line in run.stdout:
            if line.endswith(" now\n"):
                return line
            if (found := re.match(r"units (\d+)/", line)) is None:
                continue
            first = first or int(found[1])
            if int(found[1]) > first + 2:
                break
        os.kill(worker, signal.SIGCONT)
        read_until(run, "units ")


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.parametrize("lost", ["repeat", "continue"])
def test_worker_that_others_in_step_wait_for_is_named(tmp_path, lost):
    dataset = write_dataset(tmp_path / "data", train=(20_000,))
    cluster = ("--num-ps=1", "--num-workers=2", "--server-timeout-secs=300", "--sync=full")
    # Large units, as it matters that a worker is within one.
    flags = (*SMALL, "--eval=none", "--delta-secs=1", "--epochs=1000", "--unit-rows=20000")
    run = train(dataset, tmp_path / "m", *cluster, *flags, f"--on-lost-worker={lost}")
    try:
        # What was told is told again rarely: a worker that began late is not the one to stop.
        index = 0 if "worker 1 " in read_until(run, "delta") else 1
        (worker,) = processes_with(f"{tmp_path}/m/logs/worker-{index}.log")
        told = stop_within_a_unit(run, worker)
        where = r"step \d+ waits for rank \d" if lost == "repeat" else r"joint step \d+ waits"
        # It may have sent its last part of a unit, and not have told that it ended the unit.
        why = rf"(it needs a worker, and worker {index} did not yet end the unit before|"
        why += rf"worker {index} has not sent its part)"
        assert re.search(where + f": {why}, for 1\\d s now", told)
        os.kill(worker, signal.SIGCONT)
        read_until(run, "delta")
        run.send_signal(signal.SIGTERM)
        finish(run)
    finally:
        run.kill()
