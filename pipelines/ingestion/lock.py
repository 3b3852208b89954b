"""One run at a time in an output directory: a lock file, freed whatever ends its run."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embedps.errors import UsageError

NAME = "_lock"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Holds the directory's lock; raises UsageError where another run holds it."""
    path = directory / NAME
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 200).decode(errors="replace").strip() or "a process"
            os.close(descriptor)
            raise UsageError(
                f"--output {directory} is being written by {holder}: wait for it, or give another"
            ) from None
        if _is(path, descriptor):
            break
        os.close(descriptor)  # the holder removed the file while we waited to open it
    try:
        os.truncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
