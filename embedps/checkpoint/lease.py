"""Leases: which reader needs which manifest's files, and until when."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.errors import CheckpointError, CorruptCheckpointError
from embedps.storage import file_io

_SKEW_SECS = 60.0  # between a reader's clock and the store's: worth a line
_skewed: set[tuple[str, str]] = set()  # directories and hosts of which that was said
_names = itertools.count()
_LEASE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lease:
    """Protects a manifest's files for a reader, until the lease expires or is released.

    Attributes:
      name: the lease's name, and its file's name; a reader has one lease.
      holder: the reader's name, for people.
      pid: the reader's process.
      host: the machine of that process.
      number: the manifest's number.
      acquired_at: when it was written last, in seconds since the epoch: by its reader's clock in
        its file, by the clock of the file system or object store when `read_leases` gives it.
      expires_at: likewise; the reader renews the lease before.
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
        """Tells whether the lease has not expired at a time."""
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
    """Writes a lease: takes, moves or renews the lease of that name.

    It does not check that the manifest still exists; `lease_latest` and `hold_manifest` do.
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
    """Removes a lease; does nothing if there is none."""
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

    After the lease is written, the manifest's file is looked up again. A garbage collector that
    missed the lease has removed that file by then; any other one sees the lease before it removes a
    file.

    Returns:
      The manifest and the lease; None if nothing was committed yet.
    """
    while (manifest := directory.latest()) is not None:
        lease = write_lease(
            directory, name, manifest.number, expire_secs=expire_secs, holder=holder, now=now
        )
        if directory.manifest_path(manifest.number).exists():
            return manifest, lease
    return None


def hold_manifest(
    directory: CheckpointDirectory,
    name: str,
    number: int,
    *,
    expire_secs: float,
    holder: str = "",
    now: float | None = None,
) -> bool:
    """Leases one manifest, unless it was removed; tells whether it is leased."""
    write_lease(directory, name, number, expire_secs=expire_secs, holder=holder, now=now)
    if directory.manifest_path(number).exists():
        return True
    release_lease(directory, name)
    return False


class LeaseRenewer:
    """Renews a lease on its own thread while the block runs; releases it at the block's end.

    A renewal that fails is tried again. If the manifest was removed meanwhile, `explain` tells its
    missing files from damage; the block's end does so too.
    """

    def __init__(
        self,
        directory: CheckpointDirectory,
        name: str = "",
        *,
        holder: str,
        expire_secs: float = 120.0,
        is_needed: bool = True,
    ) -> None:
        """Leases nothing yet.

        Args:
          name: the lease's; by default made of the holder, the machine and the process.
          holder: the reader's name, for people.
          expire_secs: after which the lease ends if it is not renewed.
          is_needed: whether a lease that cannot be written is an error. If not, one line says so
            and what is read is not protected: for tools that also read where they may not write.
        """
        self._directory = directory
        self._name = name or f"{holder}-{socket.gethostname()}-{os.getpid()}-{next(_names)}"
        self._expire_secs = expire_secs
        self._holder = holder
        self._is_needed = is_needed
        self._has_told = False
        self._number: int | None = None
        self._failure = ""  # of the last renewal; empty if it worked
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def take(self, number: int) -> Manifest | None:
        """Moves the lease to a manifest and reads it; returns None if the manifest was removed."""
        return self._directory.read(number) if self.hold(number) else None

    def hold(self, number: int) -> bool:
        """Moves the lease to a manifest; tells whether it is leased: not if it was removed."""
        with self._lock:
            self._number = None
            try:
                held = hold_manifest(
                    self._directory,
                    self._name,
                    number,
                    expire_secs=self._expire_secs,
                    holder=self._holder,
                )
            except (CheckpointError, OSError) as error:
                self._go_without(error)
                return self._directory.manifest_path(number).exists()
            self._number = number if held else None
            return held

    def take_latest(self) -> Manifest | None:
        """Moves the lease to the newest manifest and reads it; returns None before any commit."""
        with self._lock:
            self._number = None
            try:
                found = lease_latest(
                    self._directory, self._name, expire_secs=self._expire_secs, holder=self._holder
                )
            except OSError as error:
                self._go_without(error)
                return self._directory.latest()
            self._number = found[0].number if found is not None else None
            return found[0] if found is not None else None

    def release(self) -> None:
        """Releases the lease until the next `take`."""
        with self._lock:
            self._number = None
            release_lease(self._directory, self._name)

    def explain(self, error: BaseException) -> CheckpointError | None:
        """Says that the leased manifest was removed, if it was; None if the error stands.

        A manifest goes before its files, so what is wrong with a file while its manifest is there
        is damage.
        """
        with self._lock:
            number, failure = self._number, self._failure
        if number is None or not isinstance(error, CheckpointError | OSError):
            return None
        path = self._directory.manifest_path(number)
        with suppress(OSError):
            if not path.exists():
                why = f" ({failure})" if failure else ""
                return CheckpointError(
                    f"{path} was removed while {self._holder} read its files: its lease must be "
                    f"renewed every {self._expire_secs:g} s but was not{why}: start again from the "
                    "newest manifest"
                )
        return None

    def _go_without(self, error: Exception) -> None:
        if self._is_needed:
            raise error
        if not self._has_told:
            self._has_told = True
            _say(
                f"{self._directory.path}: no lease can be written there ({error}): a run that "
                "collects old checkpoints meanwhile may remove what is read"
            )

    def _run(self) -> None:
        while not self._ended.wait(self._expire_secs / 4):
            self._renew()

    def _renew(self) -> None:
        with self._lock:
            if self._number is None:
                return
            before, self._failure = self._failure, ""
            try:
                write_lease(
                    self._directory,
                    self._name,
                    self._number,
                    expire_secs=self._expire_secs,
                    holder=self._holder,
                )
            except (CheckpointError, OSError) as error:
                self._failure = str(error)
        path = _lease_path(self._directory, self._name)
        if self._failure and not before:
            _say(
                f"{path}: the lease of {self._holder} cannot be renewed and is tried again; after "
                f"{self._expire_secs:g} s its files may be removed: {self._failure}"
            )
        elif before and not self._failure:
            _say(f"{path}: the lease of {self._holder} is renewed again")

    def __enter__(self) -> LeaseRenewer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        removed = None if error is None else self.explain(error)
        with suppress(OSError):  # it expires then
            self.release()
        if removed is not None:
            raise removed from error


def read_leases(directory: CheckpointDirectory) -> list[Lease]:
    """Reads all leases by name, expired ones too, with their times by the store's clock.

    A lease lasts for as long as its reader says, from the time that the store gave to its file. So
    the clocks of the machines need not agree; a line says that one is off.

    Raises:
      CorruptCheckpointError: a lease cannot be read. Then no garbage may be collected.
    """
    if not directory.leases_dir.is_dir():
        return []
    leases = []
    for path in sorted(directory.leases_dir.glob("*.json")):
        try:
            lease = Lease(**json.loads(file_io.read_bytes(path)))
            written = path.stat().st_mtime
            _check_clock(directory, lease, written)
            expires_at = written + (lease.expires_at - lease.acquired_at)
            leases.append(dataclasses.replace(lease, acquired_at=written, expires_at=expires_at))
        except FileNotFoundError:
            continue  # was released in the meantime
        except (file_io.NoFileError, ValueError, TypeError, RecursionError, OverflowError) as error:
            raise CorruptCheckpointError(
                f"{path}: must be a lease but is not ({error}): remove it if its reader is gone"
            ) from error
    return leases


def read_clock(directory: CheckpointDirectory) -> float:
    """Returns the time by the clock of the file system or object store, to compare leases with.

    Raises:
      OSError: the directory may not be written.
    """
    return file_io.touch(directory.manifests_dir / ".lock")


def _check_clock(directory: CheckpointDirectory, lease: Lease, written: float) -> None:
    skew = lease.acquired_at - written
    key = (str(directory.path), str(lease.host))
    if abs(skew) > _SKEW_SECS and key not in _skewed:
        _skewed.add(key)
        _say(
            f"{_lease_path(directory, lease.name)}: the clock of {lease.host!r} is "
            f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} that of the directory's "
            "store: set it; leases last by the store's clock"
        )


def _say(text: str) -> None:
    print(f"embedps: {text}", file=sys.stderr, flush=True)


def _lease_path(directory: CheckpointDirectory, name: str) -> Path:
    return directory.leases_dir / f"{name}.json"
