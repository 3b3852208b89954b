"""Turns blocks of Criteo lines into Arrow batches; bad lines are set aside with their reason.

A block whose bytes are all digits, letters a-f, tabs and minus signs goes whole through Arrow's CSV
parser. When that fails, the lines that are not plain are set aside and the others tried again, then
in runs; only the lines of a failing run are read one by one. All ways accept the same lines, and
give the same values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from embedps.dataset import MISSING_ID
from pipelines.bad_lines import BadLine
from pipelines.criteo_format import FIELDS, IDS, INTEGERS, LABEL, NUM_FIELDS, NUM_INTEGERS
from pipelines.line_blocks import LineBlock

MISSING_INTEGER = -(1 << 63)
"""Marks a missing integer in `ParsedRows.integers`; such a value itself is no count and is bad."""

SCHEMA = pa.schema(
    [pa.field(LABEL, pa.float32(), nullable=False)]
    + [pa.field(name, pa.float32(), nullable=False) for name in INTEGERS]
    + [pa.field(name, pa.int64(), nullable=False) for name in IDS]
)

_NumberedLine = tuple[int, bytes]

_RUN_LINES = 256
_PLAIN_BYTES = b"0123456789abcdefABCDEF\t\n-"
_INTEGER = re.compile(rb"-?[0-9]+")
_HEX = re.compile(rb"[0-9a-fA-F]+")
_SHOWN_CHARS = 40
_ID_DIGITS = 8


def _hex_pairs() -> NDArray[np.int16]:
    """Returns a table from two characters, as a little-endian uint16, to their value or -1."""
    digit = np.full(256, -1, np.int16)
    for i, character in enumerate(b"0123456789abcdef"):
        digit[character] = digit[ord(chr(character).upper())] = i
    first, second = digit[np.arange(1 << 16) & 0xFF], digit[np.arange(1 << 16) >> 8]
    return np.where((first < 0) | (second < 0), -1, first * 16 + second).astype(np.int16)


_HEX_PAIRS = _hex_pairs()


@dataclass(frozen=True, kw_only=True)
class ParsedRows:
    """Good rows as they are in the log: integers [13, rows] and ids [26, rows], missing marked."""

    labels: NDArray[np.float32]
    integers: NDArray[np.int64]
    ids: NDArray[np.int64]

    @property
    def num_rows(self) -> int:
        return len(self.labels)

    def to_batch(self) -> pa.RecordBatch:
        """Returns the rows in the dataset's schema: integers as log(1 + max(x, 0)), missing NaN."""
        columns = [pa.array(self.labels)]
        for values in self.integers:
            logs = np.log1p(np.maximum(values, 0).astype(np.float64)).astype(np.float32)
            logs[values == MISSING_INTEGER] = np.nan
            columns.append(pa.array(logs, from_pandas=False))
        columns += [pa.array(values) for values in self.ids]
        return pa.record_batch(columns, schema=SCHEMA)


def parse_block(block: LineBlock) -> tuple[ParsedRows, list[BadLine]]:
    """Parses a block's lines, in order."""
    rows = _parse_fast(block.data, block.num_lines)
    if rows is not None:
        return rows, []
    plain: list[_NumberedLine] = []
    other: list[_NumberedLine] = []
    for number, line in enumerate(block.data.split(b"\n")[:-1], block.first_line):
        is_plain = line.count(b"\t") == NUM_FIELDS - 1 and not line.translate(None, _PLAIN_BYTES)
        (plain if is_plain else other).append((number, line))
    # None of the other lines can be good: what they hold is left to say.
    _, bad = _parse_lines(other)
    rows, bad_of_plain = _parse_plain(plain)
    return rows, sorted((*bad, *bad_of_plain), key=lambda line: line.line)


def _parse_plain(lines: list[_NumberedLine]) -> tuple[ParsedRows, list[BadLine]]:
    """Parses lines of 40 plain fields: in one go, else in runs, a failing run line by line."""
    rows = _parse_fast(_joined(lines), len(lines))
    if rows is not None:
        return rows, []
    parts: list[ParsedRows] = []
    bad: list[BadLine] = []
    for start in range(0, len(lines), _RUN_LINES):
        run = lines[start : start + _RUN_LINES]
        rows = _parse_fast(_joined(run), len(run))
        if rows is None:
            rows, bad_of_run = _parse_lines(run)
            bad += bad_of_run
        parts.append(rows)
    if not parts:
        return _to_rows([], [], []), bad
    return ParsedRows(
        labels=np.concatenate([part.labels for part in parts]),
        integers=np.concatenate([part.integers for part in parts], axis=1),
        ids=np.concatenate([part.ids for part in parts], axis=1),
    ), bad


def _joined(lines: list[_NumberedLine]) -> bytes:
    return b"".join(line + b"\n" for _, line in lines)


def _parse_fast(data: bytes, num_lines: int) -> ParsedRows | None:
    """Parses lines that are all plain Criteo lines, else returns None."""
    if num_lines == 0 or data.translate(None, _PLAIN_BYTES):
        return None
    types = dict.fromkeys(FIELDS, pa.binary()) | dict.fromkeys(INTEGERS, pa.int64())
    try:
        table = csv.read_csv(
            pa.BufferReader(data),
            read_options=csv.ReadOptions(column_names=list(FIELDS), block_size=len(data) + 1),
            parse_options=csv.ParseOptions(
                delimiter="\t", quote_char=False, ignore_empty_lines=False
            ),
            convert_options=csv.ConvertOptions(column_types=types, null_values=[""]),
        )
    except pa.ArrowInvalid:
        return None
    if table.num_rows != num_lines:
        return None
    columns = [_single_chunk(column) for column in table.columns]
    labels = _label_values(columns[0])
    ids = np.empty((len(IDS), num_lines), np.int64)
    for i, column in enumerate(columns[1 + NUM_INTEGERS :]):
        values = _id_values(column)
        if values is None:
            return None
        ids[i] = values
    integers = np.empty((NUM_INTEGERS, num_lines), np.int64)
    for i, column in enumerate(columns[1 : 1 + NUM_INTEGERS]):
        values = np.frombuffer(column.buffers()[1], np.int64, num_lines, column.offset * 8)
        missing = column.is_null().to_numpy(zero_copy_only=False)
        if ((values == MISSING_INTEGER) & ~missing).any():
            return None
        integers[i] = np.where(missing, MISSING_INTEGER, values)
    if labels is None:
        return None
    return ParsedRows(labels=labels, integers=integers, ids=ids)


def _single_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _bytes_of(column: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Returns a binary array's offsets and the characters between the first and the last."""
    _, offset_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32, len(column) + 1, column.offset * 4)
    if data_buffer is None:
        return offsets, np.empty(0, np.uint8)
    characters = np.frombuffer(data_buffer, np.uint8)
    return offsets, characters[offsets[0] : offsets[-1]]


def _label_values(column: pa.Array) -> NDArray[np.float32] | None:
    offsets, characters = _bytes_of(column)
    if len(characters) != len(column) or (np.diff(offsets) != 1).any():
        return None
    values = characters - np.uint8(ord("0"))
    return values.astype(np.float32) if (values <= 1).all() else None


def _id_values(column: pa.Array) -> NDArray[np.int64] | None:
    """Decodes ids of 8 digits or none; returns None where there are others."""
    offsets, characters = _bytes_of(column)
    lengths = np.diff(offsets)
    present = lengths == _ID_DIGITS
    num_present = int(present.sum())
    if num_present * _ID_DIGITS != len(characters) or (lengths[~present] != 0).any():
        return None
    pairs = _HEX_PAIRS[characters.view(np.uint16)].reshape(-1, 4)
    if (pairs < 0).any():
        return None
    values = pairs[:, 0].astype(np.int64)
    for i in range(1, 4):
        values <<= 8
        values |= pairs[:, i]
    if num_present == len(column):
        return values
    full = np.full(len(column), MISSING_ID, np.int64)
    full[present] = values
    return full


def _parse_lines(lines: list[_NumberedLine]) -> tuple[ParsedRows, list[BadLine]]:
    labels: list[int] = []
    integers: list[list[int]] = []
    ids: list[list[int]] = []
    bad: list[BadLine] = []
    for number, line in lines:
        try:
            label, row_integers, row_ids = _parse_line(line)
        except ValueError as error:
            bad.append(BadLine(line=number, reason=str(error), raw=line))
            continue
        labels.append(label)
        integers.append(row_integers)
        ids.append(row_ids)
    return _to_rows(labels, integers, ids), bad


def _to_rows(labels: list[int], integers: list[list[int]], ids: list[list[int]]) -> ParsedRows:
    return ParsedRows(
        labels=np.array(labels, np.float32),
        integers=np.ascontiguousarray(
            np.array(integers, np.int64).reshape(len(labels), NUM_INTEGERS).T
        ),
        ids=np.ascontiguousarray(np.array(ids, np.int64).reshape(len(labels), len(IDS)).T),
    )


def _parse_line(line: bytes) -> tuple[int, list[int], list[int]]:
    """Parses one line; raises ValueError with the reason why it is bad."""
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"must be UTF-8: {error.reason} at byte {error.start}") from None
    fields = line.split(b"\t")
    if len(fields) != NUM_FIELDS:
        raise ValueError(f"must have {NUM_FIELDS} fields, got {len(fields)}")
    if fields[0] not in (b"0", b"1"):
        raise ValueError(f"label must be 0 or 1, got {_shown(fields[0])}")
    integers = [_parse_integer(*pair) for pair in zip(INTEGERS, fields[1:], strict=False)]
    ids = [_parse_id(*pair) for pair in zip(IDS, fields[1 + NUM_INTEGERS :], strict=True)]
    return int(fields[0]), integers, ids


def _parse_integer(name: str, field: bytes) -> int:
    if not field:
        return MISSING_INTEGER
    if not _INTEGER.fullmatch(field):
        raise ValueError(f"{name} must be an integer or empty, got {_shown(field)}")
    # Python refuses to parse numbers of over 4,300 digits; leading zeros may make them long.
    digits = field.lstrip(b"-").lstrip(b"0")
    value = int(digits or b"0") if len(digits) <= 19 else 1 << 63
    value = -value if field.startswith(b"-") else value
    if not -(1 << 63) < value < 1 << 63:
        raise ValueError(f"{name} must fit in 64 bits, got {_shown(field)}")
    return value


def _parse_id(name: str, field: bytes) -> int:
    if not field:
        return MISSING_ID
    if not _HEX.fullmatch(field):
        raise ValueError(f"{name} must be a hexadecimal id or empty, got {_shown(field)}")
    value = int(field, 16)
    if value >= 1 << 63:
        raise ValueError(f"{name} must fit in 63 bits, got {_shown(field)}")
    return value


def _shown(field: bytes) -> str:
    text = field.decode("utf-8", errors="backslashreplace")
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…")
