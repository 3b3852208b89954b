"""Locks a file, so that one process at a time does something.

The lock is the kernel's lock of the file (flock), and not the file's presence: it ends with the
process that holds it, however that ends. The processes that the holder starts do not inherit it.
Object stores and some file systems have no locks: there, everyone gets the lock.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from embedps.errors import CheckpointError
from embedps.storage.file_io import NoFileError, store_of

RUN_LOCK_NAME = ".run.lock"
"""In a model directory, the lock of the run that trains there."""

_MAX_BYTES = 4096
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class FileLock:
    """An exclusive lock on a file.

    Attributes:
      holder: who has the lock that `acquire` did not get, such as "process 7 on 'host' since
        2026-01-31 12:00:00"; empty if the holder did not sign, or the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        """Takes no lock yet.

        Args:
          path: the file, which `acquire` makes if it is absent; its directory must be there.
        """
        self.holder = ""
        self._path = path
        self._file: io.FileIO | None = None

    def acquire(self, *, wait: bool = False) -> bool:
        """Takes the lock.

        Args:
          wait: until its holder releases it.

        Returns:
          Whether it is held now; always if told to wait.

        Raises:
          NoFileError: something else lies at the path.
          OSError: the file cannot be opened or locked.
        """
        while store_of(self._path).has_locks:
            descriptor = self._open()
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                self.holder = _read_signature(descriptor)
                os.close(descriptor)
                return False
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    os.close(descriptor)
                    raise
            if self._is_at_path(descriptor):
                self._file = io.FileIO(descriptor, "r+")
                return True
            os.close(descriptor)  # its holder removed the file before it released the lock
        return True

    def sign(self) -> None:
        """Writes into the file who holds the lock; without effect on a full disk."""
        if self._file is None:
            return
        content = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        with suppress(OSError):
            self._file.truncate(0)
            os.pwrite(self._file.fileno(), json.dumps(content).encode(), 0)

    def release(self, *, remove: bool = False) -> None:
        """Releases the lock if it is held, and removes the file if told to."""
        file, self._file = self._file, None
        if file is not None:
            if remove:
                self._path.unlink(missing_ok=True)
            file.close()

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self._path, flags, 0o644)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise NoFileError(errno.EINVAL, "must be a file, for a lock: remove it", self._path)
        return descriptor

    def _is_at_path(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(descriptor))
        except FileNotFoundError:
            return False


def check_locks(path: Path, action: str) -> None:
    """Checks that a lock in a directory keeps other processes out.

    Raises:
      CheckpointError: the store has no locks, so the action would not be safe.
    """
    if not store_of(path).has_locks:
        raise CheckpointError(
            f"{path}: an object store has no locks to {action} under: {action} in a local copy"
        )


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Holds a file's lock while the block runs.

    Missing directories are made.

    Yields:
      Whether the lock is held: always, unless not to `wait` and another process has it.
    """
    store_of(path).make_directories(path.parent)
    lock = FileLock(path)
    try:
        yield lock.acquire(wait=wait)
    finally:
        lock.release()


def _read_signature(descriptor: int) -> str:
    try:
        content = json.loads(os.pread(descriptor, _MAX_BYTES, 0))
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(content["since"]))
        return f"process {int(content['pid'])} on {str(content['host'])!r} since {since}"
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return ""
