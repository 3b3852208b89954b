"""The memory of a server whose coldest rows are on its disk, and what became of them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from embedps import kernels
from embedps.console.lines import say
from embedps.errors import UsageError
from embedps.tables.groups import TableGroup


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiered:
    """Memory for the rows in use, and a local disk for all others.

    A row on disk comes back with the same bits when a lookup or an update needs it. Saves,
    evictions and statistics have the rows of both.

    Attributes:
      max_memory_bytes: of the tables on each server: the rows in memory, and of every row 20 bytes
        and its index entry. The counters of admission come on top, and up to 4 MiB that are ready
        for more rows.
      directory: of each server, on a local disk; it is made if it is not there. Its files have no
        names and end with the process.
    """

    max_memory_bytes: int
    directory: str

    def __post_init__(self) -> None:
        if not 0 < self.max_memory_bytes < 2**63:
            raise UsageError(
                f"max_memory_bytes must be in [1, 2^63) but got {self.max_memory_bytes}"
            )
        if not self.directory:
            raise UsageError("spill_dir must be a directory of each server but is empty")
        if (kind := _kind_in_memory(Path(self.directory))) is not None:
            say(
                f"spill_dir {self.directory} lies in memory here ({kind}), so rows that go there "
                "save none: name a directory on a disk"
            )


def _kind_in_memory(path: Path) -> str | None:
    """Gives the kind of the file system that a path of this machine is on, if that is in memory."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    kinds = {}
    for line in lines:
        mounted, _, kind = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), mounted.split(" ")[4])
        kinds[Path(point)] = kind.split(" ")[0]
    path = path.absolute().resolve()
    found = next((kinds[each] for each in (path, *path.parents) if each in kinds), None)
    return found if found in ("tmpfs", "ramfs") else None


class TierStats(NamedTuple):
    """Counts over all shards, since the stores were made.

    Attributes:
      rows_on_disk: by table, now.
      errors: why the spill files of a shard are full, of each shard and group where they are.
      disk_bytes: of the spill files, now.
      written: rows that went to disk, those that compaction moved included.
      moved: rows that compaction moved.
      read: rows that were read from disk.
      disk_reads: calls of the system that read them.
      late_reads: rows that were read one by one, as others had pushed them out meanwhile.
      evicted: rows that were evicted because the disk was full.
    """

    rows_on_disk: dict[str, int]
    errors: tuple[str, ...]
    disk_bytes: int
    written: int
    moved: int
    read: int
    disk_reads: int
    late_reads: int
    evicted: int


def read_tier(
    groups: Sequence[TableGroup], stores: Sequence[Sequence[tf.Tensor]], devices: Sequence[str]
) -> TierStats:
    """Reads what is on disk; the arguments are as of `read_stats`."""
    rows: dict[str, int] = {}
    totals = [0] * 7
    errors = []
    for group, of_group in zip(groups, stores, strict=True):
        for store, device in zip(of_group, devices, strict=True):
            with tf.device(device):
                stats = kernels.load().embedps_tier_stats(store)
            of_shard = stats.rows_on_disk.numpy().tolist()
            for table, count in zip(group.tables, of_shard, strict=True):
                rows[table.name] = rows.get(table.name, 0) + count
            counts = stats.counts.numpy().tolist()
            totals = [old + more for old, more in zip(totals, counts, strict=True)]
            if error := stats.error.numpy().decode():
                errors.append(error)
    return TierStats(rows, tuple(errors), *totals)
