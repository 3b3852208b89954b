"""Reads the decompressed sizes of an Arrow file's buffers, before memory is allocated for them.

A compressed buffer states its decompressed size, and Arrow allocates that size without a check.
The kernels' readers decompress into a memory pool with a limit. pyarrow has no such pool, so the
stated sizes are read first, by the layout of Arrow's columnar format (File.fbs, Message.fbs: field
k of a table is at offset 4 + 2 k of its vtable).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TypeAlias

import flatbuffers
import pyarrow as pa
from flatbuffers.table import Table

_FOOTER_DICTIONARIES, _FOOTER_RECORD_BATCHES = 8, 10
_MESSAGE_HEADER_TYPE, _MESSAGE_HEADER = 6, 8
_BATCH_BUFFERS, _BATCH_COMPRESSION = 8, 10
_DICTIONARY_DATA = 6
_DICTIONARY_TYPE, _RECORD_BATCH_TYPE = 2, 3
_BLOCK = struct.Struct("<qi4xq")  # offset, bytes of metadata, bytes of the body
_BUFFER = struct.Struct("<qq")  # offset in the body, bytes
_TAIL = struct.Struct("<i6s")  # bytes of the footer, magic

# The errors that bad offsets of a hostile file cause in a flatbuffer.
MALFORMED = (struct.error, IndexError, OverflowError, TypeError, ValueError)


Block: TypeAlias = tuple[int, ...]
"""Locates a message: offset in the file, bytes of metadata, bytes of its body."""


class Blocks:
    """Locates the dictionaries and record batches of an Arrow file."""

    def __init__(self, file: pa.NativeFile) -> None:
        """Reads the footer of a file that Arrow has opened.

        Raises:
          one of MALFORMED: the footer is not valid.
        """
        self._file, self._size = file, file.size()
        tail_at = self._size - _TAIL.size
        footer_bytes, magic = _TAIL.unpack(self._read(tail_at, _TAIL.size))
        if magic != b"ARROW1":
            raise ValueError("no footer")
        footer = _root(self._read(tail_at - footer_bytes, footer_bytes))
        self.dictionaries: list[Block] = list(_structs(footer, _FOOTER_DICTIONARIES, _BLOCK))
        self.batches: list[Block] = list(_structs(footer, _FOOTER_RECORD_BATCHES, _BLOCK))

    def decompressed_bytes(self, block: Block) -> int:
        """Sums the stated decompressed sizes of a block's buffers; 0 if none is compressed.

        Raises:
          one of MALFORMED: the block is not valid.
        """
        offset, metadata_bytes, _ = block
        data = self._read(offset, metadata_bytes)
        message = _root(data[8 if data[:4] == b"\xff\xff\xff\xff" else 4 :])
        kind = message.Get(
            flatbuffers.number_types.Uint8Flags, _field(message, _MESSAGE_HEADER_TYPE)
        )
        batch = _table(message, _MESSAGE_HEADER)
        if kind == _DICTIONARY_TYPE:
            batch = _table(batch, _DICTIONARY_DATA)
        elif kind != _RECORD_BATCH_TYPE:
            raise ValueError(f"a message of kind {kind}")
        if not batch.Offset(_BATCH_COMPRESSION):
            return 0
        total = 0
        for at, num_bytes in _structs(batch, _BATCH_BUFFERS, _BUFFER):
            if num_bytes >= 8:
                prefix = self._read(offset + metadata_bytes + at, 8)
                (claimed,) = struct.unpack("<q", prefix)
                total += max(0, claimed)  # -1: not compressed
        return total

    def _read(self, offset: int, num_bytes: int) -> bytes:
        if offset < 0 or not 0 <= num_bytes <= self._size - offset:
            raise ValueError(f"{num_bytes} bytes at {offset} of a file of {self._size}")
        data: bytes = self._file.read_at(num_bytes, offset)
        return data


def _root(data: bytes) -> Table:
    return Table(data, struct.unpack_from("<I", data)[0])


def _field(table: Table, vtable_offset: int) -> int:
    offset: int = table.Offset(vtable_offset)
    if not offset:
        raise ValueError(f"no field at vtable offset {vtable_offset}")
    position: int = table.Pos + offset
    return position


def _table(table: Table, vtable_offset: int) -> Table:
    return Table(table.Bytes, table.Indirect(_field(table, vtable_offset)))


def _structs(table: Table, vtable_offset: int, layout: struct.Struct) -> Iterator[tuple[int, ...]]:
    offset = table.Offset(vtable_offset)
    if not offset:
        return
    first = table.Vector(offset)
    for i in range(table.VectorLen(offset)):
        yield layout.unpack_from(table.Bytes, first + i * layout.size)
