"""The lock of a local model directory: one run at a time trains in it.

It is the kernel's lock of a file (flock), and not the file's presence: it ends with the process
that holds it, however that ends. The processes that it starts do not inherit it.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import socket
import stat
import time
from contextlib import suppress
from pathlib import Path

from embedps.errors import DirectoryInUseError, UsageError
from embedps.storage.object_store import ObjectPath

LOCK_NAME = ".run.lock"
_MAX_BYTES = 4096


class RunLock:
    """Keeps other runs out of a model directory until it is released or its process ends."""

    def __init__(self, model_dir: Path) -> None:
        """Takes the lock, without waiting for it.

        There is none in an object store, nor on a file system without locks: of two runs there,
        the one that loses a race of commits ends.

        Args:
          model_dir: a directory that is there.

        Raises:
          DirectoryInUseError: another run holds it.
          UsageError: the lock's file cannot be opened.
        """
        self._file: io.FileIO | None = None
        if isinstance(model_dir, ObjectPath):
            return
        path = model_dir / LOCK_NAME
        try:
            # Not inherited: what this process starts may outlive it.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(path, flags, 0o644)
        except OSError as error:
            raise UsageError(f"--model-dir: {path} cannot be opened: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise UsageError(f"--model-dir: {path} must be a file, the lock of a run: remove it")
        self._file = io.FileIO(descriptor, "r+")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            self.release()
            raise DirectoryInUseError(
                f"--model-dir {model_dir} is in use by another run{holder}: end that one first, "
                "or train in another directory"
            ) from None
        except OSError:
            return  # the file system has no locks
        content = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        with suppress(OSError):  # of a full disk: then nobody is told who holds it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(content).encode(), 0)

    def release(self) -> None:
        """Lets other runs in; without effect the second time."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _holder(descriptor: int) -> str:
    """Who wrote that it holds a lock; nothing where that is not known."""
    try:
        content = json.loads(os.pread(descriptor, _MAX_BYTES, 0))
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(content["since"]))
        return f", process {int(content['pid'])} on {str(content['host'])!r} since {since}"
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return ""
