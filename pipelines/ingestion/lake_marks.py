"""Tells which folders are tables of Delta Lake, Iceberg or Hudi, and refuses their bare files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from embedps.errors import UsageError

CATALOG = "iceberg://"
"""What the name of an Iceberg table in a catalog begins with: `iceberg://CATALOG/NAMESPACE.TABLE`."""
METADATA = re.compile(r"v?(\d+)[.-].*metadata\.json(\.gz)?")
"""The name of a file of Iceberg's metadata, with its number."""
NAMES = {"delta": "a Delta table", "iceberg": "an Iceberg table"}
_MARKS = {"delta": "_delta_log", "iceberg": "metadata", "hudi": ".hoodie"}
"""By kind, a folder of a table."""


def check_plain(flag: str, paths: Iterable[str], *, takes_tables: bool = True) -> None:
    """Raises UsageError if a file lies in a table, which alone tells which of its rows count.

    Args:
      flag: what gave the files, for the message.
      paths: the files.
      takes_tables: whether a table may be given instead.
    """
    seen: dict[str, str] = {}
    for path in paths:
        for folder in _above(path):
            if folder not in seen:
                seen[folder] = kind_of(folder)
            if kind := seen[folder]:
                raise UsageError(f"{flag} {path}: {bare_files(kind, folder, takes_tables)}")


def bare_files(kind: str, folder: str, takes_tables: bool = False) -> str:
    """Says why files of a table are refused."""
    remedy = "write its rows to plain files, and give these"
    if kind in NAMES and takes_tables:
        remedy = f"give the table, {folder}"
    name = NAMES.get(kind, "a Hudi table")
    return f"{folder} is {name}, whose files have rows too that were deleted: {remedy}"


def _above(path: str) -> Iterator[str]:
    """Yields the folders above a file, also those above what its links lead to."""
    if is_remote(path):
        scheme, _, rest = path.partition("://")
        parts = rest.split("/")[:-1]
        yield from (f"{scheme}://{'/'.join(parts[:i])}" for i in range(len(parts), 0, -1))
        return
    for whole in dict.fromkeys((os.path.abspath(path), os.path.realpath(path))):
        folder = os.path.dirname(whole)
        while True:
            yield folder
            if folder == (folder := os.path.dirname(folder)):
                break


def is_remote(path: str) -> bool:
    """Tells whether a path is a URI."""
    return "://" in path


def kind_of(path: str) -> str:
    """Tells what table a folder is, or a file of Iceberg's metadata; empty if none."""
    if path.startswith(CATALOG) or METADATA.fullmatch(os.path.basename(path)):
        return "iceberg"
    for kind, mark in _MARKS.items():
        inner = f"{path.rstrip('/')}/{mark}"
        if kind == "iceberg":
            is_kind = any(map(METADATA.fullmatch, _names_in(inner)))
        else:
            is_kind = bool(_names_in(inner)) if is_remote(inner) else os.path.isdir(inner)
        if is_kind:
            return kind
    return ""


def _names_in(folder: str) -> list[str]:
    if not is_remote(folder):
        try:
            return os.listdir(folder)
        except OSError:
            return []
    from apache_beam.io.filesystem import BeamIOError  # it takes seconds
    from apache_beam.io.filesystems import FileSystems

    try:
        (match,) = FileSystems.match([f"{folder}/*"])
    except (BeamIOError, ValueError, OSError):
        return []
    return [os.path.basename(file.path) for file in match.metadata_list]
