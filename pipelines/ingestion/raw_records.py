"""Reads files of what a dataset was made of as features, a record at its place; labels may lack."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from embedps.data.arrow_errors import UNREADABLE
from embedps.errors import DatasetError, UsageError
from embedps.features.decode import decode_batch
from embedps.features.table_columns import Column
from embedps.features.table_schema import TEXT_FORMATS, Table
from embedps.features.transforms import Transforms, compute_feature

from .json_lines import JsonLineParser
from .lake_marks import check_plain
from .line_parser import LineParser, drop_rows
from .nested_columns import at_paths
from .path_columns import path_columns, with_path_columns
from .text_input import open_lines

_MAGICS = {b"PAR1": "parquet", b"ORC": "orc"}


@dataclass(frozen=True, kw_only=True)
class RawRecords:
    """Some records of a file, in order.

    Attributes:
      features: of those that can be read.
      readable: bool, which of all can.
      kept: columns of all as the file has them; null where a line is no record.
      reasons: why the others cannot be read, by line or record of the file, from 1.
    """

    features: pa.RecordBatch
    readable: NDArray[np.bool_]
    kept: pa.RecordBatch
    reasons: dict[int, str]


class _ReadTable(Table):
    """Declares what is read; it needs neither label nor features."""

    def __post_init__(self) -> None:
        """Checks nothing: the dataset's table was checked."""


def file_format(path: Path) -> str:
    """Tells by its first bytes what a file is: "parquet", "orc", or "text" if it is neither."""
    with open(path, "rb") as file:
        start = file.read(4)
    return next((kind for magic, kind in _MAGICS.items() if start.startswith(magic)), "text")


class RawReader:
    """Reads files, text or columnar, by the schema of a dataset."""

    def __init__(
        self, transforms: Transforms, columns: Sequence[str], keep: Sequence[str], batch_rows: int
    ) -> None:
        """Takes what to read.

        Args:
          columns: of the dataset, to make.
          keep: the files' columns to give as they are; of text files, declared ones.
          batch_rows: the most records at a time.
        """
        table = transforms.table
        self._features = [f for f in table.features if f.name in columns]
        made = {f.name for f in self._features}
        self._plain = [name for name in columns if name not in made]
        self._needed = {name for f in self._features for name in f.sources} | {*self._plain}
        self._joined = [name for name in table.joined if name in self._needed]
        self._keep, self._batch_rows = list(keep), batch_rows
        others = {name for name in keep if name not in self._needed}
        read = {
            "columns": tuple(_as_needed(c, self._needed, others) for c in table.columns),
            "features": (),
        }
        self._table = _ReadTable(**{f.name: getattr(table, f.name) for f in fields(Table)} | read)

    def read(self, path: Path) -> Iterator[RawRecords]:
        """Reads a file; at least some records, which may be none.

        Raises:
          UsageError: a column is absent, or the file is of another kind than the dataset's.
          DatasetError: the file is damaged, or a column has a type that the schema does not have.
        """
        check_plain("--input", [str(path)], takes_tables=False)
        kind = file_format(path)
        if kind == "text" and self._table.format not in TEXT_FORMATS:
            raise UsageError(
                f"{path} must be a Parquet or ORC file: the dataset was made of "
                f"{self._table.format} files, and of these only Parquet and ORC are read here"
            )
        parts = self._of_lines(path) if kind == "text" else self._of_columns(path, kind)
        for part in self._told(parts):
            starts = np.concatenate([[0], np.cumsum(part.readable)])
            size = max(1, len(part.readable))
            for first in range(0, size, self._batch_rows):
                last = min(first + self._batch_rows, len(part.readable))
                yield RawRecords(
                    features=part.features.slice(starts[first], starts[last] - starts[first]),
                    readable=part.readable[first:last],
                    kept=part.kept.slice(first, last - first),
                    reasons={} if first else part.reasons,
                )

    def _told(self, parts: Iterator[RawRecords]) -> Iterator[RawRecords]:
        """Yields parts; an error of a joined column says that ingestion alone joins."""
        try:
            yield from parts
        except (UsageError, DatasetError) as error:
            if not any(repr(name) in str(error) for name in self._joined):
                raise
            raise type(error)(f"{error} ({self._hint})") from None

    @property
    def _hint(self) -> str:
        return (
            f"ingestion joined {', '.join(map(repr, self._joined))} of side tables: raw records "
            "must have them themselves, those of CSV without a header at their end"
        )

    def _of_lines(self, path: Path) -> Iterator[RawRecords]:
        for name in self._keep:
            if all(column.name != name for column in self._table.columns):
                names = ", ".join(column.name for column in self._table.columns)
                raise UsageError(f"--keep {name}: the schema has no such column, it has {names}")
        with open(path, "rb") as stream:
            reader, parser = open_lines(stream, self._table, str(path))
            is_empty, num_rows = True, 0
            for block in reader:
                rows, bad = parser.parse(block)
                for line in (*bad, *block.bad):
                    if line.ends_file:
                        raise DatasetError(f"{path}: line {line.line}: {line.reason}")
                reasons = {line.line: line.reason for line in (*block.bad, *bad)}
                if is_empty and self._joined:
                    self._check_joined(path, parser, rows, reasons)
                is_empty = False
                num_rows += rows.num_rows
                yield self._of_block(parser, rows, reasons)
            if num_rows and (absent := sorted(self._needed & parser.absent)):
                keys = ", ".join(".".join(self._table.column(name).keys) for name in absent)
                raise UsageError(
                    f"{path}: no line has {keys}: spell the columns as the schema does, and give "
                    "null where a value is missing"
                )
        if is_empty:
            yield self._of_block(parser, self._table.row_schema.empty_table(), {})

    def _check_joined(
        self,
        path: Path,
        parser: LineParser | JsonLineParser,
        rows: pa.RecordBatch | pa.Table,
        reasons: dict[int, str],
    ) -> None:
        """Raises UsageError if the first block's lines have no joined columns."""
        absent = sorted(name for name in self._joined if name in parser.absent)
        if absent and rows.num_rows:
            raise UsageError(f"{path}: no line has {', '.join(absent)}: {self._hint}")
        if reasons and not rows.num_rows:
            line = min(reasons)
            raise UsageError(f"{path}: line {line}: {reasons[line]}: {self._hint}")

    def _of_block(
        self,
        parser: LineParser | JsonLineParser,
        rows: pa.RecordBatch | pa.Table,
        reasons: dict[int, str],
    ) -> RawRecords:
        """Puts the rows of a block and its bad lines in order."""
        parsed = parser.texts(self._keep)
        numbers = np.concatenate(
            [np.zeros(0, np.int64), *(np.asarray(each, np.int64) for _, each in parsed)]
        )
        lines = np.union1d(numbers, np.fromiter(reasons, np.int64, len(reasons)))
        places = pa.array(
            np.minimum(np.searchsorted(numbers, lines), max(len(numbers) - 1, 0)),
            mask=~np.isin(lines, numbers),
        )
        schema = pa.schema([pa.field(name, pa.string()) for name in self._keep])
        texts = pa.Table.from_batches(
            [batch.cast(schema) for batch, _ in parsed], schema=schema
        ).combine_chunks()
        kept = {name: texts[name].combine_chunks().take(places) for name in self._keep}
        return RawRecords(
            features=self._made(rows),
            readable=~np.isin(lines, np.fromiter(reasons, np.int64, len(reasons))),
            kept=_batch(kept, len(lines)),
            reasons=reasons,
        )

    def _of_columns(self, path: Path, kind: str) -> Iterator[RawRecords]:
        first = 1
        try:
            for batch in self._batches(path, kind):
                rows, reasons = decode_batch(self._table, at_paths(batch, self._keys(self._needed)))
                kept = at_paths(batch, self._keys(self._keep))
                readable = np.ones(batch.num_rows, np.bool_)
                readable[list(reasons)] = False
                yield RawRecords(
                    features=self._made(drop_rows(rows, reasons) if reasons else rows),
                    readable=readable,
                    kept=_batch(
                        dict(zip(kept.schema.names, kept.columns, strict=True)), batch.num_rows
                    ),
                    reasons={first + row: reason for row, reason in reasons.items()},
                )
                first += batch.num_rows
        except UNREADABLE as error:
            message = " ".join(str(error).split())
            raise DatasetError(f"{path} cannot be read: {message}") from error

    def _keys(self, names: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Returns where a columnar file has the columns; those that are not declared, by name."""
        declared = {c.name: c.keys for c in self._table.columns if c.name in names}
        return declared | {name: (name,) for name in names if name not in declared}

    def _batches(self, path: Path, kind: str) -> Iterator[pa.RecordBatch]:
        columns = self._keys([*self._needed, *self._keep]).values()
        names = list(dict.fromkeys(keys[0] for keys in columns))
        in_path = path_columns(str(path), names)
        for batch in self._file_batches(path, kind, names, set(in_path)):
            yield with_path_columns(batch, in_path)

    def _file_batches(
        self, path: Path, kind: str, names: list[str], in_path: set[str]
    ) -> Iterator[pa.RecordBatch]:
        if kind == "orc":
            import pyarrow.orc

            orc = pyarrow.orc.ORCFile(path)
            names = _present(path, names, orc.schema, in_path)
            for i in range(orc.nstripes):
                yield orc.read_stripe(i, columns=names)
            if not orc.nstripes:
                yield _empty(orc.schema, names)
            return
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            names = _present(path, names, file.schema_arrow, in_path)
            if file.metadata.num_rows == 0:
                yield _empty(file.schema_arrow, names)
            yield from file.iter_batches(self._batch_rows, columns=names)

    def _made(self, rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
        if isinstance(rows, pa.Table):
            rows = pa.RecordBatch.from_pylist([], schema=rows.schema)
        made = {f.name: compute_feature(f, rows) for f in self._features}
        made |= {name: rows.column(name) for name in self._plain}
        return _batch(made, rows.num_rows)


def _as_needed(column: Column, needed: set[str], kept: set[str]) -> Column:
    """Leaves out what is not read; what is only kept is a text of any kind."""
    if column.name in needed:
        return column
    role = ("key", "string") if column.name in kept else ("ignore", "string")
    return Column(name=column.name, role=role[0], type=role[1], path=column.path)


def _batch(columns: dict[str, pa.Array], num_rows: int) -> pa.RecordBatch:
    if columns:
        return pa.RecordBatch.from_pydict(columns)
    return pa.RecordBatch.from_struct_array(pa.array([{}] * num_rows, pa.struct([])))


def _empty(schema: pa.Schema, names: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=pa.schema([schema.field(n) for n in names]))


def _present(path: Path, names: list[str], schema: pa.Schema, in_path: set[str]) -> list[str]:
    """Lists the columns that the file has, once; the others must be in its path."""
    for name in names:
        if name not in schema.names and name not in in_path:
            raise UsageError(f"{path} must have column {name!r}, it has {', '.join(schema.names)}")
        if (count := schema.names.count(name)) > 1:
            raise UsageError(f"{path} must have column {name!r} once, it has {count}")
    return [name for name in names if name in schema.names]
