"""What tools do to a checkpoint that no run writes to: a delta of their own, at the chain's end.

Evaluators, followers and the next run take the delta as one of the run's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from embedps.checkpoint.chain import extend
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest, SaveSet
from embedps.checkpoint.lease import LeaseRenewer
from embedps.checkpoint.tools.replay import Partition
from embedps.constants import CHECKPOINT_VERSION
from embedps.errors import CheckpointError, DirectoryInUseError, UsageError
from embedps.storage import file_io
from embedps.storage.file_lock import RUN_LOCK_NAME, check_locks, locked


@contextlib.contextmanager
def changing(
    directory: CheckpointDirectory, action: str, table: str, work: Path
) -> Iterator[Manifest]:
    """Keeps runs out of a directory while the block changes a table of it.

    Args:
      directory: of the checkpoint.
      action: what is done, for messages.
      table: the table's name.
      work: a directory that is removed before and after.

    Yields:
      The newest manifest, leased.

    Raises:
      UsageError: the checkpoint has no such table.
      DirectoryInUseError: a run trains in the directory.
      CheckpointError: the directory has no locks, or no manifest.
    """
    check_locks(directory.path, action)
    with (
        locked(directory.path / RUN_LOCK_NAME, wait=False) as held,
        LeaseRenewer(directory, holder=action) as lease,
    ):
        if not held:
            raise DirectoryInUseError(
                f"{directory.path} is in use by a run, which would go on without the change: end "
                "it first"
            )
        manifest = lease.take_latest()
        if manifest is None:
            raise directory.holds_none()
        names = sorted(each["name"] for each in manifest.tables)
        if table not in names:
            raise UsageError(f"--table must be one of {names} but is {table!r}")
        shutil.rmtree(work, ignore_errors=True)
        try:
            yield manifest
        finally:
            shutil.rmtree(work, ignore_errors=True)


def row_file_schema(part: Partition) -> pa.Schema:
    """Returns the schema of a row file with records of a partition."""
    schema = part.schema.append(pa.field("removed", pa.bool_(), nullable=False))
    return schema.with_metadata(part.metadata)


def make_records(
    part: Partition, table: str, schema: pa.Schema, given: Mapping[str, pa.Array]
) -> pa.RecordBatch:
    """Makes records of a table.

    Args:
      part: that gets them.
      table: of all records.
      schema: of the row file.
      given: at least `id`; the other columns that are not zeros.
    """
    length = len(given["id"])
    codes = pa.array(np.full(length, part.tables.index(table), np.int16))
    names = pa.DictionaryArray.from_arrays(codes, pa.array(part.tables))
    columns = {"table": names, **given}
    arrays = [
        columns[field.name] if field.name in columns else _zeros(field.type, length)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _zeros(kind: pa.DataType, length: int) -> pa.Array:
    if pa.types.is_fixed_size_list(kind):
        values = _zeros(kind.value_type, length * kind.list_size)
        return pa.FixedSizeListArray.from_arrays(values, type=kind)
    # `to_pandas_dtype` would import pandas, where it is installed.
    zeros = pa.py_buffer(bytes(length * kind.bit_width // 8 + 1))
    return pa.Array.from_buffers(kind, length, [None, zeros])


def commit_delta(
    directory: CheckpointDirectory, read: Manifest, save: SaveSet, work: Path
) -> Manifest:
    """Moves a delta out of `work`, and commits the manifest with it at the end of its chain."""
    with directory.exclusive():
        newest = directory.latest()
        if newest is None or newest.save_number != read.save_number:
            raise CheckpointError(
                f"{directory.path}: manifest {read.number} must be the newest but another was "
                "committed: do it again"
            )
        folder = directory.path / f"delta-{save.number}"
        file_io.rename(work / folder.name, folder)
        file_io.store_of(directory.path).sync_directory(directory.path)
        manifest = dataclasses.replace(
            newest,
            version=CHECKPOINT_VERSION,
            number=max(save.number, newest.number + 1),
            wall_time=time.time(),
            chain=extend(newest.chain, save),
        )
        directory.commit(manifest)
        return manifest
