"""Evicts rows of a directory that no run writes to: commits a delta of their removals.

The delta follows the newest chain, so evaluators, followers and the next run take the removals as
those of a run. See "Eviction" in docs/checkpoint-format.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa

from embedps import constants
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.evicted_directory import EvictedDirectory, EvictedFile
from embedps.checkpoint.format.manifest import FileEntry, Manifest, SaveSet
from embedps.checkpoint.tools.own_delta import (
    changing,
    commit_delta,
    make_records,
    row_file_schema,
)
from embedps.checkpoint.tools.replay import Partition, make_partitions
from embedps.config_fields import check, option
from embedps.errors import UsageError
from embedps.storage import file_io

WORK_NAME = "evicting"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selection:
    """Which rows go: those for which everything that is given holds."""

    before_step: int | None = option(None, "last updated before this step")
    max_frequency: int | None = option(None, "with fewer updates than this")
    below_norm: float | None = option(None, "of a smaller L2 norm than this")

    def __post_init__(self) -> None:
        check(self)
        if self.before_step is None and self.max_frequency is None and self.below_norm is None:
            raise UsageError(
                "evict needs --before-step, --max-frequency or --below-norm: nothing says which "
                "rows go"
            )

    def of(self, rows: pa.RecordBatch) -> np.ndarray:
        """Tells which rows of a batch go: bool [num_rows]."""
        gone = np.ones(rows.num_rows, bool)
        if self.before_step is not None:
            gone &= rows["last_step"].to_numpy() < self.before_step
        if self.max_frequency is not None:
            gone &= rows["frequency"].to_numpy() < self.max_frequency
        if self.below_norm is not None:
            floats = rows["embedding"].flatten().to_numpy().reshape(rows.num_rows, -1)
            gone &= np.square(floats, dtype=np.float64).sum(axis=1) < self.below_norm**2
        return gone


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvictResult:
    """What an eviction did.

    Attributes:
      manifest: the committed manifest; None if no row was selected.
      removed: how many rows it removed.
      kept: how many rows the table has left.
    """

    manifest: Manifest | None
    removed: int
    kept: int


def evict(
    directory: CheckpointDirectory,
    table: str,
    selection: Selection,
    *,
    evicted_rows: str | None = None,
) -> EvictResult:
    """Removes rows of a table, and commits a manifest with a delta of the removals.

    Args:
      selection: which rows go.
      evicted_rows: a directory that gets these rows, as a run's `--evicted-rows`.

    Raises:
      UsageError: the checkpoint has no such table, or `evicted_rows` is of another directory.
      DirectoryInUseError: a run trains in the directory.
      CheckpointError: the directory has no manifest, or a file cannot be written.
      CorruptCheckpointError: a file is not what its manifest says. Nothing was committed.
    """
    work = directory.path / WORK_NAME
    with changing(directory, "evict", table, work) as manifest:
        kept = None if evicted_rows is None else EvictedDirectory(evicted_rows)
        if kept is not None:
            kept.claim(directory.path)
            kept.remove_after(manifest.save_number)
        return _evict(directory, manifest, table, selection, work, kept)


def _evict(
    directory: CheckpointDirectory,
    manifest: Manifest,
    table: str,
    selection: Selection,
    work: Path,
    evicted: EvictedDirectory | None,
) -> EvictResult:
    directory.check_content(manifest, [f for save in manifest.chain for f in save.files])
    number = directory.next_number()
    entries, kept = [], 0
    for part in make_partitions(directory, manifest.chain):
        ids = np.zeros(0, np.int64)
        if table in part.tables:
            file = None
            if evicted is not None:
                where = evicted.shard_path(number, part.group, part.shard, part.num_shards)
                file = EvictedFile(where, part.tables, step=manifest.step)
            with file or contextlib.nullcontext():
                ids, kept_here = _select(part, table, selection, file)
            kept += kept_here
        path = directory.relative(
            directory.shard_path("delta", number, part.group, part.shard, part.num_shards)
        )
        digest = _write_removals(part.as_stored(), table, ids, work / path)
        entries.append(FileEntry.of(path, digest, rows=0, removed=len(ids)))
    removed = sum(entry.removed for entry in entries)
    if not removed:
        return EvictResult(manifest=None, removed=0, kept=kept)
    save = SaveSet(
        kind="delta",
        number=number,
        step=manifest.step,
        since=manifest.save_number,
        files=tuple(entries),
    )
    committed = commit_delta(directory, manifest, save, work)
    return EvictResult(manifest=committed, removed=removed, kept=kept)


def _select(
    part: Partition, table: str, selection: Selection, file: EvictedFile | None
) -> tuple[np.ndarray, int]:
    """Returns the ids of the rows that go, sorted, and how many stay; a file gets the rows."""
    found, kept = [np.zeros(0, np.int64)], 0
    for batch in part.rows(table):
        gone = selection.of(batch)
        found.append(batch["id"].to_numpy()[gone])
        kept += int((~gone).sum())
        if file is not None and gone.any():
            file.write(batch.filter(pa.array(gone)), table)
    return np.sort(np.concatenate(found)), kept


def _write_removals(part: Partition, table: str, ids: np.ndarray, path: Path) -> file_io.Digest:
    schema = row_file_schema(part)
    most = constants.MAX_ROW_FILE_BATCH_ROWS
    with file_io.write_atomically(path) as file:
        with pa.ipc.new_file(file, schema) as writer:
            for first in range(0, len(ids), most):
                some = pa.array(ids[first : first + most])
                removed = pa.array(np.ones(len(some), bool))
                given = {"id": some, "removed": removed}
                writer.write_batch(make_records(part, table, schema, given))
        return file.digest
