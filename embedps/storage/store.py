"""What each kind of storage can do with its files: a disk, or an object store."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, BinaryIO, ClassVar, Generic, TypeVar

import pyarrow as pa

P = TypeVar("P", bound=Path)


@dataclasses.dataclass(frozen=True, order=True, kw_only=True)
class ListedFile:
    """A file as it was listed; the order is that of modification, then of name.

    Attributes:
      modified_ns: when it was last modified, in nanoseconds since 1970. Stores give whole seconds.
      name: within the directory, with "/" between its parts.
      num_bytes: its size.
    """

    modified_ns: int
    name: str
    num_bytes: int


class Store(ABC, Generic[P]):
    """A kind of storage; `file_io.store_of` finds that of a path.

    Attributes:
      has_locks: a lock keeps other processes out; else everyone gets the lock.
    """

    has_locks: ClassVar[bool]

    @abstractmethod
    def open(self, path: P) -> BinaryIO:
        """Opens a file to read.

        Raises:
          NoFileError: it is not a regular file.
          OSError: it cannot be opened.
        """

    @abstractmethod
    def open_arrow(self, path: P) -> pa.NativeFile:
        """Opens a file for Arrow's readers; a local one is mapped.

        Raises:
          NoFileError: it is not a regular file.
          OSError: it cannot be opened.
        """

    @abstractmethod
    def names_in(self, directory: P) -> list[str]:
        """Lists the names in a directory; none if it is absent.

        Raises:
          OSError: it cannot be listed.
        """

    def list_files(
        self,
        directory: P,
        suffix: str,
        *,
        known: Collection[str] = (),
        on_unlisted: Callable[[str, OSError], None] = lambda *_: None,
    ) -> list[ListedFile]:
        """Lists the files below a directory by suffix, in order of modification, then of name.

        Files and folders whose names begin with "." or "_" are left out. Pipes, devices and links
        to nothing are listed too: who opens them finds out.

        Args:
          directory: an object store needs a request per 1,000 objects.
          suffix: of the names.
          known: the names of files to leave out.
          on_unlisted: called with the name of a folder below that cannot be listed, and why.

        Raises:
          OSError: the directory cannot be listed.
        """
        return sorted(
            file
            for file in self._files_below(directory, known, on_unlisted)
            if file.name.endswith(suffix)
            and file.name not in known
            and not any(part.startswith((".", "_")) for part in file.name.split("/"))
        )

    @abstractmethod
    def _files_below(
        self, directory: P, known: Collection[str], on_unlisted: Callable[[str, OSError], None]
    ) -> Iterator[ListedFile]:
        """Lists all files; may leave out the known ones."""

    @abstractmethod
    def committing(self, path: P) -> AbstractContextManager[IO[bytes]]:
        """Opens a file that appears at `path` when the block ends; not if the block raises.

        Missing directories are made. A local file is synced.

        Raises:
          OSError: it cannot be written.
        """

    @abstractmethod
    def write_note(self, path: P, data: bytes) -> None:
        """Writes a small file atomically; it outlives this process, but perhaps no power cut.

        Only one process may write it. A process that dies here leaves at most one temporary file.

        Raises:
          OSError: it cannot be written.
        """

    @abstractmethod
    def append_line(self, path: P, line: bytes) -> None:
        """Appends a line to a file, which is made if it is absent; an object is written again.

        A line that a kill or a full disk truncated before stays a line of its own.

        Raises:
          OSError: it cannot be written.
        """

    @abstractmethod
    def make_directories(self, path: P) -> None:
        """Makes a directory and its parents; they survive a power cut."""

    @abstractmethod
    def sync_directory(self, path: P) -> None:
        """Makes the renames and removals in a directory survive a power cut."""

    @abstractmethod
    def remove_directory(self, path: P) -> int:
        """Removes a directory and all in it; returns the total size of its files in bytes.

        Of a link, only the link is removed: what it leads to may be another's.
        """
