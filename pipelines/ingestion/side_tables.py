"""Reads side tables once per job, and writes them so that each worker maps them into its memory.

A column is a file of its values in the order of the rows; a list's has the elements, and another
file where each row's begin. One row more, after the last, has the missing values: it is the row of
those who have none. The keys are sorted, each with the place of its row. So workers of one machine
share one copy, and what they hold does not depend on the number of events.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedps.data.dataset import MISSING_ID
from embedps.data.dataset_metadata import InputFile, SideTable
from embedps.errors import DatasetError
from embedps.features.decode import decode_column
from embedps.features.table_columns import Column
from embedps.features.table_schema import Join, Table

from .bad_lines import BadLine
from .columnar_input import read_rows
from .ingest_job import IngestJob
from .input_files import InputTask
from .path_columns import check_path_columns
from .record_input import COLUMNAR, open_records
from .side_texts import SideTexts
from .unpacked_stream import checksum_of
from .work_dir import WorkDir

MAX_ROWS = 100_000_000
"""Of a side table: while it is sorted, 24 bytes of memory per row are in use."""
_HINT = "each row of a side table must be readable: correct it, or add what means none to missing"


def write_side_tables(
    job: IngestJob, inputs: Sequence[Sequence[InputTask]]
) -> tuple[SideTable, ...]:
    """Writes the side tables of a job to its work directory.

    Args:
      inputs: the files of each.

    Raises:
      DatasetError: one has a row that cannot be read, a key twice, no row or too many, or changes.
    """
    return tuple(
        _write(job, place, join, tasks)
        for place, (join, tasks) in enumerate(zip(job.table.joins, inputs, strict=True))
    )


def _write(job: IngestJob, place: int, join: Join, tasks: Sequence[InputTask]) -> SideTable:
    texts = SideTexts(join.columns, job.keep_texts)
    table = texts.watched(join.table(job.table.column(join.on)))
    key = next(i for i, c in enumerate(table.read_columns) if c.name == _key_name(table, join))
    found: list[NDArray[np.int64]] = []
    files = []
    num_rows = 0
    with ExitStack() as stack:
        columns = [
            _ColumnWriter(job.work, place, at, column, stack)
            for at, column in enumerate(join.columns)
        ]
        for task in tasks:
            before, first = _checksum(task), num_rows
            for rows in _rows_of(task, table, join):
                keys = rows.column(key).to_numpy()
                if (absent := np.flatnonzero(keys == MISSING_ID)).size:
                    at = num_rows - first + int(absent[0]) + 1
                    raise DatasetError(
                        f"{task.path}: row {at} must have a key {join.key!r}, it has none: give it "
                        "one, or leave the row out"
                    )
                others = [array for i, array in enumerate(rows.columns) if i != key]
                for writer, array in zip(columns, others, strict=True):
                    writer.add(array)
                found.append(keys)
                num_rows += len(keys)
                if num_rows > MAX_ROWS:
                    raise DatasetError(
                        f"{join.where}: must have at most {MAX_ROWS:,} rows, it has more: leave "
                        "out those that no event has, or join it outside"
                    )
            if _checksum(task) != before:
                raise DatasetError(
                    f"{task.path}: must stay as it is while it is read, it changed: start again "
                    "when it is whole"
                )
            file = InputFile(path=task.name, bytes=task.bytes, xxh3_64=before)
            files.append(replace(file, lines=num_rows - first))
        if not num_rows:
            raise DatasetError(f"{join.where}: must have rows, it has none")
        for column, writer in zip(join.columns, columns, strict=True):
            writer.add(_missing_row(column))
    keys = np.concatenate(found)
    found.clear()
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    _check_distinct(keys, order, join, job.table, tasks, files)
    np.save(job.work.side_keys(place), keys)
    np.save(job.work.side_rows(place), order)
    texts.write(job.work, place)
    return SideTable(on=join.on, files=tuple(files), rows=num_rows)


def _key_name(table: Table, join: Join) -> str:
    """Finds the key's name in the files: `path` may say another than the schema has."""
    declared = join.declared_key
    if declared is None or table.format != "csv" or not declared.path:
        return join.key
    return ".".join(declared.path)


def _checksum(task: InputTask) -> str:
    with contextlib.closing(task.open()) as stream:
        return checksum_of(stream)


def _rows_of(task: InputTask, table: Table, join: Join) -> Iterator[pa.RecordBatch]:
    """Yields a file's rows; raises DatasetError at one that cannot be read."""
    with contextlib.closing(task.open()) as stream:
        for rows, bad in _parts_of(stream, task, table, join):
            if bad:
                line = min(bad, key=lambda each: each.line)
                raise DatasetError(f"{task.path}: line {line.line}: {line.reason}: {_HINT}")
            if rows.num_rows:
                check_path_columns(table, rows, task.folders)
                yield rows


def _parts_of(
    stream: BinaryIO, task: InputTask, table: Table, join: Join
) -> Iterator[tuple[pa.RecordBatch, Sequence[BadLine]]]:
    if table.format in COLUMNAR:
        for part in read_rows(stream, table, task.name, of_lake=task.of_lake):
            yield part.rows, part.bad
        return
    reader, parser = open_records(stream, table, task.name)
    for block in reader:
        rows, bad = parser.parse(block)
        yield rows, [*bad, *block.bad]
    if parser.absent and reader.num_records:
        raise DatasetError(
            f"{task.path}: no line has {', '.join(sorted(parser.absent))}: spell the columns of "
            f"the {join.where} as the file does"
        )


def _missing_row(column: Column) -> pa.Array:
    values, _ = decode_column(column, pa.array([None], pa.string()), ())
    return values


def _check_distinct(
    keys: NDArray[np.int64],
    order: NDArray[np.int64],
    join: Join,
    table: Table,
    tasks: Sequence[InputTask],
    files: Sequence[InputFile],
) -> None:
    """Raises DatasetError if a key is there twice."""
    twice = np.flatnonzero(keys[1:] == keys[:-1])
    if not twice.size:
        return
    at = int(twice[np.argmin(order[twice])])
    ends = np.cumsum([file.lines for file in files])
    places = []
    for row in (int(order[at]), int(order[at + 1])):
        file = int(np.searchsorted(ends, row, side="right"))
        places.append(f"row {row - int(ends[file]) + files[file].lines + 1} of {tasks[file].path}")
    shown = str(keys[at])
    column = table.column(join.on)
    if column.type == "hex":
        shown = f"{int(keys[at]) & (1 << 64) - 1:x}"
    elif column.type == "string":
        shown = _text_of(int(keys[at]), join, column, tasks)
    raise DatasetError(
        f"{join.where}: each key {join.key!r} must be there once, but {shown} is in "
        f"{' and '.join(places)}: leave out all but one of its {np.sum(keys == keys[at]):,} rows "
        f"({twice.size:,} rows have the key of another)"
    )


def _text_of(number: int, join: Join, on: Column, tasks: Sequence[InputTask]) -> str:
    """Reads the files again for the text of a key."""
    found: list[str] = []

    def see(text: str, of: int) -> None:
        if of == number:
            found.append(text)

    table = join.table(on)
    name = _key_name(table, join)
    watched = (replace(c, on_text=see) if c.name == name else c for c in table.columns)
    table = replace(table, columns=tuple(watched))
    for task in tasks:
        for _ in _rows_of(task, table, join):
            if found:
                return repr(found[0])
    return str(number)


class _ColumnWriter:
    """Writes a column's values, and of lists where each begins."""

    def __init__(self, work: WorkDir, join: int, at: int, column: Column, stack: ExitStack) -> None:
        self._values = stack.enter_context(work.side_values(join, at).open("wb"))
        self._starts: BinaryIO | None = None
        self._end = 0
        if pa.types.is_list(column.row_type):
            self._starts = stack.enter_context(work.side_starts(join, at).open("wb"))
            np.zeros(1, np.int64).tofile(self._starts)

    def add(self, array: pa.Array) -> None:
        if self._starts is not None:
            ends = array.offsets.to_numpy().astype(np.int64)
            (ends[1:] - ends[0] + self._end).tofile(self._starts)
            self._end += int(ends[-1] - ends[0])
            array = array.flatten()
        array.to_numpy(zero_copy_only=False).tofile(self._values)
