"""Leases: who reads which manifest, and until when its files must stay."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
import time
from pathlib import Path

from embedps.checkpoint import io
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.manifest import Manifest
from embedps.errors import CheckpointError, CorruptCheckpointError

_LEASE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lease:
    """A reader's word that it needs a manifest's files, until it expires or is released.

    Attributes:
      name: of the reader, one lease each; the file's name.
      number: the manifest's.
      expires_at: seconds since the epoch; the reader renews before.
    """

    name: str
    holder: str
    pid: int
    host: str
    number: int
    acquired_at: float
    expires_at: float

    def __post_init__(self) -> None:
        if not _LEASE_NAME.fullmatch(self.name):
            raise CheckpointError(f"a lease's name must be a plain file name but is {self.name!r}")
        for name in ("number", "acquired_at", "expires_at"):
            if not isinstance(getattr(self, name), int | float):
                raise TypeError(f"a lease's {name} must be a number but is {getattr(self, name)!r}")

    def is_live(self, now: float) -> bool:
        return now < self.expires_at


def write_lease(
    directory: CheckpointDirectory,
    name: str,
    number: int,
    *,
    expire_secs: float,
    holder: str = "",
    now: float | None = None,
) -> Lease:
    """Takes, moves or renews the lease of that name.

    By itself it does not say that the manifest is still there: `lease_latest` does.
    """
    now = time.time() if now is None else now
    lease = Lease(
        name=name,
        holder=holder or name,
        pid=os.getpid(),
        host=socket.gethostname(),
        number=number,
        acquired_at=now,
        expires_at=now + expire_secs,
    )
    io.write_bytes(_lease_path(directory, name), json.dumps(dataclasses.asdict(lease)).encode())
    return lease


def release_lease(directory: CheckpointDirectory, name: str) -> None:
    """Gives the lease up; without effect if there is none."""
    _lease_path(directory, name).unlink(missing_ok=True)


def lease_latest(
    directory: CheckpointDirectory,
    name: str,
    *,
    expire_secs: float,
    holder: str = "",
    now: float | None = None,
) -> tuple[Manifest, Lease] | None:
    """Leases the newest manifest and reads it; its files stay while the lease is renewed.

    The manifest is looked for again once the lease is written: a collector that did not see the
    lease has by then removed it, or sees the lease before it removes a file.

    Returns:
      None where nothing was committed yet.
    """
    while (manifest := directory.latest()) is not None:
        lease = write_lease(
            directory, name, manifest.number, expire_secs=expire_secs, holder=holder, now=now
        )
        if directory.manifest_path(manifest.number).exists():
            return manifest, lease
    return None


def read_leases(directory: CheckpointDirectory) -> list[Lease]:
    """The leases there are, expired ones too, by name.

    Raises:
      CorruptCheckpointError: one cannot be read; nothing is collected then.
    """
    if not directory.leases_dir.is_dir():
        return []
    leases = []
    for path in sorted(directory.leases_dir.glob("*.json")):
        try:
            leases.append(Lease(**json.loads(path.read_bytes())))
        except FileNotFoundError:
            continue  # released meanwhile
        except (ValueError, TypeError, RecursionError) as error:
            raise CorruptCheckpointError(
                f"{path}: must be a lease but is not ({error}): remove it if its reader is gone"
            ) from error
    return leases


def _lease_path(directory: CheckpointDirectory, name: str) -> Path:
    return directory.leases_dir / f"{name}.json"
