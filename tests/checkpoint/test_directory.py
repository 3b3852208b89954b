"""The directory: paths, commits, and what is found after crashes and damage."""

import dataclasses
import json
import os

import pytest

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest_json import to_json
from embedps.errors import CheckpointError, CorruptCheckpointError
from tests.checkpoint.builders import CheckpointRun, Record, make_run
from tests.checkpoint.readers import newest_of


def test_paths_are_those_of_the_format(tmp_path):
    directory = CheckpointDirectory(tmp_path)
    assert directory.manifest_path(12) == tmp_path / "manifests" / "00000012.json"
    assert directory.base_dir(3) == tmp_path / "base-3"
    assert directory.dense_path(4) == tmp_path / "dense-4" / "dense.arrow"
    shard = directory.shard_path("delta", 4, "dim16-adagrad", 1, 5)
    assert shard == tmp_path / "delta-4" / "dim16-adagrad" / "shard-1-of-5.arrow"
    assert directory.relative(shard) == "delta-4/dim16-adagrad/shard-1-of-5.arrow"
    with pytest.raises(CheckpointError, match="must be a file name but is 'a/b'"):
        directory.shard_path("base", 0, "a/b", 0, 1)


def test_empty_directory_has_no_manifest(tmp_path):
    directory = CheckpointDirectory(tmp_path / "absent")
    assert directory.latest() is None
    assert directory.numbers() == []
    assert directory.next_number() == 1
    with pytest.raises(CheckpointError, match=r"there is no manifest 3, there are \[\]"):
        directory.read(3)


def test_commits_come_back_and_the_newest_is_the_latest(tmp_path):
    run = CheckpointRun(tmp_path)
    manifests = [run.base([Record("C1", 1, 1.0)]), run.delta([Record("C1", 2, 2.0)])]
    directory = CheckpointDirectory(tmp_path)
    assert directory.numbers() == [1, 2]
    assert [directory.read(n) for n in (1, 2)] == manifests
    assert directory.latest() == manifests[1]
    assert directory.next_number() == 3


def test_commit_refuses_a_number_that_is_not_new(tmp_path):
    run = make_run(tmp_path)
    newest = newest_of(run.directory)
    before = run.directory.manifest_path(3).read_bytes()
    for number in (3, 2):
        chain = newest.chain[:number]
        again = dataclasses.replace(newest, number=number, step=0, chain=chain)
        with pytest.raises(
            CheckpointError, match=f"greater than the newest manifest's, 3, but is {number}"
        ):
            run.directory.commit(again)
    assert run.directory.manifest_path(3).read_bytes() == before


def test_commit_refuses_a_manifest_of_absent_or_short_files(tmp_path):
    run = make_run(tmp_path)
    newest = newest_of(run.directory)
    following = dataclasses.replace(newest, number=4)
    path = run.directory.file(newest.chain[1].files[0])
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(
        CorruptCheckpointError, match=rf"'bytes': expected {len(whole)}, found {len(whole) - 1}"
    ):
        run.directory.commit(following)
    path.unlink()
    with pytest.raises(
        CorruptCheckpointError, match=r"delta-2/dim2/shard-0-of-2\.arrow: manifest 4"
    ):
        run.directory.commit(following)
    assert run.directory.numbers() == [1, 2, 3]


def test_next_number_skips_leftovers_of_failed_commits(tmp_path):
    run = make_run(tmp_path)
    (run.directory.path / "delta-9").mkdir()
    (tmp_path / "delta-x").mkdir()
    (tmp_path / "base-77").write_text("a file, not a save")
    assert run.directory.next_number() == 10


def test_leftovers_of_a_killed_commit_are_no_manifest(tmp_path):
    run = make_run(tmp_path)
    newest = newest_of(run.directory)
    half = to_json(newest)[:100]
    (run.directory.manifests_dir / "00000004.json.tmp").write_bytes(half)
    (run.directory.manifests_dir / "notes.txt").write_bytes(half)
    assert run.directory.latest() == newest
    assert run.delta([]).number == 4
    assert run.directory.numbers() == [1, 2, 3, 4]


@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty", "swapped"])
def test_corrupt_newest_is_raised_unless_told_to_skip(tmp_path, damage):
    run = make_run(tmp_path)
    path = run.directory.manifest_path(3)
    data = path.read_bytes()
    path.write_bytes(
        {
            "flipped": data.replace(b'"step": 300', b'"step": 301'),
            "truncated": data[: len(data) // 2],
            "empty": b"",
            "swapped": run.directory.manifest_path(1).read_bytes(),
        }[damage]
    )
    with pytest.raises(CorruptCheckpointError, match=r"00000003\.json"):
        run.directory.latest()
    skipped = run.directory.latest(skip_corrupt=True)
    assert skipped is not None
    assert skipped.number == 2


def test_all_corrupt_is_raised_even_when_skipping(tmp_path):
    run = make_run(tmp_path)
    for number in (1, 2, 3):
        run.directory.manifest_path(number).write_bytes(b"{}")
    with pytest.raises(CorruptCheckpointError, match=r"00000003\.json"):
        run.directory.latest(skip_corrupt=True)


def test_manifest_collected_between_listing_and_reading_is_no_error(tmp_path, monkeypatch):
    run = make_run(tmp_path)
    listed = run.directory.numbers
    calls = []

    def stale_once() -> list[int]:
        calls.append(1)
        return [1, 2, 9] if len(calls) == 1 else listed()

    monkeypatch.setattr(run.directory, "numbers", stale_once)
    latest = newest_of(run.directory)
    assert latest.number == 3


def test_check_present_names_the_first_absent_file(tmp_path):
    run = make_run(tmp_path)
    newest = newest_of(run.directory)
    run.directory.check_present(newest)
    os.rename(run.directory.dense_path(3), tmp_path / "elsewhere")
    with pytest.raises(CorruptCheckpointError, match=r"dense-3/dense\.arrow: manifest 3 names it"):
        run.directory.check_present(newest)


def test_check_content_finds_what_check_present_cannot(tmp_path):
    run = make_run(tmp_path)
    newest = newest_of(run.directory)
    run.directory.check_content(newest, newest.files)
    path = run.directory.dense_path(3)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    run.directory.check_present(newest)
    run.directory.check_content(newest, newest.files[:-1])
    with pytest.raises(CorruptCheckpointError, match=r"dense\.arrow: field 'xxh3_64': expected"):
        run.directory.check_content(newest, newest.files)
    path.unlink()
    with pytest.raises(CorruptCheckpointError, match=r"dense\.arrow: manifest 3 names it"):
        run.directory.check_content(newest, newest.files)


def test_manifest_is_json_that_anything_reads(tmp_path):
    run = make_run(tmp_path)
    content = json.loads(run.directory.manifest_path(3).read_text())
    assert content["format"] == "embedps.manifest"
    assert [save["kind"] for save in content["chain"]] == ["base", "delta", "delta"]


@pytest.mark.parametrize("name", ["000000003.json", "٠٠٠٠٠٠٠٣.json", "9" * 30 + ".json", "4.json"])
def test_names_that_no_save_writes_are_not_manifests(tmp_path, name):
    directory = make_run(tmp_path).directory
    (directory.manifests_dir / name).write_text("{}")
    (tmp_path / "base-007").mkdir()
    (tmp_path / "delta-٣").mkdir()
    (tmp_path / f"delta-{'9' * 30}").mkdir()
    assert directory.numbers() == [1, 2, 3]
    newest = newest_of(directory)
    assert newest.number == 3
    assert directory.next_number() == 4


def test_a_manifest_that_is_a_link_to_nothing_is_named(tmp_path):
    directory = make_run(tmp_path).directory
    directory.manifest_path(4).symlink_to(tmp_path / "absent")
    with pytest.raises(CorruptCheckpointError, match=r"00000004\.json must be a file, but is a li"):
        directory.latest()
