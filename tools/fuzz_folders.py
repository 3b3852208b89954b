"""Files and folders of a process, for what reads them by a path."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def in_memory(data: bytes) -> Iterator[Path]:
    """Gives a path of some bytes."""
    descriptor = os.memfd_create("fuzz")
    try:
        os.write(descriptor, data)
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def in_folder(name: str, data: bytes) -> Iterator[Path]:
    """Gives a folder of this process that has one more file."""
    folder = Path(tempfile.gettempdir()) / f"embedps-fuzz-{os.getpid()}"
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    try:
        yield folder
    finally:
        path.unlink(missing_ok=True)
