"""What became of the coldest rows of servers, which are on their disks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from embedps import kernels
from embedps.tables.groups import TableGroup


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
