"""Locks a local model directory: one run at a time trains in it."""

from __future__ import annotations

from pathlib import Path

from embedps.errors import DirectoryInUseError, UsageError
from embedps.storage.file_lock import RUN_LOCK_NAME, FileLock


class RunLock:
    """Keeps other runs out of a model directory until it is released or its process ends."""

    def __init__(self, model_dir: Path) -> None:
        """Takes the lock, without waiting for it.

        An object store and some file systems have no locks. Of two runs there, the one that loses
        a race of commits ends.

        Args:
          model_dir: an existing directory.

        Raises:
          DirectoryInUseError: another run holds it.
          UsageError: the lock's file cannot be opened.
        """
        path = model_dir / RUN_LOCK_NAME
        self._lock = FileLock(path)
        try:
            held = self._lock.acquire()
        except OSError as error:
            raise UsageError(
                f"--model-dir: {path} cannot be opened as the lock of a run: {error.strerror}"
            ) from error
        if not held:
            holder = self._lock.holder and f", {self._lock.holder}"
            raise DirectoryInUseError(
                f"--model-dir {model_dir} is in use by another run{holder}: end that one first, "
                "or train in another directory"
            )
        self._lock.sign()

    def release(self) -> None:
        """Lets other runs in; without effect the second time."""
        self._lock.release()
