"""Foreign files behind links, and numbers of 200 digits: one line, and nothing of their content."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.dense import read_dense
from embedps.checkpoint.tools.verify import verify
from embedps.errors import CheckpointError
from embedps.storage import file_io
from tests.checkpoint.builders import make_run
from tests.checkpoint.readers import read_row_file

SECRET = "root:x:0:0:a line that nobody may be shown"
DIGITS = 10**199


@pytest.fixture
def directory(tmp_path: Path) -> CheckpointDirectory:
    return make_run(tmp_path / "run").directory


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    path = tmp_path / "passwd"
    path.write_text(f"{SECRET}\n" * 100)
    return path


def manifest_of(directory: CheckpointDirectory) -> Path:
    return directory.manifest_path(3)


def rows_of(directory: CheckpointDirectory) -> Path:
    return directory.file(directory.read(3).chain[0].files[0])


def dense_of(directory: CheckpointDirectory) -> Path:
    return directory.dense_path(3)


@pytest.mark.parametrize(
    ("of", "read"),
    [
        (manifest_of, lambda directory: directory.latest()),
        (rows_of, lambda directory: read_row_file(rows_of(directory))),
        (rows_of, lambda directory: directory.check_present(directory.read(3))),
        (dense_of, lambda directory: read_dense(dense_of(directory))),
    ],
    ids=["manifest", "rows", "size", "dense"],
)
def test_a_foreign_file_behind_a_link_is_refused_and_not_quoted(
    directory: CheckpointDirectory,
    foreign: Path,
    of: Callable[[CheckpointDirectory], Path],
    read: Callable[[CheckpointDirectory], object],
) -> None:
    path = of(directory)
    path.unlink()
    path.symlink_to(foreign)
    with pytest.raises(CheckpointError) as error:
        read(directory)
    assert SECRET not in str(error.value)
    if path != directory.manifest_path(3):
        (problem,) = verify(directory, [3]).problems
        assert SECRET not in str(problem)


@pytest.mark.parametrize("field", ["number", "step", "num_shards"])
def test_a_number_of_200_digits_in_a_manifest_is_refused(
    directory: CheckpointDirectory, field: str
) -> None:
    content = json.loads(manifest_of(directory).read_bytes())
    del content["xxh3_64"]
    content[field] = DIGITS
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    content["xxh3_64"] = file_io.checksum_bytes(canonical)
    manifest_of(directory).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=rf"{field} must be") as error:
        directory.latest()
    assert len(str(error.value)) < 1000


def test_a_manifests_name_of_200_digits_ends_a_search(directory: CheckpointDirectory) -> None:
    path = directory.manifests_dir / f"{DIGITS}.json"
    path.write_bytes(manifest_of(directory).read_bytes())
    newest = directory.latest()  # a name that no save writes is no manifest
    assert newest is not None
    assert newest.number == max(directory.numbers())
