"""The manifest: the list of files that together are one checkpoint, and its JSON."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeGuard, TypeVar, cast

from embedps.errors import CheckpointError, CorruptCheckpointError
from embedps.storage import file_io

FORMAT = "embedps.manifest"
VERSION = 2

SaveKind = Literal["base", "delta"]

_T = TypeVar("_T")
_CHECKSUM = re.compile(r"[0-9a-f]{16}")
_DENSE = re.compile(r"dense-\d+")
_MAX_INT = 2**63 - 1
_MAX_TIME = 253_402_300_799  # the last second of the year 9999
_CHECKSUMS = re.compile(r"([0-9a-f]{16})*")


def is_count(value: object) -> TypeGuard[int]:
    """Whether it is an integer from 0 on that an int64 holds."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_INT


def _check_counts(where: str, **values: object) -> None:
    for name, value in values.items():
        if not is_count(value):
            limit = "at least 0" if isinstance(value, int) and value < 0 else "an int64 from 0 on"
            raise CheckpointError(f"{where}: {name} must be {limit} but is {value!r:.60}")


def _is_name(value: object) -> bool:
    """Whether it is a text that a path and a terminal can take."""
    if not isinstance(value, str) or value == "" or "\0" in value:
        return False
    try:
        value.encode()  # JSON may hold half of a surrogate pair
    except UnicodeEncodeError:
        return False
    return True


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileEntry:
    """A file as it was written.

    Attributes:
      path: relative to the checkpoint directory, with forward slashes.
      bytes: its size.
      rows: records that are not removals; of a dense file, variables.
      removed: records that are removals.
      xxh3_64: of its bytes, 16 hex digits.
      blocks: the checksums of its blocks (`io.block_bytes`), 16 hex digits each; none in version 1.
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
        """The entry of a file just written or read."""
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
        """The save it belongs to: `base-3`."""
        return PurePosixPath(self.path).parts[0]

    @property
    def group(self) -> str:
        """The group whose rows it holds; of a row file."""
        return PurePosixPath(self.path).parts[1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SaveSet:
    """What the shards wrote at one cut: all rows (base), or the changes since an earlier save.

    Attributes:
      number: of the save; the rows as of it are its chain's up to it.
      step: training steps done.
      since: of a delta, the save whose rows and all later ones' it brings to its own; null of a
        base.
      files: one a group and shard.
    """

    kind: SaveKind
    number: int
    step: int
    since: int | None
    files: tuple[FileEntry, ...]

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
        for file in self.files:
            if file.directory != directory or len(PurePosixPath(file.path).parts) != 3:
                raise CheckpointError(
                    f"a file of save {directory} must be {directory}/<group>/<file> "
                    f"but is {file.path!r}"
                )

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def removed(self) -> int:
        return sum(file.removed for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """One checkpoint: a chain of saves, the dense state, and where the run was.

    Attributes:
      number: of this commit; the next one's is greater.
      history: 16 hex digits that manifests share whose saves of one number are the same rows: a run
        that goes on from another manifest than the newest begins a new one.
      step: training steps done.
      wall_time: of the commit, seconds since the epoch.
      chain: a base, then its deltas in order; replayed, they are the rows.
      dense: the dense variables' file.
      ledger: the input position, as the trainer writes it.
      tables: for each table at least name, dim, optimizer, group.
      num_shards: of the saves; a restore may have another number.
      model: what besides its tables must be the same to go on, as the trainer writes it; what is
        not in it is not known.
      progress: the run's counters, as the trainer writes them.
      final: the run is over: nothing follows.
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
    version: int = VERSION

    def __post_init__(self) -> None:
        where = f"manifest {self.number}"
        _check_counts(where, number=self.number, step=self.step)
        if not 1 <= self.version <= VERSION:
            raise CheckpointError(f"{where}: version must be from 1 to {VERSION}: {self.version}")
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
        for table in self.tables:
            _check_table(where, table)
        _check_progress(where, self.progress)

    @property
    def base_number(self) -> int:
        """Of the chain's base: manifests with the same one share a chain."""
        return self.chain[0].number

    @property
    def save_number(self) -> int:
        """Of the chain's last save: the rows as of it."""
        return self.chain[-1].number

    @property
    def chain_bytes(self) -> int:
        """What a restore of the rows reads."""
        return sum(save.bytes for save in self.chain)

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """Every file that the checkpoint consists of."""
        files = [file for save in self.chain for file in save.files]
        return (*files, *([] if self.dense is None else [self.dense]))


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
    """Checks the counters that a run goes on from, where they are there."""
    _check_counts(f"{where}: progress", examples=progress.get("examples", 0))
    recoveries = progress.get("recoveries", [])
    if not isinstance(recoveries, list) or not all(isinstance(r, dict) for r in recoveries):
        raise CheckpointError(
            f"{where}: progress: recoveries must be a list of objects but is {recoveries!r:.60}"
        )


def to_json(manifest: Manifest) -> bytes:
    """The manifest's file: JSON with the checksum of the rest in it."""
    content = {"format": FORMAT, **dataclasses.asdict(manifest)}
    try:
        content["xxh3_64"] = file_io.checksum_bytes(_canonical(content))
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"manifest {manifest.number}: its ledger, tables and progress must be JSON: {error}"
        ) from error
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def from_json(data: bytes, path: Path) -> Manifest:
    """Reads `to_json`'s bytes.

    Raises:
      CorruptCheckpointError: they are not what was written; names the path, field, expected, found.
      CheckpointError: a newer embedps wrote them.
    """
    try:
        content = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"{path}: must be JSON but is not: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CorruptCheckpointError(f"{path}: field 'format' must be {FORMAT!r}: not a manifest")
    version = content.get("version")
    if is_count(version) and version > VERSION:
        raise CheckpointError(
            f"{path}: its version is {version}, this embedps reads up to {VERSION}: upgrade"
        )
    stored = content.pop("xxh3_64", None)
    try:
        computed = file_io.checksum_bytes(_canonical(content))
    except (ValueError, RecursionError) as error:  # 1e999 is read as an infinity
        raise CorruptCheckpointError(f"{path}: must be JSON but is not: {error}") from error
    if stored != computed:
        raise CorruptCheckpointError(
            f"{path}: field 'xxh3_64': expected {computed}, found {stored}"
        )
    fields = _Fields(content, path)
    dense = content.get("dense")
    try:
        return Manifest(
            version=fields.take("version", int),
            number=fields.take("number", int),
            step=fields.take("step", int),
            wall_time=float(fields.take("wall_time", (int, float))),
            history=fields.take("history", str) if version != 1 else "",
            chain=_chain(fields.take("chain", list), path, version == 1),
            dense=None if dense is None else _file(_Fields(dense, path)),
            ledger=fields.take("ledger", dict),
            tables=tuple(fields.take("tables", list)),
            num_shards=fields.take("num_shards", int),
            model=fields.take("model", dict, absent={}),
            progress=fields.take("progress", dict),
            final=fields.take("final", bool),
        )
    except CorruptCheckpointError:
        raise
    except (CheckpointError, OverflowError, RecursionError) as error:
        raise CorruptCheckpointError(f"{path}: {error}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


class _Fields:
    """A JSON object whose fields are taken with their type."""

    def __init__(self, content: Any, path: Path) -> None:
        self.path = path
        if not isinstance(content, dict):
            raise CorruptCheckpointError(f"{path}: expected an object, found {content!r:.60}")
        self._content = content

    def since(self) -> int | None:
        return None if self._content.get("kind") == "base" else self.take("since", int)

    def take(
        self, name: str, kind: type[_T] | tuple[type[_T], ...], *, absent: _T | None = None
    ) -> _T:
        value = self._content.get(name, absent)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            wanted = kind.__name__ if isinstance(kind, type) else "number"
            raise CorruptCheckpointError(
                f"{self.path}: field {name!r}: expected {wanted}, found {value!r:.60}"
            )
        return value


def _file(fields: _Fields) -> FileEntry:
    return FileEntry(
        path=fields.take("path", str),
        bytes=fields.take("bytes", int),
        rows=fields.take("rows", int),
        removed=fields.take("removed", int),
        xxh3_64=fields.take("xxh3_64", str),
        blocks=fields.take("blocks", str, absent=""),
    )


def _chain(saves: list[Any], path: Path, first_version: bool) -> tuple[SaveSet, ...]:
    chain: list[SaveSet] = []
    for each in saves:
        fields = _Fields(each, path)
        # Version 1: a delta is since the save before it.
        since = (chain[-1].number if chain else None) if first_version else fields.since()
        chain.append(_save(fields, since))
    return tuple(chain)


def _save(fields: _Fields, since: int | None) -> SaveSet:
    return SaveSet(
        kind=cast(SaveKind, fields.take("kind", str)),  # SaveSet checks it
        number=fields.take("number", int),
        step=fields.take("step", int),
        since=since,
        files=tuple(_file(_Fields(each, fields.path)) for each in fields.take("files", list)),
    )


def _canonical(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
