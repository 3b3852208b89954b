"""Adds an empty table to a checkpoint that is of no run: vectors that a run begins with (--from).

It has one shard, no optimizer slots and no network.
"""

from __future__ import annotations

import dataclasses
import secrets
import time

import pyarrow as pa

from embedps import constants
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import FileEntry, Manifest, SaveKind, SaveSet
from embedps.checkpoint.format.rows import with_tables
from embedps.errors import DirectoryInUseError, UsageError
from embedps.storage import file_io
from embedps.storage.file_lock import RUN_LOCK_NAME, check_locks, locked


def add_table(directory: CheckpointDirectory, table: str, dim: int) -> None:
    """Commits an empty table, if the checkpoint lacks it; makes the first manifest, if none is.

    Raises:
      UsageError: the table has another dim, or the checkpoint is of a run that lacks the table.
      DirectoryInUseError: a run trains in the directory.
      CheckpointError: the directory has no locks, or a file cannot be written.
    """
    check_locks(directory.path, "import")
    with locked(directory.path / RUN_LOCK_NAME, wait=False) as held:
        if not held:
            raise DirectoryInUseError(f"{directory.path} is in use by a run: end it first")
        with directory.exclusive():
            newest = directory.latest()
            tables = () if newest is None else newest.tables
            found = [each for each in tables if each["name"] == table]
            if not found and newest is not None and newest.dense is not None:
                raise UsageError(
                    f"--table must be one of {sorted(each['name'] for each in tables)} but is "
                    f"{table!r}: --embedding-dim adds tables where no run has trained"
                )
            if found and found[0]["dim"] != dim:
                raise UsageError(
                    f"--embedding-dim of table {table!r} must be {found[0]['dim']} but is {dim}"
                )
            if not found:
                directory.commit(_with_table(directory, newest, table, dim))


def _with_table(
    directory: CheckpointDirectory, newest: Manifest | None, table: str, dim: int
) -> Manifest:
    number = directory.next_number()
    kind: SaveKind = "base" if newest is None else "delta"
    group = f"imported-{number}"
    described = {"name": table, "dim": dim, "optimizer": {"kind": "sgd"}, "group": group}
    path = directory.shard_path(kind, number, group, 0, 1)
    with file_io.write_atomically(path) as file:
        pa.ipc.new_file(file, _schema(table, dim)).close()
        entry = FileEntry.of(directory.relative(path), file.digest, rows=0)
    save = SaveSet(
        kind=kind,
        number=number,
        step=0,
        since=None if newest is None else newest.save_number,
        files=(entry,),
    )
    if newest is not None:
        return dataclasses.replace(
            newest,
            number=number,
            wall_time=time.time(),
            chain=(*newest.chain, save),
            tables=(*newest.tables, described),
        )
    return Manifest(
        number=number,
        step=0,
        wall_time=time.time(),
        chain=(save,),
        dense=None,
        ledger={},
        tables=(described,),
        num_shards=1,
        history=secrets.token_hex(8),
    )


def _schema(table: str, dim: int) -> pa.Schema:
    """Makes the schema of a row file without optimizer slots."""
    item = pa.field("item", pa.float32(), nullable=False)
    fields = {
        "table": pa.dictionary(pa.int16(), pa.string()),
        "id": pa.int64(),
        "embedding": pa.list_(item, dim),
        "last_step": pa.uint32(),
        "frequency": pa.uint32(),
        "removed": pa.bool_(),
    }
    version = {constants.ROW_FILE_VERSION_KEY.encode(): constants.ROW_FILE_VERSION.encode()}
    return pa.schema(
        [pa.field(name, kind, nullable=False) for name, kind in fields.items()],
        metadata=with_tables(version, [table]),
    )
