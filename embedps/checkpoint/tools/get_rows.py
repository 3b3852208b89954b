"""Looks up single rows of a checkpoint, without a replay of all others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.format.row_hashes import row_hashes, shards_of
from embedps.checkpoint.tools.replay import Partition, make_partitions
from embedps.errors import UsageError


def get_rows(
    directory: CheckpointDirectory, manifest: Manifest, table: str, ids: Sequence[int]
) -> Iterator[tuple[int, pa.RecordBatch | None]]:
    """Yields each id, and its row as a batch of one; None where the table has no row of it.

    Raises:
      UsageError: the manifest has no such table.
      CorruptCheckpointError: a file is not a row file.
    """
    names = sorted(each["name"] for each in manifest.tables)
    if table not in names:
        raise UsageError(f"--table must be one of {names} but is {table!r}")
    wanted = np.array(ids, np.int64)
    hashes = row_hashes(table, wanted)
    found: dict[int, pa.RecordBatch] = {}
    for part in make_partitions(directory, manifest.chain):
        mine = wanted[shards_of(hashes, part.num_shards) == part.shard]
        if table in part.tables and len(mine):
            found |= _last_records(part, table, mine)
    for each in ids:
        yield each, found.get(each)


def _last_records(part: Partition, table: str, ids: np.ndarray) -> dict[int, pa.RecordBatch]:
    code = part.tables.index(table)
    found: dict[int, pa.RecordBatch] = {}
    for records in part.records():
        hits = np.flatnonzero(np.isin(records.ids, ids) & (records.tables == code))
        for at in hits.tolist():
            number = int(records.ids[at])
            if records.removed[at]:
                found.pop(number, None)
            else:
                found[number] = records.batch.slice(at, 1).drop_columns(["table", "removed"])
    return found
