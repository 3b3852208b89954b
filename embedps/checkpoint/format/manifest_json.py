"""The manifest's file: JSON with a checksum of its content."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, TypeVar, cast

from embedps.checkpoint.format.manifest import (
    FileEntry,
    Manifest,
    SaveKind,
    SaveSet,
    is_count,
)
from embedps.constants import CHECKPOINT_VERSION
from embedps.errors import CheckpointError, CorruptCheckpointError
from embedps.storage import file_io

FORMAT = "embedps.manifest"

_T = TypeVar("_T")


def to_json(manifest: Manifest) -> bytes:
    """Writes a manifest as JSON, with the checksum of its other fields."""
    content = {"format": FORMAT, **dataclasses.asdict(manifest)}
    for save in content["chain"]:
        if not save["admission"]:  # version 2 does not have it
            del save["admission"]
    if not content["vectors"]:  # which version 4 brought
        del content["vectors"]
    try:
        content["xxh3_64"] = file_io.checksum_bytes(_canonical(content))
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"manifest {manifest.number}: its ledger, tables and progress must be JSON: {error}"
        ) from error
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def from_json(data: bytes, path: Path) -> Manifest:
    """Reads the bytes that `to_json` wrote.

    Args:
      data: the file's bytes.
      path: for messages.

    Raises:
      CorruptCheckpointError: they are not what was written; names path, field, expected, found.
      CheckpointError: a newer embedps wrote them.
    """
    try:
        content = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"{path}: must be JSON but is not: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CorruptCheckpointError(f"{path}: field 'format' must be {FORMAT!r}: not a manifest")
    version = content.get("version")
    if is_count(version) and version > CHECKPOINT_VERSION:
        raise CheckpointError(
            f"{path}: its version is {version}, this embedps reads up to "
            f"{CHECKPOINT_VERSION}: upgrade"
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
            vectors=_files(fields, fields.take("vectors", list, absent=[])),
        )
    except CorruptCheckpointError:
        raise
    except (CheckpointError, OverflowError, RecursionError) as error:
        raise CorruptCheckpointError(f"{path}: {error}") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


class _Fields:
    """Reads the fields of a JSON object and checks their types."""

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
        # In version 1, a delta is always since the save before it.
        since = (chain[-1].number if chain else None) if first_version else fields.since()
        chain.append(_save(fields, since))
    return tuple(chain)


def _save(fields: _Fields, since: int | None) -> SaveSet:
    return SaveSet(
        kind=cast(SaveKind, fields.take("kind", str)),  # SaveSet checks it
        number=fields.take("number", int),
        step=fields.take("step", int),
        since=since,
        files=_files(fields, fields.take("files", list)),
        admission=_files(fields, fields.take("admission", list, absent=[])),
    )


def _files(fields: _Fields, files: list[Any]) -> tuple[FileEntry, ...]:
    return tuple(_file(_Fields(each, fields.path)) for each in files)


def _canonical(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
