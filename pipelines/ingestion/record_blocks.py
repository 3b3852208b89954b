"""Reads a TFRecord file, plain or packed, as blocks of records whose checksums were compared."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from .bad_lines import BadLine
from .unpacked_stream import ByteStream, UnpackedReader

BLOCK_BYTES = 4 << 20
MAX_RECORD_BYTES = 16 << 20
_LENGTH = struct.Struct("<Q")
_FOOT_BYTES = 4
_HEAD_BYTES = _LENGTH.size + _FOOT_BYTES
_FRAME_BYTES = _HEAD_BYTES + _FOOT_BYTES
_HINT = "copy or write the file again"


def masked_crc32c(parts: Iterable[bytes]) -> NDArray[np.uint32]:
    """Computes the checksum of each part, as TensorFlow masks it."""
    crc = np.fromiter(map(google_crc32c.value, parts), np.uint32)
    return np.asarray((crc >> 15 | crc << 17) + np.uint32(0xA282EAD8))


@dataclass(frozen=True, kw_only=True)
class RecordBlock:
    """Whole records, the first one's number from 1, and bad ones with their numbers."""

    first: int
    data: bytes
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    """The records are data[start:end], in order."""
    bad: tuple[BadLine, ...] = ()
    bytes_read: int = 0
    """The bytes of the file read so far, this block included."""

    @property
    def num_records(self) -> int:
        return len(self.starts)

    def record(self, place: int) -> bytes:
        """Copies a record."""
        return self.data[self.starts[place] : self.ends[place]]


class RecordReader(UnpackedReader):
    """Iterates over a stream's blocks; afterwards has its size, checksum and number of records.

    A file that is cut or damaged gives the records before, then one bad record that ends the file.
    A record of more than MAX_RECORD_BYTES is bad; it is never in memory.
    """

    def __init__(self, stream: ByteStream) -> None:
        super().__init__(stream)
        self.num_records = 0
        self._offset = 0  # of `data`, in the unpacked bytes
        self._skip = 0  # bytes of a too long record still to come

    def __iter__(self) -> Iterator[RecordBlock]:
        parts: list[bytes] = []
        size = 0
        damaged = False
        for piece in self._input.pieces():
            if damaged:
                continue  # to its end, as the checksum is of the whole file
            skipped = min(self._skip, len(piece))
            self._skip -= skipped
            self._offset += skipped
            parts.append(piece[skipped:])
            size += len(piece) - skipped
            if size >= BLOCK_BYTES:
                block, rest, damaged = self._block(b"".join(parts))
                parts, size = [rest], len(rest)
                yield block
        if damaged:
            return
        block, rest, damaged = self._block(b"".join(parts))
        while (
            rest and block.num_records and not damaged
        ):  # a record that is too long begins a block
            yield block
            block, rest, damaged = self._block(rest)
        if not damaged and (rest or self._skip or self._input.fault):
            reason = self._input.fault or "the TFRecord file is cut off here"
            block = self._ended(block, f"{reason}, at byte {self._offset} of its records: {_HINT}")
        yield block

    def _block(self, data: bytes) -> tuple[RecordBlock, bytes, bool]:
        """Makes a block of whole records; returns it, the rest, and whether the file is damaged."""
        starts: list[int] = []
        ends: list[int] = []
        bad: list[BadLine] = []
        first, at, damage = self.num_records + 1, 0, ""
        while at + _HEAD_BYTES <= len(data):
            length = _LENGTH.unpack_from(data, at)[0]
            if length > MAX_RECORD_BYTES:
                damage = self._length_damage(data, at)
                if damage or bad or starts:
                    break  # a record that is too long begins a block
                reason = f"a record must have at most {MAX_RECORD_BYTES} bytes, got {length}"
                bad.append(BadLine(line=first, reason=reason, raw=b""))
                self.num_records += 1
                at += length + _FRAME_BYTES
                break
            end = at + _HEAD_BYTES + length
            if end + _FOOT_BYTES > len(data):
                damage = self._length_damage(data, at)
                break
            starts.append(at + _HEAD_BYTES)
            ends.append(end)
            at = end + _FOOT_BYTES
        num_good, wrong = self._num_good(data, starts, ends)
        damage = wrong or damage
        if wrong:
            at = starts[num_good] - _HEAD_BYTES
        self.num_records += num_good
        block = RecordBlock(
            first=first,
            data=data,
            starts=np.array(starts[:num_good], np.int64),
            ends=np.array(ends[:num_good], np.int64),
            bad=tuple(bad),
            bytes_read=self._input.num_bytes,
        )
        if damage:
            return self._ended(block, damage), b"", True
        self._skip = max(at - len(data), 0)
        self._offset += at - self._skip
        return block, data[at:], False

    def _length_damage(self, data: bytes, at: int) -> str:
        return self._num_good(data, [at + _HEAD_BYTES], [])[1]

    def _num_good(self, data: bytes, starts: list[int], ends: list[int]) -> tuple[int, str]:
        """Returns how many records come before the first of a wrong checksum, and what is wrong.

        Without ends, only the checksums of the lengths are compared.
        """
        heads = [(start - _HEAD_BYTES, start - _FOOT_BYTES) for start in starts]
        checked = [("a length", heads), ("a record's bytes", list(zip(starts, ends, strict=False)))]
        best, told = len(starts), ""
        for what, ranges in checked:
            ranges = ranges[:best]
            sums = masked_crc32c(data[first:last] for first, last in ranges)
            feet = b"".join(data[last : last + _FOOT_BYTES] for _, last in ranges)
            wrong = np.flatnonzero(np.frombuffer(feet, "<u4") != sums)
            if len(wrong):
                best = int(wrong[0])
                place = self._offset + starts[best] - _HEAD_BYTES
                told = (
                    f"the TFRecord file is damaged at byte {place} of its records: the "
                    f"checksum of {what} must be {sums[best]}, it is "
                    f"{np.frombuffer(feet, '<u4')[best]}: {_HINT}, or declare the format that it "
                    "has"
                )
        return best, told

    def _ended(self, block: RecordBlock, reason: str) -> RecordBlock:
        self.num_records += 1
        line = BadLine(line=self.num_records, reason=reason, raw=b"", ends_file=True)
        return RecordBlock(
            first=block.first,
            data=block.data,
            starts=block.starts,
            ends=block.ends,
            bad=(*block.bad, line),
            bytes_read=block.bytes_read,
        )
