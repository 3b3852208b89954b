"""The directory of exports: DIR/<number>/, written beside and renamed once it is complete.

TensorFlow Serving watches DIR and loads the highest number. What is being written has a name that
it ignores.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from embedps.errors import DirectoryInUseError, UsageError
from embedps.storage import file_io
from embedps.storage.file_lock import FileLock

EXTRA = "assets.extra"  # what a SavedModel may hold besides the model
DESCRIPTION = "embedps.json"
_FORMAT, _VERSION = "embedps.export", 1


def read_description(path: Path) -> dict[str, Any]:
    """Reads what `describe` wrote.

    Raises:
      UsageError: the directory is no export.
    """
    try:
        found = json.loads(file_io.read_bytes(path / EXTRA / DESCRIPTION))
        if (found["format"], found["version"]) == (_FORMAT, _VERSION):
            return dict(found)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass
    raise UsageError(f"{path} must be an export but is not: remove it, or give another --output")


def describe(path: Path, content: dict[str, Any]) -> None:
    """Writes what an export is of, with the size and checksum of each of its files."""
    files = {}
    for file in sorted(path.rglob("*")):
        if file.is_file():
            num_bytes, checksum = file_io.checksum_file(file)
            files[str(file.relative_to(path))] = {"bytes": num_bytes, "xxh3_64": checksum}
    document = {"format": _FORMAT, "version": _VERSION, **content, "files": files}
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    (path / EXTRA / DESCRIPTION).write_text(text, encoding="utf-8")


@contextlib.contextmanager
def new_export(output: Path, number: int) -> Iterator[Path]:
    """Gives a directory to write; renames it to OUTPUT/<number> when the block ends.

    If the block raises, the directory is removed. What a killed export left is removed first.

    Raises:
      UsageError: the output cannot be written.
      DirectoryInUseError: another process exports this number there.
    """
    target, temporary = output / str(number), output / f".{number}.tmp"
    try:
        file_io.store_of(output).make_directories(output)
        lock = FileLock(output / f".{number}.lock")
        held = lock.acquire()
    except OSError as error:
        raise UsageError(f"--output {output}: {error.strerror}") from error
    if not held:
        raise DirectoryInUseError(
            f"--output {output}: {lock.holder or 'another process'} exports {number} there: wait"
        )
    try:
        lock.sign()
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir()
            yield temporary
            _sync(temporary)
            file_io.rename(temporary, target)
            file_io.store_of(output).sync_directory(output)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    finally:
        lock.release(remove=True)


def _sync(directory: Path) -> None:
    """Makes a directory and all in it survive a power cut."""
    for path in directory.rglob("*"):
        if path.is_dir():
            file_io.store_of(path).sync_directory(path)
        else:
            with open(path, "rb") as written:
                os.fsync(written.fileno())
    file_io.store_of(directory).sync_directory(directory)
