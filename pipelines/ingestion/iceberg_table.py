"""Reads one snapshot of an Iceberg table: its files, without the rows that were deleted."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, _read_all_delete_files, schema_to_pyarrow
from pyiceberg.manifest import FileFormat
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import DataScan, StaticTable, Table

from embedps.errors import UsageError

from .lake_marks import CATALOG, METADATA


class IcebergFiles:
    """The files of a snapshot, as `lake_files.TableFiles`."""

    def __init__(self, location: str, version: int | str | None, metadata: str = "") -> None:
        """Opens a table.

        Args:
          location: `iceberg://CATALOG/NAMESPACE.TABLE`, a table's folder, or a file of metadata.
          version: a snapshot's number, or the name of a branch or tag; None: the current one.
          metadata: the file of metadata that tells of it; empty: the newest.

        Raises:
          UsageError: there is no such snapshot, or it has what is not read.
          Exception: any other of the library's.
        """
        table = _load(location, metadata)
        self.metadata = table.metadata_location
        if metadata and metadata != table.metadata_location:
            self.metadata = metadata
            table.metadata = FromInputFile.table_metadata(table.io.new_input(metadata))
        self.version = _snapshot_of(table, version)
        # The current one has the table's columns as they are now, another those of its time.
        is_current = version is None or self.version == _snapshot_of(table, None)
        self._io = table.io
        self._scan = DataScan(
            table_metadata=table.metadata,
            io=table.io,
            snapshot_id=None if is_current else self.version,
        )
        self._tasks = {task.file.file_path: task for task in self._scan.plan_files()}
        for path, task in self._tasks.items():
            if task.file.file_format not in (FileFormat.PARQUET, FileFormat.ORC):
                raise UsageError(
                    f"its files must be Parquet or ORC, {path} is {task.file.file_format.value}"
                )
        self.schema = schema_to_pyarrow(self._scan.projection(), include_field_ids=False)
        self.files: Mapping[str, int] = {
            path: task.file.file_size_in_bytes for path, task in self._tasks.items()
        }

    def open(self, path: str) -> BinaryIO:
        """Opens a file; its bytes have deleted rows too."""
        stream: BinaryIO = self._io.new_input(path).open()
        return stream

    def batches(
        self, path: str, names: Sequence[str], *, is_wide: bool
    ) -> Iterator[tuple[pa.RecordBatch, float]]:
        """Yields a file's rows in order, a column that it lacks as nulls, and the share read."""
        task = self._tasks[path]
        columns = self._scan.select(*names).projection()
        scan = ArrowScan(self._scan.table_metadata, self._io, columns, AlwaysTrue())
        # The public to_record_batches holds a whole file.
        deletes = _read_all_delete_files(self._io, [task])
        done = 0
        for batch in scan._record_batches_from_scan_tasks_and_deletes([task], deletes):
            done += batch.num_rows
            yield batch.select(names), done / task.file.record_count


def _load(location: str, metadata: str) -> Table:
    if location.startswith(CATALOG):
        name, _, identifier = location.removeprefix(CATALOG).partition("/")
        return load_catalog(name).load_table(identifier)
    return StaticTable.from_metadata(metadata or _newest(location))


def _newest(location: str) -> str:
    """Finds a table's newest file of metadata.

    Raises:
      UsageError: it is not told which that is.
    """
    if METADATA.fullmatch(os.path.basename(location)):
        return location
    folder = os.path.join(location, "metadata")
    numbers: dict[int, list[str]] = {}
    for name in sorted(os.listdir(folder)):
        if found := METADATA.fullmatch(name):
            numbers.setdefault(int(found[1]), []).append(name)
    newest = numbers[max(numbers)] if numbers else []
    if len(newest) != 1:
        raise UsageError(
            "it must have one newest file of metadata by the number in its name, it has "
            f"{', '.join(newest) or 'none'}: give {CATALOG}CATALOG/NAMESPACE.TABLE, or the file"
        )
    return os.path.join(folder, newest[0])


def _snapshot_of(table: Table, version: int | str | None) -> int:
    if version is None:
        found = table.metadata.current_snapshot()
    elif isinstance(version, int):
        found = table.metadata.snapshot_by_id(version)
    else:
        found = table.metadata.snapshot_by_name(version)
    if found is None:
        known = [f"{s.snapshot_id}" for s in table.metadata.snapshots[-5:]]
        raise UsageError(
            f"it must have the snapshot {version or ''}".rstrip()
            + f", it has {', '.join(known) or 'none'}"
        )
    return int(found.snapshot_id)
