"""A checkpoint directory in an object store: committed, read, verified, collected as on a disk."""

import os
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pyarrow.fs as pafs
import pytest

from embedps.checkpoint import Reached, Rows, follow
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.lease import lease_latest, read_leases, release_lease
from embedps.checkpoint.refs import move_ref, number_of
from embedps.checkpoint.retention import KeepChains, KeepNewest, collect_garbage
from embedps.checkpoint.tools.compact import compact
from embedps.checkpoint.tools.diff import diff
from embedps.errors import CheckpointError, CorruptCheckpointError, UsageError
from embedps.storage import file_io
from embedps.storage.object_store import ObjectPath, ObjectStore, as_path
from tests.checkpoint.builders import GROUP, CheckpointRun, make_run
from tests.checkpoint.readers import read_chain
from tests.commands import checkpoint_command as main
from tests.commands import table_command


def test_urls_become_paths_and_come_back():
    path = as_path("s3://bucket/a//b/")
    assert str(path) == os.fspath(path) == "s3://bucket/a/b"
    assert repr(path) == "ObjectPath('s3://bucket/a/b')"
    below = path / "base-1" / "x.arrow"
    assert isinstance(below, ObjectPath)
    assert str(below) == "s3://bucket/a/b/base-1/x.arrow"
    assert str(below.parent.parent) == str(path)
    assert str(below.with_suffix(".json")) == "s3://bucket/a/b/base-1/x.json"
    assert below.relative_to(path).as_posix() == "base-1/x.arrow"
    assert below.absolute() == below
    assert as_path("gs://bucket").name == "bucket"


def test_local_paths_stay_local(tmp_path):
    assert as_path("a/b") == Path("a/b")
    assert as_path("file:///a%20b/c") == Path("/a b/c")
    assert as_path(tmp_path) is tmp_path
    run = make_run(tmp_path / "run")
    assert CheckpointDirectory(f"file://{tmp_path}/run").latest() == run.directory.latest()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "hdfs://name/x",
            r"a local path or a file:///, s3:// or gs:// URL but got 'hdfs://name/x'",
        ),
        ("file://host/x", r"a file:///"),
        ("s3://", r"must be s3://BUCKET/NAME"),
        ("s3://b/x?region=here", r"AWS_ENDPOINT_URL"),
        ("gs://key@b/x", r"must be gs://BUCKET/NAME"),
    ],
)
def test_other_urls_are_refused(url, message):
    with pytest.raises(UsageError, match=message):
        as_path(url)


@pytest.fixture(scope="module")
def stored(s3_bucket):
    """A run in a bucket, for tests that do not change it."""
    return make_run(as_path(f"{s3_bucket}/stored")).directory


def test_run_in_an_object_store_is_the_one_on_a_disk(stored, tmp_path):
    there, here = stored, make_run(tmp_path).directory
    assert there.numbers() == here.numbers() == [1, 2, 3]
    assert there.next_number() == 4
    assert [(n, p.name) for n, p in there.save_directories()] == [
        (n, p.name) for n, p in here.save_directories()
    ]
    newest = there.latest()
    assert newest is not None
    assert newest == here.latest()
    there.check_present(newest)
    there.check_content(newest, newest.files)
    assert read_chain(there, newest, GROUP).equals(read_chain(here, newest, GROUP))


def test_commands_take_a_url(s3_dir, capsys, tmp_path):
    run = make_run(as_path(s3_dir))
    assert main(["verify", s3_dir, "--all"]) == 0
    assert capsys.readouterr().out.startswith("3 manifests, 9 files, ")
    assert main(["inspect", s3_dir]) == 0
    assert "delta-3" in capsys.readouterr().out
    output = tmp_path / "C1.parquet"
    assert table_command("export", s3_dir, "--table", "C1", "--output", output) == 0
    assert output.stat().st_size > 0
    capsys.readouterr()

    (ids := tmp_path / "ids").write_text("1\n")
    for command, *given in (
        ["forget", "--ids", ids],
        ["import", "--input", output, "--present", "keep"],
        ["import", "--input", output, "--embedding-dim", 2],
    ):
        assert table_command(command, s3_dir, "--table", "C1", *given) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert f"an object store has no locks to {command} under: {command} in a local" in line
    # Half of the rows are in another shard than a run writes them to: see `CheckpointRun`.
    table_command("get", s3_dir, "--table", "C1", "--id", *range(8))
    assert '"embedding": [' in capsys.readouterr().out
    assert run.directory.numbers() == [1, 2, 3]

    entry = run.directory.read(3).files[1]
    path = run.directory.file(entry)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))
    assert main(["verify", s3_dir]) == 1
    assert f"{path}: xxh3_64 of bytes 0-{entry.bytes - 1}: expected " in capsys.readouterr().out
    path.unlink()
    assert main(["verify", s3_dir]) == 1
    assert f"{path}: content: expected a readable file" in capsys.readouterr().out
    with pytest.raises(CorruptCheckpointError, match=r"s3://bucket/.*cannot be read"):
        run.directory.check_present(run.directory.read(3))
    assert main(["inspect", f"{s3_dir}/none"]) == 2
    assert "there is no directory" in capsys.readouterr().err


def test_nothing_appears_of_a_write_that_raises(s3_dir):
    path = as_path(s3_dir) / "x"

    def write_half():
        with file_io.write_atomically(path) as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert not path.exists()
    with pytest.raises(CheckpointError, match=r"cannot write 's3://no-such-bucket/x'"):
        file_io.write_bytes(as_path("s3://no-such-bucket/x"), b"data")


def test_large_object_goes_up_in_parts_and_comes_back(s3_dir):
    path = as_path(s3_dir) / "large"
    data = os.urandom(23 << 20)
    file_io.write_bytes(path, data)
    assert path.stat().st_size == len(data)
    assert file_io.checksum_file(path) == (len(data), file_io.checksum_bytes(data))


def test_manifest_that_another_writer_put_meanwhile_is_not_a_commit(s3_dir, monkeypatch):
    run = CheckpointRun(as_path(s3_dir))
    run.base([])
    committing = ObjectStore.committing

    @contextmanager
    def commit_and_lose(store, path):
        with committing(store, path) as file:
            yield file
        if path.parent.name == "manifests":
            path.write_bytes(b"{}")

    monkeypatch.setattr(ObjectStore, "committing", commit_and_lose)
    with pytest.raises(CheckpointError, match="written by another run meanwhile"):
        run.delta([])


def test_collection_keeps_what_is_leased(s3_dir):
    run = CheckpointRun(as_path(s3_dir))
    run.base([])
    leased = lease_latest(run.directory, "reader", expire_secs=60)
    assert leased is not None
    for _ in range(4):
        run.base([])
    collected = collect_garbage(run.directory, [KeepNewest(1), KeepChains(1)])
    assert run.directory.numbers() == [1, 5]
    assert set(collected.manifests) == {2, 3, 4}
    assert collected.bytes > 0
    run.directory.check_present(run.directory.read(1))
    assert [lease.number for lease in read_leases(run.directory)] == [1]
    release_lease(run.directory, "reader")
    release_lease(run.directory, "reader")
    collect_garbage(run.directory, [KeepNewest(1), KeepChains(1)])
    assert run.directory.numbers() == [5]
    assert {path.name for _, path in run.directory.save_directories()} == {"base-5", "dense-5"}


def test_collection_keeps_what_a_ref_names(s3_dir):
    directory = make_run(as_path(s3_dir)).directory
    move_ref(directory, "prod", 1)
    move_ref(directory, "prod", 2)
    assert collect_garbage(directory, [KeepNewest(1)]).manifests == (1,)
    directory.check_present(directory.read(number_of(directory, "prod")))
    move_ref(directory, "prod", None)
    assert collect_garbage(directory, [KeepNewest(1)]).manifests == (2,)


def test_removal_that_a_kill_cut_short_is_undone(s3_dir):
    directory = make_run(as_path(s3_dir)).directory
    path = directory.manifest_path(2)
    path.replace(path.with_suffix(".removed"))
    assert directory.numbers() == [1, 3]
    collect_garbage(directory, [KeepNewest(3)])
    assert directory.numbers() == [1, 2, 3]


def test_objects_are_where_the_format_says(stored):
    filesystem, root = pafs.FileSystem.from_uri(str(stored.path))
    found = filesystem.get_file_info(pafs.FileSelector(root, recursive=True))
    names = {PurePosixPath(f.path).relative_to(root).as_posix() for f in found if f.is_file}
    assert "manifests/00000003.json" in names
    assert "base-1/dim2/shard-0-of-2.arrow" in names
    assert not any(name.endswith(".tmp") for name in names)


def test_chain_in_an_object_store_is_not_compacted_but_followed(stored):
    with pytest.raises(CheckpointError, match="no locks to compact under"):
        compact(stored)
    changes = list(follow(str(stored.path), idle_secs=0))
    assert [c.position.number for c in changes if isinstance(c, Reached)] == [1, 2, 3]
    assert sum(c.batch.num_rows for c in changes if isinstance(c, Rows)) == 9 + 3 + 2
    batches = list(diff(stored, stored.read(2), stored.read(3)))
    assert sum(batch.num_rows for batch in batches) == 2  # one came back, one went
