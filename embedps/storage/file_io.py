"""Reads and writes files, with checksums; a file that is written is there as a whole or not at all.

A local file is written under a temporary name, synced and renamed. An object of an object store is
put by one upload.

A test can kill the process at each step on the disk: EMBEDPS_FAULT=POINT:N kills it when it reaches
POINT for the N-th time. The points are io.write, io.fsync, io.mkdir, io.rename, io.unlink and
io.any; the kernels have row_file.write and so on.
"""

from __future__ import annotations

import dataclasses
import errno
import io
import os
import shutil
import signal
import stat
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

import pyarrow as pa
import xxhash

from embedps import constants
from embedps.errors import CheckpointError, DirectoryTakenError
from embedps.storage.object_store import ObjectStore, is_local
from embedps.storage.store import ListedFile, Store

_CHUNK_BYTES = 1 << 20


def format_checksum(xxh3_64: int) -> str:
    """Formats a checksum as 16 hex digits, as in manifests; takes an int64 or uint64."""
    return f"{xxh3_64 & 0xFFFF_FFFF_FFFF_FFFF:016x}"


def checksum_bytes(data: bytes) -> str:
    """Computes the xxh3_64 of bytes, as 16 hex digits."""
    return format_checksum(xxhash.xxh3_64_intdigest(data))


class NoFileError(OSError):
    """A FIFO, a directory or a device is where a file should be."""


def open_file(path: Path) -> BinaryIO:
    """Opens a local file to read.

    Raises:
      NoFileError: it is something else; reading it might never end.
      OSError: it cannot be opened.
    """
    no_file = NoFileError(errno.EINVAL, "must be a file but is not a regular one", str(path))
    try:
        # O_NONBLOCK: opening a FIFO does not wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise no_file from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise no_file
    return open(descriptor, "rb")


def read_bytes(path: Path) -> bytes:
    """Reads a whole file, local or of an object store.

    Raises:
      NoFileError: it is not a regular file.
      OSError: it cannot be read.
    """
    with store_of(path).open(path) as file:
        return file.read()


def block_bytes(num_bytes: int) -> int:
    """Returns the size of a file's blocks: a power of two pieces, so that there are at most 32."""
    size = constants.FILE_PIECE_BYTES
    while num_bytes > size * constants.MAX_FILE_BLOCKS:
        size *= 2
    return size


class Digest:
    """Computes the checksums of a sequence of bytes: of all of them, and of each block."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._all = xxhash.xxh3_64()
        self._piece = xxhash.xxh3_64()
        self._filled = 0
        self._pieces = bytearray()  # 8 bytes each, little-endian

    def update(self, data: Any) -> None:
        """Adds the next bytes."""
        view = memoryview(data).cast("B")
        self._all.update(view)
        self.num_bytes += len(view)
        while len(view):
            some = view[: constants.FILE_PIECE_BYTES - self._filled]
            self._piece.update(some)
            self._filled += len(some)
            view = view[len(some) :]
            if self._filled == constants.FILE_PIECE_BYTES:
                self._pieces += self._closed_piece()
                self._piece.reset()
                self._filled = 0

    @property
    def xxh3_64(self) -> str:
        """The checksum of all bytes so far, 16 hex digits."""
        return format_checksum(self._all.intdigest())

    @property
    def blocks(self) -> str:
        """16 hex digits for each block of `block_bytes`: the xxh3_64 of its pieces' xxh3_64s."""
        pieces = bytes(self._pieces) + (self._closed_piece() if self._filled else b"")
        step = block_bytes(self.num_bytes) // constants.FILE_PIECE_BYTES * 8
        return "".join(checksum_bytes(pieces[i : i + step]) for i in range(0, len(pieces), step))

    def _closed_piece(self) -> bytes:
        return self._piece.intdigest().to_bytes(8, "little")


def digest_file(path: Path) -> Digest:
    """Reads a file and computes its checksums."""
    digest = Digest()
    with store_of(path).open(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest


def checksum_file(path: Path) -> tuple[int, str]:
    """Reads a file; returns its size in bytes and its xxh3_64, as 16 hex digits."""
    digest = digest_file(path)
    return digest.num_bytes, digest.xxh3_64


@dataclasses.dataclass
class _Faults:
    """The point where the process is killed, and how often it still gets there."""

    point: str = ""
    left: int = 0

    def is_due(self, point: str) -> bool:
        if self.point not in (point, "io.any"):
            return False
        self.left -= 1
        return self.left == 0


_faults = _Faults()


def arm_fault(text: str) -> None:
    """Sets where this process is killed: POINT:N."""
    point, _, count = text.partition(":")
    _faults.point, _faults.left = point, int(count or 1)


arm_fault(os.environ.get(constants.FAULT_VARIABLE, ""))


def _die_if_fault(point: str) -> None:
    if _faults.is_due(point):
        os.kill(os.getpid(), signal.SIGKILL)


class ChecksummedFile(io.RawIOBase):
    """A file that is being written, with the checksums of what was written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = Digest()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._digest.num_bytes

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        written = 0
        if _faults.is_due("io.write"):  # a torn write: half of the data
            self._file.write(view[: len(view) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        while written < len(view):
            written += self._file.write(view[written:])
        self._digest.update(view)
        return len(view)

    @property
    def digest(self) -> Digest:
        """The checksums of what was written so far."""
        return self._digest


@contextmanager
def write_atomically(path: Path) -> Iterator[ChecksummedFile]:
    """Opens a file with checksums that appears at `path` as a whole, as `Store.committing` does.

    Raises:
      CheckpointError: it cannot be written; the file that was at `path` is unchanged.
    """
    try:
        with store_of(path).committing(path) as file:
            yield ChecksummedFile(file)
    except OSError as error:
        raise CheckpointError(f"cannot write {str(path)!r}: {error}") from error


@contextmanager
def replacing(path: Path, *, sync: bool = False) -> Iterator[Path]:
    """Gives a new path beside `path`, to write a file; renames the file when the block ends.

    If the block raises, the file is removed. Several processes may do so for one path at once.

    Args:
      path: a local path, in an existing directory.
      sync: the file shall survive a power cut.

    Raises:
      OSError: the file cannot be synced or renamed.
    """
    with _renamed(path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp"), path) as temporary:
        yield temporary
        if sync:
            with open(temporary, "rb") as written:
                os.fsync(written.fileno())
    if sync:
        _LOCAL.sync_directory(path.parent)


@contextmanager
def _renamed(temporary: Path, path: Path) -> Iterator[Path]:
    try:
        yield temporary
        rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a small file atomically."""
    with write_atomically(path) as file:
        file.write(data)


def write_shared(path: Path, data: bytes) -> None:
    """Writes a small file atomically, as several processes may at once: the last one's stays.

    Raises:
      CheckpointError: it cannot be written; the file that was at `path` is unchanged.
    """
    if not is_local(path):
        write_bytes(path, data)
        return
    try:
        with replacing(path, sync=True) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise CheckpointError(f"cannot write {str(path)!r}: {error}") from error


def write_once(path: Path, data: bytes) -> None:
    """Writes a small file that no other process may write, and checks that none did.

    Raises:
      CheckpointError: it cannot be written.
      DirectoryTakenError: another process wrote it meanwhile.
    """
    write_bytes(path, data)
    # Without locks, two writers may put one name, and the later one's bytes stay.
    if not store_of(path).has_locks and read_bytes(path) != data:
        raise DirectoryTakenError(
            f"{path} was written by another run meanwhile: only one run may write to a directory"
        )


def touch(path: Path) -> float:
    """Makes a file or gives it a new time; returns that time, by the clock of its store.

    Raises:
      OSError: it may not be written.
    """
    path.touch()
    return path.stat().st_mtime


def rename(source: Path, target: Path) -> None:
    """Renames a file, over one that may be there; `Store.sync_directory` makes it durable."""
    _die_if_fault("io.rename")
    source.replace(target)


def unlink(path: Path) -> None:
    """Removes a file, if it is there."""
    _die_if_fault("io.unlink")
    path.unlink(missing_ok=True)


class LocalStore(Store[Path]):
    """Files of this machine's file systems."""

    has_locks = True

    def open(self, path: Path) -> BinaryIO:
        return open_file(path)

    def open_arrow(self, path: Path) -> pa.NativeFile:
        open_file(path).close()
        return pa.memory_map(str(path))

    def names_in(self, directory: Path) -> list[str]:
        try:
            return os.listdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _files_below(
        self, directory: Path, known: Collection[str], on_unlisted: Callable[[str, OSError], None]
    ) -> Iterator[ListedFile]:
        folders = [""]
        while folders:
            folder = folders.pop()
            try:
                entries = list(os.scandir(directory / folder))
            except OSError as error:
                if not folder:
                    raise
                if not isinstance(error, FileNotFoundError):  # else it was removed meanwhile
                    on_unlisted(folder, error)
                continue
            for entry in entries:
                name = folder + entry.name
                try:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(name + "/")
                    elif name not in known:
                        found = _attributes(entry)
                        yield ListedFile(
                            modified_ns=found.st_mtime_ns, name=name, num_bytes=found.st_size
                        )
                except FileNotFoundError:
                    continue

    @contextmanager
    def committing(self, path: Path) -> Iterator[IO[bytes]]:
        """Writes beside `path`, over what a killed writer left there, and renames."""
        self.make_directories(path.parent)
        with (
            _renamed(path.with_name(path.name + constants.TEMPORARY_SUFFIX), path) as temporary,
            open(temporary, "wb", buffering=0) as file,
        ):
            yield file
            _die_if_fault("io.fsync")
            os.fsync(file.fileno())
        self.sync_directory(path.parent)

    def write_note(self, path: Path, data: bytes) -> None:
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            temporary.write_bytes(data)
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def append_line(self, path: Path, line: bytes) -> None:
        with open(path, "ab+") as file:
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else b"\n" + line
            file.write(line)

    def make_directories(self, path: Path) -> None:
        if path.is_dir():
            return
        self.make_directories(path.parent)
        _die_if_fault("io.mkdir")
        path.mkdir(exist_ok=True)
        self.sync_directory(path.parent)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _die_if_fault("io.fsync")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove_directory(self, path: Path) -> int:
        if path.is_symlink():
            unlink(path)
            return 0
        num_bytes = sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())
        _die_if_fault("io.unlink")
        shutil.rmtree(path)
        return num_bytes


_LOCAL, _OBJECTS = LocalStore(), ObjectStore()


def store_of(path: Path) -> Store[Any]:
    """Finds the kind of storage that a path is of."""
    return _LOCAL if is_local(path) else _OBJECTS


def _attributes(entry: os.DirEntry[str]) -> os.stat_result:
    """Gives those of the file, or those of a link that leads to none."""
    try:
        return entry.stat()
    except OSError:
        return entry.stat(follow_symlinks=False)
