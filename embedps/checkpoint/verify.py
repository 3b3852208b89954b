"""Reads every byte of checkpoints and says what differs from their manifests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.compute as pc

from embedps.checkpoint import io
from embedps.checkpoint.dense import read_dense
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.manifest import FileEntry, Manifest
from embedps.checkpoint.rows import read_row_file
from embedps.errors import CheckpointError, CorruptCheckpointError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """One difference: in which file, of what, the value the manifest has and the one found."""

    path: str
    field: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.path}: {self.field}: expected {self.expected}, found {self.found}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verified:
    """What was read, and every problem met."""

    manifests: int
    files: int
    bytes: int
    problems: tuple[Problem, ...]


def verify(directory: CheckpointDirectory, numbers: Sequence[int]) -> Verified:
    """Checks manifests and, once each, the files they name: presence, size, checksum, content."""
    problems: list[Problem] = []
    files: dict[str, FileEntry] = {}
    dims: dict[str, dict[str, int]] = {}
    for number in numbers:
        try:
            manifest = directory.read(number)
        except CheckpointError as error:
            problems.append(_unreadable(directory.manifest_path(number), error))
            continue
        dims.update(_dims(manifest))
        for entry in manifest.files:
            known = files.setdefault(entry.path, entry)
            if known != entry:
                problems.append(
                    Problem(
                        path=str(directory.manifest_path(number)),
                        field=f"entry of {entry.path}",
                        expected=f"that of the other manifests, {known}",
                        found=str(entry),
                    )
                )
    num_bytes = 0
    for entry in files.values():
        found = list(_check_file(directory.file(entry), entry, dims))
        problems += found
        num_bytes += entry.bytes
    return Verified(
        manifests=len(numbers), files=len(files), bytes=num_bytes, problems=tuple(problems)
    )


def _check_file(path: Path, entry: FileEntry, dims: dict[str, dict[str, int]]) -> Iterator[Problem]:
    """The first problem of a file, if any: what follows from it would only repeat it."""
    try:
        num_bytes, checksum = io.checksum_file(path)
    except OSError as error:
        yield _unreadable(path, error)
        return
    if num_bytes != entry.bytes:
        yield Problem(
            path=str(path), field="bytes", expected=str(entry.bytes), found=str(num_bytes)
        )
        return
    if checksum != entry.xxh3_64:
        yield Problem(path=str(path), field="xxh3_64", expected=entry.xxh3_64, found=checksum)
        return
    try:
        if entry.directory.startswith("dense-"):
            yield from _compare(path, entry, len(read_dense(path)), 0)
        else:
            yield from _check_rows(path, entry, dims.get(entry.group, {}))
    except CorruptCheckpointError as error:
        yield _unreadable(path, error)


def _check_rows(path: Path, entry: FileEntry, dims: dict[str, int]) -> Iterator[Problem]:
    records = read_row_file(path)
    removed = int(pc.sum(records["removed"]).as_py() or 0)
    yield from _compare(path, entry, records.num_rows - removed, removed)
    dim = records.schema.field("embedding").type.list_size
    for table in pc.unique(records.unify_dictionaries()["table"]).to_pylist():
        if table not in dims:
            yield Problem(
                path=str(path), field="table", expected=f"one of {sorted(dims)}", found=repr(table)
            )
        elif dims[table] != dim:
            yield Problem(
                path=str(path), field=f"dim of {table}", expected=str(dims[table]), found=str(dim)
            )


def _compare(path: Path, entry: FileEntry, rows: int, removed: int) -> Iterator[Problem]:
    for field, expected, found in (("rows", entry.rows, rows), ("removed", entry.removed, removed)):
        if expected != found:
            yield Problem(path=str(path), field=field, expected=str(expected), found=str(found))


def _dims(manifest: Manifest) -> dict[str, dict[str, int]]:
    """By group and table."""
    dims: dict[str, dict[str, int]] = {}
    for table in manifest.tables:
        dims.setdefault(table["group"], {})[table["name"]] = table["dim"]
    return dims


def _unreadable(path: Path, error: Exception) -> Problem:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    reason = reason.removeprefix(f"{path}: ")
    return Problem(path=str(path), field="content", expected="a readable file", found=reason)
