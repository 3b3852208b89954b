"""Verification: every kind of damage is found, at any byte of a checkpoint, and its place told."""

import dataclasses
import os
import re
import shutil

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from embedps import constants
from embedps.checkpoint.__main__ import main
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.dense import write_dense
from embedps.checkpoint.format.manifest import FileEntry, SaveSet
from embedps.checkpoint.lease import read_leases
from embedps.checkpoint.retention import KeepNewest, collect_garbage
from embedps.checkpoint.tools import verify as verify_module
from embedps.checkpoint.tools.verify import _check_file, _check_manifest, verify
from embedps.errors import CheckpointError
from embedps.storage import file_io
from tests.checkpoint.builders import (
    GROUP,
    CheckpointRun,
    Record,
    make_manifest,
    row_batch,
    row_schema,
    write_save,
)

NUM_ROWS = 9000  # some 400 kB: seven blocks


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> CheckpointDirectory:
    """Two row files of several blocks and batches, one of one block, a dense file, a manifest."""
    directory = CheckpointDirectory(tmp_path_factory.mktemp("whole"))
    files = []
    for shard, num_rows in ((0, NUM_ROWS), (1, NUM_ROWS), (2, 5)):
        path = directory.shard_path("base", 1, GROUP, shard, 3)
        with file_io.write_atomically(path) as file, pa.ipc.new_file(file, row_schema()) as writer:
            for first in range(0, num_rows, 1000):
                ids = range(3 * first + shard, 3 * min(first + 1000, num_rows) + shard, 3)
                writer.write_batch(row_batch([Record("C1", i, float(i)) for i in ids]))
        files.append(FileEntry.of(directory.relative(path), file.digest, rows=num_rows))
    arrays: dict[str, np.ndarray] = {
        "w": np.arange(40_000, dtype=np.float32),
        "b": np.zeros(3, np.int64),
    }
    dense = write_dense(directory.dense_path(1), arrays, root=directory.path)
    save = SaveSet(kind="base", number=1, step=1, since=None, files=tuple(files))
    progress = {"é": [1e-05, "\u00e9"], "rate": 0.5}
    directory.commit(dataclasses.replace(make_manifest(1, [save], dense), progress=progress))
    assert not verify(directory, [1]).problems
    return directory


def damaged(whole: CheckpointDirectory, name: str, data: bytes) -> list:
    """The problems of a copy (by links) in which one file holds other bytes."""
    copy = whole.path.with_name("damaged")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(whole.path, copy, copy_function=os.link)
    (copy / name).unlink()
    (copy / name).write_bytes(data)
    return list(verify(CheckpointDirectory(copy), [1]).problems)


def files_of(directory: CheckpointDirectory) -> list[str]:
    paths = (p.relative_to(directory.path) for p in directory.path.rglob("*") if p.is_file())
    return sorted(str(p) for p in paths if p.suffix in (".arrow", ".json"))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_flipped_bit_is_found_and_its_place_told(whole, data):
    name = data.draw(st.sampled_from(files_of(whole)))
    good = (whole.path / name).read_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    bit = data.draw(st.integers(0, 7))
    bad = bytearray(good)
    bad[at] ^= 1 << bit
    (problem,) = damaged(whole, name, bytes(bad))
    assert problem.path.endswith(name)
    assert problem.expected != problem.found
    if name.endswith(".arrow"):
        match = re.fullmatch(r"xxh3_64 of bytes (\d+)-(\d+)", problem.field)
        assert match is not None
        first, last = int(match[1]), int(match[2])
        assert first <= at <= last
        assert last - first < constants.FILE_PIECE_BYTES


@pytest.mark.parametrize("bit", [0, 3, 5, 7])
def test_any_flipped_bit_of_a_manifest_is_found(whole, bit):
    """Every byte: also where the JSON means the same, as in \\u00E9 and 1E-05."""
    name = "manifests/00000001.json"
    path = whole.path / name
    good = path.read_bytes()
    copy = CheckpointDirectory(whole.path.with_name(f"manifest-{bit}"))
    shutil.copytree(whole.path, copy.path, copy_function=os.link)
    (copy.path / name).unlink()
    same = 0
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << bit
        (copy.path / name).write_bytes(bad)
        try:
            copy.read(1)
        except Exception:  # the checksum, or the JSON
            continue
        (problem,) = _check_manifest(copy.path / name)
        assert problem.field == f"byte {at}"
        same += 1
    assert (same > 0) == (bit == 5)  # upper case, lower case


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.999])
def test_truncation_of_any_file_is_found_with_its_length(whole, fraction):
    for name in files_of(whole):
        good = (whole.path / name).read_bytes()
        length = int(fraction * len(good))
        (problem,) = damaged(whole, name, good[:length])
        assert problem.path.endswith(name)
        if name.endswith(".arrow"):
            assert (problem.field, problem.expected) == ("bytes", str(len(good)))
            assert problem.found == str(length)


def test_missing_and_longer_files_are_found(whole):
    for name in files_of(whole):
        good = (whole.path / name).read_bytes()
        assert [p.path.endswith(name) for p in damaged(whole, name, good + b"\0")] == [True]
        copy = whole.path.with_name("damaged")
        (copy / name).unlink()
        found = verify(CheckpointDirectory(copy), [1])
        if name.startswith("manifests/"):  # a run may have removed it, after it was listed
            assert (found.manifests, found.collected, found.problems) == (0, (1,), ())
        else:
            (problem,) = found.problems
            assert problem.path.endswith(name)


def test_swapped_files_of_one_size_are_both_found(whole):
    first, second = (f"base-1/{GROUP}/shard-{i}-of-3.arrow" for i in (0, 1))
    data = [(whole.path / name).read_bytes() for name in (first, second)]
    assert len(data[0]) == len(data[1])
    damaged(whole, first, data[1])
    copy = whole.path.with_name("damaged")
    (copy / second).unlink()
    (copy / second).write_bytes(data[0])
    problems = verify(CheckpointDirectory(copy), [1]).problems
    assert [p.path.endswith(n) for p, n in zip(problems, (first, second), strict=True)]
    # Some blocks are of ids, which differ; others, such as the first, need not.
    assert all(re.match(r"xxh3_64 of bytes \d+-\d+", p.field) for p in problems)


def test_blocks_are_the_checksums_of_pieces_checksums(whole):
    """Written out by the format's words, for sizes about the steps."""
    piece = 65536
    for size in (0, 1, piece, piece + 1, 32 * piece, 32 * piece + 1, 70 * piece + 5):
        data = np.random.default_rng(size).bytes(size)
        block = piece
        while -(-size // block) > 32:
            block *= 2
        expected = ""
        for start in range(0, size, block):
            some = data[start : start + block]
            sums = [
                xxhash.xxh3_64_intdigest(some[i : i + piece]) for i in range(0, len(some), piece)
            ]
            joined = b"".join(s.to_bytes(8, "little") for s in sums)
            expected += f"{xxhash.xxh3_64_intdigest(joined):016x}"
        digest = file_io.Digest()
        for start in range(0, size, 100_000):
            digest.update(data[start : start + 100_000])
        assert digest.blocks == expected
        assert digest.xxh3_64 == f"{xxhash.xxh3_64_intdigest(data):016x}"
        assert file_io.block_bytes(size) == block


def test_ledger_that_no_run_can_go_on_from_is_named(tmp_path):
    directory = CheckpointDirectory(tmp_path)
    save = write_save(directory, "base", 1, [Record("C1", 1)])
    directory.commit(make_manifest(1, [save], ledger={"x": 1}))
    (problem,) = verify(directory, [1]).problems
    assert str(problem) == (
        f"{tmp_path}/manifests/00000001.json: content: expected a readable file, found "
        "field 'ledger.dataset': expected a text, found nothing"
    )


@pytest.fixture
def collecting(tmp_path, monkeypatch) -> CheckpointDirectory:
    """Three bases, 1 to 3. Before a file is read, a run collects all but the newest."""
    run = CheckpointRun(tmp_path)
    for i in range(3):
        run.base([Record("C1", 1, float(i))])

    def collect_and_check(path, entry, dims):
        collect_garbage(run.directory, [KeepNewest(1)])
        return _check_file(path, entry, dims)

    monkeypatch.setattr(verify_module, "_check_file", collect_and_check)
    return run.directory


def test_manifest_that_is_verified_stays_and_one_collected_meanwhile_is_no_damage(collecting):
    found = verify(collecting, [1, 2, 3])
    assert (found.manifests, found.collected, found.problems) == (2, (2,), ())
    assert found.files == 6  # two shards and the dense variables of 1 and of 3
    assert read_leases(collecting) == []


def test_verify_goes_on_where_no_lease_can_be_written(collecting, capsys):
    collecting.leases_dir.write_bytes(b"")
    found = verify(collecting, [1, 2, 3])
    assert (found.manifests, found.collected, found.problems) == (1, (1, 2), ())
    (line,) = capsys.readouterr().err.splitlines()
    assert "no lease can be written there" in line


def test_command_says_which_manifests_were_collected_meanwhile(collecting, capsys):
    assert main(["verify", str(collecting.path), "--all"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("removed meanwhile, as its run keeps fewer: manifests 2")
    assert said[1].startswith("2 manifests, 6 files, ")


def test_command_says_that_all_were_collected_meanwhile(collecting):
    collecting.leases_dir.write_bytes(b"")
    with pytest.raises(CheckpointError, match="nothing could be verified: verify again"):
        main(["verify", str(collecting.path), "--number", "1"])
