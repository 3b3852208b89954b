"""Paths of an object store, with pathlib's methods on Arrow's filesystems.

An object store has no rename and no directories. It needs neither: an object appears when its
upload is complete, or not at all.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import shutil
import stat
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PosixPath
from typing import IO, Any, BinaryIO
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from embedps.config_fields import check_text
from embedps.constants import OBJECT_SCHEMES
from embedps.errors import UsageError
from embedps.storage.store import ListedFile, Store

_CHUNK_BYTES = 1 << 20
_SPOOL_BYTES = 64 << 20  # a larger upload is kept in a temporary file before it is sent


class ObjectPath(PosixPath):
    """An object or a prefix of objects' names, such as `s3://BUCKET/NAME`; `as_path` makes it.

    Its parts work like those of any path; the methods that read and write are overridden. The
    store's address and credentials come from the environment, here and in the kernels: for s3
    AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and the like, for gs
    GOOGLE_APPLICATION_CREDENTIALS.
    """

    def __str__(self) -> str:
        first, *rest = self.parts
        if first[:-1] in OBJECT_SCHEMES:
            return f"{first}//{'/'.join(rest)}"
        return "/".join(self.parts)

    def __fspath__(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"ObjectPath({str(self)!r})"

    def absolute(self) -> ObjectPath:
        return self

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Returns its mode, size and time, in whole seconds; the other fields are 0."""
        info = self.filesystem.get_file_info(self.key)
        if info.type == pafs.FileType.NotFound:
            raise FileNotFoundError(2, "No such object", str(self))
        mode = stat.S_IFDIR if info.type == pafs.FileType.Directory else stat.S_IFREG
        written = (info.mtime_ns or 0) // 10**9  # a prefix has no time
        return os.stat_result((mode, 0, 0, 1, 0, 0, info.size or 0, 0, written, 0))

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        return bool(self.filesystem.get_file_info(self.key).type != pafs.FileType.NotFound)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return bool(self.filesystem.get_file_info(self.key).type == pafs.FileType.Directory)

    def iterdir(self) -> Generator[ObjectPath, None, None]:
        """Lists what is directly under it; nothing if it is absent."""
        for info in self.infos(recursive=False):
            yield self / info.base_name

    def glob(self, pattern: str, **_: Any) -> Generator[ObjectPath, None, None]:
        """Lists the children whose names match."""
        return (each for each in self.iterdir() if fnmatch.fnmatchcase(each.name, pattern))

    def open_input(self) -> pa.NativeFile:
        """Opens the object for random access."""
        return self.filesystem.open_input_file(self.key)

    def read_bytes(self) -> bytes:
        with self.open_input() as file:
            return bytes(file.read())

    def read_text(self, *_: Any, **__: Any) -> str:
        return self.read_bytes().decode()

    def write_bytes(self, data: Any) -> int:
        """Puts the object; it appears as a whole or not at all."""
        with self.filesystem.open_output_stream(self.key) as file:
            file.write(data)
        return len(data)

    def touch(self, *_: Any, **__: Any) -> None:
        """Puts an empty object, whose time is new."""
        self.write_bytes(b"")

    def is_symlink(self) -> bool:
        return False

    def mkdir(self, *_: Any, **__: Any) -> None:
        """Does nothing: an object needs no directory."""

    def replace(self, target: str | os.PathLike[str]) -> ObjectPath:
        """Copies the object, then removes it: for a moment there are two."""
        there = ObjectPath(target)
        self.filesystem.copy_file(self.key, there.key)
        self.unlink()
        return there

    def unlink(self, missing_ok: bool = False) -> None:
        if missing_ok and not self.exists():
            return
        self.filesystem.delete_file(self.key)

    @property
    def key(self) -> str:
        """The bucket and the object's name, as Arrow's filesystems take it."""
        return "/".join(self.parts[1:])

    @property
    def filesystem(self) -> pafs.FileSystem:
        """The store of its bucket."""
        return _filesystem(self.parts[0][:-1], self.parts[1])

    def infos(self, *, recursive: bool) -> list[pafs.FileInfo]:
        """Lists what is under it, or directly under it; nothing if it is absent."""
        selector = pafs.FileSelector(self.key, allow_not_found=True, recursive=recursive)
        found: list[pafs.FileInfo] = self.filesystem.get_file_info(selector)
        return found


class ObjectStore(Store[ObjectPath]):
    """Objects, which appear as a whole by one upload; nothing locks them."""

    has_locks = False

    def open(self, path: ObjectPath) -> BinaryIO:
        file: BinaryIO = path.open_input()
        return file

    def open_arrow(self, path: ObjectPath) -> pa.NativeFile:
        return path.open_input()

    def names_in(self, directory: ObjectPath) -> list[str]:
        return [each.name for each in directory.iterdir()]

    def _files_below(self, directory: ObjectPath, *_: Any) -> Iterator[ListedFile]:
        begins = len(directory.key) + 1
        for info in directory.infos(recursive=True):
            if info.is_file:
                yield ListedFile(
                    modified_ns=info.mtime_ns or 0,
                    name=info.path[begins:],
                    num_bytes=info.size or 0,
                )

    @contextmanager
    def committing(self, path: ObjectPath) -> Iterator[IO[bytes]]:
        """Keeps the bytes until all are there: an upload cannot be taken back."""
        with tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as whole:
            yield whole
            whole.seek(0)
            with path.filesystem.open_output_stream(path.key) as file:
                shutil.copyfileobj(whole, file, _CHUNK_BYTES)

    def write_note(self, path: ObjectPath, data: bytes) -> None:
        path.write_bytes(data)

    def append_line(self, path: ObjectPath, line: bytes) -> None:
        before = path.read_bytes() if path.exists() else b""
        between = b"\n" if before and not before.endswith(b"\n") else b""
        path.write_bytes(before + between + line)

    def make_directories(self, path: ObjectPath) -> None:
        """Does nothing: an object needs no directory."""

    def sync_directory(self, path: ObjectPath) -> None:
        """Does nothing: an object that is there stays."""

    def remove_directory(self, path: ObjectPath) -> int:
        num_bytes = sum(info.size or 0 for info in path.infos(recursive=True))
        path.filesystem.delete_dir(path.key)
        return num_bytes


def is_local(path: Path) -> bool:
    """Tells whether a path is of this machine's file systems, and not of an object store."""
    return not isinstance(path, ObjectPath)


def as_path(location: str | Path) -> Path:
    """Makes a path of a local path or file:// URL, or an `ObjectPath` of an s3:// or gs:// URL.

    Raises:
      UsageError: it is blank or has a NUL; or the URL has another scheme, or a part that is not
        allowed here.
    """
    location = check_text("a directory", location) if isinstance(location, str) else location
    if isinstance(location, Path):
        check_text("a directory", location)
        return location
    scheme, separator, rest = location.partition("://")
    if not separator:
        return Path(location)
    if scheme == "file" and rest.startswith("/"):
        return Path(check_text("a directory", unquote(urlsplit(location).path)))
    if scheme not in OBJECT_SCHEMES:
        raise UsageError(
            "a directory must be a local path or a file:///, s3:// or gs:// URL "
            f"but got {location!r}"
        )
    if not rest.strip("/") or set("?#@") & set(rest):
        raise UsageError(
            f"a URL must be {scheme}://BUCKET/NAME and nothing else, because all other settings "
            f"come from the environment (AWS_ENDPOINT_URL and so on), but got {location!r}"
        )
    return ObjectPath(f"{scheme}:", *(part for part in rest.split("/") if part))


def local_dir(directory: Path) -> Path:
    """Returns the local directory for the logs and TensorBoard's events of a model directory.

    It is the model directory itself. If that is in an object store, it is a directory in this
    machine's temporary directory, in a folder that only this user can enter.

    Raises:
      UsageError: that folder is another user's, or not private.
    """
    if is_local(directory):
        return directory
    private = Path(tempfile.gettempdir(), f"embedps-{os.geteuid()}")
    _make_private(private)
    return private.joinpath(*directory.parts[1:])


def _make_private(folder: Path) -> None:
    advice = "remove it, or set TMPDIR to a directory of your own"
    try:
        with suppress(FileExistsError):
            folder.mkdir(0o700)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(
            f"{folder}, for logs, must be a directory and no link, but cannot be opened "
            f"({error.strerror}): {advice}"
        ) from error
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise UsageError(
                f"{folder}, for logs, must be of user {os.geteuid()} but is of user "
                f"{found.st_uid}: {advice}"
            )
        if found.st_mode & 0o022:  # others may have put links there, which this user would follow
            raise UsageError(
                f"{folder}, for logs, must be writable by its owner alone but has mode "
                f"{stat.S_IMODE(found.st_mode):o}: {advice}"
            )
        os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)


@functools.cache
def _filesystem(scheme: str, bucket: str) -> pafs.FileSystem:
    found, _ = pafs.FileSystem.from_uri(f"{scheme}://{bucket}")
    return found
