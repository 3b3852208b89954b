"""Parses the records of Avro files into rows, as objects of JSON are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from embedps.errors import DatasetError

from .avro_blocks import AvroBlock, shown_record
from .avro_schema import AvroSchema
from .bad_lines import BadLine
from .json_lines import NAMED_LINES, JsonLineParser, Makers, decode_columns
from .line_parser import drop_rows


class AvroParser(JsonLineParser):
    """Parses the blocks of one file in order; times and decimals are what the file says."""

    _makers: Mapping[str, Makers] | None = None

    def parse(self, block: AvroBlock) -> tuple[pa.RecordBatch, list[BadLine]]:  # type: ignore[override]
        """Parses a block's records, in order.

        Returns:
          rows of the table's `row_schema`, and the bad records.

        Raises:
          DatasetError: a column's values are of several kinds of numbers.
        """
        if self._makers is None and block.schema is not None:
            self._makers = self._find_makers(block.schema)
        bad: list[BadLine] = []
        places: list[int] = []
        found: list[Sequence[Any]] = []
        for place, (number, record) in enumerate(zip(block.numbers, block.found, strict=True)):
            try:
                found.append(self._values_of(record, is_named=number <= NAMED_LINES))
            except ValueError as error:
                bad.append(_bad(block, place, str(error)))
                continue
            places.append(place)
        by_column = zip(*found, strict=True) if found else [()] * len(self._columns)
        columns: dict[str, Sequence[Any]] = dict(zip(self._keys, by_column, strict=True))
        rows, reasons = decode_columns(self._table, columns, self._makers)
        self._records = [block.raw[at] for row, at in enumerate(places) if row not in reasons]
        bad += [_bad(block, places[row], reason) for row, reason in reasons.items()]
        rows = drop_rows(rows, reasons) if reasons else rows
        return rows, sorted(bad, key=lambda line: line.line)

    def _find_makers(self, schema: AvroSchema) -> dict[str, Makers]:
        found = {}
        for name, keys in self._keys.items():
            try:
                found[name] = schema.makers(keys)
            except DatasetError as error:
                raise DatasetError(f"{self._file_name}: column {name!r}: {error}") from None
        return found


def _bad(block: AvroBlock, place: int, reason: str) -> BadLine:
    return BadLine(line=block.numbers[place], reason=reason, raw=shown_record(block.found[place]))
