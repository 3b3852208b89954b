"""The deaths of units: who was trained when a process died, and who is set aside for it.

    MODEL_DIR/_deaths.json    what is in progress, its deaths in a row, and what is set aside

A unit can kill whoever trains it, at each attempt. So it is listed here before a worker begins it,
and comes off the list when it has ended. What a process that died has left on the list is a
suspect: it gets a death, and is tried alone, so that the next death is known to be its own. A unit
is set aside at its last allowed death in a row, if that is known to be its own. The death of a
worker that leaves the client alive, and an error, are: they happen to one unit.

A run that ends in good order leaves nothing on the list. If several units in a row are set aside
and none ended well in between, the data is not the cause: the run ends, and all are tried again.

A unit of the dataset is known by its file and first row, in all epochs; the units of a file that
arrived, and its scoring before, by the file alone.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Hashable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from embedps.checkpoint.format.manifest import is_count
from embedps.errors import CheckpointError, TrainingError
from embedps.storage import file_io

FILE_NAME = "_deaths.json"
_MAX_IN_A_ROW = 3  # set aside while none ended well: two bad files may come one after the other
_MAX_NAMES = 5  # in a line
_TICK_SECS = 0.02


class SetAsideError(Exception):
    """A unit is set aside: it is not tried again, and the run goes on without it."""


class DeadlyUnitsError(TrainingError):
    """All units kill who trains them: the run cannot go on."""


class UnitDeaths:
    """Counts the deaths of the units of a run; thread-safe.

    A unit at work has a token, which no other has; a file's units have one name.
    """

    def __init__(
        self, model_dir: Path | None = None, *, rows: str = "", limit: float = math.inf
    ) -> None:
        """Reads what the last process left; one that is damaged or absent says nothing.

        Args:
          model_dir: of the run; None keeps no record.
          rows: tells the rows from which units are made: a record of others says nothing.
          limit: how many deaths in a row set a unit aside.
        """
        self._path = None if model_dir is None else model_dir / FILE_NAME
        self._limit = limit
        self._lock = threading.Lock()  # guards all below
        self._at_work: dict[Hashable, str] = {}  # names by token
        self._in_progress: dict[Hashable, str] = {}  # those that a worker began
        self._wanted: set[Hashable] = set()  # suspects that wait to be alone
        self._forgives = False
        self._news: list[str] = []
        self._most_in_a_row = _MAX_IN_A_ROW
        self._rows = rows
        record = _read(self._path)
        if record.get("rows", rows) != rows:
            record = {}
        self._left = _texts(record.get("in_progress"))
        self._deaths = _counts(record.get("deaths"))
        self._set_aside = _counts(record.get("set_aside"))
        self._in_a_row = _texts(record.get("in_a_row"))  # set aside, while none ended well
        self._most_done = n if is_count(n := record.get("most_done")) else 0
        again = [name for name, deaths in self._set_aside.items() if deaths < limit]
        for name in again:  # the limit is higher now
            self._deaths[name] = self._set_aside.pop(name)
        self._in_a_row = [name for name in self._in_a_row if name in self._set_aside]
        self._suspects = set(self._deaths)
        # Nothing is written before there is something new to say.
        now = json.loads(self._text())
        is_said = record == now if record else not any(now.values())
        self._written = self._text() if is_said else ""

    def begin_run(self, *, num_units: float = math.inf) -> None:
        """Counts the death of the last process, if it died.

        Args:
          num_units: how many units there are; if all are set aside, the run ends.

        Raises:
          DeadlyUnitsError: none of the last units ended well.
        """
        with self._lock:
            self._most_in_a_row = int(min(num_units, _MAX_IN_A_ROW))
            left, self._left = self._left, []
            self._blame(left, "the run")

    def server_died(self) -> None:
        """Counts the death of a server: what was in progress is a suspect, as of a dead process.

        Raises:
          DeadlyUnitsError: none of the last units ended well.
        """
        with self._lock:
            left = sorted({*self._in_progress.values()})
            self._at_work, self._in_progress = {}, {}
            self._blame([] if self._forgives else left, "a server")

    def _blame(self, left: list[str], who: str) -> None:
        """Counts a death of those that were in progress when who trained them died."""
        found = [self._count(name, is_own=len(left) == 1) for name in left]
        error = next((each for each in found if isinstance(each, DeadlyUnitsError)), None)
        suspects = [name for name in left if name in self._deaths]
        self._suspects |= set(suspects)
        if suspects and error is None:
            self._news.append(
                f"{who} died while it trained {_names(suspects)}: {_each(suspects)} tried alone now"
            )
        self._write()
        if error is not None:
            raise error

    @property
    def set_aside(self) -> list[str]:
        """What is set aside, in a user's words."""
        with self._lock:
            return [describe(name) for name in self._set_aside]

    def news(self) -> list[str]:
        """Gives the lines to show a user since the last call."""
        with self._lock:
            news, self._news = self._news, []
        return news

    def is_aside(self, name: str) -> bool:
        """Tells whether a unit is set aside."""
        return name in self._set_aside

    def enter(self, token: Hashable, name: str) -> bool:
        """Takes a unit as at work, if it may be: a suspect is at work alone."""
        with self._lock:
            if self._wanted - {token}:
                return False
            others = self._at_work.values()
            alone = name in self._suspects or any(other in self._suspects for other in others)
            if alone and self._at_work:
                return False
            self._at_work[token] = name
            return True

    def wait_to_enter(self, token: Hashable, name: str, stop: threading.Event) -> bool:
        """Waits until `enter` takes a unit; gives False if the event comes first."""
        with self._lock:
            if name in self._suspects:
                self._wanted.add(token)
        try:
            while not self.enter(token, name):
                if stop.wait(_TICK_SECS):
                    return False
            return True
        finally:
            with self._lock:
                self._wanted.discard(token)

    def begin(self, token: Hashable) -> None:
        """Writes down that a worker begins a unit that is at work."""
        with self._lock:
            if token in self._at_work and not self._forgives:
                self._in_progress[token] = self._at_work[token]
                self._write()

    def leave(self, token: Hashable) -> None:
        """Takes a unit as no more at work; its worker may have died."""
        with self._lock:
            self._at_work.pop(token, None)

    def end(self, token: Hashable, *, num_done: int | None = None) -> None:
        """Takes a unit off the list.

        Args:
          token: the unit's.
          num_done: how many units of the run have ended well, with this one; None if it has not.
            More than ever before is progress: a run that resumes does some again.
        """
        with self._lock:
            name = self._at_work.pop(token, None)
            self._in_progress.pop(token, None)
            if num_done is not None and name is not None:
                self._deaths.pop(name, None)
                self._suspects.discard(name)
                if num_done > self._most_done:
                    self._most_done, self._in_a_row = num_done, []
            self._write()

    def count_death(self, name: str) -> Exception | None:
        """Counts a death that is a unit's own.

        Returns:
          None if the unit is to be tried again, a SetAsideError, or the error that ends the run.
        """
        with self._lock:
            found = None if self._forgives else self._count(name, is_own=True)
            self._write()
        return found

    def forgive(self) -> None:
        """Takes all off the list: what ends this process from now on is no unit's fault."""
        with self._lock:
            self._forgives = True
            self._in_progress = {}
            self._write()

    def _count(self, name: str, *, is_own: bool) -> Exception | None:
        if name in self._set_aside:  # by another of its units
            return SetAsideError(name)
        deaths = self._deaths[name] = self._deaths.get(name, 0) + 1
        if deaths < self._limit or not is_own:
            return None
        self._set_aside[name] = self._deaths.pop(name)
        self._suspects.discard(name)
        self._in_a_row.append(name)
        if len(self._in_a_row) < self._most_in_a_row:
            times = f"{deaths} times in a row" if deaths > 1 else "once"
            self._news.append(
                f"{describe(name)} is set aside: who trained it died {times}. Remove {self._path} "
                "and run again to try it again"
            )
            return SetAsideError(name)
        blamed, self._in_a_row = self._in_a_row, []
        for each in blamed:
            del self._set_aside[each]
        return DeadlyUnitsError(
            f"who trained {_names(blamed)} died, {deaths} times each, and no unit ended well in "
            "between: if the data is the cause, remove it; else it is the model, the memory or the "
            "machine: see the logs, then run again, which tries all of it again"
        )

    def _text(self) -> str:
        content = {
            "in_progress": sorted({*self._in_progress.values()}),
            "deaths": self._deaths,
            "set_aside": self._set_aside,
            "in_a_row": self._in_a_row,
            "most_done": self._most_done,
        }
        of_rows = {"rows": self._rows} if self._rows and any(content.values()) else {}
        return json.dumps({**content, **of_rows})

    def _write(self) -> None:
        """Writes the record if it changed. It need not survive a power cut, which blames nobody."""
        if self._path is None:
            return
        text = self._text()
        if text == self._written:
            return
        with suppress(OSError, CheckpointError):  # a full disk: failing checkpoints report it
            file_io.store_of(self._path).write_note(self._path, (text + "\n").encode())
            self._written = text


def describe(name: str) -> str:
    """Names a unit, or a file that arrived, for a line."""
    path, _, row = name.rpartition(":")
    return f"the unit from row {int(row):,} of {path}" if row.isdecimal() and path else name


def _names(names: Iterable[str]) -> str:
    shown = [describe(name) for name in names]
    more = len(shown) - _MAX_NAMES
    return ", ".join(shown[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _each(names: list[str]) -> str:
    return "it is" if len(names) == 1 else "each is"


def _read(path: Path | None) -> dict[str, Any]:
    document = None
    if path is not None:
        with suppress(OSError, ValueError, RecursionError):
            document = json.loads(file_io.read_bytes(path))
    return document if isinstance(document, dict) else {}


def _texts(found: Any) -> list[str]:
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def _counts(found: Any) -> dict[str, int]:
    return {k: n for k, n in found.items() if is_count(n)} if isinstance(found, dict) else {}
