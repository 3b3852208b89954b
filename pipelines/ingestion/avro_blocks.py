"""Reads an Avro container file as blocks of records; what a block costs is bounded by its bytes."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import fastavro
import orjson
import pyarrow as pa
import zstandard

from embedps.errors import DatasetError

from .avro_schema import AvroSchema
from .bad_lines import BadLine
from .unpacked_stream import ByteStream, UnpackedReader

MAX_BLOCK_BYTES = 16 << 20
"""The most bytes of a block of the file, before and after its codec."""
_TOGETHER_BYTES = 2 << 20  # of records that are parsed at once
_HEADER_BYTES = 1 << 20
MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_VARINT_BYTES = 10
_SHOWN_BYTES = 4096
_HINT = "copy or write the file again"
_MALFORMED = (EOFError, IndexError, KeyError, ValueError, OverflowError, struct.error)


@dataclass(frozen=True, kw_only=True)
class AvroBlock:
    """Records, each decoded and as its bytes, and bad ones with their numbers from 1."""

    schema: AvroSchema | None
    numbers: list[int] = field(default_factory=list)
    found: list[dict[str, Any]] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    bad: list[BadLine] = field(default_factory=list)
    bytes_read: int = 0
    """The bytes of the file read so far, this block included."""


class _DamageError(Exception):
    """Says why the file cannot be read on."""


class AvroReader(UnpackedReader):
    """Iterates over a stream's records; afterwards has its size, checksum and number of records.

    A file that is cut or damaged gives the records before, then one bad record that ends the file.

    Raises:
      DatasetError: the file's schema or codec is not read.
    """

    def __init__(self, stream: ByteStream, name: str = "the input") -> None:
        super().__init__(stream)
        self._name = name
        self._pieces = self._input.pieces()
        self._held = b""
        self._at = 0  # in `held`
        self._offset = 0  # of `held`, in the unpacked bytes
        self.num_records = 0

    def __iter__(self) -> Iterator[AvroBlock]:
        schema = None
        block, size = AvroBlock(schema=None), 0
        try:
            schema, codec, sync = self._header()
            block = AvroBlock(schema=schema)
            while self._has_more():
                place = self._offset + self._at
                data, count = self._block(codec, sync, place)
                self._decode(block, data, count, place)
                size += len(data)
                if size >= _TOGETHER_BYTES:
                    yield self._done(block)
                    block, size = AvroBlock(schema=schema), 0
        except _DamageError as damage:
            self.num_records += 1
            reason = self._input.fault or f"the Avro file is {damage}: {_HINT}"
            block.bad.append(BadLine(line=self.num_records, reason=reason, raw=b"", ends_file=True))
            for _ in self._pieces:
                pass  # to its end, as the checksum is of the whole file
        yield self._done(block)

    def _done(self, block: AvroBlock) -> AvroBlock:
        return AvroBlock(**{**vars(block), "bytes_read": self._input.num_bytes})

    def _header(self) -> tuple[AvroSchema, str, bytes]:
        if (magic := self._take(len(MAGIC))) != MAGIC:
            raise _DamageError(f"none: it must begin with {MAGIC!r}, it begins with {magic!r}")
        meta: dict[bytes, bytes] = {}
        while count := self._long():
            if count < 0:
                self._long()
            for _ in range(abs(count)):
                name = self._take(self._size(_HEADER_BYTES))
                meta[name] = self._take(self._size(_HEADER_BYTES))
                if self._offset + self._at > 2 * _HEADER_BYTES:
                    raise _DamageError(
                        f"damaged: its header must be below {2 * _HEADER_BYTES} bytes"
                    )
        sync = self._take(_SYNC_BYTES)
        codec = meta.get(b"avro.codec", b"null").decode("utf-8", "backslashreplace") or "null"
        if codec not in _CODECS:
            raise DatasetError(
                f"{self._name}: its codec must be one of {', '.join(_CODECS)}, it is {codec!r}: "
                "write it with one of these"
            )
        try:
            return AvroSchema(orjson.loads(meta.get(b"avro.schema", b""))), codec, sync
        except orjson.JSONDecodeError as error:
            raise _DamageError(f"damaged: its schema must be JSON: {error}") from None
        except DatasetError as error:
            raise DatasetError(f"{self._name}: {error}") from None

    def _block(self, codec: str, sync: bytes, place: int) -> tuple[bytes, int]:
        """Reads a block; returns its bytes after the codec, and its number of records."""
        count = self._long()
        data = self._take(self._size(MAX_BLOCK_BYTES))
        where = f"in the block at byte {place}"
        if self._take(_SYNC_BYTES) != sync:
            raise _DamageError(f"damaged {where}: the mark after it is not the file's")
        try:
            data = _CODECS[codec](data)
        except (zlib.error, OSError, EOFError, lzma.LZMAError, zstandard.ZstdError) as error:
            raise _DamageError(f"damaged {where}: {codec}: {error}") from None
        except ValueError as error:
            raise _DamageError(f"damaged {where}: {error}") from None
        if not 0 <= count <= len(data):
            raise _DamageError(
                f"damaged {where}: it must have at most as many records as bytes, {len(data)}, "
                f"got {count}"
            )
        return data, count

    def _decode(self, block: AvroBlock, data: bytes, count: int, place: int) -> None:
        """Adds a block's records."""
        schema = block.schema.plain if block.schema is not None else {}
        stream = io.BytesIO(data)
        read = fastavro.schemaless_reader
        end = 0
        for _ in range(count):
            begin = end
            self.num_records += 1
            number = self.num_records
            try:
                try:
                    found: Any = read(stream, schema, None)
                except UnicodeDecodeError:
                    stream.seek(begin)
                    found = read(stream, schema, None, handle_unicode_errors="replace")
                    raw = shown_record(found)
                    block.bad.append(BadLine(line=number, reason="must be UTF-8", raw=raw))
                    end = stream.tell()
                    continue
            except _MALFORMED as error:
                self.num_records -= 1
                raise _DamageError(
                    f"damaged in the block at byte {place}, in its record at byte {begin}: "
                    f"{error or 'the record is cut off'}"
                ) from None
            end = stream.tell()
            block.numbers.append(number)
            block.found.append(found)
            block.raw.append(data[begin:end])
        if end != len(data):
            raise _DamageError(
                f"damaged in the block at byte {place}: {len(data) - end} bytes are left after "
                f"its {count} records"
            )

    def _has_more(self) -> bool:
        while self._at == len(self._held):
            piece = next(self._pieces, None)
            if piece is None:
                if self._input.fault:
                    raise _DamageError("damaged")
                return False
            self._offset += len(self._held)
            self._held, self._at = piece, 0
        return True

    def _take(self, size: int) -> bytes:
        parts = []
        while size:
            if not self._has_more():
                raise _DamageError(f"cut off at byte {self._offset + self._at}")
            part = self._held[self._at : self._at + size]
            self._at += len(part)
            size -= len(part)
            parts.append(part)
        return b"".join(parts)

    def _long(self) -> int:
        value = 0
        for place in range(_VARINT_BYTES):
            byte = self._take(1)[0]
            value |= (byte & 127) << 7 * place
            if byte < 128:
                return value >> 1 ^ -(value & 1)
        raise _DamageError(f"damaged at byte {self._offset + self._at}: a number is too long")

    def _size(self, most: int) -> int:
        at = self._offset + self._at
        size = self._long()
        if not 0 <= size <= most:
            raise _DamageError(
                f"damaged or not read at byte {at}: a size must be 0 to {most}, it is {size}; if "
                "it is whole, write it with smaller blocks"
            )
        return size


def shown_record(record: Any) -> bytes:
    """Writes a record as JSON, for a report; a long one is cut."""
    return json.dumps(record, default=repr)[:_SHOWN_BYTES].encode()


def _bounded(data: bytes, is_whole: bool) -> bytes:
    if not is_whole:
        raise ValueError(
            f"it must unpack to at most {MAX_BLOCK_BYTES} bytes, it has more or is cut"
        )
    return data


def _inflate(data: bytes) -> bytes:
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    return _bounded(stream.decompress(data, MAX_BLOCK_BYTES), stream.eof)


def _from_bzip2(data: bytes) -> bytes:
    stream = bz2.BZ2Decompressor()
    return _bounded(stream.decompress(data, MAX_BLOCK_BYTES), stream.eof)


def _from_xz(data: bytes) -> bytes:
    stream = lzma.LZMADecompressor(memlimit=256 << 20)
    return _bounded(stream.decompress(data, MAX_BLOCK_BYTES), stream.eof)


def _from_zstd(data: bytes) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(data) as stream:
        found = stream.read(MAX_BLOCK_BYTES)
        return _bounded(found, not stream.read(1))


def _from_snappy(data: bytes) -> bytes:
    data, foot = data[:-4], data[-4:]
    size = 0
    for place, byte in enumerate(data[:5]):
        size |= (byte & 127) << 7 * place
        if byte < 128:
            break
    _bounded(b"", size <= MAX_BLOCK_BYTES)
    found: bytes = pa.Codec("snappy").decompress(data, size, asbytes=True)
    if (crc := zlib.crc32(found)) != int.from_bytes(foot, "big"):
        raise ValueError(f"its checksum must be {crc}, it is {int.from_bytes(foot, 'big')}")
    return found


_CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": _inflate,
    "bzip2": _from_bzip2,
    "xz": _from_xz,
    "zstandard": _from_zstd,
    "snappy": _from_snappy,
}
