"""Watches a directory: files that arrive there are checked, scored, and then trained once each."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from embedps.data.dataset import Dataset
from embedps.scheduling.arrivals import Arrival
from embedps.scheduling.watch_ledger import WatchLedger, dataset_of

_POLL_SECS = 0.25
_SETTLE_SECS = 10.0  # a file that cannot be read yet, and does not change, is refused after this

Score = Callable[[Dataset, threading.Event], Mapping[str, float] | None]
"""Scores the files of split watch_ledger.SPLIT; gives None if the event ends it."""


class FileWatch:
    """Takes the Parquet files of a directory in order of arrival, on a thread of its own.

    What arrives together is taken in order of modification, then of name. A file counts as there
    when it can be read: write it under another name, or beginning with "." or "_", and rename it.
    It must not change any more, and stay until it is trained.
    """

    def __init__(
        self,
        directory: Path,
        dataset: Dataset,
        ledger: WatchLedger,
        score: Score,
    ) -> None:
        """Watches nothing yet.

        Args:
          directory: to watch, with all below it.
          dataset: whose columns the files must have.
          ledger: gets the files.
          score: scores a file before it is trained.
        """
        self._directory = directory
        self._dataset = dataset
        self._ledger = ledger
        self._score = score
        self._known = set(ledger.taken)
        self._unreadable: dict[str, tuple[tuple[int, int], float]] = {}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._news: list[str] = []
        self._points: list[Mapping[str, float | None]] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> FileWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._thread.join()

    def end(self) -> None:
        """Takes no more files."""
        self._stop.set()

    def news(self) -> list[str]:
        """Gives the lines to show a user since the last call.

        Raises:
          EmbedpsError: the watch ended by it.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            news, self._news = self._news, []
        return news

    def scores(self) -> list[Mapping[str, float | None]]:
        """Gives the scores of the files that were taken since the last call."""
        with self._lock:
            points, self._points = self._points, []
        return points

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                for path in self._new_paths():
                    if self._stop.is_set():
                        return
                    self._take(path)
                self._stop.wait(_POLL_SECS)
        except BaseException as error:  # shown by the run
            with self._lock:
                self._error = error

    def _new_paths(self) -> list[str]:
        """Lists the files that were not taken, the oldest first."""
        found = []
        try:
            for path in self._directory.rglob("*.parquet"):
                name = path.relative_to(self._directory)
                if str(name) in self._known or any(p.startswith(("_", ".")) for p in name.parts):
                    continue
                found.append((path.stat().st_mtime_ns, str(name)))
        except OSError:  # it vanished meanwhile, or cannot be listed: look again later
            return []
        return [name for _, name in sorted(found)]

    def _take(self, name: str) -> None:
        """Takes a file if it is there as a whole."""
        arrival = self._checked(name)
        if arrival is None:
            return
        if arrival.rows:
            scores = self._score(dataset_of(arrival, self._dataset, self._directory), self._stop)
            if scores is None:
                return
            finite = {n: v if math.isfinite(v) else None for n, v in scores.items()}
            arrival = Arrival(
                path=name, row_groups=arrival.row_groups, scores=finite, time=time.time()
            )
        self._ledger.take_file(arrival)
        self._known.add(name)
        self._unreadable.pop(name, None)
        with self._lock:
            self._news.append(_describe(arrival))
            if arrival.rows:
                self._points.append(arrival.scores)

    def _checked(self, name: str) -> Arrival | None:
        """Reads a file's footer; gives None if the file may not be complete yet."""
        path = self._directory / name
        try:
            with pq.ParquetFile(path) as parquet:
                schema, metadata = parquet.schema_arrow, parquet.metadata
                groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        except (pa.ArrowException, OSError) as error:
            return self._unread(name, error)
        for column in self._dataset.columns:
            at = schema.get_field_index(column)
            found = str(schema.field(at).type) if at >= 0 else "none"
            if found != self._dataset.schema[column]:
                return Arrival(
                    path=name,
                    refused=f"column {column!r} must have Arrow type "
                    f"{self._dataset.schema[column]}, it has {found}",
                    time=time.time(),
                )
        return Arrival(path=name, row_groups=tuple(groups), time=time.time())

    def _unread(self, name: str, error: Exception) -> Arrival | None:
        try:
            stat = (self._directory / name).stat()
        except OSError:
            return None  # it vanished
        state, now = (stat.st_size, stat.st_mtime_ns), time.monotonic()
        known, since = self._unreadable.setdefault(name, (state, now))
        if known != state:
            self._unreadable[name] = (state, now)
        elif now - since >= _SETTLE_SECS:
            message = " ".join(str(error).split())
            return Arrival(
                path=name, refused=f"must be a Parquet file: {message}", time=time.time()
            )
        return None


def _describe(arrival: Arrival) -> str:
    if arrival.refused:
        return f"{arrival.path} is not trained: {arrival.refused}"
    shown = [
        f"{name} {value:.4f}"
        for name, value in arrival.scores.items()
        if name in ("auc", "logloss", "loss") and value is not None
    ]
    return f"{arrival.path}: {arrival.rows:,} examples, before training {', '.join(shown)}"
