"""Locks an output directory: one run at a time writes there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embedps.errors import UsageError
from embedps.storage.file_lock import FileLock

NAME = "_lock"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Holds the directory's lock while the block runs; its file is there only as long.

    Raises:
      UsageError: another run holds it.
    """
    lock = FileLock(directory / NAME)
    if not lock.acquire():
        raise UsageError(
            f"--output {directory} is being written by {lock.holder or 'a process'}: "
            "wait for it, or give another"
        )
    lock.sign()
    try:
        yield
    finally:
        lock.release(remove=True)
