"""The statistics of a run's tables as JSON, as TensorBoard points and as text."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedps.checkpoint.tools.shard_skew import ShardSkew, find_skew
from embedps.frequencies import HOT_SHARE
from embedps.tables.byte_limits import ServerLimit
from embedps.tables.specs import TableSpec
from embedps.tables.table_scan import TableScan
from embedps.tables.table_use import ShardUse, TableUse
from embedps.tables.tier import TierStats
from embedps.training.growth import (
    Forecast,
    Growth,
    forecast_memory,
    forecast_servers,
    forecast_tables,
)

NORM_PERCENTILES = (1, 10, 50, 90, 99)
_SUMMED = ("rows", "bytes", "lookups", "refused")
_POINTS = ("rows", "bytes", "refused", "ids_per_step")  # of each table; the rest is in the JSON
_SERVER_POINTS = ("rows", "memory_bytes", "resident_bytes", "lookups_per_sec", "load")
_SHOWN_IDS = 10


class TableReport:
    """Collects what is known of the tables and their growth."""

    def __init__(
        self,
        tables: Sequence[TableSpec],
        *,
        share_machine: bool,
        server_limit: ServerLimit | None = None,
        evicted_bytes: Mapping[str, int] | None = None,
    ) -> None:
        """Knows nothing yet.

        Args:
          share_machine: all shards use the memory of one machine.
          server_limit: of the bytes of each server, if there is one.
          evicted_bytes: as of `byte_limits.evicted_bytes`, if there are files of evicted rows.
        """
        self._evicted_bytes = evicted_bytes or dict.fromkeys((t.name for t in tables), 0)
        self._server_limit = server_limit
        self._tables = tables
        self._share_machine = share_machine
        self._growth = Growth()
        self._first: list[ShardUse] = []
        self._last: list[ShardUse] = []
        self._scan: Mapping[str, TableScan] = {}
        self._scan_step = 0
        self._tier: TierStats | None = None

    @property
    def observed_secs(self) -> float:
        """For how long the growth was followed."""
        return self._growth.observed_secs

    def add_use(self, secs: float, shards: list[ShardUse]) -> None:
        """Takes the counts at a time of a clock."""
        self._first = self._first or shards
        self._last = shards
        self._growth.add(secs, _values(self._tables, shards))

    def add_scan(self, scan: Mapping[str, TableScan], *, step: int) -> None:
        """Takes the result of a walk that ended when so many steps were done."""
        self._scan, self._scan_step = scan, step

    def add_tier(self, stats: TierStats) -> None:
        """Takes the counts of rows on disk."""
        self._tier = stats

    def full_disks(self) -> list[str]:
        """Says of each spill file that has no place why, and what becomes of rows."""
        errors = self._tier.errors if self._tier is not None else ()
        return [f"{e}: rows are evicted at max_memory_bytes until there is room" for e in errors]

    def forecasts(self) -> list[Forecast]:
        """Tells when limits are reached."""
        per_hour = self._per_hour()
        names = [table.name for table in self._tables]
        rows = dict(zip(names, per_hour[:, :, 0].T.tolist(), strict=True))
        servers = self._servers()
        memory = forecast_memory(
            [[self._last[i] for i in shards] for shards in servers],
            [float(per_hour[shards, :, 1].sum()) for shards in servers],
            share_machine=self._share_machine,
        )
        found = forecast_tables(self._tables, self._last, rows, self._evicted_bytes)
        if self._server_limit is not None:
            found += forecast_servers(
                self._server_limit,
                self._tables,
                [[self._last[i] for i in shards] for shards in servers],
                [dict(zip(names, per_hour[s, :, 0].sum(axis=0), strict=True)) for s in servers],
                self._evicted_bytes,
            )
        return found + memory

    def skews(self) -> list[ShardSkew]:
        """Finds shards whose ids may be chosen for them, one at most per table."""
        found = []
        for table in self._tables:
            rows = {i: shard.tables[table.name].rows for i, shard in enumerate(self._last)}
            if (skew := find_skew(table.name, rows, len(rows))) is not None:
                found.append(skew)
        return found

    def to_json(self, *, step: int) -> dict[str, Any]:
        """Gives all statistics after so many steps; NaN stands for what is not known."""
        per_hour = self._per_hour()
        return {
            "time": time.time(),
            "step": step,
            "observed_secs": round(self.observed_secs, 1),
            "tables": {
                table.name: self._table(table.name, per_hour[:, t])
                for t, table in enumerate(self._tables)
            },
            "servers": self._loads(per_hour),
            **({"tier": self._tier._asdict()} if self._tier is not None else {}),
            "forecasts": [dataclasses.asdict(each) for each in self.forecasts()],
        }

    def _servers(self) -> list[list[int]]:
        """Lists the shards of each server."""
        devices = [shard.device for shard in self._last]
        return [
            [i for i, device in enumerate(devices) if device == server]
            for server in dict.fromkeys(devices)
        ]

    def _loads(self, per_hour: NDArray[np.float64]) -> list[dict[str, Any]]:
        """Gives what each server holds and how much it is asked for; `load` is over the mean."""
        servers = self._servers()
        lookups = [
            sum(table.lookups for i in shards for table in self._last[i].tables.values())
            for shards in servers
        ]
        mean = max(sum(lookups) / len(lookups), 1.0)
        return [
            {
                "rows": sum(t.rows for i in shards for t in self._last[i].tables.values()),
                "memory_bytes": sum(self._last[i].memory_bytes for i in shards),
                "memory_bytes_per_hour": float(per_hour[shards, :, 1].sum()),
                "resident_bytes": self._last[shards[0]].resident_bytes,
                "available_bytes": self._last[shards[0]].available_bytes,
                "lookups": count,
                "lookups_per_sec": float(per_hour[shards, :, 2].sum()) / 3600,
                "load": count / mean,
            }
            for shards, count in zip(servers, lookups, strict=True)
        ]

    def _per_hour(self) -> NDArray[np.float64]:
        """Gives the growth by shard, by table, of rows, bytes and lookups."""
        return self._growth.per_hour().reshape(len(self._last), len(self._tables), 3)

    def _table(self, name: str, per_hour: NDArray[np.float64]) -> dict[str, Any]:
        shards = [
            {
                **dataclasses.asdict(shard.tables[name]),
                "admitted": _rows_made(shard.tables[name], first.tables[name]),
                "rows_per_hour": float(per_hour[i, 0]),
                "bytes_per_hour": float(per_hour[i, 1]),
            }
            for i, (shard, first) in enumerate(zip(self._last, self._first, strict=True))
        ]
        added = (*_SUMMED, "admitted", "rows_per_hour", "bytes_per_hour")
        totals = {field: sum(shard[field] for shard in shards) for field in added}
        causes = shards[0]["evicted"]
        # Every step asks each shard, if only for some ids.
        batches = max(shard["batches"] for shard in shards)
        return {
            **totals,
            "evicted": {
                cause: sum(shard["evicted"][cause] for shard in shards) for cause in causes
            },
            "ids_per_step": totals["lookups"] / max(batches, 1),
            **self._scanned(name),
            "shards": shards,
        }

    def _scanned(self, name: str) -> dict[str, Any]:
        scan = self._scan.get(name)
        if scan is None:
            return {}
        return {
            "scan": {
                "step": self._scan_step,
                "rows": scan.rows,
                "updates": scan.updates,
                "once": scan.frequencies.at_most(1),
            },
            "top_1_percent": scan.frequencies.share_of_top(HOT_SHARE),
            "zipf_exponent": scan.frequencies.zipf_exponent(self._scan_step),
            "norms": dict(
                zip(
                    map(str, NORM_PERCENTILES),
                    scan.norm_percentiles(NORM_PERCENTILES),
                    strict=False,
                )
            ),
            "hottest": [list(pair) for pair in scan.hottest],
        }


def points(report: Mapping[str, Any]) -> dict[str, float]:
    """Gives the main numbers of a report as TensorBoard points: a group of charts per number."""
    found: dict[str, float] = {}
    for name, table in report["tables"].items():
        found |= {f"tables_{key}/{name}": table[key] for key in _POINTS}
        found[f"tables_evicted/{name}"] = sum(table["evicted"].values())
        if (norm := table.get("norms", {}).get("50")) is not None:
            found[f"tables_norm_p50/{name}"] = norm
    for i, server in enumerate(report["servers"]):
        found |= {f"servers/{i}/{key}": server[key] for key in _SERVER_POINTS}
    for each in report["forecasts"]:
        if each["hours"] is not None:
            found[f"hours_to_limit/{each['subject']}/{each['limit']}"] = each["hours"]
    return {name: value for name, value in found.items() if np.isfinite(value)}


def texts(report: Mapping[str, Any]) -> dict[str, str]:
    """Gives the hottest ids of each table as TensorBoard texts."""
    found = {}
    for name, table in report["tables"].items():
        if hottest := table.get("hottest", [])[:_SHOWN_IDS]:
            lines = [f"| {i} | {updates:,} |" for i, updates in hottest]
            found[f"tables_hottest/{name}"] = "\n".join(["| id | updates |", "|---|---|", *lines])
    return found


def shortened(report: Mapping[str, Any]) -> dict[str, Any]:
    """Gives a report with fewer of the hottest ids."""
    tables = {
        name: {**table, "hottest": table.get("hottest", [])[:_SHOWN_IDS]}
        for name, table in report["tables"].items()
    }
    return {**report, "tables": tables}


def _values(tables: Sequence[TableSpec], shards: Sequence[ShardUse]) -> list[float]:
    """Lists what grows: rows, bytes and lookups of each shard's tables."""
    uses = (shard.tables[table.name] for shard in shards for table in tables)
    return [float(x) for use in uses for x in (use.rows, use.bytes, use.lookups)]


def _rows_made(now: TableUse, before: TableUse) -> int:
    """Counts the rows that a shard made of a table between two looks."""
    gone = sum(now.evicted.values()) - sum(before.evicted.values())
    return now.rows - before.rows + gone
