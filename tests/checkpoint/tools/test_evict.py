"""Eviction by hand: its delta is part of the chain for readers, tools and the next run."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from embedps.checkpoint import Reached, follow
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.evicted_directory import FIRST_FIELDS
from embedps.checkpoint.format.quantize import Encoding
from embedps.checkpoint.retention import KeepNewest
from embedps.checkpoint.tools.compact import compact
from embedps.checkpoint.tools.evict import Selection, evict
from embedps.checkpoint.tools.verify import verify
from embedps.errors import CheckpointError, DirectoryInUseError, UsageError
from embedps.run.run_lock import RunLock
from embedps.tables import RowwiseAdagrad
from embedps.training.checkpoint_writer import CheckpointWriter
from tests.checkpoint.builders import GROUP, CheckpointRun, Record, make_run
from tests.checkpoint.readers import newest_of, read_chain
from tests.commands import checkpoint_command as main
from tests.tables.builders import constant, ids, make_collection, make_table, rows_of, train


def ids_of(directory: CheckpointDirectory, table: str) -> list[int]:
    manifest = newest_of(directory)
    return read_chain(directory, manifest, GROUP, table=table)["id"].to_pylist()


@pytest.mark.parametrize(
    ("selection", "left"),
    [
        # A record's frequency is its id, its norm sqrt(2) times its value, its step its place.
        (Selection(max_frequency=5), [5, 6, 7]),
        (Selection(below_norm=5.9 * 2**0.5), [3, 4, 6, 7]),
        (Selection(before_step=1), [2, 5, 6, 7]),
        (Selection(max_frequency=5, below_norm=5.9 * 2**0.5), [3, 4, 5, 6, 7]),
    ],
)
def test_what_holds_all_conditions_goes(tmp_path, selection, left):
    directory = make_run(tmp_path).directory
    before = ids_of(directory, "C1")
    made = evict(directory, "C1", selection)
    assert ids_of(directory, "C1") == left
    assert ids_of(directory, "C2") == [6]
    assert (made.removed, made.kept) == (len(before) - len(left), len(left))


@pytest.mark.parametrize("rows", ["float32", "int8", "int4"])
def test_tools_and_followers_take_the_delta(tmp_path, rows, capsys):
    encoding = Encoding(rows=rows, optimizer_slots="float32" if rows == "int4" else "bfloat16")
    run = CheckpointRun(tmp_path, encoding)
    run.base([Record("C1", i, float(i)) for i in range(10)])
    before = run.delta([Record("C1", 3, 33.0)])
    reached = list(follow(tmp_path, idle_secs=0))[-1]
    assert isinstance(reached, Reached)
    position = reached.position
    made = evict(run.directory, "C1", Selection(max_frequency=4))
    assert made.manifest is not None
    assert not verify(run.directory, run.directory.numbers()).problems
    changes = list(follow(tmp_path, position, idle_secs=0))
    removed = [c.batch for c in changes if hasattr(c, "batch")]
    assert sorted(i for b in removed for i in b["id"].to_pylist()) == [0, 1, 2, 3]
    assert all(b["removed"].to_pylist() == [True] * b.num_rows for b in removed)
    path = str(tmp_path)
    capsys.readouterr()
    assert main(["diff", path, str(before.number), str(made.manifest.number)]) == 0
    assert "C1: 0 added, 0 changed, 4 removed" in capsys.readouterr().out
    assert compact(run.directory) is not None
    assert ids_of(run.directory, "C1") == [4, 5, 6, 7, 8, 9]
    assert not verify(run.directory, run.directory.numbers()).problems


def test_the_next_run_goes_on_from_it(tmp_path):
    table = make_table("t", 2, optimizer=RowwiseAdagrad(), initializer=constant(1.0))
    directory = CheckpointDirectory(tmp_path)

    def step(collection, number, used):
        train(collection, {"t": ids(*used)}, {"t": np.ones((len(used), 2))}, step=number)

    def save(writer, number):
        return writer.save(step=number, ledger={}, partially_applied=dict, progress={}, final=False)

    first = make_collection([table], num_shards=2)
    writer = CheckpointWriter(directory, first, {}, keep=[KeepNewest(9)])
    step(first, 1, range(20))
    save(writer, 1)
    step(first, 2, range(10))
    save(writer, 2)
    made = evict(directory, "t", Selection(before_step=2))
    assert (made.removed, made.kept) == (10, 10)

    second = make_collection([table], num_shards=3)
    writer = CheckpointWriter(directory, second, {}, keep=[KeepNewest(9)])
    newest = newest_of(directory)
    assert newest == made.manifest
    writer.restore(newest)
    assert second.stats().rows == {"t": 10}
    step(second, 3, [3, 15])
    last = save(writer, 3)
    assert not verify(directory, directory.numbers()).problems
    third = make_collection([table])
    CheckpointWriter(directory, third, {}, keep=[KeepNewest(9)]).restore(last)
    rows = rows_of(third, tmp_path / "third")
    assert rows == rows_of(second, tmp_path / "second")
    assert sorted(id_ for _, id_ in rows) == [*range(10), 15]
    assert rows["t", 15].frequency == 1


def test_nothing_to_remove_commits_nothing(tmp_path, capsys):
    directory = make_run(tmp_path).directory
    numbers = directory.numbers()
    assert main(["evict", str(tmp_path), "--table", "C1", "--before-step", "0"]) == 0
    assert "no row of C1 is to go: 8 rows stay" in capsys.readouterr().out
    assert directory.numbers() == numbers
    assert not (tmp_path / "evicting").exists()


def test_the_command_says_what_it_removed(tmp_path, capsys):
    make_run(tmp_path)
    assert main(["evict", str(tmp_path), "--table", "C1", "--max-frequency", "5"]) == 0
    assert "manifest 4 with delta-4: 5 rows of C1 removed, 3 stay" in capsys.readouterr().out


def test_the_rows_are_kept_as_those_of_a_run(tmp_path):
    directory = make_run(tmp_path / "run").directory
    before = rows_by_id(directory)
    evicted = tmp_path / "evicted"
    made = evict(directory, "C1", Selection(max_frequency=5), evicted_rows=str(evicted))
    assert made.manifest is not None
    table = pq.read_table(evicted / GROUP)
    assert [f.type for f in table.schema][: len(FIRST_FIELDS)] == [f.type for f in FIRST_FIELDS]
    assert table.num_rows == made.removed == 5
    for row in table.to_pylist():
        assert row["save"] == made.manifest.save_number
        assert (row["table"], row["reason"]) == ("C1", "hand")
        assert row["embedding"] == before[row["id"]]["embedding"]
        assert row["frequency"] == before[row["id"]]["frequency"]
    other = make_run(tmp_path / "other").directory
    with pytest.raises(UsageError, match="has the evicted rows of"):
        evict(other, "C1", Selection(max_frequency=5), evicted_rows=str(evicted))


def rows_by_id(directory: CheckpointDirectory) -> dict[int, dict]:
    manifest = newest_of(directory)
    rows = read_chain(directory, manifest, GROUP, table="C1").to_pylist()
    return {row["id"]: row for row in rows}


def test_it_refuses_a_directory_that_a_run_writes(tmp_path):
    directory = make_run(tmp_path).directory
    lock = RunLock(tmp_path)
    with pytest.raises(DirectoryInUseError, match="is in use by a run, which would go on"):
        evict(directory, "C1", Selection(before_step=1))
    lock.release()
    assert evict(directory, "C1", Selection(before_step=1)).removed > 0


def test_wrong_requests_are_one_line(tmp_path, capsys):
    with pytest.raises(UsageError, match="evict needs --before-step, --max-frequency or --below"):
        Selection()
    assert main(["evict", str(tmp_path), "--table", "C1", "--before-step", "1"]) == 1
    assert "holds no manifest: nothing was committed there" in capsys.readouterr().err
    directory = make_run(tmp_path / "run").directory
    with pytest.raises(UsageError, match=r"--table must be one of \['C1', 'C2'\] but is 'C9'"):
        evict(directory, "C9", Selection(before_step=1))
    with pytest.raises(CheckpointError, match="an object store has no locks to evict under"):
        evict(CheckpointDirectory("s3://bucket/model"), "C1", Selection(before_step=1))
