"""Counts of what tables hold: per table and shard, and over all shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from embedps import kernels
from embedps.tables.groups import TableGroup


class ShardStats(NamedTuple):
    """Counts of one shard of all tables.

    Attributes:
      rows: by table.
      table_bytes: by table, memory of its rows and its index.
      memory_bytes: of all tables, and of memory that is ready for more rows.
      rejected_inserts: lookups of absent ids of a full table.
      skipped_updates: updates of absent rows.
    """

    rows: dict[str, int]
    table_bytes: dict[str, int]
    memory_bytes: int
    rejected_inserts: int
    skipped_updates: int


class TableStats(NamedTuple):
    """Counts over all shards; see `ShardStats`."""

    rows: dict[str, int]
    table_bytes: dict[str, int]
    memory_bytes: int
    rejected_inserts: int
    skipped_updates: int


def read_stats(
    groups: Sequence[TableGroup],
    stores: Sequence[Sequence[tf.Tensor]],
    devices: Sequence[str],
) -> list[ShardStats]:
    """Reads the counts of each shard.

    Args:
      stores: each group's store on each shard.
      devices: each shard's.
    """
    shards = []
    for shard, device in enumerate(devices):
        rows: dict[str, int] = {}
        table_bytes: dict[str, int] = {}
        counters = [0, 0, 0]
        for group, of_group in zip(groups, stores, strict=True):
            with tf.device(device):
                stats = kernels.load().embedps_stats(of_group[shard])
            names = [table.name for table in group.tables]
            rows |= dict(zip(names, stats.rows.numpy().tolist(), strict=True))
            table_bytes |= dict(zip(names, stats.table_bytes.numpy().tolist(), strict=True))
            counted = stats.counters.numpy().tolist()
            counters = [old + more for old, more in zip(counters, counted, strict=True)]
        shards.append(ShardStats(rows, table_bytes, *counters))
    return shards


def add_shards(shards: Sequence[ShardStats]) -> TableStats:
    """Adds the counts of all shards."""
    return TableStats(
        rows={name: sum(s.rows[name] for s in shards) for name in shards[0].rows},
        table_bytes={name: sum(s.table_bytes[name] for s in shards) for name in shards[0].rows},
        memory_bytes=sum(s.memory_bytes for s in shards),
        rejected_inserts=sum(s.rejected_inserts for s in shards),
        skipped_updates=sum(s.skipped_updates for s in shards),
    )
