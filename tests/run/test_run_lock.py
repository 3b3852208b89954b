"""One run at a time in a local model directory, and who loses where there is no lock."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from embedps.checkpoint import Reset, follow
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest_json import to_json
from embedps.checkpoint.tools.compact import compact
from embedps.errors import (
    DimMismatchError,
    DirectoryInUseError,
    DirectoryTakenError,
    UsageError,
)
from embedps.evaluation.evaluator import Evaluator
from embedps.run.run_lock import RunLock
from embedps.storage.file_lock import RUN_LOCK_NAME
from tests.builders import LEARN, ROOT, latest, make_dlrm, make_trainer
from tests.commands import checkpoint_command, table_command

# Holds the lock, and a process of its own that outlives it.
HOLDER = """
import subprocess, sys, time
from pathlib import Path
from embedps.run.run_lock import RunLock
lock = RunLock(Path(sys.argv[1]))
child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
time.sleep(60)
"""


def test_second_run_is_told_who_holds_the_directory(tmp_path):
    first = RunLock(tmp_path)
    pattern = (
        rf"^--model-dir {tmp_path} is in use by another run, process {os.getpid()} on '.+' "
        r"since \d{4}-\d\d-\d\d [\d:]+: end that one first, or train in another directory$"
    )
    with pytest.raises(DirectoryInUseError, match=pattern) as e:
        RunLock(tmp_path)
    assert e.value.exit_code == 75
    first.release()
    first.release()
    RunLock(tmp_path).release()


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"pid": "x"}', b"[" * 4096])
def test_lock_of_an_unknown_holder_still_holds(tmp_path, content):
    lock = RunLock(tmp_path)
    (tmp_path / RUN_LOCK_NAME).write_bytes(content)
    with pytest.raises(DirectoryInUseError, match="in use by another run: end that one"):
        RunLock(tmp_path)
    lock.release()


def test_lock_dies_with_its_holder_and_not_with_what_that_started(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        with pytest.raises(DirectoryInUseError, match=f"process {holder.pid} on"):
            RunLock(tmp_path)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        os.kill(child, 0)  # it lives
        RunLock(tmp_path).release()
    finally:
        os.kill(child, signal.SIGKILL)
        holder.kill()
        holder.wait()
        holder.stdout.close()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("elsewhere", path)])
def test_what_is_no_file_is_no_lock(tmp_path, make):
    make(tmp_path / RUN_LOCK_NAME)
    with pytest.raises(UsageError, match=rf"--model-dir: {tmp_path}/{RUN_LOCK_NAME} "):
        RunLock(tmp_path)


def test_trainer_holds_its_directory_until_it_is_closed_or_has_run(tmp_path, clicks):
    first = make_trainer(clicks, tmp_path)
    with pytest.raises(DirectoryInUseError, match=f"process {os.getpid()} on"):
        make_trainer(clicks, tmp_path)
    first.close()
    second = make_trainer(clicks, tmp_path)
    assert second.fit().summary["finished"]
    wider = make_dlrm(clicks, embedding_dim=8)
    with pytest.raises(DimMismatchError, match="embedding_dim 8, the checkpoint has 4"):
        make_trainer(clicks, tmp_path, recommender=wider)  # one that cannot be made lets go too
    make_trainer(clicks, tmp_path).close()


def test_readers_and_a_compaction_work_beside_a_run(copied, clicks, tmp_path):
    assert len(latest(copied).chain) > 1
    trainer = make_trainer(clicks, copied, epochs=4, **LEARN)
    scored = Evaluator(make_dlrm(clicks), clicks, CheckpointDirectory(copied)).evaluate_latest(
        newer_than=-1
    )
    assert scored is not None
    changes = iter(follow(copied, position=None))
    assert isinstance(next(changes), Reset)
    rows = tmp_path / "C1.parquet"
    assert table_command("export", copied, "--table=C1", f"--output={rows}") == 0
    assert checkpoint_command(["stats", str(copied)]) == 0
    assert compact(CheckpointDirectory(copied)) is not None
    assert len(latest(copied).chain) == 1
    assert trainer.fit().summary["finished"]  # it goes on from the compaction


def test_loser_of_a_race_of_commits_ends_at_once(tmp_path, clicks):
    """As where there is no lock: another run commits between this one's saves."""
    trainer: Any = make_trainer(clicks, tmp_path, delta_secs=0.01, unit_rows=128, epochs=6)
    save, saves = trainer._loop.save, []

    def after_another(**arguments):
        saves.append(arguments)
        if len(saves) == 2:
            commit_of_another(tmp_path)
        return save(**arguments)

    trainer._loop.save = after_another
    with pytest.raises(DirectoryTakenError, match="another run writes here"):
        trainer.fit()
    assert len(saves) == 2
    directory = CheckpointDirectory(tmp_path)
    assert {number for number, _ in directory.save_directories()} == {1}


def commit_of_another(path: Path) -> None:
    newest = latest(path)
    other = dataclasses.replace(newest, number=newest.number + 1, history="0" * 16)
    directory = CheckpointDirectory(path)
    directory.manifest_path(other.number).write_bytes(to_json(other))
