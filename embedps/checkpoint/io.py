"""Files that are whole or absent: written aside, synced, checksummed and renamed into place.

In an object store: kept until whole, and put by one upload; nothing there is synced or made before.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from embedps.checkpoint.objects import ObjectPath
from embedps.errors import CheckpointError

TEMPORARY_SUFFIX = ".tmp"
_CHUNK_BYTES = 1 << 20


def format_checksum(xxh3_64: int) -> str:
    """16 hex digits, as manifests hold them; takes the int64 or uint64 of the same bits."""
    return f"{xxh3_64 & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def checksum_bytes(data: bytes) -> str:
    """The xxh3_64 of bytes, 16 hex digits."""
    return format_checksum(xxhash.xxh3_64_intdigest(data))


def open_arrow(path: Path) -> pa.NativeFile:
    """Opens a file for Arrow's readers; a local one is mapped."""
    return path.open_input() if isinstance(path, ObjectPath) else pa.memory_map(str(path))


def checksum_file(path: Path) -> tuple[int, str]:
    """Reads a file once: its bytes and its xxh3_64 (16 hex digits)."""
    digest = xxhash.xxh3_64()
    num_bytes = 0
    with path.open_input() if isinstance(path, ObjectPath) else open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            num_bytes += len(chunk)
    return num_bytes, format_checksum(digest.intdigest())


class ChecksummedFile(io.RawIOBase):
    """A file being written, and the checksum of what was."""

    def __init__(self, file: io.FileIO | io.BytesIO) -> None:
        self._file = file
        self._digest = xxhash.xxh3_64()
        self.num_bytes = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.num_bytes

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        written = 0
        while written < len(view):
            written += self._file.write(view[written:])
        self._digest.update(view)
        self.num_bytes += len(view)
        return len(view)

    @property
    def xxh3_64(self) -> str:
        """Of what was written so far, 16 hex digits."""
        return format_checksum(self._digest.intdigest())


@contextmanager
def write_atomically(path: Path) -> Iterator[ChecksummedFile]:
    """Opens a file that appears at `path`, synced, when the block ends, and never if it raises.

    Missing directories are made. A file that a killed writer left aside is overwritten.

    Raises:
      CheckpointError: it cannot be written; what was at `path` is still there.
    """
    if isinstance(path, ObjectPath):
        whole = io.BytesIO()
        yield ChecksummedFile(whole)
        try:
            path.write_bytes(whole.getbuffer())
        except OSError as error:
            raise CheckpointError(f"cannot write {str(path)!r}: {error}") from error
        return
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        make_directories(path.parent)
        with open(temporary, "wb", buffering=0) as file:
            yield ChecksummedFile(file)
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        _discard(temporary)
        raise CheckpointError(f"cannot write {str(path)!r}: {error}") from error
    except BaseException:
        _discard(temporary)
        raise


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a whole small file atomically."""
    with write_atomically(path) as file:
        file.write(data)


def write_once(path: Path, data: bytes) -> None:
    """Writes a small file whose name is this writer's alone, and sees that it is.

    Raises:
      CheckpointError: it cannot be written, or another wrote it meanwhile.
    """
    write_bytes(path, data)
    # Without locks and renames two writers may put one name; the later one's bytes are what stays.
    if isinstance(path, ObjectPath) and path.read_bytes() != data:
        raise CheckpointError(
            f"{path} was written by another run meanwhile: only one run may write to a directory"
        )


def make_directories(path: Path) -> None:
    """`mkdir -p` whose new entries survive a power cut."""
    if isinstance(path, ObjectPath) or path.is_dir():
        return
    make_directories(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes the renames and removals in a directory survive a power cut."""
    if isinstance(path, ObjectPath):
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_directory(path: Path) -> int:
    """Removes a directory and all in it; the bytes that its files had."""
    if isinstance(path, ObjectPath):
        return path.remove_tree()
    num_bytes = sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())
    shutil.rmtree(path)
    return num_bytes


def _discard(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
