"""Logs are read as blocks of whole lines, whatever their packing, cut or damage."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from embedps.pipelines.ingestion import line_blocks, unpacked_stream
from embedps.pipelines.ingestion.line_blocks import (
    LineBlock,
    LineBlockReader,
    ReadAhead,
)
from embedps.pipelines.ingestion.unpacked_stream import checksum_of
from tests.pipelines.builders import make_lines


def read(data: bytes, block_bytes: int = 1 << 12) -> tuple[list[LineBlock], LineBlockReader]:
    reader = LineBlockReader(io.BytesIO(data), block_bytes=block_bytes)
    return list(reader), reader


def lines_of(blocks: list[LineBlock]) -> list[bytes]:
    return b"".join(block.data for block in blocks).split(b"\n")[:-1]


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.binary(max_size=30).map(lambda b: b.translate(None, b"\n\r\0"))),
    block_bytes=st.integers(1, 64),
    packed=st.booleans(),
)
def test_blocks_hold_all_lines_in_order(lines: list[bytes], block_bytes: int, packed: bool):
    lines = [b"text", *lines]  # not the first bytes of another format
    plain = b"".join(line + b"\n" for line in lines)
    data = gzip.compress(plain) if packed else plain
    blocks, reader = read(data, block_bytes)
    assert lines_of(blocks) == lines
    assert reader.num_lines == len(lines)
    assert reader.num_bytes == len(data)
    assert reader.checksum == xxhash.xxh3_64_hexdigest(data) == checksum_of(io.BytesIO(data))
    line = 1
    for block in blocks:
        assert block.first_line == line
        assert block.data.count(b"\n") == block.num_lines
        line += block.num_lines


@pytest.mark.parametrize("packed", [False, True])
def test_blocks_stay_small_when_the_log_is_large(monkeypatch: pytest.MonkeyPatch, packed: bool):
    monkeypatch.setattr(unpacked_stream, "_READ_BYTES", 1000)
    monkeypatch.setattr(unpacked_stream, "_INFLATED_BYTES", 1000)
    # Packs to a thousandth: what is read at once must not be what it becomes.
    data = (b"0" * 99 + b"\n") * 10_000
    blocks, reader = read(gzip.compress(data) if packed else data, block_bytes=5000)
    assert b"".join(block.data for block in blocks) == data
    assert max(len(block.data) for block in blocks) <= 5000 + 1000
    assert reader.num_lines == 10_000


def test_last_line_without_break_is_a_line():
    blocks, reader = read(b"a\nb")
    assert lines_of(blocks) == [b"a", b"b"]
    assert reader.num_lines == 2


def test_carriage_returns_are_dropped_at_line_ends_only():
    blocks, _ = read(b"a\r\nb\rc\r\n")
    assert lines_of(blocks) == [b"a", b"b\rc"]


def test_empty_lines_are_lines():
    blocks, reader = read(b"\n\na\n")
    assert lines_of(blocks) == [b"", b"", b"a"]
    assert reader.num_lines == 3


def test_empty_file_has_no_lines():
    blocks, reader = read(b"")
    assert (blocks, reader.num_lines, reader.num_bytes) == ([], 0, 0)


def test_members_and_padding_of_gzip_are_read_through():
    data = gzip.compress(b"a\nb") + gzip.compress(b"c\nd\n") + bytes(3000)
    blocks, reader = read(data)
    assert lines_of(blocks) == [b"a", b"bc", b"d"]
    assert reader.num_bytes == len(data)


def test_cut_gzip_gives_its_lines_and_says_where_it_ends():
    lines = make_lines(3000)
    data = gzip.compress(b"".join(line + b"\n" for line in lines))
    blocks, reader = read(data[: len(data) // 2])
    got = lines_of(blocks)
    (bad,) = blocks[-1].bad
    assert 1000 < len(got) < 2000
    assert got == lines[: len(got)]
    assert bad.line == len(got) + 1 == reader.num_lines
    assert "ends early" in bad.reason
    assert lines[len(got)].startswith(bad.raw)


def test_gzip_cut_before_its_checksum_keeps_every_line():
    lines = make_lines(100)
    data = gzip.compress(b"".join(line + b"\n" for line in lines))
    blocks, reader = read(data[:-4])
    assert lines_of(blocks) == lines
    assert [bad.line for bad in blocks[-1].bad] == [101]
    assert reader.num_lines == 101


def test_damaged_gzip_gives_the_lines_before_the_damage():
    lines = make_lines(3000)
    data = bytearray(gzip.compress(b"".join(line + b"\n" for line in lines), 1))
    at = len(data) // 2
    data[at : at + 64] = b"\xff" * 64
    blocks, reader = read(bytes(data))
    known = set(lines)
    got = [line for line in lines_of(blocks) if line in known]
    (bad,) = blocks[-1].bad
    assert 1000 < len(got) < 2000
    assert got == lines[: len(got)]
    assert "damaged" in bad.reason
    assert bad.line == reader.num_lines
    assert reader.num_bytes == len(data)
    assert reader.checksum == xxhash.xxh3_64_hexdigest(bytes(data))


@pytest.mark.parametrize("end", [b"\n", b""])
def test_line_of_megabytes_is_set_aside_in_parts(monkeypatch: pytest.MonkeyPatch, end: bytes):
    monkeypatch.setattr(line_blocks, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(unpacked_stream, "_READ_BYTES", 64)
    long_line = bytes(range(97, 123)) * 40
    tail = b"after\nend\n" if end else b""
    blocks, reader = read(b"before\n" + long_line + end + tail, block_bytes=128)
    bad = [item for block in blocks for item in block.bad]
    assert b"".join(item.raw for item in bad) == long_line
    assert {item.line for item in bad} == {2}
    assert lines_of(blocks) == ([b"before", b"after", b"end"] if end else [b"before"])
    assert reader.num_lines == (4 if end else 2)


def test_read_ahead_gives_the_same_blocks():
    data = gzip.compress(b"".join(line + b"\n" for line in make_lines(500)))
    ahead = list(ReadAhead(LineBlockReader(io.BytesIO(data), block_bytes=4096)))
    assert ahead == read(data, 4096)[0]


def test_read_ahead_raises_what_the_reader_raises():
    def failing() -> Iterator[LineBlock]:
        yield LineBlock(first_line=1, num_lines=0, data=b"")
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(ReadAhead(failing()))


def test_read_ahead_ends_its_thread_when_left_early():
    def endless() -> Iterator[LineBlock]:
        while True:
            yield LineBlock(first_line=1, num_lines=0, data=b"")

    blocks = iter(ReadAhead(endless()))
    next(blocks)
    assert [t for t in threading.enumerate() if t.name == "read-ahead"]
    blocks.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name == "read-ahead"]


def test_read_ahead_is_left_at_once_while_its_thread_waits_for_input(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(line_blocks, "_STOP_SECS", 0.01)
    arrived = threading.Event()

    def waiting() -> Iterator[LineBlock]:
        yield LineBlock(first_line=1, num_lines=0, data=b"")
        arrived.wait()

    blocks = iter(ReadAhead(waiting()))
    next(blocks)
    blocks.close()  # type: ignore[attr-defined]
    (thread,) = [t for t in threading.enumerate() if t.name == "read-ahead"]
    arrived.set()
    thread.join()


PACK: dict[str, Callable[[bytes], bytes]] = {"bzip2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("kind", PACK)
def test_streams_of_bzip2_and_xz_are_read_through_in_bounded_parts(kind: str):
    lines = [str(i).encode() for i in range(3)] + [b"0" * 100] * 200_000
    data = b"".join(line + b"\n" for line in lines)
    packed = PACK[kind](data[:6]) + PACK[kind](data[6:]) + bytes(8 if kind == "xz" else 0)
    reader = LineBlockReader(io.BytesIO(packed))
    blocks = list(reader)
    assert b"".join(block.data for block in blocks) == data
    assert max(len(block.data) for block in blocks) < 20 << 20 > len(data) / 2
    assert (reader.num_bytes, reader.checksum) == (
        len(packed),
        xxhash.xxh3_64_hexdigest(packed),
    )


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("fault", ["ends early", "is damaged here"])
def test_cut_or_damaged_bzip2_and_xz_say_so(kind: str, fault: str):
    rng = np.random.default_rng(0)
    lines = [rng.bytes(40).hex().encode() for _ in range(60_000)]
    packed = bytearray(PACK[kind](b"".join(line + b"\n" for line in lines)))
    if fault == "ends early":
        del packed[-len(packed) // 4 :]
    else:
        packed[-len(packed) // 4] ^= 0xFF
    blocks = list(LineBlockReader(io.BytesIO(bytes(packed))))
    found = b"".join(block.data for block in blocks).splitlines()
    assert found == lines[: len(found)]
    (bad,) = (bad for block in blocks for bad in block.bad)
    assert f"the {kind} stream {fault}" in bad.reason
    assert bad.ends_file


def test_xz_may_not_ask_for_more_memory_than_its_tool_needs():
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}]
    packed = lzma.compress(b"a\n", filters=filters)
    (block,) = LineBlockReader(io.BytesIO(packed))
    assert "Memory usage limit exceeded" in block.bad[0].reason
