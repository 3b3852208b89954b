"""Watches a directory: files that arrive there are checked, scored, and then trained once each."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow.parquet as pq
import tensorflow as tf

from embedps.console.tf_logging import op_error_text
from embedps.data.arrow_errors import UNREADABLE, check_statistics
from embedps.data.dataset import MAX_ROWS_PER_BYTE, Dataset
from embedps.data.transforms_digest import difference, no_digest, stored_digest
from embedps.engine.unit_functions import explain
from embedps.errors import ClusterError, DatasetError, EmbedpsError
from embedps.scheduling.arrivals import Arrival
from embedps.scheduling.event_clock import row_group_times
from embedps.scheduling.ledger import Unit
from embedps.scheduling.unit_deaths import SetAsideError
from embedps.scheduling.unit_threads import OnFailure
from embedps.scheduling.watch_ledger import WatchLedger, dataset_of
from embedps.storage.file_io import NoFileError, store_of
from embedps.storage.object_store import is_local
from embedps.storage.store import ListedFile

_POLL_SECS = 0.25
_OBJECTS_POLL_SECS = 1.0
_PAUSE_TIMES = 4.0  # a pause between two listings lasts this many listings at least
_SETTLE_SECS = 10.0  # a file that cannot be read yet, and does not change, is refused after this
_TURN_SECS = 0.02  # from one look whether a file's turn has come to the next

Score = Callable[[Dataset, threading.Event], Mapping[str, float] | None]
"""Scores the files of split watch_ledger.SPLIT; gives None if the event ends it."""


class FileWatch:
    """Takes the Parquet files of a directory in order of arrival, on a thread of its own.

    What is found by one listing is taken in order of modification, then of name. A file counts as
    there when it can be read: write it under another name, or beginning with "." or "_", and rename
    it. It must not change any more, and stay until it is trained. An object of a store appears as a
    whole.

    A file is scored and taken when its turn to be trained is near: the others wait where they are.
    """

    def __init__(
        self,
        directory: Path,
        dataset: Dataset,
        ledger: WatchLedger,
        score: Score,
        *,
        ahead_units: Callable[[], int],
        needs_times: bool = False,
    ) -> None:
        """Watches nothing yet.

        Args:
          directory: to watch, with all below it; a prefix of an object store is listed as a whole.
          dataset: whose columns the files must have.
          ledger: gets the files.
          score: scores a file before it is trained.
          ahead_units: no file is taken while more units than it says wait to be trained.
          needs_times: the files must have statistics of the dataset's timestamps.
        """
        self._directory = directory
        self._dataset = dataset
        self._ledger = ledger
        self._score = score
        self._ahead_units = ahead_units
        self._needs_times = needs_times
        self._known = set(ledger.taken)
        self._unreadable: dict[str, tuple[ListedFile, float]] = {}
        self._told_of_no_digest = False
        self._unlisted: set[str] = set()  # folders below that a line named
        self._lists = True  # whether the last listing succeeded
        self._stop = threading.Event()
        self._lock = threading.Lock()  # guards the four below
        self._news: list[str] = []
        self._points: list[Mapping[str, float | None]] = []
        self._error: BaseException | None = None
        self._num_waiting = 0
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

    @property
    def num_waiting(self) -> int:
        """Returns how many files the last listing found that are not taken yet."""
        with self._lock:
            return self._num_waiting

    def on_failure(self, unit: Unit, error: BaseException) -> OnFailure:
        """Tells what follows from a unit's failure.

        A file that arrived and was removed or damaged before it was trained is left out, with a
        line. An object that its store does not give is tried again.
        """
        if not self._ledger.has_arrived(unit):
            return OnFailure.STOP
        if isinstance(explain(error), DatasetError):
            rows = f"rows {unit.first_row:,} to {unit.first_row + unit.num_rows:,}"
            self._tell(f"{rows} of {unit.path} are left out: {_message(error)}")
            return OnFailure.LEAVE_OUT
        is_object = not is_local(self._directory)
        if is_object and isinstance(error, tf.errors.InternalError) and unit.path in error.message:
            self._tell(f"{unit.path} is tried again: {_message(error)}")
            return OnFailure.TRY_AGAIN
        return OnFailure.STOP

    def _run(self) -> None:
        is_object = not is_local(self._directory)
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                found = self._new_files()
                pause = _PAUSE_TIMES * (time.monotonic() - began)
                names = {file.name for file in found}
                self._unreadable = {k: v for k, v in self._unreadable.items() if k in names}
                for i, file in enumerate(found):
                    with self._lock:
                        self._num_waiting = len(found) - i
                    if not self._await_turn():
                        return
                    self._take(file)
                with self._lock:
                    self._num_waiting = 0
                self._stop.wait(max(pause, _OBJECTS_POLL_SECS if is_object else _POLL_SECS))
        except BaseException as error:  # shown by the run
            with self._lock:
                self._error = error

    def _new_files(self) -> list[ListedFile]:
        """Lists the files that were not taken, in order; none if they cannot be listed now."""
        try:
            found = store_of(self._directory).list_files(
                self._directory, ".parquet", known=self._known, on_unlisted=self._tell_unlisted
            )
        except OSError as error:
            if self._lists:
                self._tell(f"{self._directory} cannot be listed, and is tried again: {error}")
            self._lists = False
            return []
        if not self._lists:
            self._tell(f"{self._directory} is listed again")
        self._lists = True
        return found

    def _tell_unlisted(self, folder: str, error: OSError) -> None:
        if folder not in self._unlisted:
            self._unlisted.add(folder)
            self._tell(f"{folder} cannot be listed, and is tried again: {error.strerror}")

    def _await_turn(self) -> bool:
        """Waits until few units wait to be trained; gives False at the end."""
        while self._ledger.num_waiting > self._ahead_units():
            if self._stop.wait(_TURN_SECS):
                return False
        return not self._stop.is_set()

    def _take(self, file: ListedFile) -> None:
        """Takes a file if it is there as a whole, and who reads it does not die."""
        deaths, token = self._ledger.deaths, ("file", file.name)
        if deaths.is_aside(file.name):
            self._known.add(file.name)
            return
        if not deaths.wait_to_enter(token, file.name, self._stop):
            return
        deaths.begin(token)
        try:
            self._take_living(file)
        except ClusterError:
            deaths.leave(token)  # it may be the cause
            raise
        except Exception as error:
            cause: Exception | None = None
            if not isinstance(error, EmbedpsError | SetAsideError) and self._ledger.num_done:
                cause = deaths.count_death(file.name)
            deaths.end(token)
            if deaths.is_aside(file.name):
                self._known.add(file.name)
                return
            raise cause or error from error
        deaths.end(token)

    def _take_living(self, file: ListedFile) -> None:
        arrival = self._checked(file)
        if arrival is None:
            return
        if arrival.rows:
            dataset = dataset_of(arrival, self._dataset, self._directory)
            try:
                scores = self._score(dataset, self._stop)
            except (DatasetError, tf.errors.InternalError) as error:
                if self._ledger.deaths.is_aside(file.name) or file.name not in str(error):
                    raise
                arrival = self._unread(file, f"cannot be read: {_message(error)}")
                if arrival is None:
                    return
            else:
                if scores is None:
                    return
                finite = {n: v if math.isfinite(v) else None for n, v in scores.items()}
                arrival = dataclasses.replace(arrival, scores=finite)
        self._tell(_describe(arrival))  # first: its units may be done at once
        self._ledger.take_file(arrival)
        self._known.add(file.name)
        self._unreadable.pop(file.name, None)
        if arrival.rows:
            with self._lock:
                self._points.append(arrival.scores)

    def _checked(self, file: ListedFile) -> Arrival | None:
        """Reads a file's footer; gives None if the file may not be complete yet."""
        path = self._directory / file.name
        if not _is_utf8(file.name):
            return _refused(file, "its name must be UTF-8: rename it")
        try:
            with (
                store_of(path).open(path) as source,
                pq.ParquetFile(source) as parquet,
            ):
                schema, metadata = parquet.schema_arrow, parquet.metadata
                if self._dataset.timestamp:
                    check_statistics(parquet, self._dataset.timestamp)
        except NoFileError as error:
            return _refused(file, str(error.strerror))
        except FileNotFoundError:
            if not path.is_symlink():
                return None  # it was removed after the listing
            return self._unread(file, "is a link to a file that is absent")
        except UNREADABLE as error:
            return self._unread(file, f"must be a Parquet file: {error}")
        groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        if min(groups, default=0) < 0 or sum(groups) > MAX_ROWS_PER_BYTE * file.num_bytes:
            return _refused(file, f"its footer claims {sum(groups):,} rows, which it cannot hold")
        for column in self._dataset.columns:
            at = schema.get_field_index(column)
            found = str(schema.field(at).type) if at >= 0 else "none"
            if found != self._dataset.schema[column]:
                return _refused(
                    file,
                    f"column {column!r} must have Arrow type {self._dataset.schema[column]}, "
                    f"it has {found}",
                )
        found = stored_digest(metadata.metadata)
        wanted = self._dataset.transforms_digest
        if other := difference(found, wanted, made_of=str(self._dataset.directory)):
            return _refused(file, other)
        if not found and self._dataset.learned and not self._told_of_no_digest:
            self._told_of_no_digest = True
            self._tell(f"{file.name} {no_digest(self._dataset.learned)}")
        event_ms = None
        if self._dataset.timestamp and sum(groups):
            try:
                times = row_group_times(metadata, file.name, self._dataset.timestamp)
                event_ms = min(time for _, time in times)
            except DatasetError as error:
                if self._needs_times:
                    return _refused(file, str(error))
        return Arrival(
            path=file.name, row_groups=tuple(groups), time=time.time(), event_ms=event_ms
        )

    def _unread(self, file: ListedFile, why: str) -> Arrival | None:
        """Refuses a file that could not be read and has not changed for a while."""
        now = time.monotonic()
        known, since = self._unreadable.setdefault(file.name, (file, now))
        if known != file:
            self._unreadable[file.name] = (file, now)
        elif now - since >= _SETTLE_SECS:
            return _refused(file, " ".join(why.split()))
        return None

    def _tell(self, line: str) -> None:
        with self._lock:
            self._news.append(" ".join(line.split()))


def _is_utf8(name: str) -> bool:
    """Tells whether a name, as Python gives it, is one for JSON and TensorFlow too."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _message(error: BaseException) -> str:
    text = op_error_text(str(getattr(error, "message", error)))
    return text.removesuffix(": make the dataset again")


def _refused(file: ListedFile, why: str) -> Arrival:
    return Arrival(path=file.name, refused=why, time=time.time())


def _describe(arrival: Arrival) -> str:
    if arrival.refused:
        return f"{arrival.path} is not trained: {arrival.refused}"
    shown = [
        f"{name} {value:.4f}"
        for name, value in arrival.scores.items()
        if name in ("auc", "logloss", "loss") and value is not None
    ]
    return f"{arrival.path}: {arrival.rows:,} examples, before training {', '.join(shown)}"
