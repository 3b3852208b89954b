"""Leases: failed renewals, clocks that differ, and manifests that go while they are read."""

import os
import shutil
import time

import pytest

from embedps import table
from embedps.checkpoint.__main__ import main
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.lease import LeaseRenewer, read_leases, write_lease
from embedps.checkpoint.retention import KeepNewest, collect_garbage
from embedps.errors import CheckpointError, CorruptCheckpointError
from tests.checkpoint.builders import CheckpointRun, Record


@pytest.fixture
def run(tmp_path):
    """Three chains of one base each: manifests 1 to 3."""
    run = CheckpointRun(tmp_path)
    for i in range(3):
        run.base([Record("C1", 1, float(i))])
    return run


def test_failed_renewal_is_tried_again_and_said_once(run, capsys):
    directory = run.directory
    with LeaseRenewer(directory, "reader", expire_secs=600, holder="reader") as lease:
        assert lease.hold(1)
        shutil.rmtree(directory.leases_dir)
        directory.leases_dir.write_bytes(b"")  # no file can be written in it
        lease._renew()
        lease._renew()
        (said,) = capsys.readouterr().err.splitlines()
        assert "reader.json: the lease of reader cannot be renewed and is tried again" in said
        directory.leases_dir.unlink()
        lease._renew()
        lease._renew()
        (said,) = capsys.readouterr().err.splitlines()
        assert said.endswith("reader.json: the lease of reader is renewed again")
        assert [each.number for each in read_leases(directory)] == [1]


def test_renewal_thread_outlives_a_failed_write(run):
    directory = run.directory
    with LeaseRenewer(directory, "reader", expire_secs=0.01, holder="reader") as lease:
        assert lease.hold(1)
        with lease._lock:
            shutil.rmtree(directory.leases_dir)
            directory.leases_dir.write_bytes(b"")
        while not lease._failure:
            assert lease._thread.is_alive()
        directory.leases_dir.unlink()
        while lease._failure:
            assert lease._thread.is_alive()


def test_reader_whose_lease_ended_is_told_so_and_not_of_damage(run):
    directory = run.directory
    manifest = directory.read(1)

    def read():
        with LeaseRenewer(directory, "reader", expire_secs=600, holder="reader") as lease:
            assert lease.hold(1)
            (directory.leases_dir / "reader.json").unlink()  # as one that expired
            collect_garbage(directory, [KeepNewest(1)])
            directory.check_content(manifest, manifest.files)

    with pytest.raises(CheckpointError, match=r"00000001\.json was removed while reader") as got:
        read()
    assert not isinstance(got.value, CorruptCheckpointError)


def test_damage_under_a_lease_stays_damage(run):
    directory = run.directory
    manifest = directory.read(1)
    directory.file(manifest.files[0]).unlink()

    def read():
        with LeaseRenewer(directory, "reader", expire_secs=600, holder="reader") as lease:
            assert lease.hold(1)
            directory.check_content(manifest, manifest.files)

    with pytest.raises(CorruptCheckpointError, match="restore another manifest"):
        read()


@pytest.mark.parametrize(("skew", "word"), [(-300, "behind"), (300, "ahead of")])
def test_lease_lasts_by_the_clock_of_the_store(run, capsys, skew, word):
    """Its reader's clock is off by 300 s; the file's time is the store's."""
    directory = run.directory
    write_lease(directory, "reader", 1, expire_secs=120, now=time.time() + skew)
    collect_garbage(directory, [KeepNewest(1)])
    collect_garbage(directory, [KeepNewest(1)])
    assert directory.numbers() == [1, 3]
    (said,) = capsys.readouterr().err.splitlines()
    assert f"is 300 s {word} that of the directory's store" in said
    then = time.time() - 121
    os.utime(directory.leases_dir / "reader.json", (then, then))
    collect_garbage(directory, [KeepNewest(1)])
    assert directory.numbers() == [3]
    assert read_leases(directory) == []


@pytest.mark.parametrize(
    ("command", "arguments", "kept"),
    [
        ("stats", ["--number=1"], [1, 3]),
        ("export", ["--number=1", "--table=C1", "--output=rows.parquet"], [1, 3]),
        ("diff", ["1", "2"], [1, 2, 3]),
    ],
)
def test_tool_leases_what_it_reads(run, monkeypatch, command, arguments, kept):
    """A run collects all but the newest manifest just before the tool compares files."""
    check = CheckpointDirectory.check_content

    def collect_and_check(directory, manifest, files):
        collect_garbage(directory, [KeepNewest(1)])
        check(directory, manifest, files)

    monkeypatch.chdir(run.directory.path)
    monkeypatch.setattr(CheckpointDirectory, "check_content", collect_and_check)
    run_command = table.main if command == "export" else main
    assert run_command([command, str(run.directory.path), *arguments]) == 0
    assert run.directory.numbers() == kept
    assert read_leases(run.directory) == []
