"""The texts of ids: Parquet files beside a dataset, which tell people what a fingerprint is of.

    DATA/_texts/part-00003-of-00008.parquet    an eighth of all ids: `id`, int64, and `text`

A file's rows ascend by id, and its metadata `first_ids` has the first id of each row group. So the
file of an id and its row group follow from the id: a few ids read little. An id that several texts
have is there once for each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from embedps.errors import DatasetError
from embedps.storage import file_io
from embedps.storage.object_store import as_path

FOLDER_NAME = "_texts"
MAX_CHARACTERS = 256
"""Of a text; the end of a longer one is left out."""
MAX_TEXTS_PER_ID = 4
"""Two texts may have one fingerprint by chance; more were made to, and shall fill no memory."""
ROW_GROUP_ROWS = 8192
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string(), nullable=False)]
)
_NAME = re.compile(r"part-([0-9]{5})-of-([0-9]{5})\.parquet")
_MOST_BYTES = 4 * (MAX_CHARACTERS + 1)
_FIRST_IDS = b"first_ids"
_NUM_IDS, _LEAST_ID = 1 << 64, -(1 << 63)
_UNREADABLE = (pa.ArrowException, OSError, ValueError, TypeError, ArithmeticError, RecursionError)


def part_name(index: int, count: int) -> str:
    """Names the file of a part."""
    return f"part-{index:05d}-of-{count:05d}.parquet"


def least_id(index: int, count: int) -> int:
    """Returns the smallest id of a part; that of part `count` is 2^63, beyond all ids."""
    return -(-(index * _NUM_IDS) // count) + _LEAST_ID


def write_texts(where: Any, batches: Iterable[pa.RecordBatch], schema: pa.Schema = SCHEMA) -> int:
    """Writes batches to a path or a file, as row groups of 8,192; returns the number of rows.

    Args:
      where: what Arrow writes to.
      batches: of any sizes, in order of their ids.
      schema: of the batches; begins with `id`.
    """
    first_ids: list[int] = []
    num_rows = 0
    with pq.ParquetWriter(
        where, schema, compression="zstd", use_dictionary=False, write_page_checksum=True,
        write_statistics=False, store_schema=False,
    ) as writer:  # fmt: skip
        for group in _groups(batches, schema):
            first_ids.append(group.column(0)[0].as_py())
            writer.write_table(group)
            num_rows += group.num_rows
        writer.add_key_value_metadata({_FIRST_IDS: json.dumps(first_ids)})
    return num_rows


def _groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    pending = pa.Table.from_batches([], schema)
    for batch in batches:
        pending = pa.concat_tables([pending, pa.Table.from_batches([batch], schema)])
        while pending.num_rows >= ROW_GROUP_ROWS:
            yield pending.slice(0, ROW_GROUP_ROWS)
            pending = pending.slice(ROW_GROUP_ROWS)
    if pending.num_rows:
        yield pending


class TextFolder:
    """The texts that lie beside one dataset, local or of an object store; there may be none.

    Attributes:
      dataset: its directory.
      parts: each file, with the smallest id that it may have and the one after the largest.
      others: files that are none of these, such as what a killed writer left.
    """

    def __init__(self, dataset: str | Path) -> None:
        """Lists the files; raises DatasetError if it cannot."""
        self.dataset = as_path(dataset)
        folder = self.dataset / FOLDER_NAME
        try:
            names = sorted(file_io.store_of(folder).names_in(folder))
        except OSError as error:
            raise DatasetError(f"{folder}: cannot be listed: {error}") from None
        matches = [m for m in map(_NAME.fullmatch, names) if m is not None and m[1] < m[2]]
        numbers = [(m[0], int(m[1]), int(m[2])) for m in matches]
        self.parts = [
            (folder / name, least_id(index, count), least_id(index + 1, count))
            for name, index, count in numbers
        ]
        known = {name for name, _, _ in numbers}
        self.others = [folder / name for name in names if name not in known]

    def find(self, ids: NDArray[np.int64]) -> dict[int, list[str]]:
        """Finds texts; bytes that are no UTF-8 are escaped.

        Args:
          ids: any order, repeats allowed.

        Returns:
          The texts by id, of those that have some; at most MAX_TEXTS_PER_ID each.

        Raises:
          DatasetError: a file cannot be read.
        """
        found: dict[int, list[str]] = {}
        wanted = np.unique(ids)
        for path, low, high in self.parts:
            mine = wanted[(wanted >= low) & (wanted <= high - 1)]
            for batch in _batches(path, mine) if len(mine) else ():
                of_ids = batch.column(0).to_numpy()
                for at in np.flatnonzero(np.isin(of_ids, mine)).tolist():
                    texts = found.setdefault(int(of_ids[at]), [])
                    if len(texts) < MAX_TEXTS_PER_ID:
                        data = (batch.column(1)[at].as_py() or b"")[:_MOST_BYTES]
                        texts.append(data.decode("utf-8", "backslashreplace"))
        return found


def has_texts(path: Path, ids: NDArray[np.int64]) -> bool:
    """Reads a whole file, and tells whether it has one of the ids; raises DatasetError."""
    return any(np.isin(batch.column(0).to_numpy(), ids).any() for batch in _batches(path))


def remove_texts(path: Path, ids: NDArray[np.int64]) -> int:
    """Writes a file again without some ids; returns how many texts went.

    Raises:
      DatasetError: the file cannot be read.
      CheckpointError: it cannot be written, and is as it was.
    """
    gone = 0

    def left() -> Iterator[pa.RecordBatch]:
        nonlocal gone
        for batch in _batches(path):
            hits = np.isin(batch.column(0).to_numpy(), ids)
            gone += int(hits.sum())
            kept = batch.filter(pa.array(~hits))
            yield pa.record_batch([kept.column(0), kept.column(1).view(pa.string())], schema=SCHEMA)

    with file_io.write_atomically(path) as file:
        write_texts(file, left())
    return gone


def _batches(path: Path, ids: NDArray[np.int64] | None = None) -> Iterator[pa.RecordBatch]:
    """Yields the rows of the row groups that may have some of the ids, ascending; all without ids.

    The columns are `id` and `text`, int64 and binary.
    """
    try:
        with (
            file_io.store_of(path).open_arrow(path) as source,
            pq.ParquetFile(source, page_checksum_verification=True) as file,
        ):
            kinds = {field.name: field.type for field in file.schema_arrow}
            if kinds.get("id") != pa.int64() or kinds.get("text") not in (pa.string(), pa.binary()):
                raise ValueError(f"must have the columns id and text, has {kinds}")
            groups = range(file.num_row_groups) if ids is None else _groups_of(file, ids)
            for batch in file.iter_batches(
                ROW_GROUP_ROWS, row_groups=list(groups), columns=["id", "text"]
            ):
                arrays = [batch.column("id"), batch.column("text").cast(pa.binary())]
                if arrays[0].null_count:
                    raise ValueError("column id must have no nulls")
                yield pa.record_batch(arrays, names=["id", "text"])
    except _UNREADABLE as error:
        why = " ".join(str(error).split())
        raise DatasetError(f"{path}: texts of ids cannot be read: {why}") from None


def _groups_of(file: pq.ParquetFile, ids: NDArray[np.int64]) -> Iterator[int]:
    """Yields the row groups that may have some of the ids, which ascend."""
    first_ids = json.loads((file.metadata.metadata or {}).get(_FIRST_IDS, b"null"))
    if not isinstance(first_ids, list) or len(first_ids) != file.num_row_groups:
        raise ValueError(f"metadata must have {_FIRST_IDS.decode()}, one per row group")
    firsts = np.array(first_ids, np.int64)
    # A row group may end with the id that the next one begins with.
    begins = np.searchsorted(ids, firsts)
    ends = np.append(np.searchsorted(ids, firsts[1:], "right"), len(ids))
    yield from np.flatnonzero(begins < ends).tolist()
