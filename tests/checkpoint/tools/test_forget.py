"""Forgetting: ids leave rows, slots, counters, evicted rows, older manifests and who follows."""

from pathlib import Path

import numpy as np
import pytest

from embedps.checkpoint import Reached, Reset, Rows, follow
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.lease import LeaseRenewer
from embedps.checkpoint.refs import move_ref
from embedps.checkpoint.retention import KeepNewest
from embedps.checkpoint.tools import forget as forgetting
from embedps.checkpoint.tools.evict import Selection, evict
from embedps.checkpoint.tools.forget import forget, traces
from embedps.checkpoint.tools.verify import verify
from embedps.errors import CheckpointError
from embedps.run.run_lock import RunLock
from embedps.tables import MinCount
from embedps.training.checkpoint_writer import CheckpointWriter
from tests.checkpoint.builders import GROUP, CheckpointRun, Record
from tests.checkpoint.readers import newest_of, read_chain
from tests.commands import table_command as main
from tests.tables.builders import ids as some_ids
from tests.tables.builders import make_collection, make_table, train

LARGE = 2**40 + 12345
GONE = np.array([2, 3, 4, LARGE], np.int64)


def ids_of(directory: CheckpointDirectory, name: str = "C1") -> list[int]:
    found = read_chain(directory, newest_of(directory), GROUP, table=name)
    return sorted(found["id"].to_pylist())


@pytest.fixture
def directory(tmp_path: Path) -> CheckpointDirectory:
    run = CheckpointRun(tmp_path / "m", num_shards=1)
    numbers = [*range(8), LARGE]
    run.base([Record("C1", i, float(i)) for i in numbers] + [Record("C2", 4, 0.5)])
    run.delta([Record("C1", 3, None), Record("C1", 4, 40.0)])
    return run.directory


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "ids").write_text("".join(f"{i}\n" for i in [*GONE.tolist(), 2]))
    return tmp_path / "ids"


def test_ids_leave_every_file_and_followers(directory, file, tmp_path, capsys):
    evicted = tmp_path / "evicted"
    evict(directory, "C1", Selection(max_frequency=3), evicted_rows=str(evicted))  # 0, 1, 2
    left = [i for i in ids_of(directory) if i not in GONE.tolist()]
    *_, reached = follow(directory, idle_secs=0)
    assert isinstance(reached, Reached)
    ask = ["--table", "C1", "--ids", file, "--evicted-rows", evicted]
    assert main("prove-absent", directory.path, *ask) == 1
    files = {Path(line.partition(": ")[0]) for line in capsys.readouterr().out.splitlines()}
    assert {f.parent.parent.name for f in files if f.suffix == ".arrow"} == {
        "base-1",
        "delta-2",
        "delta-3",
    }
    assert any(f.suffix == ".parquet" for f in files)
    assert main("forget", directory.path, *ask) == 0
    assert "4 ids of C1 are forgotten: manifest 4: 2 rows and counters, 1 evicted rows" in (
        capsys.readouterr().out
    )
    assert directory.numbers() == [4]
    assert ids_of(directory) == left
    assert ids_of(directory, "C2") == [4]
    assert verify(directory, [4]).problems == ()
    assert main("prove-absent", directory.path, *ask) == 0
    assert "no file has one of 4 ids of C1" in capsys.readouterr().out
    # The rows that were evicted beside them are still there.
    assert list(traces(directory, "C1", np.array([0, 1]), evicted_rows=str(evicted)))
    changes = list(follow(directory, reached.position, idle_secs=0))
    assert isinstance(changes[0], Reset)
    told = [i for c in changes if isinstance(c, Rows) for i in c.batch["id"].to_pylist()]
    assert sorted(told) == sorted([*left, 4])  # the 4 of C2
    assert not any(
        c.batch["removed"].to_pylist().count(True) for c in changes if hasattr(c, "batch")
    )


def test_what_a_ref_or_a_reader_holds_is_named(directory, file, capsys):
    move_ref(directory, "prod", 1)
    command = ["forget", directory.path, "--table", "C1", "--ids", file]
    with LeaseRenewer(directory, holder="server") as lease:
        assert lease.hold(2)
        assert main(*command) == 1
        out = capsys.readouterr().out
        assert "manifest 1 may still have them: the ref prod names it" in out
        assert "manifest 2 may still have them: server of " in out
        assert directory.numbers() == [1, 2, 3]
    move_ref(directory, "prod", 3)
    assert main(*command) == 0
    assert "no file had them" in capsys.readouterr().out
    assert directory.numbers() == [3]
    assert list(traces(directory, "C1", GONE)) == []


def test_other_files_are_read_for_large_ids(directory, capsys):
    forget(directory, "C1", GONE)
    (directory.path / "summary.json").write_text(f'{{"hottest": [[{LARGE}, 3]], "step": 4}}')
    (directory.path / "events").write_bytes(b"\0\xff| " + str(LARGE * 10).encode())
    (directory.path / "base-3").mkdir(exist_ok=True)
    (directory.path / "base-3" / "x.arrow.tmp").write_bytes(b"")
    (directory.path / "base-3" / "x.arrow").write_bytes(b"no Arrow")
    found = list(traces(directory, "C1", GONE))
    names = [Path(line.partition(": ")[0]).name for line in found]
    assert names == ["x.arrow", "x.arrow.tmp", "summary.json"]


def test_kept_as_it_was_if_it_cannot_be_done(directory, file, capsys, monkeypatch):
    lock = RunLock(directory.path)
    assert main("forget", directory.path, "--table", "C1", "--ids", file) == 75
    lock.release()
    entry = directory.read(2).chain[0].files[0]
    whole = directory.file(entry).read_bytes()
    directory.file(entry).write_bytes(whole[:-8] + bytes(8))
    assert main("forget", directory.path, "--table", "C1", "--ids", file) == 1
    directory.file(entry).write_bytes(whole)
    assert directory.numbers() == [1, 2]
    assert not (directory.path / forgetting.WORK_NAME).exists()
    file.write_text("2\nabc\n")
    capsys.readouterr()
    assert main("forget", directory.path, "--table", "C1", "--ids", file) == 2
    assert "must be a whole number of 64 bits but is 'abc'" in capsys.readouterr().err


def test_an_object_store_is_not_said_to_be_clean(directory, monkeypatch):
    monkeypatch.setattr("embedps.storage.file_io.LocalStore.has_locks", False)
    with pytest.raises(CheckpointError, match="prove that ids are absent in a local copy"):
        list(traces(directory, "C1", GONE))


def test_counters_go_and_the_next_run_goes_on(tmp_path):
    spec = make_table("t", 2, admission=MinCount(count=2))
    directory = CheckpointDirectory(tmp_path)

    def step(collection, number, used):
        train(collection, {"t": some_ids(*used)}, {"t": np.ones((len(used), 2))}, step=number)

    def save(writer, number):
        return writer.save(step=number, ledger={}, partially_applied=dict, progress={}, final=False)

    first = make_collection([spec], num_shards=2)
    writer = CheckpointWriter(directory, first, {}, keep=[KeepNewest(9)])
    step(first, 1, range(20))
    step(first, 2, range(10))
    save(writer, 2)
    gone = np.array([3, 4, 15, 16], np.int64)  # two rows, two counters
    made = forget(directory, "t", gone)
    assert made.rows == 4
    assert list(traces(directory, "t", gone)) == []
    assert verify(directory, directory.numbers()).problems == ()
    second = make_collection([spec], num_shards=3)
    writer = CheckpointWriter(directory, second, {}, keep=[KeepNewest(9)])
    writer.restore(newest_of(directory))
    assert second.stats().rows == {"t": 8}
    step(second, 3, [15, 17])  # 17 was counted once before, 15 is not known
    assert second.stats().rows == {"t": 9}
