"""The ledger: which units of the dataset are to do, in progress, and done.

A unit is a row range of one file. The seed determines the order of an epoch's units; epochs follow
each other. A unit's index in the sequence of all epochs is its `position`. If a unit's worker or
run dies, the unit is attempted again, so every row is visited at least once per epoch. The ledger
counts all attempts, and counts as repeated those that may visit rows a second time. Even then, a
server does not apply a step twice: see engine/steps/servers.py.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import hashlib
import math
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.scheduling.unit_deaths import UnitDeaths

MAX_STEPS = 2**32  # a row stores the step of its last update in 32 bits


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unit:
    """A row range of a file: what is scheduled, retried and recorded.

    Attributes:
      position: the unit's index in the sequence of all epochs' units.
      path: the Parquet file.
      first_row: the first row in the file.
      num_rows: the number of rows.
      first_step: the number of the unit's first training step; the position determines it.
      seed: for the shuffle of its rows.
    """

    position: int
    path: str
    first_row: int
    num_rows: int
    first_step: int
    seed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerOptions:
    """Says how a split is divided into units, and in which order they are visited."""

    split: str = "train"
    batch_rows: int
    unit_rows: int
    shuffle: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch_rows < 1 or self.unit_rows < self.batch_rows:
            raise UsageError(
                "a unit must hold at least one batch, and a batch at least one row, but got "
                f"unit_rows={self.unit_rows} and batch_rows={self.batch_rows}"
            )


class Ledger:
    """Hands out units and records their progress; thread-safe.

    Attributes:
      grows: whether more units may come when none is left.
    """

    grows = False

    def __init__(
        self,
        dataset: Dataset,
        options: LedgerOptions,
        *,
        epochs: int,
        deaths: UnitDeaths | None = None,
    ) -> None:
        """Has no unit in progress.

        Args:
          dataset: whose units they are.
          options: how they are made.
          epochs: how often each is visited.
          deaths: of the run; by default nobody counts them.
        """
        if epochs < 1:
            raise UsageError(f"epochs must be at least 1 but got {epochs}")
        self._options = options
        self.deaths = deaths or UnitDeaths()
        self._root = f"{dataset.directory.absolute()}/"
        self._ranges = split_into_ranges(dataset, options)
        self._fingerprint = _fingerprint(dataset, options)
        self._made_of = _made_of(dataset, options)
        self._epochs = epochs
        if epochs * self.steps_per_epoch >= MAX_STEPS:
            raise UsageError(
                f"a run must have fewer than 2^32 steps but {epochs} epochs of "
                f"{self.steps_per_epoch} are {epochs * self.steps_per_epoch}: use fewer epochs or "
                "larger batches"
            )
        self._lock = threading.Lock()
        self._prefix = 0  # all positions below are done
        self._beyond: list[int] = []  # done positions above, sorted
        self._returned: list[int] = []  # given back, to hand out again, sorted
        self._aside: dict[int, int] = {}  # rows by position: done, but without these
        self._again: set[int] = set()  # positions of them that are to do again
        self._next = 0  # this position and all above were never handed out
        self._attempts: dict[int, int] = {}  # attempts over all runs, of units not done
        self._begun: set[int] = set()  # positions that a worker began in this run, and not done
        self._num_attempts = 0
        self._pause: float = math.inf
        self._repeated = 0
        self._epoch = -1
        self._order: list[int] = []
        self._first_steps: list[int] = []

    def take_arrived(self) -> list[tuple[list[int], int | None]]:
        """Gives the files that arrived since the last call: their units' first steps, and a time.

        The first one comes after the epochs' units, of which those after the first epoch have no
        time. See WatchLedger.
        """
        return []

    @property
    def batch_rows(self) -> int:
        """Returns the rows of a batch; a unit's last batch may have fewer."""
        return self._options.batch_rows

    @property
    def units_per_epoch(self) -> int:
        """Returns the number of units per epoch."""
        return len(self._ranges)

    @property
    def num_units(self) -> int:
        """Returns the number of units of all epochs."""
        return len(self._ranges) * self._epochs

    @property
    def num_rows(self) -> int:
        """Returns the number of rows of all epochs."""
        return self.rows_per_epoch * self._epochs

    @functools.cached_property
    def rows_per_epoch(self) -> int:
        """Returns the number of rows per epoch."""
        return sum(rows for _, _, rows in self._ranges)

    @functools.cached_property
    def steps_per_epoch(self) -> int:
        """Returns the training steps per epoch; a unit's last step may have fewer rows."""
        return sum(-(-rows // self._options.batch_rows) for _, _, rows in self._ranges)

    def take(self) -> Unit | None:
        """Hands out the next unit, which is then in progress; puts aside what is set aside.

        Returns None if none is left, or none may be at work beside those that are.
        """
        with self._lock:
            while (position := self._next_position()) is not None:
                unit = self._unit(position)
                is_aside = self.deaths.is_aside(self.name_of(unit))
                if not is_aside and not self.deaths.enter(position, self.name_of(unit)):
                    return None
                if self._returned:
                    self._returned.pop(0)
                else:
                    self._next = position + 1
                if not is_aside:
                    return unit
                self._put_aside(unit)
        return None

    def _next_position(self) -> int | None:
        if self._returned:
            return self._returned[0]
        # After a restore, the prefix may have passed positions that were done above it.
        self._next = max(self._next, self._prefix)
        while self._next in self._beyond:
            self._next += 1
        return self._next if self._next < min(self._pause, self.num_units) else None

    def name_of(self, unit: Unit) -> str:
        """Names a unit for the record of deaths; it has the same name in all epochs."""
        return f"{unit.path.removeprefix(self._root)}:{unit.first_row}"

    def units_of(self, epoch: int) -> list[Unit]:
        """Lists an epoch's units in order, without handing them out."""
        first = epoch * len(self._ranges)
        with self._lock:
            return [self._unit(first + k) for k in range(len(self._ranges))]

    def begin(self, unit: Unit) -> None:
        """Records that a worker begins an attempt at a unit; a further attempt is a repeat."""
        with self._lock:
            self._num_attempts += 1
            known = self._is_done(unit.position)
            if known or unit.position in self._begun:
                self._repeated += 1
            if not known:
                self._begun.add(unit.position)
                self._attempts[unit.position] = self._attempts.get(unit.position, 0) + 1
        self.deaths.begin(unit.position)

    def pause_at(self, position: float) -> None:
        """Hands out no unit at or after a position, until the next call."""
        with self._lock:
            self._pause = position

    def done(self, unit: Unit) -> None:
        """Records a unit as done."""
        with self._lock:
            self._mark_done(unit)
            num_done = self._num_done() - self._num_aside()
        self.deaths.end(unit.position, num_done=num_done)

    def put_aside(self, unit: Unit) -> None:
        """Records a unit that is set aside as done, without its rows."""
        with self._lock:
            self._put_aside(unit)
        self.deaths.end(unit.position)

    def _put_aside(self, unit: Unit) -> None:
        self._mark_done(unit)
        self._aside[unit.position] = unit.num_rows

    def leave_out(self, unit: Unit) -> None:
        """Records a unit that cannot be read as done, without its rows.

        Raises:
          UsageError: it is a unit of the dataset.
        """
        raise UsageError(f"{unit.path} is a file of the dataset, which a run cannot leave out")

    def give_back(self, unit: Unit) -> None:
        """Takes back a unit that was not done; it will be handed out again.

        If a worker had begun it, its next attempt is a repeat.
        """
        with self._lock:
            bisect.insort(self._returned, unit.position)
        self.deaths.leave(unit.position)

    @property
    def num_done(self) -> int:
        """Returns the number of units done over all runs."""
        with self._lock:
            return self._num_done()

    @property
    def num_aside(self) -> int:
        """Returns the number of units that are done only because they are set aside."""
        with self._lock:
            return self._num_aside()

    def _num_done(self) -> int:
        return self._prefix + len(self._beyond) - len(self._again)

    def _num_aside(self) -> int:
        return len(self._aside) - len(self._again)

    @property
    def num_repeated(self) -> int:
        """Returns the visits to a unit after its first, complete or not, over all runs."""
        with self._lock:
            return self._repeated

    @property
    def num_attempts(self) -> int:
        """Returns the number of attempts that workers began, over all runs."""
        with self._lock:
            return self._num_attempts

    @property
    def exhausted(self) -> bool:
        """Tells whether `take` has nothing left to hand out."""
        with self._lock:
            return not self._returned and self._next >= min(self._pause, self.num_units)

    @property
    def finished(self) -> bool:
        """Tells whether all units of all epochs are done."""
        return self.num_done >= self.num_units

    def steps_done(self) -> int:
        """Returns the number of steps of the units that are done, in any order."""
        batch = self._options.batch_rows
        with self._lock:
            full, partial = self._done_units()
            return full * self.steps_per_epoch + sum(-(-rows // batch) for rows in partial)

    def rows_done(self) -> int:
        """Returns the number of rows of the units that are done; counts a repeated unit once."""
        with self._lock:
            full, partial = self._done_units()
            aside = sum(self._aside.values())
            return full * self.rows_per_epoch + sum(partial) - aside

    def state(self) -> dict[str, Any]:
        """Returns the state that a manifest stores, as JSON values."""
        with self._lock:
            return self._state()

    def _state(self) -> dict[str, Any]:
        return {
            "dataset": self._fingerprint,
            "made_of": self._made_of,
            "units_per_epoch": len(self._ranges),
            "prefix": self._prefix,
            "beyond": list(self._beyond),
            **self._attempt_fields(sorted(self._begun)),
            **({"set_aside": sorted(self._aside)} if self._aside else {}),
        }

    def partially_applied(self, state: dict[str, Any]) -> dict[str, Any]:
        """Returns the fields of an earlier state to replace after the save has taken its snapshot.

        The snapshot may hold updates of units that were begun before it, but that the state does
        not list as done. A run that restores both will visit these units again.
        """
        with self._lock:
            listed = set(state["beyond"])
            return self._attempt_fields(
                [p for p in state.get("set_aside", ()) if p in self._begun or p not in self._aside]
                + [
                    p
                    for p in range(state["prefix"], self._next)
                    if p not in listed and (p in self._begun or self._is_done(p))
                ]
            )

    def _attempt_fields(self, positions: list[int]) -> dict[str, Any]:
        return {
            "doing": positions,
            "attempts": [self._attempts.get(p, 1) for p in positions],
            "num_attempts": self._num_attempts,
            "repeated": self._repeated,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Resumes from a manifest's state; units in progress then will be handed out again.

        Raises:
          UsageError: the state is of another dataset, batch size, unit size, shuffle or seed, or
            of a run that watches a directory.
        """
        if state["dataset"] != self._fingerprint:
            raise UsageError(
                f"{_difference(state, self._state())}: use what it was trained with to resume, or "
                "start a new model directory"
            )
        if "watched" in state and not self.grows:
            raise UsageError(
                "the model directory is of a run that watches a directory: give --watch to go on"
            )
        with self._lock:
            self._prefix = state["prefix"]
            self._beyond = sorted(state["beyond"])
            self._next = self._prefix
            self._begun = set()
            self._attempts = dict(zip(state["doing"], state["attempts"], strict=True))
            self._num_attempts = state["num_attempts"]
            self._repeated = state["repeated"] + len(state["doing"])
            aside = [self._unit(position) for position in state.get("set_aside", [])]
            self._aside = {unit.position: unit.num_rows for unit in aside}
            again = (u.position for u in aside if not self.deaths.is_aside(self.name_of(u)))
            self._again = set(again)
            self._returned = sorted(self._again)

    def _mark_done(self, unit: Unit) -> None:
        self._begun.discard(unit.position)
        self._attempts.pop(unit.position, None)
        self._aside.pop(unit.position, None)
        if unit.position in self._again:
            self._again.remove(unit.position)
            return
        bisect.insort(self._beyond, unit.position)
        while self._beyond and self._beyond[0] == self._prefix:
            self._beyond.pop(0)
            self._prefix += 1

    def _is_done(self, position: int) -> bool:
        if position in self._again:
            return False
        if position < self._prefix:
            return True
        i = bisect.bisect_left(self._beyond, position)
        return i < len(self._beyond) and self._beyond[i] == position

    def _done_units(self) -> tuple[int, list[int]]:
        """Returns the number of whole epochs done, and the rows of each further unit done."""
        full, rest = divmod(self._prefix, len(self._ranges))
        first = full * len(self._ranges)
        return full, [self._unit(p).num_rows for p in [*range(first, first + rest), *self._beyond]]

    def _unit(self, position: int) -> Unit:
        epoch, k = divmod(position, len(self._ranges))
        self._set_epoch(epoch)
        index = self._order[k]
        path, first_row, num_rows = self._ranges[index]
        return Unit(
            position=position,
            path=path,
            first_row=first_row,
            num_rows=num_rows,
            first_step=epoch * self.steps_per_epoch + self._first_steps[k],
            seed=self._seed_of(position),
        )

    def _seed_of(self, position: int) -> int:
        return self._options.seed * 1_000_003 + position

    def _set_epoch(self, epoch: int) -> None:
        """Computes the order and the first steps of an epoch's units."""
        if epoch == self._epoch:
            return
        order = np.arange(len(self._ranges))
        if self._options.shuffle:
            np.random.default_rng([self._options.seed, epoch]).shuffle(order)
        self._order = order.tolist()
        batch = self._options.batch_rows
        steps = [-(-self._ranges[i][2] // batch) for i in self._order]
        self._first_steps = [0, *np.cumsum(steps)[:-1].tolist()]
        self._epoch = epoch


def split_into_ranges(dataset: Dataset, options: LedgerOptions) -> list[tuple[str, int, int]]:
    """Splits a split's files into ranges (path, first row, rows) of at most `unit_rows`.

    A range ends at the end of a row group, unless a row group is larger than a unit.
    """
    ranges: list[tuple[str, int, int]] = []
    split = dataset.split(options.split)
    for file in split.files:
        path = str(dataset.absolute_path(file))
        first = 0
        pending = 0
        for group in [*file.row_groups, None]:  # None: the file's end
            if group is None or pending + group > options.unit_rows:
                for start in range(0, pending, options.unit_rows):
                    ranges.append((path, first + start, min(options.unit_rows, pending - start)))
                first += pending
                pending = 0
            pending += group or 0
    if not ranges:
        raise UsageError(f"{dataset.directory}: split {options.split!r} has no rows")
    return ranges


def _made_of(dataset: Dataset, options: LedgerOptions) -> dict[str, Any]:
    """Gives what a user can compare of what determines the units, by the user's names."""
    files = dataset.split(options.split).files
    return {
        "batch_size": options.batch_rows,
        "unit_rows": options.unit_rows,
        "shuffle": options.shuffle,
        "seed": options.seed,
        "rows": sum(file.rows for file in files),
        "files": len(files),
    }


def _difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Says in what a checkpoint's units differ from this run's, given the ledgers' states."""
    before, now = theirs.get("made_of"), ours["made_of"]
    if not isinstance(before, Mapping):  # of earlier checkpoints
        counts = [each["units_per_epoch"] for each in (theirs, ours)]
        units = f" (it has {counts[0]} units per epoch, this run {counts[1]})"
        return (
            "the model directory was trained on other data, or with another batch_size, unit_rows, "
            f"shuffle or seed than this run has{units if counts[0] != counts[1] else ''}"
        )
    differing = [name for name in now if name in before and before[name] != now[name]]
    named = [
        f"{name} is {now[name]}, the checkpoint has {before[name]}"
        for name in differing
        if name not in ("rows", "files")
    ]
    if {"rows", "files"} & set(differing):
        data = [f"{each.get('rows')} rows in {each.get('files')} files" for each in (now, before)]
        named.append(f"the data to train on has {data[0]}, the checkpoint is of {data[1]}")
    return "; ".join(named) or (
        f"the data to train on is not what the checkpoint is of: it has {now['rows']} rows in "
        f"{now['files']} files too, but other file names or contents"
    )


def _fingerprint(dataset: Dataset, options: LedgerOptions) -> str:
    """Hashes what determines the sequence of units, but not the dataset's place."""
    h = hashlib.sha256(repr(options).encode())
    for file in dataset.split(options.split).files:
        h.update(f"{file.path} {file.rows} {file.xxh3_64} {file.row_groups}\n".encode())
    return h.hexdigest()[:32]
