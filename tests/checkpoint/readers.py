"""Reads row files and chains whole, into memory."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from embedps.checkpoint import Reached, Reset, Rows, follow
from embedps.checkpoint.chain import Position
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.format.rows import RowFile
from embedps.checkpoint.tools.replay import make_partitions, stream_table
from embedps.errors import CheckpointError
from tests.checkpoint.builders import GROUP


def newest_of(directory: CheckpointDirectory) -> Manifest:
    """The newest manifest, which must be there."""
    manifest = directory.latest()
    assert manifest is not None
    return manifest


def read_row_file(path: Path | str) -> pa.Table:
    """Reads all records of a row file in file order, removals too, with floats as float32."""
    file = RowFile(path)
    return pa.Table.from_batches(file.batches(), file.schema)


def read_chain(
    directory: CheckpointDirectory, manifest: Manifest, group: str, *, table: str | None = None
) -> pa.Table:
    """Replays the chain of one group: its rows, sorted by table and id.

    Raises:
      CheckpointError: the manifest has no such group.
    """
    groups = sorted({file.group for save in manifest.chain for file in save.files})
    if group not in groups:
        raise CheckpointError(f"manifest {manifest.number} has no group {group!r}, it has {groups}")
    parts = [part for part in make_partitions(directory, manifest.chain) if part.group == group]
    tables = [pa.Table.from_batches(part.rows(table), part.schema) for part in parts]
    rows = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    names = rows["table"].cast(pa.string())
    by = pa.table({"table": names, "id": rows["id"]})
    return rows.take(pc.sort_indices(by, [("table", "ascending"), ("id", "ascending")]))


def read_table(directory: CheckpointDirectory, manifest: Manifest, name: str) -> pa.Table:
    """Reads the rows of one table, sorted by id, without column `table`."""
    schema, batches = stream_table(directory, manifest, name)
    rows = pa.Table.from_batches(batches, schema)
    return rows.take(pc.sort_indices(rows, [("id", "ascending")]))


class Cache:
    """What a serving cache would hold."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], tuple] = {}
        self.position: Position | None = None
        self.resets = 0
        self.batches = 0

    def take(self, change) -> None:
        match change:
            case Reset():
                self.rows.clear()
                self.resets += 1
            case Rows(batch=batch):
                self.batches += 1
                for row in batch.to_pylist():
                    self.rows.pop((row["table"], row["id"]), None)
                    if not row["removed"]:
                        self.rows[row["table"], row["id"]] = tuple(row["embedding"])
            case Reached(position=position):
                self.position = position

    def catch_up(self, directory: CheckpointDirectory) -> None:
        for change in follow(directory, self.position, idle_secs=0):
            self.take(change)


def rows_of(directory: CheckpointDirectory) -> dict[tuple[str, int], tuple]:
    newest = newest_of(directory)
    rows = read_chain(directory, newest, GROUP)
    keys = zip(rows["table"].to_pylist(), rows["id"].to_pylist(), strict=True)
    return dict(zip(keys, map(tuple, rows["embedding"].to_pylist()), strict=True))
