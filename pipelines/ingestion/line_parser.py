"""Parses blocks of records into rows of a declared table; sets bad ones aside with the reason.

Arrow's CSV parser reads a whole block at once. If it fails, the records that cannot be rows (not
UTF-8, a wrong number of fields) are set aside and the others are parsed again: first together, then
in batches, then those of a failing batch one by one. A bad value sets aside only its record. A
record is a line, unless a quoted field holds line breaks; its number is that of its first line.
"""

from __future__ import annotations

import csv as python_csv
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pyarrow as pa
from pyarrow import csv

from embedps.errors import DatasetError
from embedps.features.decode import decode_batch
from embedps.features.table_schema import Table

from .bad_lines import BadLine
from .line_blocks import MAX_LINE_BYTES, LineBlock
from .path_columns import given_columns, with_path_columns
from .quoted_records import RETURN_REASON, RecordFinder, Records

_NumberedLine = tuple[int, bytes]
_Batch = tuple[list[_NumberedLine], pa.RecordBatch]

_BATCH_LINES = 256
_SHOWN_NAMES = 20
_SEPARATOR = b"\x1f"
python_csv.field_size_limit(MAX_LINE_BYTES)


class LineParser:
    """Parses the blocks of one file in order; the first may begin with a header."""

    def __init__(self, table: Table, file_name: str = "") -> None:
        self._table, self._file_name = table, file_name
        in_path = given_columns(table, file_name)
        self._in_path = {n: None if v in table.missing else v for n, v in in_path.items()}
        self._names = [column.name for column in table.columns]
        self._wanted = [column.name for column in table.read_columns]
        self._quote = table.quote.encode()
        # Arrow takes one character: that which ASCII has to separate fields stands for several.
        self._several = table.delimiter.encode() if len(table.delimiter) > 1 else b""
        self._finder = RecordFinder(table.delimiter, table.quote) if table.quote else None
        self.num_header_lines = 0
        """Header lines read; they are not rows."""
        self.absent: set[str] = set()
        self._parsed: list[tuple[pa.RecordBatch, Sequence[int]]] = []
        self._records: list[tuple[Callable[[], Sequence[bytes]], Mapping[int, str]]] = []
        self.undeclared: tuple[str, ...] = ()
        """The columns that the header names and the table does not declare; they are not read."""

    def parse(self, block: LineBlock) -> tuple[pa.RecordBatch, list[BadLine]]:
        """Parses a block's records, in order.

        Returns:
          rows of the table's `row_schema`, and the bad lines.

        Raises:
          DatasetError: the file lacks the header that its schema declares.
        """
        self._parsed, self._records = [], []
        data, records = block.data, block.records
        if records is None and self._finder is not None and self._quote in data:
            records = self._finder.find(data)
        if records is not None and b"\r" in data:
            records = records.with_reasons_of_returns(data)
        if records is None:
            numbers = range(block.first_line, block.first_line + block.num_lines)
            header_end = data.find(b"\n") + 1
        else:
            numbers = (records.lines + block.first_line).tolist()
            header_end = int(records.ends[0]) if len(records.ends) else 0
        if block.first_line == 1 and header_end:
            if self._take_header(data[: header_end - 1]):
                data, numbers = data[header_end:], numbers[1:]
                records = None if records is None else records.without_first()
            else:
                self._take_names(data[: header_end - 1])
        if records is None or not records.reasons:
            batch = self._read(data, len(numbers))
            if batch is not None:
                return self._decode(batch, numbers, lambda: _texts(data, records))
        lines = zip(numbers, _texts(data, records), strict=True)
        return self._parse_lines(list(lines), {} if records is None else records.reasons)

    def texts(self, names: Sequence[str]) -> list[tuple[pa.RecordBatch, Sequence[int]]]:
        """Returns columns of what the last block could be split into, and the lines."""
        return [(batch.select(names), numbers) for batch, numbers in self._parsed]

    def records(self) -> list[bytes]:
        """Returns the last block's records that are rows, in order."""
        return [
            record
            for texts, reasons in self._records
            for row, record in enumerate(texts())
            if row not in reasons
        ]

    def _has_quotes(self, data: bytes) -> bool:
        return bool(self._quote) and self._quote in data

    def _take_header(self, line: bytes) -> bool:
        table = self._table
        if not table.header:
            return False
        fields = self._fields(line)
        absent = [n for n in self._wanted if n not in fields and n not in self._in_path]
        if absent and table.header == "auto":
            return False
        must = f"{self._file_name}: its first line must name the declared columns, each once"
        if absent:
            more = ", …" if len(fields) > _SHOWN_NAMES else ""
            raise DatasetError(
                f"{must}, but {_shown(absent)} is absent from {_shown(fields[:_SHOWN_NAMES])}"
                f"{more}: declare header = false if it has none, or the delimiter that it has"
            )
        if repeated := sorted({name for name in self._wanted if fields.count(name) > 1}):
            raise DatasetError(f"{must}, but {_shown(repeated)} is repeated: rename or drop one")
        declared = {column.name for column in table.columns}
        self.undeclared = tuple(dict.fromkeys(name for name in fields if name not in declared))
        self._name(fields)
        for name in self._in_path.keys() & set(fields):
            del self._in_path[name]
        self.num_header_lines = 1
        return True

    def _take_names(self, line: bytes) -> None:
        """Names the fields of a file without a header; those of its path may not be in it."""
        if len(self._fields(line)) == len(self._names):
            self._in_path = {}
        self._name([name for name in self._names if name not in self._in_path])

    def _name(self, fields: list[str]) -> None:
        # The name of a column that is read never begins with an underscore.
        self._names = [
            name if name in self._wanted else f"_{place}" for place, name in enumerate(fields)
        ]

    def _fields(self, line: bytes) -> list[str]:
        try:
            return self._split(line.decode("utf-8", errors="replace"))
        except ValueError:
            return []

    def _split(self, text: str) -> list[str]:
        """Splits a record into fields; raises ValueError if its quotes do not match."""
        table = self._table
        if not table.quote or table.quote not in text:
            return text.split(table.delimiter)
        reader = python_csv.reader([text], delimiter=table.delimiter, quotechar=table.quote)
        try:
            return next(reader, [""])
        except python_csv.Error as error:
            raise ValueError(f"cannot be read as fields: {error}") from None

    def _parse_lines(
        self, lines: list[_NumberedLine], reasons: Mapping[int, str]
    ) -> tuple[pa.RecordBatch, list[BadLine]]:
        bad = [BadLine(line=lines[at][0], reason=reasons[at], raw=lines[at][1]) for at in reasons]
        lines = [line for at, line in enumerate(lines) if at not in reasons]
        # Most often nothing else is bad.
        batch = self._read_lines(lines) if bad else None
        batches = [(lines, batch)] if batch is not None else self._each_batch(lines, bad)
        parts = []
        for batch_lines, batch in batches:
            numbers, texts = zip(*batch_lines, strict=True)
            rows, bad_of_batch = self._decode(batch, numbers, partial(tuple, texts))
            parts.append(rows)
            bad += bad_of_batch
        table = pa.Table.from_batches(parts, schema=self._table.row_schema).combine_chunks()
        rows = table.to_batches()[0] if table.num_rows else _empty(self._table)
        return rows, sorted(bad, key=lambda line: line.line)

    def _each_batch(self, lines: list[_NumberedLine], bad: list[BadLine]) -> list[_Batch]:
        """Reads lines of which some are bad, which it adds to `bad`."""
        good: list[_NumberedLine] = []
        for number, line in lines:
            if reason := self._reason(line):
                bad.append(BadLine(line=number, reason=reason, raw=line))
            else:
                good.append((number, line))
        return self._readable_batches(good, bad)

    def _readable_batches(self, lines: list[_NumberedLine], bad: list[BadLine]) -> list[_Batch]:
        """Returns batches of lines that Arrow reads; a line that it cannot read alone is bad."""
        batch = self._read_lines(lines)
        if batch is not None:
            return [(lines, batch)]
        if len(lines) > 1:
            size = _BATCH_LINES if len(lines) > _BATCH_LINES else 1
            parts = [lines[at : at + size] for at in range(0, len(lines), size)]
            return [each for part in parts for each in self._readable_batches(part, bad)]
        bad += [
            BadLine(line=number, reason="cannot be read as fields: quotes do not match", raw=line)
            for number, line in lines
        ]
        return []

    def _read_lines(self, lines: list[_NumberedLine]) -> pa.RecordBatch | None:
        return self._read(b"".join(line + b"\n" for _, line in lines), len(lines))

    def _reason(self, line: bytes) -> str:
        """Tells why a record is not a row; empty if it is."""
        text = line.decode("utf-8", errors="surrogateescape")
        reason = ""
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            reason = f"must be UTF-8: {error.reason} at byte {error.start}"
        try:
            fields = self._split(text)
        except ValueError as error:
            return reason or (RETURN_REASON if b"\r" in line else str(error))
        if len(fields) != len(self._names):
            return reason or f"must have {len(self._names)} fields, got {len(fields)}"
        if self._several and _SEPARATOR in line:
            return reason or f"must not have the character {_SEPARATOR!r} beside such a delimiter"
        if b"\r" in (self._finder.without_quoted(line) if self._finder is not None else line):
            return reason or RETURN_REASON
        read = (f for name, f in zip(self._names, fields, strict=True) if name in self._wanted)
        return reason if any("\udc80" <= c <= "\udcff" for f in read for c in f) else ""

    def _read(self, data: bytes, num_rows: int) -> pa.RecordBatch | None:
        """Reads records as texts, nulls for missing values; None unless each record is a row."""
        has_quotes = self._has_quotes(data)
        # Arrow would end a line at a carriage return; within quotes it does not.
        if num_rows == 0 or (b"\r" in data and not has_quotes):
            return None
        names = [name for name in self._wanted if name not in self._in_path]
        if self._several:
            if _SEPARATOR in data:
                return None
            data = data.replace(self._several, _SEPARATOR)
        try:
            table = csv.read_csv(
                pa.BufferReader(data),
                read_options=csv.ReadOptions(column_names=self._names, block_size=len(data) + 1),
                parse_options=csv.ParseOptions(
                    delimiter=_SEPARATOR.decode() if self._several else self._table.delimiter,
                    quote_char=self._table.quote if has_quotes else False,
                    newlines_in_values=has_quotes,
                    ignore_empty_lines=False,
                ),
                convert_options=csv.ConvertOptions(
                    include_columns=names,
                    column_types=dict.fromkeys(names, pa.string()),
                    null_values=list(self._table.missing),
                    strings_can_be_null=True,
                ),
            )
        except pa.ArrowInvalid:
            return None
        if table.num_rows != num_rows:
            return None
        batch = table.combine_chunks().to_batches()[0]
        return with_path_columns(batch, self._in_path)

    def _decode(
        self,
        batch: pa.RecordBatch,
        numbers: Sequence[int],
        texts: Callable[[], Sequence[bytes]],
    ) -> tuple[pa.RecordBatch, list[BadLine]]:
        """Decodes texts; `texts` gives the records, which only bad ones need."""
        self._parsed.append((batch, numbers))
        rows, reasons = decode_batch(self._table, batch, has_nulls_for_missing=True)
        self._records.append((texts, reasons))
        if not reasons:
            return rows, []
        lines = texts()
        # Arrow reads an empty line as missing values.
        empty = f"must have {len(self._names)} fields, got 1"
        bad = [
            BadLine(line=numbers[row], reason=reasons[row] if lines[row] else empty, raw=lines[row])
            for row in sorted(reasons)
        ]
        return drop_rows(rows, reasons), bad


def _texts(data: bytes, records: Records | None) -> list[bytes]:
    return data.split(b"\n")[:-1] if records is None else records.texts(data)


def _shown(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def drop_rows(rows: pa.RecordBatch, bad: dict[int, str]) -> pa.RecordBatch:
    """Returns the rows without the bad ones."""
    keep = [True] * rows.num_rows
    for row in bad:
        keep[row] = False
    return rows.filter(pa.array(keep))


def _empty(table: Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=table.row_schema)
