"""Watches the tables of a run: looks at them now and then, and says what is amiss."""

from __future__ import annotations

import concurrent.futures
import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import tensorflow as tf

from embedps.checkpoint.tools.run_statistics import LEAST_OBSERVED_SECS, STATISTICS_NAME
from embedps.checkpoint.tools.shard_skew import ShardSkew
from embedps.errors import CheckpointError
from embedps.run.summary import write_json
from embedps.tables.byte_limits import evicted_bytes
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.table_scan import TableScan
from embedps.training.growth import Forecast
from embedps.training.save_failures import in_background
from embedps.training.table_report import TableReport, shortened

_WARNING_HOURS = (24.0, 1.0)  # a limit is told of when it comes nearer than each of these


class TableWatch:
    """Takes statistics of tables beside training.

    Counts are read at each look. A walk over all rows, which takes half a percent of a server's
    cores, runs in the background; the looks after it have its result.
    """

    def __init__(
        self,
        collection: EmbeddingCollection,
        model_dir: Path,
        *,
        every_secs: float,
        share_machine: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Has not looked yet.

        Args:
          model_dir: gets statistics.json.
          every_secs: from one look to the next; 0 looks at the end only.
          share_machine: all parameter servers run on one machine.
          clock: gives seconds.
        """
        self._collection = collection
        self._path = model_dir / STATISTICS_NAME
        self._every_secs = every_secs
        self._clock = clock
        self._report = TableReport(
            collection.tables,
            share_machine=share_machine,
            server_limit=collection.server_limit,
            evicted_bytes=evicted_bytes(
                collection.groups, keeps_evicted=collection.evicted_files is not None
            ),
        )
        self._scan: Callable[[], dict[str, TableScan]] | None = None
        self._scanning: concurrent.futures.Future[dict[str, TableScan]] | None = None
        self._looked_at = -math.inf
        self._told: dict[tuple[str, str], float] = {}
        self._told_skews: set[tuple[str, int]] = set()
        self._told_errors: set[str] = set()
        self._use()

    @property
    def due(self) -> bool:
        """Whether it is time for another look."""
        return self._every_secs > 0 and self._clock() - self._looked_at >= self._every_secs

    def look(self, *, step: int) -> dict[str, Any]:
        """Reads the counts, begins a walk if none is under way, and writes statistics.json.

        Returns:
          The statistics after so many steps, as JSON.
        """
        self._take_scan(step)
        self._use()
        if self._scanning is None:
            self._scanning = in_background(self._walk)
        return self._write(step)

    def finish(self, *, step: int, walk: bool) -> dict[str, Any]:
        """Gives the last statistics, for summary.json, with fewer of the hottest ids.

        Args:
          step: how many steps were done.
          walk: take the time for a walk over all rows; otherwise the last one counts.
        """
        if walk:
            self.join()
            self._scanning = in_background(self._walk)
            self.join()
        self._take_scan(step)
        self._use()
        return shortened(self._write(step))

    def join(self) -> None:
        """Waits until the walk under way has ended."""
        if self._scanning is not None:
            concurrent.futures.wait([self._scanning])

    def warnings(self, *, left_hours: float) -> list[str]:
        """Tells of limits that come near, and once of full disks and of shards of chosen ids.

        A limit is told once below a day and once below an hour.

        Args:
          left_hours: how long the run will go on; later limits are not told.
        """
        told = [each.text() for each in self._report.skews() if self._is_new(each)]
        full = self._report.full_disks()
        told += [line for line in full if line not in self._told_errors]
        self._told_errors.update(full)
        if self._report.observed_secs >= LEAST_OBSERVED_SECS:
            told += [
                each.text()
                for each in self._report.forecasts()
                if each.hours and each.hours < left_hours and self._is_nearer(each)
            ]
        return [f"warning: {text}" for text in told]

    def _is_new(self, skew: ShardSkew) -> bool:
        """Whether a shard was not told of yet."""
        key = (skew.table, skew.shard)
        new = key not in self._told_skews
        self._told_skews.add(key)
        return new

    def _is_nearer(self, forecast: Forecast) -> bool:
        """Whether a limit is nearer than when it was told of last."""
        level = min((h for h in _WARNING_HOURS if (forecast.hours or 0) < h), default=math.inf)
        key = (forecast.subject, forecast.limit)
        if level >= self._told.get(key, math.inf):
            return False
        self._told[key] = level
        return True

    def _use(self) -> None:
        self._looked_at = self._clock()
        self._report.add_use(self._looked_at, self._collection.use())
        if self._collection.has_disk:
            self._report.add_tier(self._collection.tier_stats())

    def _walk(self) -> dict[str, TableScan]:
        self._scan = self._scan or self._collection.make_scan()
        return self._scan()

    def _take_scan(self, step: int) -> None:
        """Takes the result of the walk if it has ended; a server that was lost shows elsewhere."""
        if self._scanning is None or not self._scanning.done():
            return
        scanning, self._scanning = self._scanning, None
        with suppress(tf.errors.OpError):
            self._report.add_scan(scanning.result(), step=step)

    def _write(self, step: int) -> dict[str, Any]:
        report = self._report.to_json(step=step)
        # A full disk does not end the run here: failing checkpoints report it.
        with suppress(CheckpointError, OSError):
            write_json(self._path, report, compact=True)
        return report
