"""Names a version of a table of Delta Lake or Iceberg, and reads its files by the table's library.

The files of such a table have rows that were deleted, and rows that another file has again: the
table alone tells which count.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

from embedps.data.arrow_errors import UNREADABLE
from embedps.errors import DatasetError, UsageError

from .lake_marks import NAMES

_LIBRARIES = {"delta": "deltalake", "iceberg": "pyiceberg"}
_KEPT = 8


class TableFiles(Protocol):
    """The files of a table's version.

    Attributes:
      version: its number.
      schema: of its rows, with columns that are in no file.
      files: the files' sizes in bytes, by path.
    """

    version: int
    schema: pa.Schema
    files: Mapping[str, int]

    def open(self, path: str) -> BinaryIO: ...

    def batches(
        self, path: str, names: Sequence[str], *, is_wide: bool
    ) -> Iterator[tuple[pa.RecordBatch, float]]: ...


@dataclass(frozen=True, kw_only=True)
class LakeTable:
    """A version of a table.

    Attributes:
      kind: delta or iceberg.
      location: its folder or URI.
      version: the version's number, or that of the snapshot.
      metadata: of Iceberg, the file that tells of it.
    """

    kind: str
    location: str
    version: int
    metadata: str = ""

    @property
    def files(self) -> TableFiles:
        """The table's files, read once per process; raises UsageError if they cannot be."""
        return _opened(self)

    def to_json(self) -> dict[str, Any]:
        """Returns what `_dataset.json` says of it."""
        return {"kind": self.kind, "location": self.location, "version": self.version}


@dataclass(frozen=True, kw_only=True)
class LakeFile:
    """A file of a table."""

    table: LakeTable
    path: str

    @property
    def schema(self) -> pa.Schema:
        """The schema of the table's rows."""
        return self.table.files.schema

    def open(self) -> BinaryIO:
        """Opens the file; its bytes have deleted rows too."""
        return self.table.files.open(self.path)

    def batches(
        self, names: Sequence[str], *, is_wide: bool
    ) -> Iterator[tuple[pa.RecordBatch, float]]:
        """Yields columns of the rows that were not deleted, in order, and the share read so far.

        Raises:
          DatasetError: the library cannot read them as the table's.
        """
        try:
            yield from self.table.files.batches(self.path, names, is_wide=is_wide)
        except (*UNREADABLE, DatasetError, UsageError):
            raise
        except Exception as error:
            raise DatasetError(_one_line(error)) from error


def open_table(kind: str, location: str, version: int | str | None = None) -> LakeTable:
    """Opens a version of a table.

    Args:
      kind: delta or iceberg.
      location: its folder, or what its library takes.
      version: the version, snapshot, branch or tag; None: the newest.

    Raises:
      UsageError: its library is absent, it cannot be read, or has no such version.
    """
    files = _read(kind, location, version)
    metadata = getattr(files, "metadata", "")
    return LakeTable(kind=kind, location=location, version=files.version, metadata=metadata)


@functools.lru_cache(_KEPT)
def _opened(table: LakeTable) -> TableFiles:
    return _read(table.kind, table.location, table.version, table.metadata)


def _read(kind: str, location: str, version: int | str | None, metadata: str = "") -> TableFiles:
    where = f"{location}: {NAMES[kind]}"
    try:
        if kind == "delta":
            from .delta_table import DeltaFiles

            if isinstance(version, str):
                raise UsageError(f"its version must be a number, got {version!r}")
            return DeltaFiles(location, version)
        from .iceberg_table import IcebergFiles

        return IcebergFiles(location, version, metadata)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{where} is read by {_LIBRARIES[kind]}, and {error.name} is not installed: pip "
            "install 'embedps[lake]'"
        ) from None
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    except Exception as error:  # of any kind, by the library
        raise UsageError(f"{where} that cannot be read: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
