"""A directory of evicted rows, in Parquet files that say which save they belong to.

    DIR/GROUP/save=N/shard-i-of-n.parquet

`save=N` has the rows that went before save N was written and after the save before it. They count
once a manifest with save N or a later one is there; until then, a crash brings the rows back.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from embedps import constants
from embedps.errors import CheckpointError, UsageError
from embedps.storage import file_io
from embedps.storage.object_store import as_path

_OWNER_NAME = "_model_dir.json"
_FOLDER_PREFIX = "save="
_FOLDER_NAME = re.compile(_FOLDER_PREFIX + r"[0-9]{1,18}")

FIRST_FIELDS = (
    pa.field("table", pa.dictionary(pa.int16(), pa.string()), nullable=False),
    pa.field("id", pa.int64(), nullable=False),
    pa.field("reason", pa.dictionary(pa.int8(), pa.string()), nullable=False),
    pa.field("evicted_step", pa.uint32(), nullable=False),
    pa.field("evicted_time", pa.timestamp("ms", "UTC"), nullable=False),
    pa.field("last_step", pa.uint32(), nullable=False),
    pa.field("frequency", pa.uint32(), nullable=False),
)


class EvictedFile:
    """A file of rows that go by hand; there is none if no row is written."""

    def __init__(self, path: Path, tables: Sequence[str], *, step: int) -> None:
        """Has no rows yet.

        Args:
          path: where the file appears when the block ends.
          step: training steps done.
        """
        self._path = path
        self._tables = pa.array(tables, pa.string())
        self._evicted_step = max(step - 1, 0)
        self._millis = int(time.time() * 1000)
        self._open = contextlib.ExitStack()
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> EvictedFile:
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def write(self, rows: pa.RecordBatch, table: str) -> None:
        """Writes rows of a table as a checkpoint's reader gives them."""
        n = rows.num_rows
        code = self._tables.to_pylist().index(table)
        causes = pa.array(constants.EVICTION_CAUSES)
        hand = constants.EVICTION_CAUSES.index("hand")
        first = [
            pa.DictionaryArray.from_arrays(pa.array([code] * n, pa.int16()), self._tables),
            rows["id"],
            pa.DictionaryArray.from_arrays(pa.array([hand] * n, pa.int8()), causes),
            pa.array([self._evicted_step] * n, pa.uint32()),
            pa.array([self._millis] * n, pa.timestamp("ms", "UTC")),
            rows["last_step"],
            rows["frequency"],
        ]
        rest = [f for f in rows.schema if pa.types.is_fixed_size_list(f.type)]
        schema = pa.schema([*FIRST_FIELDS, *rest])
        if self._writer is None:
            file = self._open.enter_context(file_io.write_atomically(self._path))
            writer = pq.ParquetWriter(file, schema, compression="zstd")
            self._writer = self._open.enter_context(writer)
        columns = [*first, *(rows[f.name] for f in rest)]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


class EvictedDirectory:
    """Where the evicted rows of one model directory are."""

    def __init__(self, location: str | Path) -> None:
        """Names a directory; `claim` makes it.

        Args:
          location: a path, or a URL of an object store.
        """
        self.path = as_path(location)

    def claim(self, model_dir: Path) -> None:
        """Makes the directory that of a model directory, unless it is already.

        Raises:
          UsageError: it is of another one, or not a directory of evicted rows.
          CheckpointError: it cannot be written.
        """
        ours = str(model_dir.absolute())
        try:
            theirs = self._owner()
            taken = (
                theirs is None and self.path.exists() and any(map(_is_other, self.path.iterdir()))
            )
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise CheckpointError(f"cannot read {self.path / _OWNER_NAME}: {error}") from error
        if taken:
            raise UsageError(
                f"{self.path} must be empty or have evicted rows of {ours} but has other files"
            )
        if theirs not in (None, ours):
            raise UsageError(
                f"{self.path} has the evicted rows of {theirs}: give those of {ours} another "
                "directory"
            )
        if theirs is None:
            file_io.write_bytes(self.path / _OWNER_NAME, json.dumps({"model_dir": ours}).encode())

    def _owner(self) -> str | None:
        path = self.path / _OWNER_NAME
        return str(json.loads(path.read_text())["model_dir"]) if path.exists() else None

    def shard_path(self, number: int, group: str, shard: int, num_shards: int) -> Path:
        """Gives the path of a shard's file of the rows that went before a save."""
        name = Path(constants.shard_file_name(shard, num_shards)).with_suffix(".parquet").name
        return self.path / group / f"{_FOLDER_PREFIX}{number}" / name

    def remove_after(self, number: int) -> None:
        """Removes the files of later saves, whose rows a restore of save `number` brings back.

        Raises:
          CheckpointError: they cannot be removed.
        """
        try:
            for folder in list(self._folders()):
                if int(folder.name.removeprefix(_FOLDER_PREFIX)) > number:
                    file_io.store_of(folder).remove_directory(folder)
        except OSError as error:
            raise CheckpointError(f"cannot remove files in {self.path}: {error}") from error

    def _folders(self) -> Iterator[Path]:
        for group in self.path.iterdir():
            if not group.name.startswith("_") and group.is_dir():
                for folder in group.iterdir():
                    if _FOLDER_NAME.fullmatch(folder.name):
                        yield folder


def _is_other(path: Path) -> bool:
    """Whether a file is not what a claim left that was killed."""
    return path.name != _OWNER_NAME + constants.TEMPORARY_SUFFIX
