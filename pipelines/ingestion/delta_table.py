"""Reads one version of a Delta Lake table: its files, without the rows that were deleted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler

from embedps.errors import UsageError

from .batch_size import batch_rows

_READ = {"timestampNtz", "deletionVectors", "v2Checkpoint", "vacuumProtocolCheck"}
"""The features of a table that readers must know, and this one does."""
_MAPPING = "delta.columnMapping.mode"


class DeltaFiles:
    """The files of a version, as `lake_files.TableFiles`."""

    def __init__(self, location: str, version: int | None) -> None:
        """Opens a table.

        Raises:
          UsageError: it has a feature that is not read.
          Exception: any other of the library's.
        """
        is_local = "://" not in location
        if is_local and "%" in location:
            raise UsageError("its path must have no %, which deltalake takes for an escape")
        table = DeltaTable(location, version=version)
        _check_features(table)
        self.version = table.version()
        self.schema = pa.schema(table.schema().to_arrow())
        # An action's path is a URI's; the file's own name may have escapes of its own.
        actions = pa.table(table.get_add_actions())
        uris = actions["path"].to_pylist()
        if elsewhere := [uri for uri in uris if "://" in uri or uri.startswith("/")]:
            raise UsageError(
                f"its files must lie in it, {elsewhere[0]} does not, as in a shallow clone: give "
                "the table that was cloned"
            )
        paths = [unquote(uri) for uri in uris]
        self.files: Mapping[str, int] = dict(
            zip(paths, actions["size_bytes"].to_pylist(), strict=True)
        )
        self._folders = _columns_of_folders(actions, paths)
        self._kept = _kept_rows(table, dict(zip(uris, paths, strict=True)))
        self._storage: Any = (
            fs.SubTreeFileSystem(location, fs.LocalFileSystem())
            if is_local
            else fs.PyFileSystem(DeltaStorageHandler(table.table_uri))
        )

    def open(self, path: str) -> BinaryIO:
        """Opens a file; its bytes have deleted rows too."""
        stream: BinaryIO = self._storage.open_input_file(path)
        return stream

    def batches(
        self, path: str, names: Sequence[str], *, is_wide: bool
    ) -> Iterator[tuple[pa.RecordBatch, float]]:
        """Yields a file's rows in order, a column that it lacks as nulls, and the share read."""
        given = self._folders[path]
        schema = pa.schema([self.schema.field(name) for name in names if name not in given])
        options = ds.ParquetFragmentScanOptions(
            page_checksum_verification=True,
            pre_buffer=False,  # of whole row groups, which are large
            use_buffered_stream=True,
        )
        format_ = ds.ParquetFileFormat(default_fragment_scan_options=options)
        with pq.ParquetFile(self._storage.open_input_file(path)) as file:
            rows, most = file.metadata.num_rows, batch_rows(file.metadata, is_wide=is_wide)
        scanner = ds.Scanner.from_fragment(
            format_.make_fragment(path, filesystem=self._storage),
            schema=schema,
            batch_size=most,
            batch_readahead=2,
        )
        done = 0
        for batch in scanner.to_batches():
            first, done = done, done + batch.num_rows
            columns = {
                name: pa.repeat(given[name], batch.num_rows)
                if name in given
                else batch.column(name)
                for name in names
            }
            whole = pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])
            if (kept := self._kept.get(path)) is not None:
                few = kept[first:done]  # the vector may end with the last row that was deleted
                rest = pa.repeat(True, batch.num_rows - len(few))
                whole = whole.filter(pa.concat_arrays([few, rest]))
            yield whole, done / rows


def _check_features(table: DeltaTable) -> None:
    """Raises UsageError if the table has a feature that is not read."""
    found = {*(table.protocol().reader_features or ())} - _READ
    if table.metadata().configuration.get(_MAPPING, "none") != "none":
        found.add("columnMapping")
    if found:
        raise UsageError(
            f"it has {', '.join(sorted(found))}, which is not read: write its rows to a table "
            "without"
        )


def _columns_of_folders(actions: pa.Table, paths: Sequence[str]) -> dict[str, dict[str, pa.Scalar]]:
    """Gives the columns that a table is partitioned by, whose values are in no file, by path."""
    if "partition" not in actions.schema.names:
        return {path: {} for path in paths}
    values = actions["partition"].combine_chunks()
    names = [field.name for field in values.type]
    columns = dict(zip(names, values.flatten(), strict=True))
    return {
        path: {name: column[i] for name, column in columns.items()} for i, path in enumerate(paths)
    }


def _kept_rows(table: DeltaTable, paths: Mapping[str, str]) -> dict[str, Any]:
    """Tells for the files of which rows were deleted which are left, by path."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    root = table.table_uri.rstrip("/") + "/"
    found = {}
    for batch in table.deletion_vectors():
        vectors = pa.record_batch(batch)
        for uri, kept in zip(vectors["filepath"], vectors["selection_vector"], strict=True):
            found[paths[uri.as_py().removeprefix(root)]] = kept.values
    return found
