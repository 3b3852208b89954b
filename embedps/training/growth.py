"""Growth of tables while a run goes on, and when a limit will be reached."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from embedps.tables.byte_limits import ServerLimit, limited_bytes, limited_row_bytes
from embedps.tables.eviction import SizeLimit, find
from embedps.tables.specs import TableSpec
from embedps.tables.table_use import ShardUse

_WINDOW_SECS = 3600.0
_FULL_SHARE = 0.98  # of a limit; memory is taken in pieces, so a table may stay a little below


class Growth:
    """Follows a few numbers over time, and tells how fast they grow at present.

    The present is the later half of the time since the first look, one hour at most.
    """

    def __init__(self) -> None:
        self._looks: deque[tuple[float, NDArray[np.float64]]] = deque()
        self._first_secs = math.nan

    @property
    def observed_secs(self) -> float:
        """The time from the first look to the last."""
        return self._looks[-1][0] - self._first_secs if self._looks else 0.0

    def add(self, secs: float, values: Sequence[float]) -> None:
        """Takes the values at a time; they are as many each time."""
        if not self._looks:
            self._first_secs = secs
        self._looks.append((secs, np.asarray(values, np.float64)))
        while self._looks[0][0] < secs - _WINDOW_SECS:
            self._looks.popleft()

    def per_hour(self) -> NDArray[np.float64]:
        """Fits each value's growth per hour by least squares; NaN before the second look."""
        last = self._looks[-1][0]
        recent = [look for look in self._looks if look[0] >= last - self.observed_secs / 2]
        if len(recent) < 2:
            recent = list(self._looks)[-2:]
        hours = np.array([secs for secs, _ in recent]) / 3600
        values = np.stack([each for _, each in recent])
        hours -= hours.mean()
        spread = float(hours @ hours)
        if not spread:
            return np.full(values.shape[1], math.nan)
        return np.asarray(hours @ (values - values.mean(axis=0)) / spread)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """When a limit will be reached at the present growth.

    Attributes:
      subject: whose limit: "table 'users'" or "parameter server 0".
      limit: its name: capacity, max_rows, max_bytes, max_server_bytes or memory.
      size: the limit, over all shards; of a server, what it has in all.
      hours: until the first shard reaches its part; 0 if it has, None if it does not grow.
    """

    subject: str
    limit: str
    size: int
    hours: float | None

    def text(self) -> str:
        """Says it as a sentence."""
        name = "its memory" if self.limit == "memory" else f"{self.limit} {self.size:,}"
        hours = self.hours
        if hours is None:
            return f"{self.subject} does not grow towards {name}"
        if hours == 0:
            return f"{self.subject} is at {name}"
        time = f"{hours:.1f} hours" if hours >= 2 else f"{60 * hours:.0f} minutes"
        return f"{self.subject} reaches {name} in {time} at its present growth"


def forecast_tables(
    tables: Sequence[TableSpec],
    shards: Sequence[ShardUse],
    rows_per_hour: Mapping[str, Sequence[float]],
    evicted_bytes: Mapping[str, int],
) -> list[Forecast]:
    """Forecasts the limits of tables; each shard has an equal part of a limit.

    Args:
      shards: what each holds.
      rows_per_hour: by table, of each shard.
      evicted_bytes: as of `byte_limits.evicted_bytes`.
    """
    found = []
    for table in tables:
        size = find(table.eviction, SizeLimit)
        rows = [shard.tables[table.name].rows for shard in shards]
        of_shard = size.max_bytes // len(shards) if size else 0
        of_files = evicted_bytes[table.name]
        used = [of_files + limited_bytes(table, num_rows, of_shard) for num_rows in rows]
        for name, limit, values, unit in (
            ("capacity", table.capacity, rows, 1),
            ("max_rows", size.max_rows if size else 0, rows, 1),
            ("max_bytes", size.max_bytes if size else 0, used, limited_row_bytes(table)),
        ):
            if not limit:
                continue
            part = limit / len(shards)
            hours = [
                hours_until(_left(value, part), per_hour * unit)
                for value, per_hour in zip(values, rows_per_hour[table.name], strict=True)
            ]
            found.append(
                Forecast(
                    subject=f"table {table.name!r}",
                    limit=name,
                    size=limit,
                    hours=min((h for h in hours if h is not None), default=None),
                )
            )
    return found


def forecast_servers(
    limit: ServerLimit,
    tables: Sequence[TableSpec],
    servers: Sequence[Sequence[ShardUse]],
    rows_per_hour: Sequence[Mapping[str, float]],
    evicted_bytes: Mapping[str, int],
) -> list[Forecast]:
    """Forecasts when a server reaches the limit that its tables share.

    Args:
      limit: of each server.
      servers: what the shards of each hold.
      rows_per_hour: of each server, by table.
      evicted_bytes: as of `byte_limits.evicted_bytes`.
    """
    found = []
    for i, (shards, growth) in enumerate(zip(servers, rows_per_hour, strict=True)):
        part = limit.part(len(tables))
        used = sum(
            evicted_bytes[t.name] + limited_bytes(t, shard.tables[t.name].rows, part)
            for t in tables
            for shard in shards
        )
        per_hour = sum(growth[t.name] * limited_row_bytes(t) for t in tables)
        found.append(
            Forecast(
                subject=f"parameter server {i}",
                limit="max_server_bytes",
                size=limit.max_bytes,
                hours=hours_until(_left(used, limit.max_bytes), per_hour),
            )
        )
    return found


def forecast_memory(
    servers: Sequence[Sequence[ShardUse]], per_hour: Sequence[float], *, share_machine: bool
) -> list[Forecast]:
    """Forecasts when a server's process has no memory left.

    Args:
      servers: what the shards of each hold.
      per_hour: growth of each server's tables, in bytes.
      share_machine: the servers use the memory of one machine.
    """
    if share_machine:
        per_hour = [sum(per_hour)] * len(servers)
    found = []
    for i, (shards, growth) in enumerate(zip(servers, per_hour, strict=True)):
        available = shards[0].available_bytes
        if available is not None:
            found.append(
                Forecast(
                    subject=f"parameter server {i}",
                    limit="memory",
                    size=shards[0].resident_bytes + available,
                    hours=hours_until(float(available), growth),
                )
            )
    return found


def _left(value: float, limit: float) -> float:
    return 0.0 if value >= _FULL_SHARE * limit else limit - value


def hours_until(left: float, per_hour: float) -> float | None:
    """Gives the hours until nothing is left; None if it never comes to that."""
    if left <= 0:
        return 0.0
    return left / per_hour if per_hour > 0 else None
