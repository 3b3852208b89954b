"""Leases: who reads which manifest, and until when its files must stay."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
import threading
import time
from pathlib import Path

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.errors import CheckpointError, CorruptCheckpointError
from embedps.storage import file_io

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
    file_io.write_bytes(
        _lease_path(directory, name), json.dumps(dataclasses.asdict(lease)).encode()
    )
    return lease


def release_lease(directory: CheckpointDirectory, name: str) -> None:
    """Gives the lease up; without effect if there is none."""
    file_io.unlink(_lease_path(directory, name))


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


def lease_manifest(
    directory: CheckpointDirectory,
    name: str,
    number: int,
    *,
    expire_secs: float,
    holder: str = "",
    now: float | None = None,
) -> Manifest | None:
    """Leases one manifest and reads it; None, and no lease of that name, where it is gone."""
    write_lease(directory, name, number, expire_secs=expire_secs, holder=holder, now=now)
    if not directory.manifest_path(number).exists():
        release_lease(directory, name)
        return None
    return directory.read(number)


class LeaseRenewer:
    """Renews a lease on a thread of its own while its block runs, and releases it at its end."""

    def __init__(
        self, directory: CheckpointDirectory, name: str, *, expire_secs: float, holder: str
    ) -> None:
        self._directory = directory
        self._name = name
        self._expire_secs = expire_secs
        self._holder = holder
        self._number: int | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def take(self, number: int) -> Manifest | None:
        """Moves the lease to a manifest and reads it; None where that is gone."""
        with self._lock:
            found = lease_manifest(
                self._directory,
                self._name,
                number,
                expire_secs=self._expire_secs,
                holder=self._holder,
            )
            self._number = number if found is not None else None
            return found

    def take_latest(self) -> Manifest | None:
        """Moves the lease to the newest manifest and reads it; None where nothing is committed."""
        with self._lock:
            found = lease_latest(
                self._directory, self._name, expire_secs=self._expire_secs, holder=self._holder
            )
            self._number = found[0].number if found is not None else None
            return found[0] if found is not None else None

    def release(self) -> None:
        """Gives the lease up until the next `take`."""
        with self._lock:
            self._number = None
            release_lease(self._directory, self._name)

    def _run(self) -> None:
        while not self._ended.wait(self._expire_secs / 4):
            with self._lock:
                if self._number is not None:
                    write_lease(
                        self._directory,
                        self._name,
                        self._number,
                        expire_secs=self._expire_secs,
                        holder=self._holder,
                    )

    def __enter__(self) -> LeaseRenewer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.release()


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
            leases.append(Lease(**json.loads(file_io.read_bytes(path))))
        except FileNotFoundError:
            continue  # released meanwhile
        except (file_io.NoFileError, ValueError, TypeError, RecursionError) as error:
            raise CorruptCheckpointError(
                f"{path}: must be a lease but is not ({error}): remove it if its reader is gone"
            ) from error
    return leases


def _lease_path(directory: CheckpointDirectory, name: str) -> Path:
    return directory.leases_dir / f"{name}.json"
