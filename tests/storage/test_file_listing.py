"""The listing of files below a directory or a prefix of an object store."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from embedps.storage.file_io import store_of
from embedps.storage.object_store import as_path
from embedps.storage.store import ListedFile

SEEN = ("b.parquet", "day=1/hour=2/a.parquet", "c.parquet")
UNSEEN = ("_x.parquet", ".y.parquet", "_new/z.parquet", "a/.b/c.parquet", "d.parquet.tmp", "e.txt")


def list_files(directory: Path, suffix: str, **options: Any) -> list[ListedFile]:
    return store_of(directory).list_files(directory, suffix, **options)


def test_files_come_by_modification_then_name(tmp_path: Path) -> None:
    for i, name in enumerate((*SEEN, *UNSEEN)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * (i + 1))
        os.utime(path, ns=(10, 10 - min(i, 1)))
    os.symlink("absent.txt", tmp_path / "broken.txt")
    found = list_files(tmp_path, ".parquet")
    assert [(file.name, file.num_bytes) for file in found] == [
        ("c.parquet", 3),
        ("day=1/hour=2/a.parquet", 2),
        ("b.parquet", 1),
    ]
    known = {"c.parquet", "day=1/hour=2/a.parquet"}
    assert [file.name for file in list_files(tmp_path, ".parquet", known=known)] == ["b.parquet"]
    with pytest.raises(FileNotFoundError):
        list_files(tmp_path / "absent", ".parquet")


def test_links_that_lead_nowhere_and_folders_that_cannot_be_listed_hide_no_other(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"x")
    os.symlink("absent", tmp_path / "absent.parquet")
    os.symlink("loop.parquet", tmp_path / "loop.parquet")
    long = tmp_path
    descriptor = os.open(long, os.O_RDONLY)
    for _ in range(20):  # a path that is longer than the system takes
        os.mkdir("d" * 250, dir_fd=descriptor)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    unlisted: list[str] = []
    found = list_files(tmp_path, ".parquet", on_unlisted=lambda name, _: unlisted.append(name))
    assert {file.name for file in found} == {"a.parquet", "absent.parquet", "loop.parquet"}
    assert len(unlisted) == 1


def test_objects_come_by_modification_then_name(s3_dir: str) -> None:
    prefix = as_path(f"{s3_dir}/in")
    assert list_files(prefix, ".parquet") == []
    for name in (*SEEN, *UNSEEN):
        (prefix / name).write_bytes(b"xy")
    found = list_files(prefix, ".parquet")
    assert {file.name for file in found} == set(SEEN)
    assert found == sorted(found, key=lambda file: (file.modified_ns, file.name))
    assert all(file.modified_ns > 10**18 and file.num_bytes == 2 for file in found)
    known = set(SEEN[:2])
    assert [file.name for file in list_files(prefix, ".parquet", known=known)] == ["c.parquet"]


@pytest.mark.slow
def test_a_store_that_does_not_answer_is_an_error(
    s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(OSError, match="unanswered"):
            list_files(as_path("s3://unanswered/in"), ".parquet")
