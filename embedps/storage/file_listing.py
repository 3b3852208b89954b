"""Lists the files below a directory, or below a prefix of an object store, with their times."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from embedps.storage.object_store import ObjectPath


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


def list_files(
    directory: Path,
    suffix: str,
    *,
    known: Collection[str] = (),
    on_unlisted: Callable[[str, OSError], None] = lambda *_: None,
) -> list[ListedFile]:
    """Lists the files with a suffix, in order of modification, then of name.

    Files and folders whose names begin with "." or "_" are left out. Pipes, devices and links to
    nothing are listed too: who opens them finds out.

    Args:
      directory: local, or a prefix of an object store, which needs a request per 1,000 objects.
      suffix: of the names.
      known: the names of files to leave out.
      on_unlisted: called with the name of a folder below that cannot be listed, and why.

    Raises:
      OSError: the directory cannot be listed.
    """
    if isinstance(directory, ObjectPath):
        found = _objects(directory)
    else:
        found = _files(directory, known, on_unlisted)
    return sorted(
        file
        for file in found
        if file.name.endswith(suffix)
        and file.name not in known
        and not any(part.startswith((".", "_")) for part in file.name.split("/"))
    )


def _objects(prefix: ObjectPath) -> Iterator[ListedFile]:
    for name, info in prefix.objects():
        yield ListedFile(modified_ns=info.mtime_ns or 0, name=name, num_bytes=info.size or 0)


def _files(
    directory: Path, known: Collection[str], on_unlisted: Callable[[str, OSError], None]
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


def _attributes(entry: os.DirEntry[str]) -> os.stat_result:
    """Gives those of the file, or those of a link that leads to none."""
    try:
        return entry.stat()
    except OSError:
        return entry.stat(follow_symlinks=False)
