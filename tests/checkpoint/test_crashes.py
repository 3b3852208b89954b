"""Writers killed by SIGKILL at their steps on the disk: what is left is a committed state, exactly.

The fault points are in the code that writes (`io`, and the kernels' `row_file_writer`), as in any
process; here they are armed. 250 crashes: 160 of what Python writes, by forks of this process, and
90 of a saver with the kernels, by forks of one that has TensorFlow loaded.
"""

import json
import os
import random
import signal
from pathlib import Path

import pytest

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.dense import read_dense
from embedps.checkpoint.retention import KeepNewest, collect_garbage
from embedps.checkpoint.tools.compact import compact
from embedps.checkpoint.tools.verify import verify
from embedps.storage import file_io
from tests.checkpoint.builders import GROUP, CheckpointRun, Record
from tests.checkpoint.readers import newest_of, read_chain
from tests.commands import run

Rows = dict[tuple[str, int], float]


def records_of(step: int) -> list[Record]:
    draw = random.Random(step)
    ids = draw.sample(range(30), draw.randint(1, 12))
    return [Record("C1", i, None if draw.random() < 0.3 else float(step)) for i in ids]


def applied(rows: Rows, records: list[Record]) -> Rows:
    rows = dict(rows)
    for record in records:
        rows.pop((record.table, record.id), None)
        if record.value is not None:
            rows[record.table, record.id] = record.value
    return rows


def rows_of(directory: CheckpointDirectory) -> Rows:
    newest = newest_of(directory)
    rows = read_chain(directory, newest, GROUP)
    keys = zip(rows["table"].to_pylist(), rows["id"].to_pylist(), strict=True)
    return dict(zip(keys, (e[0] for e in rows["embedding"].to_pylist()), strict=True))


def write(path: Path, step: int, merges: bool) -> None:
    """What a save does on the disk, in Python: a base or a delta, the commit, the collection."""
    run = CheckpointRun(path)
    newest = run.directory.latest()
    if newest is None or step % 7 == 0:
        rows = {} if newest is None else rows_of(run.directory)
        after = applied(rows, records_of(step))
        run.base([Record(table, i, value) for (table, i), value in after.items()])
    else:
        run.chain = list(newest.chain)
        run.delta(records_of(step))
    with run.directory.exclusive():
        collect_garbage(run.directory, [KeepNewest(2)])
    if merges:
        compact(run.directory)


def killed_at(path: Path, step: int, merges: bool, fault: str) -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            file_io.arm_fault(fault)
            write(path, step, merges)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


@pytest.mark.slow
@pytest.mark.multiprocess
def test_every_state_after_160_kills_of_a_python_writer_is_a_committed_one(tmp_path):
    directory = CheckpointDirectory(tmp_path)
    draw = random.Random(0)
    committed: Rows = {}
    num_killed, swept, reached, saved = 0, 0, 0, 0
    for step in range(1, 1000):
        # Each step of a save once; then any, of a compaction beside it too.
        reached = draw.randint(1, swept + swept // 2) if swept else reached + 1
        killed = killed_at(tmp_path, step, swept > 0 and step % 3 == 0, f"io.any:{reached}")
        num_killed += killed
        if not killed and not swept:
            swept = reached  # one more than a whole save has
        numbers = directory.numbers()
        if not numbers:
            assert killed
            continue
        newest = newest_of(directory)
        after = applied(committed, records_of(step))
        if newest.save_number > saved:
            committed, saved = after, newest.save_number
        else:
            assert killed
        assert rows_of(directory) == committed
        assert newest.dense is not None
        assert read_dense(directory.file(newest.dense))["w"][0, 0] == saved
        assert not verify(directory, numbers).problems
        if num_killed == 160:
            break
    assert num_killed == 160
    assert swept > 25


@pytest.mark.slow
@pytest.mark.multiprocess
def test_every_state_after_90_kills_of_a_saver_is_a_committed_one(tmp_path):
    """Rows with their slots and steps, the network and the ledger: of one save, and no other."""
    program = ("-m", "tests.checkpoint.crash_program", tmp_path, "90")
    done = run(*program, timeout=560, CUDA_VISIBLE_DEVICES="-1")
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["killed"] == 90
    assert found["steps"] > 20  # of the kernels, each the last of a process once
    assert found["rows"] > 0
