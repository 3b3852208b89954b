"""Forgets ids of a table: their rows, slots, counters, evicted rows and texts leave every file.

A new base without them replaces the chain, under a history of its own, so who follows drops what it
holds and loads that base. Then all older manifests go, with their files.
"""

from __future__ import annotations

import dataclasses
import mmap
import re
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embedps import constants
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.evicted_directory import EvictedDirectory
from embedps.checkpoint.format.admission import AdmissionFile
from embedps.checkpoint.format.manifest import FileEntry, Manifest
from embedps.checkpoint.format.rows import RowFile
from embedps.checkpoint.lease import read_clock, read_leases
from embedps.checkpoint.refs import read_refs
from embedps.checkpoint.retention import KeepNewest, collect_garbage
from embedps.checkpoint.tools.compact import write_base
from embedps.checkpoint.tools.own_delta import changing
from embedps.checkpoint.tools.run_texts import RunTexts
from embedps.errors import CheckpointError
from embedps.storage import file_io
from embedps.storage.file_lock import check_locks

WORK_NAME = "forgetting"
_LEAST_IN_TEXTS = 2**31


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForgetResult:
    """What was forgotten.

    Attributes:
      manifest: the committed manifest; None if no file of the newest chain had an id.
      rows: that the table has no more, rows and counters.
      evicted: rows that went from the files of evicted rows.
      texts: that went from the texts of ids beside datasets.
      left: lines about files there that may still have some.
      held: why older manifests are still there, by number.
    """

    manifest: Manifest | None
    rows: int
    evicted: int
    texts: int
    left: list[str]
    held: dict[int, str]


def forget(
    directory: CheckpointDirectory,
    table: str,
    ids: np.ndarray,
    *,
    evicted_rows: str | None = None,
    texts: RunTexts | None = None,
) -> ForgetResult:
    """Removes ids of a table from every file, and every older manifest.

    Args:
      directory: of the checkpoint.
      table: the table's name.
      ids: sorted and unique, int64.
      evicted_rows: the run's directory of evicted rows.
      texts: beside the run's datasets. A text is an id's in all tables, so it goes from all.

    Raises:
      UsageError: the checkpoint has no such table, or `evicted_rows` is of another directory.
      DirectoryInUseError: a run trains in the directory.
      CheckpointError: the directory has no manifest, or a file cannot be written.
      CorruptCheckpointError: a file is not what its manifest says. Nothing was committed.
    """
    work = directory.path / WORK_NAME
    made = None
    with changing(directory, "forget", table, work) as manifest:
        evicted = 0
        if evicted_rows is not None:
            found = EvictedDirectory(evicted_rows)
            check_locks(found.path, "forget")
            found.claim(directory.path)
            evicted = sum(_forget_evicted(path, table, ids) for path in _evicted_files(found.path))
        chained = [f for save in manifest.chain for f in (*save.files, *save.admission)]
        directory.check_content(manifest, [*chained, *manifest.vectors])
        gone = 0

        def select(batch: pa.RecordBatch) -> pa.RecordBatch:
            nonlocal gone
            hits = _hits(batch, table, ids)
            gone += int(hits.sum())
            return batch.filter(pa.array(~hits)) if hits.any() else batch

        with_ids = [f for f in manifest.vectors if _holds(directory.file(f), table, ids)]
        if with_ids or any(_holds(directory.file(file), table, ids) for file in chained):
            number = directory.next_number()
            rewritten = {
                file.path: _rewrite(directory.file(file), work, number, file.group, table, ids)
                for file in with_ids
            }
            vectors = tuple(rewritten.get(file.path, file) for file in manifest.vectors)
            made = _rebase(directory, manifest, work, number, vectors, select)
        num_texts, left = texts.forget(ids) if texts is not None else (0, [])
    with directory.exclusive():
        collect_garbage(directory, [KeepNewest(1)])
        held = _held(directory)
    return ForgetResult(
        manifest=made, rows=gone, evicted=evicted, texts=num_texts, left=left, held=held
    )


def _rewrite(
    path: Path, work: Path, number: int, group: str, table: str, ids: np.ndarray
) -> FileEntry:
    """Writes a file of vectors without ids."""
    file, rows = RowFile(path, decoded=False), 0
    name = f"vectors-{number}/{group}/{path.name}"
    with (
        file_io.write_atomically(work / name) as target,
        pa.ipc.new_file(target, file.schema) as writer,
    ):
        for batch in file.batches():
            kept = batch.filter(pa.array(~_hits(batch, table, ids)))
            writer.write_batch(kept)
            rows += kept.num_rows
    return FileEntry.of(name, target.digest, rows=rows)


def _rebase(
    directory: CheckpointDirectory,
    manifest: Manifest,
    work: Path,
    number: int,
    vectors: tuple[FileEntry, ...],
    select: Any,
) -> Manifest:
    base = write_base(directory, manifest, work, number=number, select=select)
    with directory.exclusive():
        newest = directory.latest()
        if newest is None or newest.number != manifest.number:
            raise CheckpointError(
                f"{directory.path}: manifest {manifest.number} must be the newest but another was "
                "committed: do it again"
            )
        file_io.rename(work / f"base-{number}", directory.base_dir(number))
        if vectors != manifest.vectors:
            file_io.rename(work / f"vectors-{number}", directory.vectors_dir(number))
        file_io.store_of(directory.path).sync_directory(directory.path)
        committed = dataclasses.replace(
            newest,
            version=0,
            number=number,
            wall_time=time.time(),
            chain=(base,),
            # Who has the rows must drop them, and not take the next delta for a continuation.
            history=secrets.token_hex(8),
            vectors=vectors,
        )
        directory.commit(committed)
        return committed


def traces(
    directory: CheckpointDirectory, table: str, ids: np.ndarray, *, evicted_rows: str | None = None
) -> Iterator[str]:
    """Reads every file below a model directory, and yields a line for each that has an id.

    Row files, admission files and evicted rows are read by column. In all others, such as logs and
    TensorBoard's events, ids from 2^31 on are looked for as numbers: smaller ones are steps and
    counts too.

    Args:
      directory: of the checkpoint.
      table: the table's name.
      ids: sorted and unique, int64.
      evicted_rows: the run's directory of evicted rows.

    Raises:
      CheckpointError: a directory is not a local one.
    """
    places = [directory.path]
    if evicted_rows is not None:
        places.append(EvictedDirectory(evicted_rows).path)
    large = [str(abs(i)).encode() for i in ids.tolist() if abs(i) >= _LEAST_IN_TEXTS]
    numbers = re.compile(rb"(?<![0-9.])(?:%s)(?![0-9.])" % b"|".join(large)) if large else None
    for place in places:
        check_locks(place, "prove that ids are absent")
        for path in sorted(each for each in place.rglob("*") if each.is_file()):
            yield from _traces_in(path, table, ids, numbers)


def _traces_in(
    path: Path, table: str, ids: np.ndarray, numbers: re.Pattern[bytes] | None
) -> Iterator[str]:
    try:
        if path.name.endswith(constants.TEMPORARY_SUFFIX):
            yield f"{path}: is left of a write that was cut short: remove it"
        elif path.suffix == ".parquet":
            if _evicted_has(path, table, ids):
                yield f"{path}: has rows of ids"
        elif path.suffix == ".arrow" and path.name != "dense.arrow":
            if _holds(path, table, ids):
                yield f"{path}: has rows, counters or removals of ids"
        elif numbers is not None and _is_in(path, numbers):
            yield f"{path}: has one of the ids as a number"
    except (CheckpointError, pa.ArrowException, OSError) as error:
        yield f"{path}: cannot be read: {error}"


def _is_in(path: Path, numbers: re.Pattern[bytes]) -> bool:
    """Searches a file of any size without a copy of it in memory."""
    if not path.stat().st_size:
        return False  # which cannot be mapped
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return numbers.search(content) is not None


def _holds(path: Path, table: str, ids: np.ndarray) -> bool:
    is_admission = path.name.startswith(constants.ADMISSION_FILE_PREFIX)
    file: AdmissionFile | RowFile
    file = AdmissionFile(path) if is_admission else RowFile(path, decoded=False)
    return any(_hits(batch, table, ids).any() for batch in file.batches())


def _hits(batch: pa.RecordBatch, table: str, ids: np.ndarray) -> np.ndarray:
    """Tells which records are of the ids: bool [num_records]."""
    column = batch["table"]
    names = column.dictionary.to_pylist()
    code = names.index(table) if table in names else -1
    of_table = column.indices.to_numpy(zero_copy_only=False) == code
    return np.asarray(of_table & np.isin(batch["id"].to_numpy(), ids))


def _evicted_files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.parquet"))


def _evicted_has(path: Path, table: str, ids: np.ndarray) -> bool:
    with pq.ParquetFile(path) as file:
        if not {"table", "id"} <= set(file.schema_arrow.names):
            return False
        return any(_hits(batch, table, ids).any() for batch in file.iter_batches())


def _forget_evicted(path: Path, table: str, ids: np.ndarray) -> int:
    """Writes a file of evicted rows again without the ids; returns how many rows went."""
    if not _evicted_has(path, table, ids):
        return 0
    gone = 0
    with (
        pq.ParquetFile(path) as file,
        file_io.write_atomically(path) as target,
        pq.ParquetWriter(target, file.schema_arrow, compression="zstd") as writer,
    ):
        for batch in file.iter_batches():
            hits = _hits(batch, table, ids)
            gone += int(hits.sum())
            writer.write_batch(batch.filter(pa.array(~hits)))
    return gone


def _held(directory: CheckpointDirectory) -> dict[int, str]:
    """Says why each manifest but the newest is still there."""
    numbers = directory.numbers()[:-1]
    now = read_clock(directory) if numbers else 0.0
    held = dict.fromkeys(numbers, "a reader goes on from it")
    for lease in read_leases(directory):
        if lease.number in held and lease.is_live(now):
            held[lease.number] = f"{lease.holder} of {lease.host} reads it"
    for ref in read_refs(directory):
        if ref.number in held:
            held[ref.number] = f"the ref {ref.name} names it"
    return held
