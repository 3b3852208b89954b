"""Tells UTF-8 text from other input by its first bytes, and drops its byte order mark."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from embedps.errors import DatasetError

_HEAD_BYTES = 512
_MARK = b"\xef\xbb\xbf"
_CONVERT = 'declare encoding = "{}"'
_UNPACK = "unpack it, or pack it by gzip, bzip2, xz or zstd"
_TABLE = 'declare format = "{}"'
_EXPORT = "export it as CSV or Parquet"
_SIGNS = (
    (b"\xff\xfe\0\0", "UTF-32 text", _CONVERT.format("UTF-32")),
    (b"\0\0\xfe\xff", "UTF-32 text", _CONVERT.format("UTF-32")),
    (b"\xff\xfe", "UTF-16 text", _CONVERT.format("UTF-16")),
    (b"\xfe\xff", "UTF-16 text", _CONVERT.format("UTF-16")),
    (b"]\0\0\x80\0", "packed by lzma", _UNPACK),
    (b"PK\x03\x04", "a zip archive or an Excel file", "unpack it, or " + _EXPORT),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (b"\x04\x22\x4d\x18", "packed by lz4", _UNPACK),
    (b"\xff\x06\0\0sNaPpY", "packed by snappy", _UNPACK),
    (b"\x1f\x8b", "packed by gzip twice", "unpack it once"),
    (b"\x28\xb5\x2f\xfd", "packed by zstd within another packing", "unpack it once"),
    (b"BZh", "packed by bzip2 within another packing", "unpack it once"),
    (b"\xfd7zXZ\0", "packed by xz within another packing", "unpack it once"),
    (b"\x1f\x9d", "packed by compress", _UNPACK),
    (b"PAR1", "a Parquet file", _TABLE.format("parquet")),
    (b"ORC", "an ORC file", _TABLE.format("orc")),
    (b"ARROW1", "an Arrow file", _EXPORT),
    (b"Obj\x01", "an Avro file", _EXPORT),
    (b"\x93NUMPY", "a NumPy file", _EXPORT),
    (b"\x89HDF", "an HDF5 file", _EXPORT),
    (b"SQLite format 3", "an SQLite database", _EXPORT),
    (b"\xd0\xcf\x11\xe0", "an Excel file", _EXPORT),
    (b"\x80\x04\x95", "a pickle", _EXPORT),
    (b"\x80\x05\x95", "a pickle", _EXPORT),
)
"""The first bytes of other input, what it is, and what to do."""


def without_mark(pieces: Iterator[bytes], name: str) -> Iterator[bytes]:
    """Yields the pieces of a text without its UTF-8 byte order mark.

    Raises:
      DatasetError: the input is not UTF-8 text, or its lines end in carriage returns alone.
    """
    head = b""
    for piece in pieces:
        head += piece
        if len(head) >= _HEAD_BYTES:
            break
    _check(head, name)
    head = head.removeprefix(_MARK)
    if head:
        yield head
    yield from pieces


def _check(head: bytes, name: str) -> None:
    found = None if _is_text(head) else _sign(head)
    if found is not None:
        raise DatasetError(
            f"{name}: must be text, plain or packed by gzip, bzip2, xz or zstd, but it is "
            f"{found[0]}: {found[1]}"
        )
    if head.count(b"\r") > 1 and b"\n" not in head:
        raise DatasetError(
            f"{name}: its lines must end in a line feed, but they end in a carriage return alone "
            r"(old Mac): convert it, such as by tr '\r' '\n'"
        )


def kind_of(head: bytes) -> str:
    """Tells what a file is, by its first bytes."""
    found = _sign(head)
    return "text" if _is_text(head) else found[0] if found else "unknown"


def _sign(head: bytes) -> tuple[str, str] | None:
    """Returns what other input than text is, and what to do."""
    for sign, what, advice in _SIGNS:
        if head.startswith(sign):
            return what, advice
    if 4 * head.count(b"\0") > len(head):
        return "binary, or UTF-16 without a mark", _CONVERT.format("UTF-16LE")
    return None


def _is_text(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return b"\0" not in head
