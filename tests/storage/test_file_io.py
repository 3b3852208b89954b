"""Atomic files: whole or absent, also when the writer is killed."""

import os
import signal
import subprocess
import sys

import pytest
import xxhash

from embedps.errors import CheckpointError
from embedps.storage import file_io

WRITER = """
import sys
from pathlib import Path
from embedps.storage import file_io

with file_io.write_atomically(Path(sys.argv[1])) as file:
    file.write(b"half of ")
    print("half", flush=True)
    sys.stdin.read()
"""


def test_written_file_is_whole_with_its_checksum(tmp_path):
    path = tmp_path / "new" / "deeper" / "file"
    parts = [b"", b"some ", bytearray(b"bytes"), memoryview(b" here" * 300_000)]
    with file_io.write_atomically(path) as file:
        for part in parts:
            assert file.write(part) == len(part)
        assert not path.exists()
    data = b"".join(bytes(part) for part in parts)
    assert path.read_bytes() == data
    assert file.digest.num_bytes == len(data)
    expected = f"{xxhash.xxh3_64_intdigest(data):016x}"
    assert file.digest.xxh3_64 == expected
    assert file_io.checksum_file(path) == (len(data), expected)
    assert file_io.checksum_bytes(data) == expected
    assert os.listdir(path.parent) == ["file"]


def test_multi_byte_views_are_counted_in_bytes(tmp_path):
    with file_io.write_atomically(tmp_path / "file") as file:
        assert file.write(memoryview(b"12345678").cast("q")) == 8
    assert (tmp_path / "file").read_bytes() == b"12345678"


@pytest.mark.parametrize("value", [0, 1, 2**63, 2**64 - 1])
def test_checksum_text_is_the_same_for_both_integers_of_the_bits(value):
    signed = value - 2**64 if value >= 2**63 else value
    assert file_io.format_checksum(signed) == file_io.format_checksum(value) == f"{value:016x}"


def test_failed_block_keeps_what_was_there(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="stop"):
        write_and_fail(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def write_and_fail(path):
    with file_io.write_atomically(path) as file:
        file.write(b"new")
        raise RuntimeError("stop")


def test_unwritable_place_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"cannot write '.*/file/under'"):
        file_io.write_bytes(tmp_path / "file" / "under", b"x")


def test_full_disk_is_named_and_leaves_nothing(tmp_path):
    path = tmp_path / "file"
    (tmp_path / "file.tmp").symlink_to("/dev/full")
    with pytest.raises(CheckpointError, match=r"cannot write '.*/file'.*No space left"):
        file_io.write_bytes(path, b"x")
    assert os.listdir(tmp_path) == []


@pytest.mark.multiprocess
def test_killed_writer_leaves_the_old_file_and_the_next_one_succeeds(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "half\n"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert path.read_bytes() == b"old"
    assert (tmp_path / "file.tmp").read_bytes() == b"half of "

    file_io.write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]
