"""A disk and an object store keep the same promises."""

from pathlib import Path

import pytest

from embedps.errors import CheckpointError
from embedps.storage.file_io import read_bytes, store_of, touch, write_bytes
from embedps.storage.file_lock import check_locks
from embedps.storage.object_store import as_path
from tests.builders import ROOT


@pytest.fixture(params=["disk", "objects"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    place = tmp_path if request.param == "disk" else request.getfixturevalue("s3_dir")
    return as_path(place) / "new"


def test_a_file_is_there_as_a_whole_or_not_at_all(directory: Path) -> None:
    store = store_of(directory)
    assert store.names_in(directory) == []
    store.make_directories(directory)
    with store.committing(directory / "a") as file:
        file.write(b"some")
        assert "a" not in store.names_in(directory)
        file.write(b"thing")
    store.sync_directory(directory)
    with store.open(directory / "a") as file, store.open_arrow(directory / "a") as mapped:
        assert file.read() == mapped.read() == b"something"
    with pytest.raises(ZeroDivisionError), store.committing(directory / "b"):
        _ = 1 / 0
    assert store.names_in(directory) == ["a"]
    with pytest.raises(FileNotFoundError):
        store.open(directory / "b")


def test_a_line_is_appended_and_a_note_replaced(directory: Path) -> None:
    store = store_of(directory)
    store.make_directories(directory)
    for line in (b"1\n", b"2\n"):
        store.append_line(directory / "lines", line)
        store.write_note(directory / "note", line)
    assert read_bytes(directory / "lines") == b"1\n2\n"
    assert read_bytes(directory / "note") == b"2\n"
    with store.open(directory / "lines") as file:
        file.seek(4)
        assert file.read() == b""


def test_a_line_follows_a_truncated_one_on_its_own(directory: Path) -> None:
    write_bytes(directory / "lines", b"1\nhal")
    store_of(directory).append_line(directory / "lines", b"2\n")
    assert read_bytes(directory / "lines") == b"1\nhal\n2\n"


def test_a_directory_goes_with_all_in_it_and_gives_its_bytes(directory: Path) -> None:
    store = store_of(directory)
    for name in ("a", "below/b"):
        write_bytes(directory / name, b"four")
    assert [file.name for file in store.list_files(directory, "")] == ["a", "below/b"]
    assert store.remove_directory(directory) == 8
    assert store.names_in(directory) == []


def test_a_touched_file_is_there_and_has_a_time(directory: Path) -> None:
    store_of(directory).make_directories(directory)
    assert touch(directory / "a") > 1e9
    assert not (directory / "a").is_symlink()
    assert read_bytes(directory / "a") == b""


def test_only_a_disk_has_locks(tmp_path: Path) -> None:
    check_locks(tmp_path, "compact")
    with pytest.raises(CheckpointError, match="no locks to compact under: compact in a local copy"):
        check_locks(as_path("s3://bucket/a"), "compact")


def test_one_place_asks_of_which_store_a_path_is() -> None:
    asking = [
        path.name
        for path in (ROOT / "embedps").rglob("*.py")
        if ", ObjectPath)" in path.read_text() and "isinstance(" in path.read_text()
    ]
    assert asking == ["object_store.py"]
