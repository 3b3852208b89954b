"""Reads a log, packed or plain, as blocks of whole records, in bounded memory."""

from __future__ import annotations

import codecs
import contextlib
import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from embedps.errors import DatasetError

from .bad_lines import BadLine
from .quoted_records import RecordFinder, Records
from .text_encoding import without_mark
from .unpacked_stream import ByteStream, UnpackedReader

BLOCK_BYTES = 8 << 20
MAX_LINE_BYTES = 1 << 20
_STOP_SECS = 1.0


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


class LineBlockReader(UnpackedReader):
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
        super().__init__(stream)
        self._name, self._quote = name, quote.encode()
        self._encoding = encoding
        self._finder = RecordFinder(delimiter, quote) if quote else None
        self._block_bytes = block_bytes or BLOCK_BYTES
        self.num_lines = 0
        self.num_records = 0
        """The records, good or bad; each bad line that is no record counts as one."""

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
        if self._input.fault is not None:
            data, cut_line = _cut_after_last_line(data)
            block, _ = self._block(data, [], is_last=True)
            self.num_lines += 1
            self.num_records += 1
            bad.append(
                BadLine(line=self.num_lines, reason=self._input.fault, raw=cut_line, ends_file=True)
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
            yield from self._input.pieces()
            return
        decoder = codecs.getincrementaldecoder(self._encoding)()
        try:
            for piece in self._input.pieces():
                yield decoder.decode(piece).encode()
            if self._input.fault is None:
                yield decoder.decode(b"", final=True).encode()
        except UnicodeError as error:
            raise DatasetError(
                f"{self._name}: must be {self._encoding}, as the schema declares: {error}"
            ) from None


def _cut_after_last_line(data: bytes) -> tuple[bytes, bytes]:
    at = data.rfind(b"\n") + 1
    return data[:at], data[at:]


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
