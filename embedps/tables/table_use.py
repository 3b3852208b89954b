"""What each shard's tables hold and are asked for, as counts; reading them takes no walk."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import tensorflow as tf

from embedps import kernels
from embedps.constants import EVICTION_CAUSES
from embedps.tables.groups import TableGroup
from embedps.tables.table_stats import read_stats


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableUse:
    """Counts of a table on a shard; all but rows and bytes count since its store was made.

    Attributes:
      rows: now.
      bytes: memory of its rows, its index and its counters.
      lookups: distinct ids of all training steps, repeated attempts included.
      batches: training steps that asked for rows of its group.
      refused: ids that got no row, by admission or because the table was full, once per step.
      evicted: rows that went, by cause.
    """

    rows: int
    bytes: int
    lookups: int
    batches: int
    refused: int
    evicted: Mapping[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardUse:
    """Counts of all tables on a shard.

    Attributes:
      device: of the shard; others may be there too.
      tables: by name.
      memory_bytes: of all tables, and of memory that is ready for more rows.
      resident_bytes: of the shard's process.
      available_bytes: that its machine or container has left; None if that is not known.
    """

    device: str
    tables: Mapping[str, TableUse]
    memory_bytes: int
    resident_bytes: int
    available_bytes: int | None


def read_use(
    groups: Sequence[TableGroup], stores: Sequence[Sequence[tf.Tensor]], devices: Sequence[str]
) -> list[ShardUse]:
    """Reads the counts of each shard.

    Args:
      stores: each group's store on each shard.
      devices: each shard's.
    """
    shards = []
    library = kernels.load()
    for shard, stats in enumerate(read_stats(groups, stores, devices)):
        tables: dict[str, TableUse] = {}
        resident, available = 0, -1
        for group, of_group in zip(groups, stores, strict=True):
            store = of_group[shard]
            with tf.device(devices[shard]):
                use = library.embedps_table_use(store)
                refused = library.embedps_admission_stats(store).numpy()[:, 3].tolist()
                evicted = library.embedps_eviction_stats(store).numpy().tolist()
            lookups = use.lookups.numpy().tolist()
            resident, available = use.process.numpy().tolist()
            for t, table in enumerate(group.tables):
                tables[table.name] = TableUse(
                    rows=stats.rows[table.name],
                    bytes=stats.table_bytes[table.name],
                    lookups=lookups[t],
                    batches=int(use.batches),
                    refused=refused[t],
                    evicted=dict(zip(EVICTION_CAUSES, evicted[t], strict=True)),
                )
        shards.append(
            ShardUse(
                device=devices[shard],
                tables=tables,
                memory_bytes=stats.memory_bytes,
                resident_bytes=resident,
                available_bytes=available if available >= 0 else None,
            )
        )
    return shards
