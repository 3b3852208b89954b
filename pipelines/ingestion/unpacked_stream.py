"""Reads the bytes of a file that is plain or packed by gzip, bzip2, xz or zstd, piece by piece."""

from __future__ import annotations

import bz2
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import xxhash
import zstandard

_READ_BYTES = 1 << 20
_INFLATED_BYTES = 4 << 20
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


class UnpackedStream:
    """Unpacks a stream; tells the size and checksum of what it read, and where it is damaged.

    Attributes:
      num_bytes: read of the stream so far.
      fault: why the stream ends early; None if it does not.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._digest = xxhash.xxh3_64()
        self.num_bytes = 0
        self.fault: str | None = None

    @property
    def checksum(self) -> str:
        """The XXH3-64 of the bytes read so far, as 16 hexadecimal digits."""
        return self._digest.hexdigest()

    def pieces(self) -> Iterator[bytes]:
        """Yields the unpacked bytes; `fault` tells afterwards whether they are all."""
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
                self.fault = f"the {kind} stream ends early: the file is cut off here"
                return
            try:
                yield stream.decompress(raw, _INFLATED_BYTES)
            except (OSError, EOFError, lzma.LZMAError) as error:
                self.fault = f"the {kind} stream is damaged here: {error}"
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
                        self.fault = f"the zstd stream is damaged here: {error}"
                        self._read_to_end()
                        return
                    piece = frame.unused_data if frame.eof else b""
            raw = self._read()
        if not frame.eof:
            self.fault = "the zstd stream ends early: the file is cut off here"

    def _inflated(self, raw: bytes) -> Iterator[bytes]:
        inflate = zlib.decompressobj(_GZIP_WBITS)
        while raw:
            before = inflate.copy()
            try:
                yield inflate.decompress(raw, _INFLATED_BYTES)
            except zlib.error as error:
                yield from self._salvage(before, raw)
                self.fault = f"the gzip stream is damaged here: {error}"
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
        self.fault = "the gzip stream ends early: the file is cut off here"

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


class UnpackedReader:
    """Reads a stream to its end, unpacked; afterwards has its size and checksum."""

    def __init__(self, stream: ByteStream) -> None:
        self._input = UnpackedStream(stream)

    @property
    def num_bytes(self) -> int:
        """The bytes of the file read so far."""
        return self._input.num_bytes

    @property
    def checksum(self) -> str:
        """The XXH3-64 of the bytes read so far, as 16 hexadecimal digits."""
        return self._input.checksum


def checksum_of(stream: ByteStream) -> str:
    """Computes the XXH3-64 of all bytes of a stream, as 16 hexadecimal digits."""
    digest = xxhash.xxh3_64()
    while raw := stream.read(_READ_BYTES):
        digest.update(raw)
    return digest.hexdigest()
