"""What a byte limit counts for tables, and the limit that a server's tables share."""

import dataclasses
from collections import Counter
from collections.abc import Sequence

from embedps.config_fields import check_value
from embedps.errors import UsageError
from embedps.tables.eviction import Order
from embedps.tables.groups import TableGroup
from embedps.tables.specs import TableSpec

# As kernels/store/table_eviction.h counts them.
_TABLE_BYTES = 64 * 1152  # of a table without rows
_COUNTING_BYTES = 64 * 512  # of a table that counts, without counters
_EVICTED_BYTES = 3 << 20  # of a group's files of evicted rows, as kernels/store/evicted_rows.h
_FIRST_ROWS = 1024  # there is memory for as many from the beginning
STRIPES = 64
_LEAST_PIECE, _MOST_PIECE = 16, 1024  # rows
_PIECE_PARTS = 64  # a piece of each stripe is at most one of these parts of a limit
_SERVER_STORES = 4  # that share a server's limit, about
_BOOKKEEPING_BYTES = 40  # of a row, besides itself
_HEADER_BYTES = 16


def row_bytes(table: TableSpec) -> int:
    """Gives the bytes of a row in memory, as kernels/store/row_layout.h lays it out."""
    dim = table.embedding_dim
    slot_floats = sum(table.optimizer.optimizer_slot_widths(dim).values())
    sizes = (
        floats * (4 if dtype == "float32" else 2)
        for floats, dtype in ((dim, table.row_dtype), (slot_floats, table.slot_dtype))
    )
    return _HEADER_BYTES + sum(-(-size // 4) * 4 for size in sizes)


def limited_row_bytes(table: TableSpec) -> int:
    """Gives what a byte limit counts for a row."""
    return row_bytes(table) + _BOOKKEEPING_BYTES


def places(table: TableSpec, rows: int, max_bytes: int = 0) -> int:
    """Gives the rows for which a table of so many rows on a shard has memory, on average.

    Args:
      table: whose rows.
      rows: how many.
      max_bytes: the table's limit on the shard, which decides how large the pieces are.
    """
    half_a_piece_each = _piece_rows(table, max_bytes) * STRIPES // 2
    return max(rows + min(rows // 3, half_a_piece_each), _FIRST_ROWS)


def limited_bytes(table: TableSpec, rows: int, max_bytes: int = 0) -> int:
    """Gives what a byte limit counts for a table of so many rows on a shard, on average.

    It counts memory for rows when it is taken, in pieces; so it is exact for no rows. The arguments
    are as of `places`.
    """
    return _TABLE_BYTES + places(table, rows, max_bytes) * limited_row_bytes(table)


def _piece_rows(table: TableSpec, max_bytes: int) -> int:
    """Gives the rows of a full piece, as TableEviction::ChunkBits does; 0 is no limit."""
    of_limit = max_bytes // _PIECE_PARTS // STRIPES // limited_row_bytes(table)
    rows = _MOST_PIECE
    while max_bytes and rows > max(of_limit, _LEAST_PIECE):
        rows //= 2
    return rows


def least_bytes(table: TableSpec) -> int:
    """Gives what a server's limit counts for a table without rows and counters.

    Files of evicted rows are not in it: see `evicted_bytes`.
    """
    counts = table.admission is not None and table.admission.counts
    return limited_bytes(table, 0) + (_COUNTING_BYTES if counts else 0)


def evicted_bytes(groups: Sequence[TableGroup], *, keeps_evicted: bool) -> dict[str, int]:
    """Gives each table's part of what files of evicted rows take of a shard's memory.

    Args:
      groups: of the tables; each has a file at a time.
      keeps_evicted: whether there are such files.
    """
    if not keeps_evicted:
        return {table.name: 0 for group in groups for table in group.tables}
    return {
        table.name: -(-_EVICTED_BYTES // len(group.tables))
        for group in groups
        for table in group.tables
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerLimit:
    """A limit of the bytes of all tables on a parameter server together.

    Tables take memory as they grow. Once the limit is reached, a new row displaces one of its own
    table.

    Attributes:
      max_bytes: of each server, index and bookkeeping included; at least the sum of least_bytes and
        evicted_bytes of its tables, once per shard on it.
      order: of the tables that have no SizeLimit: the worst row is the one "least_recent"ly
        updated, or the "least_frequent"ly.
    """

    max_bytes: int
    order: Order = "least_recent"

    def __post_init__(self) -> None:
        check_value("server_eviction_order", Order, self.order, {})
        if not 0 < self.max_bytes < 2**63:
            raise UsageError(f"max_server_bytes must be in [1, 2^63) but got {self.max_bytes}")

    def part(self, num_tables: int) -> int:
        """Gives what decides how large the pieces of a table are, among so many on a server."""
        return self.max_bytes // (_SERVER_STORES * num_tables)

    def check(
        self, groups: Sequence[TableGroup], devices: Sequence[str], *, keeps_evicted: bool
    ) -> None:
        """Checks that each server has room for the first rows and counters of each table.

        Args:
          groups: of the collection's tables.
          devices: each shard's.
          keeps_evicted: whether evicted rows are written to files.

        Raises:
          UsageError: one has not.
        """
        shards = max(Counter(devices).values())
        tables = [table for group in groups for table in group.tables]
        of_files = sum(evicted_bytes(groups, keeps_evicted=keeps_evicted).values())
        least = shards * (of_files + sum(least_bytes(table) for table in tables))
        if self.max_bytes < least:
            raise UsageError(
                f"max_server_bytes must be at least {least} for {len(tables)} tables with "
                f"{shards} shard{'s' * (shards > 1)} on a server but got {self.max_bytes}"
            )
