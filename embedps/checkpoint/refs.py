"""Refs: names of manifests that people and servers go by, each with the history of its moves.

A ref is one file, DIR/refs/NAME.json, which each move writes anew, by one atomic write.
"""

from __future__ import annotations

import dataclasses
import getpass
import json
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.config_fields import MAX_COUNT, option
from embedps.errors import CheckpointError, CorruptCheckpointError, UsageError
from embedps.storage import file_io

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,99}")
_SUFFIX = ".json"
_MAX_MOVES = 1000  # that a file keeps


@dataclasses.dataclass(frozen=True, kw_only=True)
class Move:
    """One move of a ref.

    Attributes:
      at: when, in seconds since the epoch.
      by: who, as user@host.
      before: the number of the manifest that it named; None if it was not there.
      after: the number of the manifest that it names since; None if it was removed.
    """

    at: float
    by: str
    before: int | None
    after: int | None

    def __post_init__(self) -> None:
        for name, kind in (("at", int | float), ("by", str)):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"field {name!r} must not be {getattr(self, name)!r}")
        for name in ("before", "after"):
            if type(getattr(self, name)) not in (int, type(None)):
                raise TypeError(f"field {name!r} must not be {getattr(self, name)!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ref:
    """A name of a manifest.

    Attributes:
      name: of letters, digits, `.`, `_` and `-`, from a letter on.
      moves: in order; the newest 1,000.
    """

    name: str
    moves: tuple[Move, ...]

    @property
    def number(self) -> int | None:
        """The number of the manifest that it names; None if the ref was removed."""
        return self.moves[-1].after if self.moves else None


def is_name(text: str) -> bool:
    """Tells whether a ref can have this name."""
    return _NAME.fullmatch(text) is not None


def check_name(name: str) -> str:
    """Returns a ref's name.

    Raises:
      UsageError: no ref can have it.
    """
    if not is_name(name):
        raise UsageError(
            "a ref's name must have letters, digits, '.', '_' and '-', and begin with a letter, "
            f"but is {name[:100]!r}"
        )
    return name


def manifest_option(default: Any, text: str, **metadata: Any) -> Any:
    """Declares the option that names a manifest: by its number, or by a ref."""
    return option(default, text, least=0, most=MAX_COUNT, **{"metavar": "N/REF", **metadata})


def move_ref(directory: CheckpointDirectory, name: str, to: int | str | None) -> Ref:
    """Makes, moves or removes a ref.

    Args:
      directory: of the checkpoints.
      name: of the ref.
      to: the manifest's number, or the ref that names it; None removes the ref.

    Returns:
      The ref; it has no new move if it named that manifest already.

    Raises:
      UsageError: no ref can have this name, or there is none to remove or to go by.
      CheckpointError: there is no such manifest, or the ref cannot be written.
      CorruptCheckpointError: the manifest or the ref is damaged.
    """
    path = _path(directory, name)
    try:
        # Nothing is removed meanwhile, and nobody moves a ref; but an object store has no locks.
        with directory.exclusive():
            ref = _read(path)
            after = None if to is None else directory.read(number_of(directory, to)).number
            if to is None and ref.number is None:
                raise _unknown(directory, name)
            if after == ref.number:
                return ref
            move = Move(at=time.time(), by=_user(), before=ref.number, after=after)
            ref = dataclasses.replace(ref, moves=(*ref.moves, move)[-_MAX_MOVES:])
            moves = [dataclasses.asdict(each) for each in ref.moves]
            file_io.write_bytes(path, json.dumps({"moves": moves}).encode())
            if after is not None:
                directory.read(after)  # who removes manifests looks at the refs after that again
            return ref
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error


def read_ref(directory: CheckpointDirectory, name: str) -> Ref:
    """Reads a ref that names a manifest.

    Raises:
      UsageError: there is none of this name.
      CheckpointError: it cannot be read.
      CorruptCheckpointError: its file is damaged.
    """
    ref = _read(_path(directory, name))
    if ref.number is None:
        raise _unknown(directory, name)
    return ref


def read_refs(directory: CheckpointDirectory) -> list[Ref]:
    """Reads the refs that name manifests, by name.

    Raises:
      CheckpointError: one cannot be read. Then no garbage may be collected.
      CorruptCheckpointError: one is damaged.
    """
    folder = directory.refs_dir
    names = sorted(n for n in file_io.store_of(folder).names_in(folder) if n.endswith(_SUFFIX))
    refs = (_read(folder / name) for name in names if _NAME.fullmatch(name[: -len(_SUFFIX)]))
    return [ref for ref in refs if ref.number is not None]


def number_of(directory: CheckpointDirectory, given: int | str) -> int:
    """Returns the number of the manifest that a number or a ref names.

    Raises:
      UsageError: there is no such ref.
      CheckpointError: the ref cannot be read.
    """
    if isinstance(given, int):
        return given
    number = _read(_path(directory, given)).number
    if number is None:
        raise _unknown(directory, given)
    return number


def _path(directory: CheckpointDirectory, name: str) -> Path:
    return directory.refs_dir / f"{check_name(name)}{_SUFFIX}"


def _read(path: Path) -> Ref:
    """Reads a ref's file; without a file, the ref has no moves."""
    name = path.name[: -len(_SUFFIX)]
    try:
        moves = tuple(Move(**each) for each in json.loads(file_io.read_bytes(path))["moves"])
    except FileNotFoundError:
        moves = ()
    except (ValueError, TypeError, KeyError, RecursionError, file_io.NoFileError) as error:
        raise CorruptCheckpointError(
            f"{path}: must be a ref but is not ({error}): remove it, and tag the manifest again"
        ) from error
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error
    return Ref(name=name, moves=moves)


def _unknown(directory: CheckpointDirectory, name: str) -> UsageError:
    names = ", ".join(ref.name for ref in read_refs(directory)) or "none"
    return UsageError(f"{directory.path} has no ref {name!r}: there are {names}")


def _user() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
