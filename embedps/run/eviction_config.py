"""The options of a server's memory: its limit, where evicted rows go, and the disk beside it."""

from __future__ import annotations

import dataclasses

from embedps.config_fields import MAX_INT64, option
from embedps.errors import UsageError
from embedps.run.memory_options import MemoryOptions
from embedps.tables.eviction import Order


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvictionConfig(MemoryOptions):
    """The limit that all tables on a parameter server share, and what becomes of rows beyond it."""

    max_server_bytes: int = option(
        0,
        "at this many bytes of tables on a parameter server, new rows displace others; at least "
        "73,728 and 1,024 rows of each table, and 3 MiB per group with --evicted-rows; 0: no limit",
        least=0,
        most=MAX_INT64,
    )
    server_eviction_order: Order = option(
        "least_recent",
        "which rows are displaced at --max-server-bytes in tables without a limit of their own: "
        "the least recently or least frequently updated",
    )

    evicted_rows: str | None = option(
        None,
        "write the rows that go to Parquet files in this directory or under this s3:// or gs:// "
        "URL; the parameter servers must see it",
        metavar="DIR",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_memory_bytes and self.max_server_bytes:
            raise UsageError(
                "max_memory_bytes must be given without max_server_bytes, which evicts rows at a "
                f"limit, but got {self.max_memory_bytes} and {self.max_server_bytes}"
            )
