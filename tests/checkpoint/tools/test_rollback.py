"""Rollback: the manifest that it commits has the older one's rows for readers and the next run."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from embedps.checkpoint import Reset, Rows, follow
from embedps.checkpoint.chain import Position, position_of
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.retention import KeepNewest, collect_garbage
from embedps.checkpoint.tools.rollback import rollback
from embedps.checkpoint.tools.verify import verify
from embedps.errors import CheckpointError, CorruptCheckpointError, DirectoryInUseError, UsageError
from embedps.run.run_lock import RunLock
from embedps.tables import RowwiseAdagrad
from embedps.training.checkpoint_writer import CheckpointWriter
from tests.checkpoint.builders import GROUP, Record, make_run
from tests.checkpoint.readers import read_chain
from tests.commands import checkpoint_command as main
from tests.tables.builders import constant, ids, make_collection, make_table, rows_of, train


def rows_as_of(directory: CheckpointDirectory, manifest: Manifest) -> list[dict]:
    return read_chain(directory, manifest, GROUP).to_pylist()


class Reader:
    """Holds the rows that a follower gives it, as a cache does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position: Position | None = None
        self.rows: dict = {}
        self.resets = 0

    def read(self) -> list[dict]:
        for change in follow(self._path, self._position, idle_secs=0):
            match change:
                case Reset():
                    self.rows.clear()
                    self.resets += 1
                case Rows(batch=batch):
                    for row in batch.to_pylist():
                        key = (row["table"], row["id"])
                        if row.pop("removed"):
                            self.rows.pop(key, None)
                        else:
                            self.rows[key] = row
                case reached:
                    self._position = reached.position
        return [self.rows[key] for key in sorted(self.rows)]


@pytest.mark.parametrize("number", [1, 2])
def test_readers_that_hold_later_rows_get_the_older_ones_and_what_follows(tmp_path, number):
    run = make_run(tmp_path)
    reader = Reader(tmp_path)
    newest = run.directory.read(3)
    assert reader.read() == rows_as_of(run.directory, newest)
    older = run.directory.read(number)
    made = rollback(run.directory, number).manifest
    assert run.directory.latest() == made
    assert (made.number, made.chain, made.dense, made.ledger) == (
        4,
        older.chain,
        older.dense,
        older.ledger,
    )
    assert position_of(made) != position_of(older)
    assert reader.read() == rows_as_of(run.directory, older)
    assert not verify(run.directory, run.directory.numbers()).problems


def test_a_reader_that_slept_through_it_gets_no_mixture(tmp_path):
    """It holds rows of a save that no chain has any more."""
    table = make_table("t", 2, optimizer=RowwiseAdagrad(), initializer=constant(1.0))
    directory = CheckpointDirectory(tmp_path)

    def step(collection, number, used):
        gradients = {"t": np.ones([len(used), 2], np.float32)}
        train(collection, {"t": ids(*used)}, gradients, step=number)

    def save(writer, number):
        return writer.save(step=number, ledger={}, partially_applied=dict, progress={}, final=False)

    def resume(collection, manifest):
        writer = CheckpointWriter(directory, collection, {}, keep=[KeepNewest(9)])
        if manifest is not None:
            writer.restore(manifest)
        return writer

    first = make_collection([table])
    writer = resume(first, None)
    step(first, 1, range(9))
    good = save(writer, 1)
    step(first, 2, range(5))
    save(writer, 2)
    reader = Reader(tmp_path)
    reader.read()
    rollback(directory, good.number)
    second = make_collection([table], num_shards=2)
    writer = resume(second, directory.latest())
    step(second, 2, [7])
    last = save(writer, 2)
    found = {row["id"]: (row["last_step"], row["frequency"]) for row in reader.read()}
    assert found == {i: (2, 2) if i == 7 else (1, 1) for i in range(9)}
    assert reader.resets == 2
    third = make_collection([table])
    resume(third, last)
    assert rows_of(third, tmp_path / "third") == rows_of(second, tmp_path / "second")


def test_the_command_says_what_follows_and_moves_later_scores(tmp_path, capsys):
    make_run(tmp_path)
    lines = [json.dumps({"number": n, "step": 100 * n}) + "\n" for n in (1, 2, 3)]
    (tmp_path / "evaluation.jsonl").write_text("".join(lines))
    assert main(["rollback", str(tmp_path), "--to", "2"]) == 0
    said = capsys.readouterr().out
    assert "manifest 4 is manifest 2 again: the next run goes on from step 200; 1 later" in said
    assert (tmp_path / "evaluation.jsonl").read_text() == "".join(lines[:2])
    assert (tmp_path / "evaluation.rolled-back.jsonl").read_text() == lines[2]


def test_wrong_requests_are_one_line_and_commit_nothing(tmp_path, capsys):
    run = make_run(tmp_path)
    directory = run.directory
    with pytest.raises(CheckpointError, match=r"no manifest 7, there are \[1, 2, 3\]"):
        rollback(directory, 7)
    with pytest.raises(UsageError, match="--to must be before the newest manifest, 3"):
        rollback(directory, 3)
    with pytest.raises(CheckpointError, match="an object store has no locks to roll back under"):
        rollback(CheckpointDirectory("s3://bucket/model"), 1)
    lock = RunLock(tmp_path)
    with pytest.raises(DirectoryInUseError, match="is in use by a run, which would go on from"):
        rollback(directory, 1)
    lock.release()
    run.base([Record("C1", 1, 1.0)])
    with directory.exclusive():
        collect_garbage(directory, [KeepNewest(2)])
    assert main(["rollback", str(tmp_path), "--to", "1"]) == 1
    said = capsys.readouterr().err
    assert re.search(r"there is no manifest 1, there are \[3, 4\]$", said.strip())
    path = directory.file(directory.read(3).chain[-1].files[0])
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(CorruptCheckpointError, match="xxh3_64"):
        rollback(directory, 3)
    assert directory.numbers() == [3, 4]
    assert not list(directory.leases_dir.glob("*.json"))
