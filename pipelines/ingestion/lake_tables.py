"""Opens the tables of Delta Lake and Iceberg that a user gives."""

from __future__ import annotations

import os
from collections.abc import Sequence

from embedps.errors import UsageError

from .lake_files import LakeTable, open_table
from .lake_marks import CATALOG, bare_files, is_remote, kind_of

_AT = "@"


def find_table(flag: str, given: str) -> LakeTable | None:
    """Opens the table that a path or a name stands for; None if it stands for other files.

    Args:
      flag: what gave it, for messages.
      given: a table's folder, Iceberg's file of metadata or `iceberg://CATALOG/NAMESPACE.TABLE`,
        each also with `@VERSION`: the number of a version or snapshot, or an Iceberg branch or tag.

    Raises:
      UsageError: it is a table that cannot be read, or has no such version.
    """
    location, version = given, ""
    kind = kind_of(given)
    if _AT in given and (not kind or given.startswith(CATALOG)):
        location, _, version = given.rpartition(_AT)
        kind = kind_of(location)
        if kind and not version:
            raise UsageError(f"{flag} {given}: must name a version after {_AT}, or have no {_AT}")
    if not kind:
        return None
    if kind == "hudi":
        raise UsageError(f"{flag} {given}: {bare_files(kind, location)}")
    if not is_remote(location):
        location = os.path.abspath(location)
    wanted = (int(version) if version.isdecimal() else version) if version else None
    try:
        return open_table(kind, location, wanted)
    except UsageError as error:
        raise UsageError(f"{flag} {error}") from None


def check_format(what: str, tables: Sequence[LakeTable], found: str) -> None:
    """Raises UsageError if a schema of tables declares another format than Parquet."""
    if tables and found != "parquet":
        raise UsageError(
            f'{what} of a table of Delta Lake or Iceberg must have format = "parquet", got '
            f"{found!r} for {tables[0].location}"
        )
