"""Reads the declared columns of a Parquet or ORC file as rows; sets bad rows aside by number."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from embedps.data.arrow_errors import UNREADABLE
from embedps.errors import DatasetError
from embedps.features.arrow_kinds import is_list
from embedps.features.decode import decode_batch
from embedps.features.table_schema import Table

from . import batch_size
from .bad_lines import BadLine
from .lake_files import LakeFile
from .line_parser import drop_rows
from .nested_columns import at_paths
from .path_columns import given_columns, with_path_columns
from .record_hash import is_hashed
from .text_encoding import kind_of

_NAMES = {"parquet": "Parquet", "orc": "ORC"}
_MAGICS = {"parquet": (b"PAR1", b"PARE"), "orc": (b"ORC",)}
_HEAD_BYTES = 512

_Batches = Iterator[tuple[pa.RecordBatch, float]]


class ParsedRows(NamedTuple):
    """Some rows of a file.

    Attributes:
      rows: those of the table's `row_schema` that can be read.
      bad: the others.
      share: of the file's rows that is read, 0 to 1.
      records: the file's columns of the good rows; None if they were not asked for.
    """

    rows: pa.RecordBatch
    bad: list[BadLine]
    share: float
    records: pa.RecordBatch | None = None


def read_rows(
    stream: BinaryIO,
    table: Table,
    file_name: str,
    *,
    with_records: bool = False,
    of_lake: LakeFile | None = None,
) -> Iterator[ParsedRows]:
    """Reads a file's rows and bad rows, numbered from 1; a damaged file ends with a bad row.

    A declared column that the file lacks may stand in its path: `day=2024-05-01/part-0.parquet`.

    Args:
      stream: the file.
      table: declares the columns.
      file_name: the file's path from the first folder of a column on, and its name in errors.
      with_records: whether to read the columns too that are not declared.
      of_lake: what the file is to a table of Delta Lake or Iceberg, which alone tells its rows
        and columns.

    Raises:
      DatasetError: a declared column is absent, is there twice, or has another type.
    """
    kind = _NAMES[table.format]
    head = stream.read(_HEAD_BYTES)
    stream.seek(0)
    in_path = given_columns(table, "" if of_lake is not None else file_name)
    keys = {column.name: column.keys for column in table.read_columns}
    number, share = 1, 0.0
    if of_lake is not None:
        batches = _read_lake(of_lake, table, in_path, with_records)
    else:
        read = _read_orc if table.format == "orc" else _read_parquet
        batches = read(stream, table, in_path, with_records)
    try:
        while True:
            try:
                batch, share = next(batches)
            except StopIteration:
                return
            except UNREADABLE as error:
                reason = f"the {kind} file is damaged here: {' '.join(str(error).split())}"
                if of_lake is None and head and not head.startswith(_MAGICS[table.format]):
                    reason = (
                        f"the file must be {kind}, but it is {kind_of(head)}: leave it out by a "
                        "pattern, or declare its format"
                    )
                empty = pa.RecordBatch.from_pylist([], schema=table.row_schema)
                bad = [BadLine(line=number, reason=reason, raw=b"", ends_file=True)]
                yield ParsedRows(empty, bad, share)
                return
            found = batch
            batch = at_paths(with_path_columns(batch, in_path), keys)
            rows, reasons = decode_batch(table, batch)
            bad = [
                BadLine(line=number + row, reason=reasons[row], raw=_to_json(batch, row))
                for row in sorted(reasons)
            ]
            if bad:
                rows, found = drop_rows(rows, reasons), drop_rows(found, reasons)
            yield ParsedRows(rows, bad, share, found if with_records else None)
            number += batch.num_rows
    except DatasetError as error:
        raise DatasetError(f"{file_name}: {error}") from None


def _read_parquet(
    stream: BinaryIO, table: Table, in_path: dict[str, str | None], with_records: bool
) -> _Batches:
    with pq.ParquetFile(stream, page_checksum_verification=True) as file:
        names = _names_to_read(table, file.schema_arrow, in_path, with_records)
        done = 0
        for batch in file.iter_batches(
            batch_size.batch_rows(file.metadata, is_wide=with_records), columns=names
        ):
            done += batch.num_rows
            yield batch, done / file.metadata.num_rows


def _read_lake(
    file: LakeFile, table: Table, in_path: dict[str, str | None], with_records: bool
) -> _Batches:
    names = _names_to_read(table, file.schema, in_path, with_records)
    yield from file.batches(names, is_wide=with_records)


def _read_orc(
    stream: BinaryIO, table: Table, in_path: dict[str, str | None], with_records: bool
) -> _Batches:
    import pyarrow.orc

    file = pyarrow.orc.ORCFile(stream)
    names = _names_to_read(table, file.schema, in_path, with_records)
    done = 0
    for i in range(file.nstripes):
        stripe = file.read_stripe(i, columns=names)
        for start in range(0, stripe.num_rows, batch_size.ROWS):
            batch = stripe.slice(start, batch_size.ROWS)
            done += batch.num_rows
            yield batch, done / file.nrows


def _names_to_read(
    table: Table, schema: pa.Schema, in_path: dict[str, str | None], with_records: bool
) -> list[str]:
    """Lists the columns of the file that the declared ones are in, and the others if asked.

    Raises:
      DatasetError: the file has one twice, or neither it nor its path has one.
    """
    found = schema.names
    declared = list(dict.fromkeys(column.keys[0] for column in table.read_columns))
    absent = [name for name in declared if name not in found and name not in in_path]
    if absent:
        inner = next((name for name in absent if name.split(".")[0] in found), "")
        hint = f": declare path = {inner!r} if it is within {inner.split('.')[0]}" if inner else ""
        raise DatasetError(
            f"must have columns {', '.join(absent)}, it has {', '.join(found)}{hint}"
        )
    repeated = [name for name in declared if found.count(name) > 1]
    if repeated:
        raise DatasetError(
            f"must have each declared column once, it has {', '.join(repeated)} more than once: "
            "rename or drop the others where the file is written"
        )
    hashed = [field.name for field in schema if with_records and is_hashed(field.type)]
    once = [name for name, number in Counter(found).items() if number == 1]
    others = {*hashed} & {*once}
    return [name for name in once if name in others or name in declared]


def _to_json(batch: pa.RecordBatch, row: int) -> bytes:
    return json.dumps(
        {name: _shown(batch.column(i)[row]) for i, name in enumerate(batch.schema.names)},
        default=str,
    ).encode()


def _shown(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        if is_list(value.type):
            return [_shown(each) for each in value.values]
        if pa.types.is_dictionary(value.type):
            return _shown(value.value)
        return value.as_buffer().to_pybytes().decode("utf-8", errors="backslashreplace")
