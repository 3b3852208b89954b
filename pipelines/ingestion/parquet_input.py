"""Reads the declared columns of a Parquet file as rows; sets bad rows aside by number."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from embedps.errors import DatasetError
from pipelines.ingestion.bad_lines import BadLine
from pipelines.ingestion.decode import decode_batch
from pipelines.ingestion.line_blocks import ByteStream
from pipelines.ingestion.line_parser import drop_rows
from pipelines.ingestion.table_schema import Table

_BATCH_ROWS = 65536


def read_rows(
    stream: ByteStream, table: Table, file_name: str
) -> Iterator[tuple[pa.RecordBatch, list[BadLine]]]:
    """Yields a file's rows and bad rows, numbered from 1; a damaged file ends with a bad row.

    Raises:
      DatasetError: a declared column is absent or has another type.
    """
    number = 1
    try:
        with pq.ParquetFile(stream, page_checksum_verification=True) as file:
            names = [column.name for column in table.read_columns]
            absent = [name for name in names if name not in file.schema_arrow.names]
            if absent:
                raise DatasetError(
                    f"{file_name}: must have columns {', '.join(absent)}, it has "
                    f"{', '.join(file.schema_arrow.names)}"
                )
            for batch in file.iter_batches(_BATCH_ROWS, columns=names):
                rows, reasons = decode_batch(table, batch)
                bad = [
                    BadLine(line=number + row, reason=reasons[row], raw=_to_json(batch, row))
                    for row in sorted(reasons)
                ]
                yield (drop_rows(rows, reasons) if bad else rows), bad
                number += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        reason = f"the Parquet file is damaged here: {' '.join(str(error).split())}"
        empty = pa.RecordBatch.from_pylist([], schema=table.row_schema)
        yield empty, [BadLine(line=number, reason=reason, raw=b"", ends_file=True)]


def _to_json(batch: pa.RecordBatch, row: int) -> bytes:
    return json.dumps(batch.slice(row, 1).to_pylist()[0], default=str).encode()
