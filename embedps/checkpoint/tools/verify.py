"""Verifies checkpoints: reads every byte and compares it with the manifests."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.compute as pc

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.admission import AdmissionFile
from embedps.checkpoint.format.dense import read_dense
from embedps.checkpoint.format.ledger_state import check_ledger
from embedps.checkpoint.format.manifest import FileEntry, Manifest
from embedps.checkpoint.format.rows import RowFile, table_codes
from embedps.checkpoint.lease import LeaseRenewer
from embedps.errors import CheckpointError, CorruptCheckpointError
from embedps.storage import file_io


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """A difference between a manifest and a file.

    Attributes:
      path: the file's path.
      field: what differs.
      expected: the manifest's value.
      found: the file's value.
    """

    path: str
    field: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.path}: {self.field}: expected {self.expected}, found {self.found}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyResult:
    """Counts what was read, and lists every problem.

    Attributes:
      manifests: how many were verified.
      files: that they name, each once.
      bytes: of these files.
      problems: what is wrong.
      collected: the numbers of manifests that a run removed meanwhile; none of them counts above.
    """

    manifests: int
    files: int
    bytes: int
    problems: tuple[Problem, ...]
    collected: tuple[int, ...]


def verify(directory: CheckpointDirectory, numbers: Sequence[int]) -> VerifyResult:
    """Checks manifests, and each file that they name once: presence, size, checksum, content.

    Each manifest is leased while its files are read, so a run may go on in the directory.
    """
    problems: list[Problem] = []
    collected: list[int] = []
    files: dict[str, FileEntry] = {}
    dims: dict[str, int] = {}
    with LeaseRenewer(directory, holder="verify", is_needed=False) as lease:
        for number in numbers:
            if not lease.hold(number):
                collected.append(number)
                continue
            known = dict(files)
            found = list(_check(directory, number, files, dims))
            if found and not directory.manifest_path(number).exists():  # without a lease, or late
                collected.append(number)
                files = known
            else:
                problems += found
    return VerifyResult(
        manifests=len(numbers) - len(collected),
        files=len(files),
        bytes=sum(entry.bytes for entry in files.values()),
        problems=tuple(problems),
        collected=tuple(collected),
    )


def _check(
    directory: CheckpointDirectory, number: int, files: dict[str, FileEntry], dims: dict[str, int]
) -> Iterator[Problem]:
    """Checks a manifest, and those of its files that are not in `files` yet; adds them."""
    path = directory.manifest_path(number)
    try:
        manifest = directory.read(number)
        yield from _check_manifest(path)
        if manifest.ledger:  # a run's; a writer of rows alone leaves it empty
            check_ledger(manifest.ledger, path)
    except (CheckpointError, OSError) as error:
        yield _unreadable(path, error)
        return
    dims.update(_dims(manifest))
    for entry in manifest.files:
        known = files.get(entry.path)
        if known is None:
            files[entry.path] = entry
            yield from _check_file(directory.file(entry), entry, dims)
        elif known != entry:
            yield Problem(
                path=str(path),
                field=f"entry of {entry.path}",
                expected=f"the other manifests' entry, {known}",
                found=str(entry),
            )


def _check_manifest(path: Path) -> Iterator[Problem]:
    """Checks the manifest's formatting, which its checksum does not cover."""
    found = file_io.read_bytes(path)
    content = json.loads(found)
    expected = (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()
    if found != expected:
        both = zip(found, expected, strict=False)
        at = next((i for i, (a, b) in enumerate(both) if a != b), min(len(found), len(expected)))
        yield Problem(
            path=str(path),
            field=f"byte {at}",
            expected=repr(expected[at : at + 8]),
            found=repr(found[at : at + 8]),
        )


def _check_file(path: Path, entry: FileEntry, dims: dict[str, int]) -> Iterator[Problem]:
    """Yields a file's first problem, if any; further ones would follow from it."""
    try:
        digest = file_io.digest_file(path)
    except OSError as error:
        yield _unreadable(path, error)
        return
    if digest.num_bytes != entry.bytes:
        yield Problem(
            path=str(path), field="bytes", expected=str(entry.bytes), found=str(digest.num_bytes)
        )
        return
    if digest.xxh3_64 != entry.xxh3_64 or (entry.blocks and digest.blocks != entry.blocks):
        yield _differing_bytes(path, entry, digest)
        return
    try:
        if entry.directory.startswith("dense-"):
            yield from _compare(path, entry, len(read_dense(path)), 0)
        elif entry.is_admission:
            yield from _check_admission(path, entry, dims)
        else:
            yield from _check_rows(path, entry, dims)
    except CorruptCheckpointError as error:
        yield _unreadable(path, error)


def _differing_bytes(path: Path, entry: FileEntry, digest: file_io.Digest) -> Problem:
    """Finds the first block of a file that differs."""
    both = [(entry.blocks[i : i + 16], digest.blocks[i : i + 16]) for i in _starts(entry)]
    wrong = [i for i, (expected, found) in enumerate(both) if expected != found]
    if not wrong:  # version 1 has no blocks
        return Problem(
            path=str(path), field="xxh3_64", expected=entry.xxh3_64, found=digest.xxh3_64
        )
    size = file_io.block_bytes(entry.bytes)
    first, last = wrong[0] * size, min(entry.bytes, (wrong[0] + 1) * size) - 1
    more = f", and {len(wrong) - 1} blocks after" if len(wrong) > 1 else ""
    return Problem(
        path=str(path),
        field=f"xxh3_64 of bytes {first}-{last}{more}",
        expected=both[wrong[0]][0],
        found=both[wrong[0]][1],
    )


def _starts(entry: FileEntry) -> range:
    return range(0, len(entry.blocks), 16)


def _check_rows(path: Path, entry: FileEntry, dims: dict[str, int]) -> Iterator[Problem]:
    file = RowFile(path)
    rows = removed = 0
    tables: set[str] = set()
    for batch in file.batches():
        gone = int(pc.sum(batch["removed"]).as_py())
        removed += gone
        rows += batch.num_rows - gone
        tables.update(file.tables[code] for code in set(table_codes(batch).tolist()))
    yield from _compare(path, entry, rows, removed)
    dim = file.schema.field("embedding").type.list_size
    for table in sorted(tables):
        if table not in dims:
            yield Problem(
                path=str(path), field="table", expected=f"one of {sorted(dims)}", found=repr(table)
            )
        elif dims[table] != dim:
            yield Problem(
                path=str(path), field=f"dim of {table}", expected=str(dims[table]), found=str(dim)
            )


def _check_admission(path: Path, entry: FileEntry, dims: dict[str, int]) -> Iterator[Problem]:
    file = AdmissionFile(path)
    counters = removed = 0
    for batch in file.batches():
        gone = int(pc.sum(batch["removed"]).as_py())
        removed += gone
        counters += batch.num_rows - gone
    yield from _compare(path, entry, counters, removed)
    for table in file.tables:
        if table not in dims:
            yield Problem(
                path=str(path), field="table", expected=f"one of {sorted(dims)}", found=repr(table)
            )


def _compare(path: Path, entry: FileEntry, rows: int, removed: int) -> Iterator[Problem]:
    for field, expected, found in (("rows", entry.rows, rows), ("removed", entry.removed, removed)):
        if expected != found:
            yield Problem(path=str(path), field=field, expected=str(expected), found=str(found))


def _dims(manifest: Manifest) -> dict[str, int]:
    """Maps a table to its dim. Earlier saves may hold it in another group."""
    return {table["name"]: table["dim"] for table in manifest.tables}


def _unreadable(path: Path, error: Exception) -> Problem:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    reason = reason.removeprefix(f"{path}: ")
    return Problem(path=str(path), field="content", expected="a readable file", found=reason)
