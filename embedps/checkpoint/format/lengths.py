"""What an Arrow file's compressed buffers say they hold, before room is made for it.

Arrow takes a compressed buffer's word for its size. The kernels' readers decompress into a pool
that is capped; pyarrow has none, so the sizes are read first, by the layout of Arrow's columnar
format (File.fbs, Message.fbs: a table's field k is in slot 4 + 2 k of its vtable).
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

# What a hostile file's offsets lead to in a flatbuffer.
MALFORMED = (struct.error, IndexError, OverflowError, TypeError, ValueError)


Block: TypeAlias = tuple[int, ...]
"""Where a message is: offset in the file, bytes of metadata, bytes of its body."""


class Blocks:
    """Where an Arrow file has its dictionaries and record batches."""

    def __init__(self, file: pa.NativeFile) -> None:
        """Reads the footer, of a file that Arrow has opened.

        Raises:
          one of MALFORMED: it is not one.
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
        """What the compressed buffers of a block say they hold, together; 0 where none is.

        Raises:
          one of MALFORMED: the block is not one.
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
                total += max(0, claimed)  # -1: stored as it is
        return total

    def _read(self, offset: int, num_bytes: int) -> bytes:
        if offset < 0 or not 0 <= num_bytes <= self._size - offset:
            raise ValueError(f"{num_bytes} bytes at {offset} of a file of {self._size}")
        data: bytes = self._file.read_at(num_bytes, offset)
        return data


def _root(data: bytes) -> Table:
    return Table(data, struct.unpack_from("<I", data)[0])


def _field(table: Table, slot: int) -> int:
    offset: int = table.Offset(slot)
    if not offset:
        raise ValueError(f"no field in slot {slot}")
    position: int = table.Pos + offset
    return position


def _table(table: Table, slot: int) -> Table:
    return Table(table.Bytes, table.Indirect(_field(table, slot)))


def _structs(table: Table, slot: int, layout: struct.Struct) -> Iterator[tuple[int, ...]]:
    offset = table.Offset(slot)
    if not offset:
        return
    first = table.Vector(offset)
    for i in range(table.VectorLen(offset)):
        yield layout.unpack_from(table.Bytes, first + i * layout.size)
