"""Runs whose workers train each step together: their bits, and what they resume with."""

import math
import os
import re
import signal
from pathlib import Path

import pytest

from embedps.checkpoint.directory import CheckpointDirectory
from tests.builders import make_trainer, write_dataset
from tests.commands import (
    SMALL,
    evaluations_of,
    finish,
    processes_with,
    read_until,
    run_program,
    start,
    summary_of,
    train,
)
from tests.training.same_bits import FIELDS, assert_same_checkpoint

pytestmark = pytest.mark.multiprocess

FLAGS = (*SMALL, "--num-ps=2", "--eval=inline")


@pytest.mark.slow
def test_workers_in_step_train_the_bits_of_one_process_and_resume_in_another_mode(
    tmp_path: Path,
) -> None:
    dataset = write_dataset(tmp_path / "set", train=(1200, 700))
    num_rows = dataset.split("train").rows
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for epochs in (1, 2):  # the second run resumes
        flags = ("--num-workers=2", "--sync=full", f"--epochs={epochs}")
        finish(train(dataset, ours, *FLAGS, *flags))
    trainer = make_trainer(dataset, theirs, replicas=2, epochs=2, **FIELDS)
    units = trainer.ledger.units_of(0)
    trainer.fit()
    assert_same_checkpoint(ours, theirs)
    steps = {n: sum(math.ceil(unit.num_rows / (64 * n)) for unit in units) for n in (2, 3)}
    in_step = summary_of(ours)
    assert in_step["sync"] == {"mode": "full", "workers": 2, "joint_steps": steps[2]}
    assert {w["most"] for w in in_step["staleness"].values()} == {0}

    finish(train(dataset, ours, *FLAGS, "--num-workers=3", "--sync=dense", "--epochs=3"))
    summary = summary_of(ours)
    assert summary["sync"] == {"mode": "dense", "workers": 3, "joint_steps": steps[3]}
    assert summary["examples"] == 3 * num_rows
    assert summary["units"]["done"] == summary["units"]["attempts"] == 3 * len(units)
    assert summary["units"]["repeated"] == 0


@pytest.mark.slow
def test_sidecar_ends_a_run_that_gets_no_better_and_the_best_is_exported(
    tmp_path: Path,
) -> None:
    dataset = write_dataset(tmp_path / "set", train=(1200, 700))
    run = tmp_path / "run"
    flags = (*SMALL, "--num-ps=2", "--num-workers=2", "--sync=full", "--eval=sidecar")
    patience = ("--stop-patience=2", "--reduce-patience=1", "--min-delta=0.2", "--keep-best=1")
    out = finish(train(dataset, run, *flags, *patience, "--delta-secs=0.5", "--epochs=400"))
    summary = summary_of(run)
    assert summary["units"]["done"] < summary["units"]["total"], out
    assert summary["sync"]["mode"] == "full"
    scores = evaluations_of(run)
    assert len(scores) >= 3
    assert scores == sorted(scores, key=lambda entry: entry["step"])
    exported = tmp_path / "exported"
    finish(start("embedps.export", f"--model-dir={run}", f"--output={exported}"))
    assert list(exported.glob("*/saved_model.pb"))


@pytest.mark.slow
def test_whatever_a_run_has_works_in_step(tmp_path: Path) -> None:
    """Weights, labels, sequences, states, dropout, callbacks, policies, and files that arrive."""
    run_program("-m", "tests.training.sync_runs_program", tmp_path)


@pytest.mark.slow
def test_run_resumes_with_other_groups_and_backup_workers_and_when_it_waits_for_all(
    tmp_path: Path,
) -> None:
    dataset = write_dataset(tmp_path / "set", train=(1200, 700))
    units = make_trainer(dataset, tmp_path / "units", epochs=1, **FIELDS).ledger.units_of(0)
    parts = sum(math.ceil(unit.num_rows / 64) for unit in units)
    run = tmp_path / "run"
    goes_on = "--on-lost-worker=continue"
    ways = (
        ("--num-workers=2", "--sync=full"),
        ("--num-workers=3", "--sync=full", goes_on, "--backup-workers=1"),
        ("--num-workers=2", "--sync=dense", goes_on),
        ("--num-workers=4", "--sync=full", "--sync-group-size=2"),
        ("--num-workers=3", "--sync=full", goes_on, "--backup-workers=2"),
        ("--num-workers=2", "--sync=full"),
    )
    repeated = 0
    for epochs, flags in enumerate(ways, 1):
        finish(train(dataset, run, *FLAGS, *flags, f"--epochs={epochs}"))
        summary = summary_of(run)
        before, repeated = repeated, summary["units"]["repeated"]
        assert summary["examples"] == epochs * dataset.split("train").rows
        assert summary["units"]["done"] == epochs * len(units)
        if goes_on not in flags:  # else a worker that is idle may attempt a slow unit again
            assert repeated == before
        workers = int(flags[0][-1])
        sync = summary["sync"]
        assert (sync["mode"], sync["workers"]) == (flags[1][len("--sync=") :], workers)
        assert parts / workers <= sync["joint_steps"] <= parts
        if sync["mode"] == "full":  # each part is applied once, on each of two servers
            stale = summary["staleness"].values()
            assert sum(n for worker in stale for n in worker["histogram"].values()) == 2 * parts
        backups = [flag for flag in flags if flag.startswith("--backup-workers=")]
        assert sync.get("group_size") == (2 if workers == 4 else None)
        if goes_on in flags:
            assert sync["backup_workers"] == sum(int(flag[-1]) for flag in backups)


@pytest.mark.slow
def test_group_trains_on_while_another_waits_for_its_worker(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "set", train=(8000,))
    run = tmp_path / "run"
    groups = ("--num-ps=1", "--num-workers=4", "--sync=full", "--sync-group-size=2")
    flags = (*SMALL, "--eval=none", "--epochs=100000", "--server-timeout-secs=300", "--log-secs=1")
    process = train(dataset, run, *groups, *flags)
    try:
        assert process.stdout is not None
        read_until(process, "units ")
        (worker,) = processes_with(f"{run}/logs/worker-0.log")
        os.kill(worker, signal.SIGSTOP)
        done, told = set[int](), ""
        for _, line in zip(range(60), process.stdout, strict=False):
            if found := re.match(r"units ([\d,]+)/", line):
                done.add(int(found[1].replace(",", "")))
            if line.endswith(" now\n"):
                told = line
                break
        where = r"step \d+( on)? waits for rank \d"
        why = r"worker 0 has not (sent|ended) its part"
        assert re.search(rf"{where}: {why}, for 1\d s now", told), (told, done)
        assert max(done) - min(done) > 5, done
        os.kill(worker, signal.SIGKILL)
        for _ in range(3):
            read_until(process, "units ")
        process.send_signal(signal.SIGTERM)
        finish(process)
    finally:
        process.kill()
    summary = summary_of(run)
    last = CheckpointDirectory(run).latest()
    assert last is not None
    assert summary["worker_restarts"] == 1
    batches = sum(n for w in summary["staleness"].values() for n in w["histogram"].values())
    assert batches == last.step  # each part is applied once
    assert summary["sync"]["group_size"] == 2
    assert last.step / 2 <= summary["sync"]["joint_steps"] < last.step
    assert summary["staleness"]["3"]["most"] > 0
