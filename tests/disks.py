"""Small disks that tests fill, and what must not be left over on them."""

import ctypes
import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest

from embedps.checkpoint.directory import CheckpointDirectory

PAGE_BYTES = 4096


class Disk:
    """A small file system in memory, that can be filled and made read-only."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        path.mkdir()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._mount(b"tmpfs", 0, f"size={size_bytes}".encode())

    def _mount(self, kind: bytes, flags: int, options: bytes) -> None:
        if self._libc.mount(b"tmpfs", os.fsencode(self.path), kind, flags, options) != 0:
            number = ctypes.get_errno()
            if number in (errno.EPERM, errno.EACCES, errno.ENOSYS):
                pytest.skip("a file system can be mounted by root only")
            raise OSError(number, os.strerror(number))

    def fill(self, *, but_pages: int = 0) -> None:
        """Takes what is free, but for so many pages."""
        with open(self.path / "filler", "wb", buffering=0) as file, suppress(OSError):
            while but_pages == 0 or os.statvfs(self.path).f_bavail > but_pages:
                file.write(b"x" * PAGE_BYTES)

    def free(self) -> None:
        (self.path / "filler").unlink(missing_ok=True)

    def read_only(self, value: bool) -> None:
        self._mount(b"tmpfs", 32 | (1 if value else 0), b"")  # MS_REMOUNT, MS_RDONLY

    def close(self) -> None:
        self._libc.umount2(os.fsencode(self.path), 2)  # MNT_DETACH


def assert_nothing_is_left_over(model_dir: Path) -> None:
    directory = CheckpointDirectory(model_dir)
    named = {
        model_dir / entry.path for n in directory.numbers() for entry in directory.read(n).files
    }
    found = {path for _, each in directory.save_directories() for path in each.rglob("*.*")}
    assert found <= named
    assert list(model_dir.rglob("*.tmp")) == []
