"""Reads the declared columns of a Parquet or ORC file as rows; sets bad rows aside by number."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from embedps.errors import DatasetError

from .bad_lines import BadLine
from .decode import decode_batch
from .line_blocks import ByteStream
from .line_parser import drop_rows
from .table_schema import Table

_BATCH_ROWS = 65536
_NAMES = {"parquet": "Parquet", "orc": "ORC"}


def read_rows(
    stream: ByteStream, table: Table, file_name: str
) -> Iterator[tuple[pa.RecordBatch, list[BadLine]]]:
    """Yields a file's rows and bad rows, numbered from 1; a damaged file ends with a bad row.

    Raises:
      DatasetError: a declared column is absent or has another type.
    """
    number = 1
    read = _read_orc if table.format == "orc" else _read_parquet
    try:
        for batch in read(stream, [column.name for column in table.read_columns], file_name):
            rows, reasons = decode_batch(table, batch)
            bad = [
                BadLine(line=number + row, reason=reasons[row], raw=_to_json(batch, row))
                for row in sorted(reasons)
            ]
            yield (drop_rows(rows, reasons) if bad else rows), bad
            number += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        message = " ".join(str(error).split())
        reason = f"the {_NAMES[table.format]} file is damaged here: {message}"
        empty = pa.RecordBatch.from_pylist([], schema=table.row_schema)
        yield empty, [BadLine(line=number, reason=reason, raw=b"", ends_file=True)]


def _read_parquet(stream: ByteStream, names: list[str], file_name: str) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(stream, page_checksum_verification=True) as file:
        _check_columns(names, file.schema_arrow.names, file_name)
        yield from file.iter_batches(_BATCH_ROWS, columns=names)


def _read_orc(stream: ByteStream, names: list[str], file_name: str) -> Iterator[pa.RecordBatch]:
    import pyarrow.orc

    file = pyarrow.orc.ORCFile(stream)
    _check_columns(names, file.schema.names, file_name)
    for i in range(file.nstripes):
        stripe = file.read_stripe(i, columns=names)
        for start in range(0, stripe.num_rows, _BATCH_ROWS):
            yield stripe.slice(start, _BATCH_ROWS)


def _check_columns(names: list[str], found: list[str], file_name: str) -> None:
    absent = [name for name in names if name not in found]
    if absent:
        raise DatasetError(
            f"{file_name}: must have columns {', '.join(absent)}, it has {', '.join(found)}"
        )


def _to_json(batch: pa.RecordBatch, row: int) -> bytes:
    return json.dumps(batch.slice(row, 1).to_pylist()[0], default=str).encode()
