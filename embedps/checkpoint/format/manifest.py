"""The manifest: the list of files that make up one checkpoint."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import PurePosixPath
from typing import Any, Literal, TypeGuard

from embedps.constants import ADMISSION_FILE_PREFIX, CHECKPOINT_VERSION
from embedps.errors import CheckpointError
from embedps.storage import file_io

_WITHOUT_VECTORS = 3
_WITHOUT_ADMISSION = 2

SaveKind = Literal["base", "delta"]

_CHECKSUM = re.compile(r"[0-9a-f]{16}")
_DENSE = re.compile(r"dense-[0-9]+")
_VECTORS = re.compile(r"vectors-[0-9]+")
_MAX_INT = 2**63 - 1
_MAX_TIME = 253_402_300_799  # the last second of the year 9999
_CHECKSUMS = re.compile(r"([0-9a-f]{16})*")


def is_count(value: object) -> TypeGuard[int]:
    """Tells whether a value is an integer in [0, 2^63)."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_INT


def _check_counts(where: str, **values: object) -> None:
    for name, value in values.items():
        if not is_count(value):
            limit = "at least 0" if isinstance(value, int) and value < 0 else "an int64 from 0 on"
            raise CheckpointError(f"{where}: {name} must be {limit} but is {value!r:.60}")


def _is_name(value: object) -> bool:
    """Tells whether a value is a text that may stand in a path and on a terminal."""
    if not isinstance(value, str) or value == "" or "\0" in value:
        return False
    try:
        value.encode()  # JSON may hold half of a surrogate pair
    except UnicodeEncodeError:
        return False
    return True


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileEntry:
    """Describes a file as it was written.

    Attributes:
      path: relative to the checkpoint directory, with forward slashes.
      bytes: the file's size.
      rows: the number of records that are not removals; in a dense file, of variables.
      removed: the number of records that are removals.
      xxh3_64: the checksum of its bytes, 16 hex digits.
      blocks: the checksums of its blocks (`file_io.block_bytes`), 16 hex digits each; empty in
        version 1.
    """

    path: str
    bytes: int
    rows: int
    removed: int
    xxh3_64: str
    blocks: str = ""

    def __post_init__(self) -> None:
        parts = PurePosixPath(self.path).parts
        inside = parts and not self.path.startswith("/") and ".." not in parts
        if not inside or not _is_name(self.path):
            raise CheckpointError(
                f"a file's path must be inside the checkpoint directory but is {self.path!r}"
            )
        _check_counts(self.path, bytes=self.bytes, rows=self.rows, removed=self.removed)
        if not _CHECKSUM.fullmatch(self.xxh3_64):
            raise CheckpointError(
                f"{self.path}: xxh3_64 must be 16 hex digits but is {self.xxh3_64!r}"
            )

        blocks = -(-self.bytes // file_io.block_bytes(self.bytes))
        if not _CHECKSUMS.fullmatch(self.blocks) or len(self.blocks) not in (0, 16 * blocks):
            raise CheckpointError(
                f"{self.path}: blocks must be {blocks} times 16 hex digits but is {self.blocks!r}"
            )

    @classmethod
    def of(cls, path: str, digest: file_io.Digest, *, rows: int, removed: int = 0) -> FileEntry:
        """Makes the entry of a file from its digest."""
        return cls(
            path=path,
            bytes=digest.num_bytes,
            rows=rows,
            removed=removed,
            xxh3_64=digest.xxh3_64,
            blocks=digest.blocks,
        )

    @property
    def directory(self) -> str:
        """Returns the name of its save's directory, such as `base-3`."""
        return PurePosixPath(self.path).parts[0]

    @property
    def group(self) -> str:
        """Returns the group whose rows a row file holds."""
        return PurePosixPath(self.path).parts[1]

    @property
    def is_admission(self) -> bool:
        """Whether it is an admission file."""
        return PurePosixPath(self.path).name.startswith(ADMISSION_FILE_PREFIX)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SaveSet:
    """Lists what the shards wrote in one save: all rows (base), or the changes (delta).

    Attributes:
      kind: "base" or "delta".
      number: the save's number. Its chain up to this save gives the rows as of it.
      step: training steps done.
      since: a delta holds all changes since this save, and may be applied to the rows of this save
        or of any later one. None for a base.
      files: one per group and shard.
      admission: the counters of ids without a row: one per shard of each group that has some.
    """

    kind: SaveKind
    number: int
    step: int
    since: int | None
    files: tuple[FileEntry, ...]
    admission: tuple[FileEntry, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ("base", "delta"):
            raise CheckpointError(f"a save's kind must be 'base' or 'delta' but is {self.kind!r}")
        if (self.kind == "base") != (self.since is None):
            raise CheckpointError(
                f"save {self.kind}-{self.number}: a delta, and no base, must have `since` "
                f"but got {self.since}"
            )
        directory = f"{self.kind}-{self.number}"
        _check_counts(f"save {directory}", number=self.number, step=self.step)
        if self.since is not None:
            _check_counts(f"save {directory}", since=self.since)
        for file in (*self.files, *self.admission):
            if file.directory != directory or len(PurePosixPath(file.path).parts) != 3:
                raise CheckpointError(
                    f"a file of save {directory} must be {directory}/<group>/<file> "
                    f"but is {file.path!r}"
                )
        for file in self.admission:
            if not file.is_admission:
                raise CheckpointError(
                    f"an admission file of save {directory} must be named "
                    f"{ADMISSION_FILE_PREFIX}... but is {file.path!r}"
                )

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def removed(self) -> int:
        return sum(file.removed for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in (*self.files, *self.admission))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Describes one checkpoint: a chain of saves, the dense state, and the run's position.

    Attributes:
      number: the commit's number; each commit has a greater one than the commit before.
      history: 16 hex digits. In manifests of one history, saves of one number hold the same rows. A
        run that resumes from a manifest other than the newest starts a new history.
      step: training steps done.
      wall_time: the time of the commit, seconds since the epoch.
      chain: a base, then its deltas in order; their replay gives the rows.
      dense: the dense variables' file.
      ledger: the input position, as the trainer writes it.
      tables: for each table at least name, dim, optimizer, group.
      num_shards: the number of shards that wrote; a restore may have another number.
      model: what must be equal to resume, besides the tables, as the trainer writes it. What is not
        in it is unknown.
      progress: the run's counters, as the trainer writes them.
      final: the run is finished; no manifest follows.
      vectors: row files; a row of an id that they have begins with its embedding there, by the last
        file that has it.
      version: of the format; by default the least that has what the manifest holds.
    """

    number: int
    step: int
    wall_time: float
    chain: tuple[SaveSet, ...]
    dense: FileEntry | None
    ledger: dict[str, Any]
    tables: tuple[dict[str, Any], ...]
    num_shards: int
    history: str = ""
    model: dict[str, Any] = dataclasses.field(default_factory=dict)
    progress: dict[str, Any] = dataclasses.field(default_factory=dict)
    final: bool = False
    vectors: tuple[FileEntry, ...] = ()
    version: int = 0

    def __post_init__(self) -> None:
        if self.version == 0:
            admits = any(save.admission for save in self.chain)
            without = _WITHOUT_VECTORS if admits else _WITHOUT_ADMISSION
            object.__setattr__(self, "version", CHECKPOINT_VERSION if self.vectors else without)
        where = f"manifest {self.number}"
        _check_counts(where, number=self.number, step=self.step)
        if not 1 <= self.version <= CHECKPOINT_VERSION:
            raise CheckpointError(
                f"{where}: version must be from 1 to {CHECKPOINT_VERSION}: {self.version}"
            )
        if not 0 <= self.wall_time <= _MAX_TIME:
            raise CheckpointError(
                f"{where}: wall_time must be seconds since the epoch but is {self.wall_time!r:.60}"
            )
        if [save.kind for save in self.chain[:1]] != ["base"]:
            raise CheckpointError(f"{where}: its chain must begin with a base")
        if any(save.kind != "delta" for save in self.chain[1:]):
            raise CheckpointError(f"{where}: its chain must have deltas after the base")
        numbers = [save.number for save in self.chain]
        if sorted(set(numbers)) != numbers or numbers[-1] > self.number:
            raise CheckpointError(
                f"{where}: the numbers of its chain must grow up to its own but are {numbers}"
            )
        for before, save in itertools.pairwise(self.chain):
            if save.since is None or save.since > before.number:
                raise CheckpointError(
                    f"{where}: delta-{save.number} must be since {before.number} or before "
                    f"but is since {save.since}"
                )
        if self.history and not _CHECKSUM.fullmatch(self.history):
            raise CheckpointError(f"{where}: history must be 16 hex digits but is {self.history!r}")
        if not 1 <= self.num_shards <= _MAX_INT:
            raise CheckpointError(
                f"{where}: num_shards must be at least 1, it is {self.num_shards}"
            )
        if self.dense is not None and not _DENSE.fullmatch(self.dense.directory):
            raise CheckpointError(
                f"{where}: the dense file must be dense-N/<file> but is {self.dense.path!r}"
            )
        for file in self.vectors:
            parts = PurePosixPath(file.path).parts
            if len(parts) != 3 or not _VECTORS.fullmatch(parts[0]):
                raise CheckpointError(
                    f"{where}: a file of vectors must be vectors-N/<group>/<file> but is "
                    f"{file.path!r}"
                )
        for table in self.tables:
            _check_table(where, table)
        _check_progress(where, self.progress)

    @property
    def base_number(self) -> int:
        """Returns the number of the chain's base; manifests with the same base share a chain."""
        return self.chain[0].number

    @property
    def save_number(self) -> int:
        """Returns the number of the chain's last save, whose rows the manifest holds."""
        return self.chain[-1].number

    @property
    def chain_bytes(self) -> int:
        """Returns the bytes that a restore of the rows reads."""
        return sum(save.bytes for save in self.chain)

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """Returns every file of the checkpoint."""
        files = [file for save in self.chain for file in (*save.files, *save.admission)]
        return (*files, *([] if self.dense is None else [self.dense]), *self.vectors)


def _check_table(where: str, table: object) -> None:
    if not isinstance(table, dict):
        raise CheckpointError(f"{where}: a table must be an object but is {table!r:.60}")
    missing = {"name", "dim", "optimizer", "group"} - table.keys()
    if missing:
        raise CheckpointError(f"{where}: table {table!r:.200} must have {sorted(missing)}")
    for name in ("name", "group"):
        if not _is_name(table[name]):
            raise CheckpointError(
                f"{where}: a table's {name} must be a text but is {table[name]!r:.60}"
            )
    _check_counts(f"{where}: table {table['name']!r}", dim=table["dim"])
    optimizer = table["optimizer"]
    if not isinstance(optimizer, dict) or not _is_name(optimizer.get("kind")):
        raise CheckpointError(
            f"{where}: table {table['name']!r}: optimizer must be an object with a kind but is "
            f"{optimizer!r:.60}"
        )


def _check_progress(where: str, progress: dict[str, Any]) -> None:
    """Checks the counters that a resumed run reads, if present."""
    _check_counts(f"{where}: progress", examples=progress.get("examples", 0))
    for name in ("recoveries", "scalings"):
        records = progress.get(name, [])
        if not isinstance(records, list) or not all(isinstance(r, dict) for r in records):
            raise CheckpointError(
                f"{where}: progress: {name} must be a list of objects but is {records!r:.60}"
            )
