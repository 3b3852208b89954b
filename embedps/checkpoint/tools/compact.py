"""Merges base and deltas into a new base, offline or during training.

The new base takes the number of the chain's last save, because it holds the rows as of that save.
So readers continue from that number without a change, and every row must keep every bit. Quantized
rows keep their codes, scales and offsets: quantizing the restored floats again would change them.
See "Compaction" in docs/checkpoint-format.md.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from embedps import constants
from embedps.checkpoint.chain import replace_start
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import FileEntry, Manifest, SaveSet
from embedps.checkpoint.lease import LeaseRenewer
from embedps.checkpoint.tools.replay import (
    Partition,
    make_admission_partitions,
    make_partitions,
)
from embedps.errors import CheckpointError, CorruptCheckpointError
from embedps.storage import file_io
from embedps.storage.file_lock import check_locks, locked

WORK_NAME = "compacting"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompactResult:
    """What a compaction wrote.

    Attributes:
      manifest: the committed manifest.
      base: the new base.
      read_bytes: size of the base and deltas that it replaces.
    """

    manifest: Manifest
    base: SaveSet
    read_bytes: int


def compact(directory: CheckpointDirectory) -> CompactResult | None:
    """Merges the newest chain into one base, in bounded memory, and commits a manifest with it.

    It removes only what a killed compaction left. The run's next save removes the old chain, when
    its keep policies allow that.

    Returns:
      The result; None if there is nothing to merge, or a new base was committed in the meantime.

    Raises:
      CheckpointError: the directory has no manifest, another compaction runs, or a file cannot be
        written.
      CorruptCheckpointError: a file is not what its manifest says. Nothing was committed.
    """
    check_locks(directory.path, "compact")
    work = directory.path / WORK_NAME
    with (
        locked(directory.manifests_dir / ".compact.lock", wait=False) as held,
        LeaseRenewer(directory, holder="compaction") as lease,
    ):
        if not held:
            raise CheckpointError(f"{directory.path}: another compaction runs: wait for it")
        manifest = lease.take_latest()
        if manifest is None:
            raise directory.holds_none()
        if len(manifest.chain) == 1:
            return None
        shutil.rmtree(work, ignore_errors=True)
        try:
            files = [f for save in manifest.chain for f in (*save.files, *save.admission)]
            directory.check_content(manifest, files)
            base = write_base(directory, manifest, work, number=manifest.save_number)
            committed = _commit(directory, manifest, base, work)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    if committed is None:
        return None
    read_bytes = sum(file.bytes for file in files)
    return CompactResult(manifest=committed, base=base, read_bytes=read_bytes)


def write_base(
    directory: CheckpointDirectory,
    manifest: Manifest,
    work: Path,
    *,
    number: int,
    select: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda batch: batch,
) -> SaveSet:
    """Writes a manifest's rows and counters as a base below `work`.

    Args:
      directory: of the checkpoint.
      manifest: whose chain is merged.
      work: gets what the checkpoint's directory has, by the same relative paths.
      number: of the base.
      select: gives what stays of a batch of rows, or of counters.
    """
    files, admission = [], []
    for part in make_partitions(directory, manifest.chain):
        final = directory.shard_path("base", number, part.group, part.shard, part.num_shards)
        path = directory.relative(final)
        digest, num_rows = _write_part(part.as_stored(), work / path, select)
        files.append(FileEntry.of(path, digest, rows=num_rows))
    for part in make_admission_partitions(directory, manifest.chain):
        final = directory.shard_path(
            "base", number, part.group, part.shard, part.num_shards, admission=True
        )
        path = directory.relative(final)
        digest, num_rows = _write_part(part, work / path, select)
        admission.append(FileEntry.of(path, digest, rows=num_rows))
    return SaveSet(
        kind="base",
        number=number,
        step=manifest.chain[-1].step,
        since=None,
        files=tuple(files),
        admission=tuple(admission),
    )


def _write_part(
    part: Partition, path: Path, select: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> tuple[file_io.Digest, int]:
    schema = part.schema.append(pa.field("removed", pa.bool_(), nullable=False))
    schema = schema.with_metadata(part.metadata)
    num_rows = 0
    with file_io.write_atomically(path) as file:
        with pa.ipc.new_file(file, schema) as writer:
            for batch in _of_full_size(map(select, part.rows())):
                removed = pa.array(np.zeros(batch.num_rows, bool))
                writer.write_batch(
                    pa.RecordBatch.from_arrays([*batch.columns, removed], schema=schema)
                )
                num_rows += batch.num_rows
        return file.digest, num_rows


def _of_full_size(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merges small batches into batches of up to 65,536 rows."""
    held: list[pa.RecordBatch] = []
    num_rows = 0
    for batch in batches:
        if num_rows + batch.num_rows > constants.MAX_ROW_FILE_BATCH_ROWS:
            yield from _merged(held)
            held, num_rows = [], 0
        held.append(batch)
        num_rows += batch.num_rows
    yield from _merged(held)


def _merged(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    merged: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return merged


def _commit(
    directory: CheckpointDirectory, read: Manifest, base: SaveSet, work: Path
) -> Manifest | None:
    """Commits the newest manifest with the base in its chain; None if that is impossible."""
    with directory.exclusive():
        newest = directory.latest()
        if newest is None or newest.history != read.history:
            return None
        chain = replace_start(newest.chain, base)
        if chain is None:
            return None
        folder = directory.base_dir(base.number)
        if folder.exists():
            _remove_leftover(directory, folder)
        file_io.rename(work / folder.name, folder)
        file_io.store_of(directory.path).sync_directory(directory.path)
        manifest = dataclasses.replace(
            newest,
            version=0,
            number=directory.next_number(),
            wall_time=time.time(),
            chain=chain,
        )
        directory.commit(manifest)
        return manifest


def _remove_leftover(directory: CheckpointDirectory, folder: Path) -> None:
    """Removes the base that a killed compaction left before its commit."""
    for number in directory.numbers():
        try:
            manifest = directory.read(number)
        except CorruptCheckpointError as error:
            raise CheckpointError(f"{folder} may be needed: {error}") from error
        if any(file.directory == folder.name for file in manifest.files):
            raise CheckpointError(f"{folder} belongs to manifest {number}: compact another chain")
    file_io.store_of(folder).remove_directory(folder)
