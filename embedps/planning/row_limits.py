"""The rows that tables hold on a parameter server at their limits and at the server's."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from embedps.planning.dataset_ids import TableRows
from embedps.tables.byte_limits import STRIPES, ServerLimit, limited_bytes, places
from embedps.tables.eviction import SizeLimit, find
from embedps.tables.specs import TableSpec

_COUNTER_PARTS = 8  # counters have one of these parts of a byte limit
_HALVINGS = 24
_MOST_ROWS = 1 << 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldRows:
    """A table's rows on each server after an epoch.

    Attributes:
      rows: float64 [num_ps], that the table holds.
      sized: float64 [num_ps], rows of a table without limits that has as much memory.
      displaced: float64 [num_ps], that were displaced by others or refused.
    """

    rows: NDArray[np.float64]
    sized: NDArray[np.float64]
    displaced: NDArray[np.float64]


def hold_rows(
    tables: Sequence[TableSpec],
    counted: Sequence[TableRows],
    *,
    num_ps: int,
    max_server_bytes: int,
    evicted_bytes: Mapping[str, int],
) -> list[HeldRows]:
    """Tells which rows have a place.

    Tables grow side by side until a limit is reached; then a table keeps what memory it has.

    Args:
      counted: their distinct ids.
      num_ps: the servers, with a shard of each table.
      max_server_bytes: that all tables of a server share; 0 is no limit.
      evicted_bytes: as of `byte_limits.evicted_bytes`.
    """
    server = ServerLimit(max_bytes=max_server_bytes) if max_server_bytes else None
    shards = [
        _Shards(
            table,
            rows,
            num_ps,
            server.part(len(tables)) if server else 0,
            evicted_bytes[table.name],
        )
        for table, rows in zip(tables, counted, strict=True)
    ]
    grown = np.array([each.grown_after(1.0) for each in shards])
    if server is not None:
        for s in range(num_ps):
            grown[:, s] = _grown_within(shards, s, server.max_bytes)
    return [each.hold(of_table) for each, of_table in zip(shards, grown, strict=True)]


class _Shards:
    """A table on each server.

    Attributes:
      kept: float64 [num_ps], the rows within the table's limits of rows.
    """

    def __init__(
        self,
        table: TableSpec,
        counted: TableRows,
        num_ps: int,
        server_part: int,
        evicted_bytes: int,
    ) -> None:
        self.table = table
        self._evicted_bytes = evicted_bytes
        self._counted = counted
        self._asked = counted.by_shard(num_ps)
        size = find(table.eviction, SizeLimit)
        limits = [table.capacity, size.max_rows if size else 0]
        most = min((-(-limit // num_ps) for limit in limits if limit), default=_MOST_ROWS)
        self.kept = np.minimum(self._asked, most)
        own = size.max_bytes // num_ps if size else 0
        self._pieces_by = min((limit for limit in (own, server_part) if limit), default=0)
        if table.admission is not None and table.admission.counts:
            own -= own // _COUNTER_PARTS
        self._most_grown = (
            _most_rows(lambda rows: self.bytes_of(rows) <= own) if own else _MOST_ROWS
        )

    def bytes_of(self, rows: int) -> int:
        """Gives what a limit counts for so many rows on a shard."""
        return self._evicted_bytes + limited_bytes(self.table, rows, self._pieces_by)

    def grown_after(self, share: float) -> NDArray[np.float64]:
        """Gives the rows with which the shards took their last memory, in a share of an epoch."""
        rows = self.kept * self._counted.share_after(share)
        return np.asarray(np.minimum(rows, self._most_grown))

    def hold(self, grown: NDArray[np.float64]) -> HeldRows:
        """Gives the rows of shards that had so many when they took their last memory."""
        room = np.array([places(self.table, int(rows), self._pieces_by) for rows in grown])
        rows = np.where(grown < self.kept, _placed(self.kept, room), self.kept)
        sized = [
            _most_rows(lambda n, most=most: places(self.table, n) <= most)  # type: ignore[misc]
            for most in room
        ]
        return HeldRows(rows=rows, sized=np.minimum(self.kept, sized), displaced=self._asked - rows)


def _placed(rows: NDArray[np.float64], room: NDArray[np.int64]) -> NDArray[np.float64]:
    """Gives how many of so many rows have a place where each stripe has its part of the room.

    The hash spreads rows over stripes as Poisson's law does; here by the normal one.
    """
    mean = rows / STRIPES
    spread = np.sqrt(np.maximum(mean, 1e-9))
    beyond = mean - room / STRIPES
    distance = beyond / spread
    share = np.array([(1 + math.erf(d / math.sqrt(2))) / 2 for d in distance])
    density = np.exp(-(distance**2) / 2) / math.sqrt(2 * math.pi)
    placed = STRIPES * (mean - beyond * share - spread * density)
    return np.asarray(np.minimum(placed, np.minimum(rows, room)))


def _most_rows(fits: Callable[[int], bool]) -> int:
    """Finds the most rows that fit."""
    low, high = 0, _MOST_ROWS
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _grown_within(shards: Sequence[_Shards], server: int, limit: int) -> list[float]:
    """Gives the rows that tables have when they reach a server's limit, or at the end."""

    def at(share: float) -> list[float]:
        return [float(each.grown_after(share)[server]) for each in shards]

    def fits(share: float) -> bool:
        rows = zip(shards, at(share), strict=True)
        return sum(each.bytes_of(int(n)) for each, n in rows) <= limit

    if fits(1.0):
        return at(1.0)
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return at(low)
