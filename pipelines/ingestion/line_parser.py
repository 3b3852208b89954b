"""Parses blocks of lines into rows of a declared table; sets bad lines aside with the reason.

Arrow's CSV parser reads a whole block at once. If it fails, the lines that cannot be rows (not
UTF-8, a wrong number of fields) are set aside and the others are parsed again: first together, then
in batches, then the lines of a failing batch one by one. A bad value sets aside only its line.
"""

from __future__ import annotations

import csv as python_csv

import pyarrow as pa
from pyarrow import csv

from embedps.errors import DatasetError

from .bad_lines import BadLine
from .decode import decode_batch
from .line_blocks import MAX_LINE_BYTES, LineBlock
from .table_schema import Table

_NumberedLine = tuple[int, bytes]

_BATCH_LINES = 256
python_csv.field_size_limit(MAX_LINE_BYTES)


class LineParser:
    """Parses the blocks of one file in order; the first may begin with a header."""

    def __init__(self, table: Table, file_name: str = "") -> None:
        self._table, self._file_name = table, file_name
        self._names = [column.name for column in table.columns]
        self._wanted = [column.name for column in table.read_columns]
        self._parse_options = csv.ParseOptions(
            delimiter=table.delimiter, quote_char=table.quote or False, ignore_empty_lines=False
        )
        self.num_header_lines = 0
        """Header lines read; they are not rows."""

    def parse(self, block: LineBlock) -> tuple[pa.RecordBatch, list[BadLine]]:
        """Parses a block's lines, in order.

        Returns:
          rows of the table's `row_schema`, and the bad lines.

        Raises:
          DatasetError: the file lacks the header that its schema declares.
        """
        data, first_line, num_lines = block.data, block.first_line, block.num_lines
        if first_line == 1 and num_lines and self._take_header(data):
            data = data[data.index(b"\n") + 1 :]
            first_line, num_lines = 2, num_lines - 1
        batch = self._read(data, num_lines)
        if batch is not None:
            return self._decode(batch, data, range(first_line, first_line + num_lines))
        lines = list(enumerate(data.split(b"\n")[:-1], first_line))
        return self._parse_lines(lines)

    def _take_header(self, data: bytes) -> bool:
        table = self._table
        if not table.header:
            return False
        try:
            fields = self._fields(data[: data.index(b"\n")])
        except ValueError:
            fields = []
        absent = [name for name in self._wanted if name not in fields]
        if absent and table.header == "auto":
            return False
        if absent or len(set(fields)) != len(fields):
            raise DatasetError(
                f"{self._file_name}: its first line must name the columns, each once, but "
                f"{', '.join(map(repr, absent)) or 'one'} is "
                f"{'absent' if absent else 'repeated'}: declare header = false if it has none"
            )
        self._names = fields
        self.num_header_lines = 1
        return True

    def _parse_lines(self, lines: list[_NumberedLine]) -> tuple[pa.RecordBatch, list[BadLine]]:
        bad: list[BadLine] = []
        good: list[_NumberedLine] = []
        for number, line in lines:
            try:
                self._fields(line)
                good.append((number, line))
            except ValueError as error:
                bad.append(BadLine(line=number, reason=str(error), raw=line))
        parts = []
        for batch_lines in self._readable_batches(good, bad):
            data = b"".join(line + b"\n" for _, line in batch_lines)
            batch = self._read(data, len(batch_lines))
            if batch is None:
                raise DatasetError(f"{self._file_name}: lines that were read cannot be read again")
            rows, bad_of_batch = self._decode(batch, data, [number for number, _ in batch_lines])
            parts.append(rows)
            bad += bad_of_batch
        table = pa.Table.from_batches(parts, schema=self._table.row_schema).combine_chunks()
        rows = table.to_batches()[0] if table.num_rows else _empty(self._table)
        return rows, sorted(bad, key=lambda line: line.line)

    def _readable_batches(
        self, lines: list[_NumberedLine], bad: list[BadLine]
    ) -> list[list[_NumberedLine]]:
        """Returns batches of lines that Arrow reads; a line that it cannot read alone is bad."""
        if self._read(b"".join(line + b"\n" for _, line in lines), len(lines)) is not None:
            return [lines]
        if len(lines) > 1:
            size = _BATCH_LINES if len(lines) > _BATCH_LINES else 1
            parts = [lines[at : at + size] for at in range(0, len(lines), size)]
            return [batch for part in parts for batch in self._readable_batches(part, bad)]
        bad += [
            BadLine(line=number, reason="cannot be read as fields: quotes do not match", raw=line)
            for number, line in lines
        ]
        return []

    def _fields(self, line: bytes) -> list[str]:
        """Splits a line into fields; raises ValueError with the reason if it is not a row."""
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"must be UTF-8: {error.reason} at byte {error.start}") from None
        table = self._table
        if table.quote:
            reader = python_csv.reader([text], delimiter=table.delimiter, quotechar=table.quote)
            try:
                fields = next(reader, [""])
            except python_csv.Error as error:
                raise ValueError(f"cannot be read as fields: {error}") from None
        else:
            fields = text.split(table.delimiter)
        if len(fields) != len(self._names):
            raise ValueError(f"must have {len(self._names)} fields, got {len(fields)}")
        if "\r" in text:
            raise ValueError("must have no carriage return within")
        return fields

    def _read(self, data: bytes, num_lines: int) -> pa.RecordBatch | None:
        """Reads lines as texts, with nulls for missing values; None unless each line is one row."""
        # Arrow would end a line at a carriage return.
        if num_lines == 0 or b"\r" in data:
            return None
        try:
            table = csv.read_csv(
                pa.BufferReader(data),
                read_options=csv.ReadOptions(column_names=self._names, block_size=len(data) + 1),
                parse_options=self._parse_options,
                convert_options=csv.ConvertOptions(
                    include_columns=self._wanted,
                    column_types=dict.fromkeys(self._wanted, pa.string()),
                    null_values=list(self._table.missing),
                    strings_can_be_null=True,
                ),
            )
        except pa.ArrowInvalid:
            return None
        if table.num_rows != num_lines:
            return None
        return table.combine_chunks().to_batches()[0]

    def _decode(
        self, batch: pa.RecordBatch, data: bytes, numbers: range | list[int]
    ) -> tuple[pa.RecordBatch, list[BadLine]]:
        rows, reasons = decode_batch(self._table, batch, has_nulls_for_missing=True)
        if not reasons:
            return rows, []
        lines = data.split(b"\n")
        # Arrow reads an empty line as missing values.
        empty = f"must have {len(self._names)} fields, got 1"
        bad = [
            BadLine(line=numbers[row], reason=reasons[row] if lines[row] else empty, raw=lines[row])
            for row in sorted(reasons)
        ]
        return drop_rows(rows, reasons), bad


def drop_rows(rows: pa.RecordBatch, bad: dict[int, str]) -> pa.RecordBatch:
    """Returns the rows without the bad ones."""
    keep = [True] * rows.num_rows
    for row in bad:
        keep[row] = False
    return rows.filter(pa.array(keep))


def _empty(table: Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=table.row_schema)
