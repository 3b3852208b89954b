"""Reads a gzip, bzip2, xz, zstd or plain log as blocks of whole records, in bounded memory."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import lzma
import queue
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import xxhash
import zstandard

from embedps.errors import DatasetError

from .bad_lines import BadLine
from .quoted_records import RecordFinder, Records
from .text_encoding import without_mark

BLOCK_BYTES = 8 << 20
MAX_LINE_BYTES = 1 << 20
_READ_BYTES = 1 << 20
_INFLATED_BYTES = 4 << 20
_STOP_SECS = 1.0
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WBITS = 31
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_BZIP2_MAGIC = re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)")
_XZ_MAGIC = b"\xfd7zXZ\0"
_XZ_BYTES = 256 << 20  # what a file may ask for; `xz -9` asks for 65 MiB
_ZSTD_READ_BYTES = 4 << 10
"""Bytes given to the decompressor at once; its output is at most a few hundred times as long."""


class ByteStream(Protocol):
    """A readable stream: a file, or one that a Beam file system opened."""

    def read(self, size: int, /) -> bytes:
        """Returns up to `size` bytes, none at the end."""
        ...

    def close(self) -> None:
        """Frees its resources."""
        ...


@dataclass(frozen=True, kw_only=True)
class LineBlock:
    """Whole records, each ending in a line feed without a carriage return, and bad lines.

    `first_line` counts from 1; `num_lines` counts the lines of `data`.
    """

    first_line: int
    num_lines: int
    data: bytes
    bad: tuple[BadLine, ...] = ()
    bytes_read: int = 0
    """The bytes of the file read so far, this block included."""
    records: Records | None = None
    """None if each line is a record."""


class LineBlockReader:
    """Iterates over a stream's blocks; afterwards has its size, checksum, lines and records.

    A compressed stream that is cut or damaged gives the lines before the damage, then one bad line
    that reports it and ends the file. A line over MAX_LINE_BYTES is bad; it is set aside in parts.
    A quote that does not close within as many bytes is no quote that opens: its line is bad.
    """

    def __init__(
        self,
        stream: ByteStream,
        *,
        block_bytes: int | None = None,
        delimiter: str = ",",
        quote: str = "",
        encoding: str = "utf-8",
        name: str = "the input",
    ) -> None:
        """Takes the stream, the characters of its fields, no `quote` if lines are records.

        `name` tells errors of an encoding that is not read (`text_encoding`).
        """
        self._stream, self._name, self._quote = stream, name, quote.encode()
        self._encoding = encoding
        self._finder = RecordFinder(delimiter, quote) if quote else None
        self._block_bytes = block_bytes or BLOCK_BYTES
        self._digest = xxhash.xxh3_64()
        self._fault: str | None = None
        self.num_bytes = 0
        self.num_lines = 0
        self.num_records = 0
        """The records, good or bad; each bad line that is no record counts as one."""

    @property
    def checksum(self) -> str:
        """The XXH3-64 of the bytes read so far, as 16 hexadecimal digits."""
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[LineBlock]:
        parts: list[bytes] = []
        size = 0
        long_line_parts = 0
        for piece in without_mark(self._utf8_pieces(), self._name):
            bad: list[BadLine] = []
            if long_line_parts:
                piece, long_line_parts = self._skip_long_line(piece, long_line_parts, bad)
            parts.append(piece)
            size += len(piece)
            if size >= self._block_bytes or bad:
                whole, rest = _cut_after_last_line(b"".join(parts))
                is_long = len(rest) > MAX_LINE_BYTES
                block, open_record = self._block(whole, bad, is_last=is_long)
                if is_long:
                    long_line_parts = 1
                    bad.append(self._long_line_part(rest, 1))
                    rest = b""
                    block = replace(block, bad=tuple(bad))
                rest = open_record + rest
                parts, size = [rest], len(rest)
                yield block
        yield from self._last_block(b"".join(parts), long_line_parts)

    def _last_block(self, data: bytes, long_line_parts: int) -> Iterator[LineBlock]:
        bad: list[BadLine] = []
        if self._fault is not None:
            data, cut_line = _cut_after_last_line(data)
            block, _ = self._block(data, [], is_last=True)
            self.num_lines += 1
            self.num_records += 1
            bad.append(
                BadLine(line=self.num_lines, reason=self._fault, raw=cut_line, ends_file=True)
            )
            yield replace(block, bad=tuple(bad))
            return
        if long_line_parts:
            self.num_lines += 1
            self.num_records += 1
        elif data and not data.endswith(b"\n"):
            data += b"\n"
        if data:
            yield self._block(data, bad, is_last=True)[0]

    def _block(self, data: bytes, bad: list[BadLine], *, is_last: bool) -> tuple[LineBlock, bytes]:
        """Makes a block of lines; returns it and the lines of a record that is not whole yet."""
        records, rest = None, b""
        if self._finder is not None and self._quote in data:
            records = self._finder.find(data, limit=None if is_last else MAX_LINE_BYTES)
            data, rest = data[: records.end], data[records.end :]
            if b"\r" in data:
                data, records = records.without_returns(data)
        elif b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        first_line = self.num_lines + 1
        num_lines = data.count(b"\n")
        self.num_lines += num_lines
        self.num_records += num_lines if records is None else len(records.ends)
        block = LineBlock(
            first_line=first_line,
            num_lines=num_lines,
            data=data,
            bad=tuple(bad),
            bytes_read=self.num_bytes,
            records=records,
        )
        return block, rest

    def _long_line_part(self, raw: bytes, part: int) -> BadLine:
        return BadLine(
            line=self.num_lines + 1,
            reason=f"a line must have at most {MAX_LINE_BYTES} bytes, part {part} of a longer one",
            raw=raw,
        )

    def _skip_long_line(self, piece: bytes, parts: int, bad: list[BadLine]) -> tuple[bytes, int]:
        """Removes the rest of a too long line from a piece; returns the remainder and the parts."""
        head, newline, tail = piece.partition(b"\n")
        bad.append(self._long_line_part(head, parts + 1))
        if not newline:
            return b"", parts + 1
        self.num_lines += 1
        self.num_records += 1
        return tail, 0

    def _utf8_pieces(self) -> Iterator[bytes]:
        if self._encoding == "utf-8":
            yield from self._pieces()
            return
        decoder = codecs.getincrementaldecoder(self._encoding)()
        try:
            for piece in self._pieces():
                yield decoder.decode(piece).encode()
            if self._fault is None:
                yield decoder.decode(b"", final=True).encode()
        except UnicodeError as error:
            raise DatasetError(
                f"{self._name}: must be {self._encoding}, as the schema declares: {error}"
            ) from None

    def _pieces(self) -> Iterator[bytes]:
        raw = self._read()
        if raw.startswith(_GZIP_MAGIC):
            yield from self._inflated(raw)
        elif raw.startswith(_ZSTD_MAGIC):
            yield from self._from_zstd(raw)
        elif _BZIP2_MAGIC.match(raw):
            yield from self._unpacked(raw, "bzip2", bz2.BZ2Decompressor)
        elif raw.startswith(_XZ_MAGIC):
            limited = partial(lzma.LZMADecompressor, memlimit=_XZ_BYTES)
            yield from self._unpacked(raw, "xz", limited)
        else:
            while raw:
                yield raw
                raw = self._read()

    def _unpacked(self, raw: bytes, kind: str, make: Callable[[], Any]) -> Iterator[bytes]:
        stream = make()
        while True:
            if stream.eof:
                # A file may consist of several streams; xz pads them with zeros.
                raw = stream.unused_data.lstrip(b"\0")
                while not raw and (more := self._read()):
                    raw = more.lstrip(b"\0")
                if not raw:
                    return
                stream = make()
            elif stream.needs_input and not raw and not (raw := self._read()):
                self._fault = f"the {kind} stream ends early: the file is cut off here"
                return
            try:
                yield stream.decompress(raw, _INFLATED_BYTES)
            except (OSError, EOFError, lzma.LZMAError) as error:
                self._fault = f"the {kind} stream is damaged here: {error}"
                self._read_to_end()
                return
            raw = b""

    def _from_zstd(self, raw: bytes) -> Iterator[bytes]:
        frames = zstandard.ZstdDecompressor()
        frame = frames.decompressobj()
        while raw:
            for at in range(0, len(raw), _ZSTD_READ_BYTES):
                piece = raw[at : at + _ZSTD_READ_BYTES]
                while piece:
                    if frame.eof:
                        frame = frames.decompressobj()
                    try:
                        yield frame.decompress(piece)
                    except zstandard.ZstdError as error:
                        self._fault = f"the zstd stream is damaged here: {error}"
                        self._read_to_end()
                        return
                    piece = frame.unused_data if frame.eof else b""
            raw = self._read()
        if not frame.eof:
            self._fault = "the zstd stream ends early: the file is cut off here"

    def _inflated(self, raw: bytes) -> Iterator[bytes]:
        inflate = zlib.decompressobj(_GZIP_WBITS)
        while raw:
            before = inflate.copy()
            try:
                yield inflate.decompress(raw, _INFLATED_BYTES)
            except zlib.error as error:
                yield from self._salvage(before, raw)
                self._fault = f"the gzip stream is damaged here: {error}"
                self._read_to_end()
                return
            if inflate.eof:
                # A gzip file may consist of several members and end in zeros.
                raw = inflate.unused_data.lstrip(b"\0")
                while not raw and (more := self._read()):
                    raw = more.lstrip(b"\0")
                if not raw:
                    return
                inflate = zlib.decompressobj(_GZIP_WBITS)
            else:
                raw = inflate.unconsumed_tail or self._read()
        while rest := inflate.decompress(b"", _INFLATED_BYTES):
            yield rest
        self._fault = "the gzip stream ends early: the file is cut off here"

    def _salvage(self, inflate: zlib._Decompress, raw: bytes) -> Iterator[bytes]:
        """Yields the output of a damaged piece up to the damage."""
        for at in range(len(raw)):
            try:
                yield inflate.decompress(raw[at : at + 1])
            except zlib.error:
                return

    def _read(self) -> bytes:
        raw = self._stream.read(_READ_BYTES)
        self._digest.update(raw)
        self.num_bytes += len(raw)
        return raw

    def _read_to_end(self) -> None:
        while self._read():
            pass


def _cut_after_last_line(data: bytes) -> tuple[bytes, bytes]:
    at = data.rfind(b"\n") + 1
    return data[:at], data[at:]


def checksum_of(stream: ByteStream) -> str:
    """Computes the XXH3-64 of all bytes of a stream, as 16 hexadecimal digits."""
    digest = xxhash.xxh3_64()
    while raw := stream.read(_READ_BYTES):
        digest.update(raw)
    return digest.hexdigest()


class ReadAhead:
    """Iterates over blocks that a thread reads ahead, so that decompression and parsing overlap."""

    def __init__(self, blocks: Iterable[LineBlock], *, depth: int = 2) -> None:
        self._blocks = blocks
        self._queue: queue.Queue[LineBlock | BaseException | None] = queue.Queue(depth)
        self._stopped = threading.Event()

    def __iter__(self) -> Iterator[LineBlock]:
        thread = threading.Thread(target=self._fill, name="read-ahead", daemon=True)
        thread.start()
        try:
            while (item := self._queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self._stopped.set()
            # Makes room for a waiting put, so that the thread sees the stop.
            with contextlib.suppress(queue.Empty):
                while True:
                    self._queue.get_nowait()
            # A thread that waits for input, such as from a pipe, must not delay an interrupt.
            thread.join(_STOP_SECS)

    def _fill(self) -> None:
        try:
            for block in self._blocks:
                self._queue.put(block)
                if self._stopped.is_set():
                    return
            self._queue.put(None)
        except BaseException as error:  # the consumer raises it
            self._queue.put(error)
