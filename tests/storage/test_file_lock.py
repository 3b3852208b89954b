"""A lock on a file: for one holder at a time, and freed however that one ends."""

import errno
import fcntl
import os
import re
import subprocess
import sys
import threading

import pytest

from embedps.storage.file_io import NoFileError
from embedps.storage.file_lock import FileLock, locked
from embedps.storage.object_store import as_path
from tests.builders import ROOT

HOLDER = """
import sys
from pathlib import Path
from embedps.storage.file_lock import FileLock
lock = FileLock(Path(sys.argv[1]))
print(lock.acquire(), flush=True)
sys.stdin.read()
"""


def test_second_taker_is_told_who_signed(tmp_path):
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    assert first.acquire()
    assert not second.acquire()
    assert second.holder == ""
    first.sign()
    assert not second.acquire()
    pattern = rf"process {os.getpid()} on '.+' since \d{{4}}-\d\d-\d\d [\d:]+"
    assert re.fullmatch(pattern, second.holder)
    first.release()
    assert second.acquire()
    second.release()
    second.release()
    assert os.listdir(tmp_path) == ["lock"]


def test_waiting_taker_gets_the_lock_of_a_holder_that_is_killed(tmp_path):
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"True\n"
        assert not FileLock(path).acquire()
        threading.Timer(0.1, holder.kill).start()
        lock = FileLock(path)
        assert lock.acquire(wait=True)
        lock.release()


def test_file_that_was_removed_meanwhile_locks_nobody_out(tmp_path, monkeypatch):
    """A taker opened the file before its holder removed it: the lock of the new file counts."""
    first, second, third = (FileLock(tmp_path / "lock") for _ in range(3))
    assert first.acquire()
    flock = fcntl.flock

    def release_first(descriptor, operation):
        first.release(remove=True)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", release_first)
    assert second.acquire()
    monkeypatch.undo()
    assert not third.acquire()
    second.release(remove=True)
    assert os.listdir(tmp_path) == []


def test_file_system_without_locks_gives_everyone_the_lock(tmp_path, monkeypatch):
    def no_locks(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert FileLock(tmp_path / "lock").acquire()
    with locked(tmp_path / "lock") as held:
        assert held


def test_other_error_of_a_lock_is_raised(tmp_path, monkeypatch):
    def fail(descriptor, operation):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(OSError, match="Input/output error"):
        FileLock(tmp_path / "lock").acquire()


def test_object_store_has_no_locks():
    lock = FileLock(as_path("s3://bucket/lock"))
    assert lock.acquire()
    lock.sign()
    lock.release(remove=True)


def test_pipe_at_the_path_is_no_lock(tmp_path):
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(NoFileError, match="must be a file, for a lock"):
        FileLock(tmp_path / "lock").acquire()


def test_block_is_told_whether_it_holds_the_lock(tmp_path):
    path = tmp_path / "new" / "lock"
    with locked(path) as first, locked(path, wait=False) as second:
        assert (first, second) == (True, False)
    with locked(path, wait=False) as again:
        assert again
