"""Imports vectors into a table of a checkpoint that no run writes to: commits a delta of them.

The input is read part by part, and written by shard. Then the ids of a bucket at a time are
compared with those of the table: memory is one byte per record, whatever the rows' size.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import FileEntry, Manifest, SaveSet
from embedps.checkpoint.format.row_hashes import row_hashes, shards_of
from embedps.checkpoint.format.rows import RowFile
from embedps.checkpoint.tools.own_delta import (
    changing,
    commit_delta,
    make_records,
    row_file_schema,
)
from embedps.checkpoint.tools.replay import Partition, make_partitions, winners_by_bucket
from embedps.checkpoint.tools.row_input import EMBEDDING, RowInput, Vectors
from embedps.errors import UsageError
from embedps.storage import file_io

WORK_NAME = "importing"
Present = Literal["refuse", "keep", "replace"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportResult:
    """What an import did.

    Attributes:
      manifest: the committed manifest; None if no row was new.
      rows: that the table has from the input.
      present: ids of the input that had a row before.
      slots: the optimizer slots that came along.
    """

    manifest: Manifest | None
    rows: int
    present: int
    slots: tuple[str, ...]


def import_rows(
    directory: CheckpointDirectory, table: str, given: RowInput, *, present: Present = "refuse"
) -> ImportResult:
    """Gives a table rows, and commits a manifest with a delta of them.

    Optimizer slots that the input lacks begin as those of a new row. The rows count as updated in
    the manifest's step, and never before.

    Args:
      directory: of the checkpoint.
      table: the table's name.
      given: the vectors.
      present: what happens to ids that have a row: the import is refused, or the row is kept or
        replaced.

    Raises:
      UsageError: the checkpoint has no such table, or the input is not what it must be.
      DirectoryInUseError: a run trains in the directory.
      CheckpointError: the directory has no manifest, or a file cannot be written.
      CorruptCheckpointError: a file is not what its manifest says. Nothing was committed.
    """
    work = directory.path / WORK_NAME
    with changing(directory, "import", table, work) as manifest:
        directory.check_content(manifest, [f for save in manifest.chain for f in save.files])
        parts = make_partitions(directory, manifest.chain)
        mine = [part for part in parts if table in part.tables]
        if not mine:
            raise UsageError(f"manifest {manifest.number} has no files of table {table!r}")
        importer = _Import(manifest, table, mine)
        raw = [work / "raw" / f"{i}.arrow" for i in range(len(mine))]
        importer.write_raw(given, raw)
        number, rows, count = directory.next_number(), 0, 0
        entries: list[FileEntry] = []
        for part in parts:
            path = directory.shard_path("delta", number, part.group, part.shard, part.num_shards)
            name = directory.relative(path)
            chosen: Iterator[pa.RecordBatch] = iter(())
            if part in mine:
                written = RowFile(raw[mine.index(part)])
                stays, found = _compare(part, part.of([written]), table, given.path, present)
                count += found
                chosen = _chosen(written, stays)
            digest, num = _write(part, chosen, work / name)
            rows += num
            entries.append(FileEntry.of(name, digest, rows=num))
        slots = tuple(name for name in importer.slots if name != EMBEDDING)
        committed = None
        if rows:
            save = SaveSet(
                kind="delta",
                number=number,
                step=manifest.step,
                since=manifest.save_number,
                files=tuple(entries),
            )
            committed = commit_delta(directory, manifest, save, work)
        return ImportResult(manifest=committed, rows=rows, present=count, slots=slots)


class _Import:
    """Turns vectors into records of a table's shards."""

    def __init__(self, manifest: Manifest, table: str, parts: Sequence[Partition]) -> None:
        described = next(each for each in manifest.tables if each["name"] == table)
        self._table, self._parts, self._step = table, parts, manifest.step
        self._optimizer: dict[str, Any] = described["optimizer"]
        self._widths = {
            field.name: field.type.list_size
            for field in parts[0].schema
            if pa.types.is_fixed_size_list(field.type)
        }
        self.slots: set[str] = set()

    def write_raw(self, given: RowInput, paths: Sequence[Path]) -> None:
        """Writes each shard's records of the input, in order."""
        with contextlib.ExitStack() as stack:
            writers = []
            for part, path in zip(self._parts, paths, strict=True):
                file = stack.enter_context(file_io.write_atomically(path))
                writer = pa.ipc.new_file(file, row_file_schema(part))
                writers.append(stack.enter_context(writer))
            for vectors in given.vectors(self._widths):
                self.slots |= vectors.floats.keys()
                hashes = row_hashes(self._table, vectors.ids.copy())
                for part, writer in zip(self._parts, writers, strict=True):
                    here = shards_of(hashes, part.num_shards) == part.shard
                    if here.any():
                        writer.write_batch(self._records(part, vectors, here))

    def _records(self, part: Partition, vectors: Vectors, here: np.ndarray) -> pa.RecordBatch:
        schema, length = row_file_schema(part), int(here.sum())
        columns = {
            "id": pa.array(vectors.ids[here]),
            "last_step": pa.array(np.full(length, self._step, np.uint32)),
        }
        for name, width in self._widths.items():
            if name in vectors.floats:
                floats = vectors.floats[name][here]
            else:  # `optimizers.cc`: an accumulator begins at its initial value, others at 0
                first = self._optimizer.get("initial_accumulator", 0.0)
                value = first if name == "accumulator" else 0.0
                floats = np.full((length, width), value, np.float32)
            flat = pa.array(np.ascontiguousarray(floats).reshape(-1))
            columns[name] = pa.FixedSizeListArray.from_arrays(flat, type=schema.field(name).type)
        return make_records(part, self._table, schema, columns)


def _compare(
    existing: Partition, given: Partition, table: str, path: Path, present: Present
) -> tuple[np.ndarray, int]:
    """Tells which records of the input stay, and how many of their ids have a row.

    Raises:
      UsageError: an id is there twice in the input, or must not have a row and has one.
    """
    code = existing.tables.index(table)
    parts = [existing, given]
    counts = [sum(records.batch.num_rows for records in part.records()) for part in parts]
    stays, found = np.zeros(counts[1], bool), 0
    for keys, winners, removed in winners_by_bucket(parts, counts):
        live = (keys[0][:, 0] == code) & ~removed[0]
        is_there = np.isin(keys[1][:, 1], keys[0][live, 1], assume_unique=True)
        if is_there.any() and present == "refuse":
            raise UsageError(
                f"{path}: ids must not have a row in table {table!r} but {keys[1][is_there][0, 1]} "
                "has one: give --present keep or --present replace"
            )
        found += int(is_there.sum())
        stays[winners[1][~is_there] if present == "keep" else winners[1]] = True
    if stays.sum() + (found if present == "keep" else 0) < len(stays):
        raise UsageError(f"{path}: each id must be there once but some are there several times")
    return stays, found


def _chosen(file: RowFile, stays: np.ndarray) -> Iterator[pa.RecordBatch]:
    first = 0
    for batch in file.batches():
        mask = stays[first : first + batch.num_rows]
        first += batch.num_rows
        if mask.any():
            yield batch if mask.all() else batch.filter(pa.array(mask))


def _write(
    part: Partition, batches: Iterator[pa.RecordBatch], path: Path
) -> tuple[file_io.Digest, int]:
    rows = 0
    with file_io.write_atomically(path) as file:
        with pa.ipc.new_file(file, row_file_schema(part)) as writer:
            for batch in batches:
                writer.write_batch(batch.replace_schema_metadata(part.metadata))
                rows += batch.num_rows
        return file.digest, rows
