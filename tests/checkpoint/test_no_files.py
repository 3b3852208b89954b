"""A FIFO, a directory or a device where a file is to be read: an error at once, and no wait."""

import os
import signal
from pathlib import Path

import pytest

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.lease import read_leases
from embedps.checkpoint.tools.verify import verify
from embedps.errors import CheckpointError, CorruptCheckpointError, UsageError
from embedps.run.run_config import read_run
from embedps.run.summary import Restarts, read_evaluations, read_json
from tests.checkpoint.builders import Record, make_manifest, write_save
from tests.checkpoint.readers import read_row_file

WHAT = "must be a file but is not a regular one"


@pytest.fixture(autouse=True)
def _in_time():
    """A reader that waits is interrupted."""

    def late(*_):
        raise TimeoutError("the reader waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.fixture(params=[os.mkfifo, os.mkdir, device], ids=["fifo", "directory", "device"])
def put(request):
    """Puts something else than a file to a path."""

    def replace(path: Path) -> Path:
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        request.param(path)
        return path

    return replace


@pytest.fixture
def directory(tmp_path) -> CheckpointDirectory:
    made = CheckpointDirectory(tmp_path)
    for number in (1, 2):
        save = write_save(made, "base", number, [Record("C1", 1), Record("C2", 2)])
        made.commit(make_manifest(number, [save]))
    return made


def test_manifest(directory, put):
    path = put(directory.manifest_path(2))
    with pytest.raises(CorruptCheckpointError, match=rf"^{path}: {WHAT}: remove it$"):
        directory.latest()
    earlier = directory.latest(skip_corrupt=True)
    assert earlier is not None
    assert earlier.number == 1
    (problem,) = verify(directory, [1, 2]).problems
    assert WHAT in str(problem)


def test_row_file(directory, put):
    manifest = directory.latest()
    path = put(directory.file(manifest.files[0]))
    with pytest.raises(CorruptCheckpointError, match=rf"^{path}: manifest 2 .* not a regular file"):
        directory.check_present(manifest)
    with pytest.raises(CorruptCheckpointError, match=rf"^{path}: cannot be read .*{WHAT}"):
        read_row_file(path)
    (problem,) = verify(directory, [2]).problems
    assert str(problem) == f"{path}: content: expected a readable file, found {WHAT}"


def test_lease(directory, put):
    path = put(directory.leases_dir / "reader.json")
    with pytest.raises(CorruptCheckpointError, match=f"^{path}: must be a lease but is not"):
        read_leases(directory)


def test_files_of_a_run(tmp_path, put):
    path = put(tmp_path / "evaluation.jsonl")
    with pytest.raises(CheckpointError, match=f"^{path}: {WHAT}: remove it$"):
        read_evaluations(tmp_path)
    path = put(tmp_path / "config.json")
    with pytest.raises(UsageError, match=f"^{path} is not a run's config .*{WHAT}"):
        read_run(tmp_path)
    assert read_json(put(tmp_path / "summary.json")) == {}
    put(tmp_path / "restarts.json")
    restarts = Restarts(tmp_path)
    assert restarts.count(workers=2, evaluator=0)["worker_restarts"] == 2


def test_kernels(directory, tmp_path, put):
    from embedps.tables.row_files import StoredFile
    from tests.tables.builders import make_collection, make_table

    path = put(tmp_path / "shard-0-of-1.arrow")
    collection = make_collection([make_table("t", 2)])
    (group,) = collection.groups
    stored = StoredFile(path=str(path), bytes=100, xxh3_64="0" * 16)
    with pytest.raises(CorruptCheckpointError, match=f"'{path}' {WHAT}"):
        collection.files.load({group.name: [stored]})
    collection.drop()


def test_shard_of_a_dataset(tmp_path, put):
    import tensorflow as tf

    from embedps.data.unit_reader import UnitReader

    path = put(tmp_path / "part.parquet")
    with pytest.raises(tf.errors.DataLossError, match=WHAT):
        UnitReader(batch_rows=1, ids=("x",)).open(str(path), 0, 1)
