"""A ledger that grows: the epochs of a dataset, then the files that arrive in a directory."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embedps.data.dataset import Dataset
from embedps.data.dataset_metadata import DataFile, Split
from embedps.errors import CheckpointError, UsageError
from embedps.scheduling.arrivals import Arrival, Arrivals
from embedps.scheduling.division import LedgerOptions, split_into_ranges
from embedps.scheduling.ledger import MAX_STEPS, Ledger, Unit
from embedps.scheduling.unit_deaths import UnitDeaths

SPLIT = "watched"


def dataset_of(arrival: Arrival, dataset: Dataset, directory: Path) -> Dataset:
    """Gives the dataset of one file that arrived, in split SPLIT, with `dataset`'s columns."""
    file = DataFile(
        path=arrival.path, rows=arrival.rows, bytes=0, xxh3_64="", row_groups=arrival.row_groups
    )
    split = Split(rows=arrival.rows, positives=0, files=(file,))
    return dataclasses.replace(dataset, directory=directory, splits={SPLIT: split})


class WatchLedger(Ledger):
    """Hands out the units of a dataset's epochs, and then those of files in order of arrival.

    It is never finished. Units that are done are forgotten: memory is that of those to do.
    """

    grows = True

    def __init__(
        self,
        dataset: Dataset,
        options: LedgerOptions,
        arrivals: Arrivals,
        *,
        epochs: int,
        directory: Path,
        deaths: UnitDeaths | None = None,
    ) -> None:
        """Takes the dataset, the list of a run's arrivals, and where these are; see Ledger."""
        super().__init__(dataset, options, epochs=epochs, deaths=deaths)
        self._directory = directory
        self._first_arrived = super().num_units
        # (path, first row, rows, first step) of arrived units from position _queue_begins on.
        self._queue: collections.deque[tuple[str, int, int, int]] = collections.deque()
        self._queue_begins = self._first_arrived
        self._kept: dict[
            int, tuple[str, int, int, int]
        ] = {}  # of those below, the ones to do again
        self._gone_steps, self._gone_rows = 0, 0  # of arrived units before the queue
        self._next_step = epochs * self.steps_per_epoch
        self._arrived_rows, self._arrived_units = 0, 0
        self._left_out_rows = 0
        later = self._first_arrived - self.units_per_epoch
        self._arrived: list[tuple[list[int], int | None]] = [([0] * later, None)]
        self._arrivals = arrivals
        for arrival in arrivals.files:
            self._add(arrival)

    @property
    def taken(self) -> list[str]:
        """The paths of the files that were taken, also of those that were refused."""
        return [arrival.path for arrival in self._arrivals.files]

    def take_file(self, arrival: Arrival) -> None:
        """Lists a file, durably, and adds its units, to be done after all others.

        Raises:
          CheckpointError: the list cannot be written.
          UsageError: the run would have too many steps.
        """
        self._arrivals.append([arrival])
        self._add(arrival)

    def _add(self, arrival: Arrival) -> None:
        if not arrival.rows:
            return
        found = dataset_of(arrival, self._dataset, self._directory)
        ranges = split_into_ranges(found, dataclasses.replace(self._division.options, split=SPLIT))
        with self._lock:
            first_steps = []
            for path, first_row, num_rows in ranges:
                first_steps.append(self._next_step)
                self._queue.append((path, first_row, num_rows, self._next_step))
                self._next_step += self._division.options.steps(num_rows)
                self._arrived_rows += num_rows
            self._arrived_units += len(ranges)
            self._arrived.append((first_steps, arrival.event_ms))
            if self._stage.first_step + self._next_step >= MAX_STEPS:
                raise UsageError(
                    "a run must have fewer than 2^32 steps: start a new model directory"
                )

    def take_arrived(self) -> list[tuple[list[int], int | None]]:
        """Gives the files that arrived since the last call: their units' first steps, and a time.

        The first call gives the units of the epochs after the first one too, without a time.
        """
        begins = self._stage.first_step
        with self._lock:
            arrived, self._arrived = self._arrived, []
        return [([begins + each for each in steps], time_ms) for steps, time_ms in arrived]

    def has_arrived(self, unit: Unit) -> bool:
        """Tells whether a unit is of a file that arrived, and not of the dataset."""
        return unit.position >= self._first_arrived

    @property
    def num_waiting(self) -> int:
        """Returns the number of units that were not handed out."""
        with self._lock:
            return self.num_units - max(self._next, self._prefix) + len(self._returned)

    @property
    def num_units(self) -> int:
        """Returns the number of units so far."""
        return self._first_arrived + self._arrived_units

    @property
    def num_rows(self) -> int:
        """Returns the number of rows so far, in all epochs and files."""
        return super().num_rows + self._arrived_rows

    @property
    def finished(self) -> bool:
        """Tells that more may arrive."""
        return False

    def done(self, unit: Unit) -> None:
        """Records a unit as done."""
        super().done(unit)
        with self._lock:
            self._forget()

    def name_of(self, unit: Unit) -> str:
        """Names a unit for the record of deaths: one of a file that arrived has the file's name."""
        return self._name(unit.path) if self.has_arrived(unit) else super().name_of(unit)

    def _put_aside(self, unit: Unit) -> None:
        super()._put_aside(unit)
        self._forget()

    def leave_out(self, unit: Unit) -> None:
        """Records a unit that cannot be read as done, without its rows; see Ledger."""
        if not self.has_arrived(unit):
            super().leave_out(unit)
        with self._lock:  # so that no state has one without the other
            self._left_out_rows += unit.num_rows
            self._mark_done(unit)
            self._forget()
        self.deaths.end(unit.position)

    def state(self) -> dict[str, Any]:
        """Returns the state that a manifest stores, as JSON values.

        "watched" has the position of the first arrived unit; the files of which some units are
        done, or in progress, and others are not; and the rows of units that were left out.
        """
        with self._lock:
            state = self._state()
            # For a next stage, which it cannot have.
            del state["data"], state["columns"], state["visited"]
            busy = {*state["beyond"], *state["doing"]}
            paths = [self._range(p)[0] for p in sorted(busy) if p >= self._queue_begins]
            left_out = self._left_out_rows
        names = map(self._name, paths)
        watched = {
            "first_unit": self._first_arrived,
            "in_progress": list(dict.fromkeys(names)),
            "left_out_rows": left_out,
        }
        return {**state, "watched": watched}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resumes from a manifest's state, after all files that have arrived were added.

        Raises:
          UsageError: the state is of another dataset or division into units, or of more epochs.
          CheckpointError: it has units of files that are not in the list of arrivals.
        """
        if state["dataset"] != self._division.fingerprint:
            super().restore(state)
            return
        last = max([state["prefix"], *(position + 1 for position in state["beyond"])])
        begins = state.get("watched", {}).get("first_unit", self._first_arrived)
        if begins != self._first_arrived or ("watched" not in state and last > begins):
            raise UsageError(
                "the model directory was trained with another number of epochs before files "
                "arrived: give the same --epochs, or at least as many as it was trained for"
            )
        if last > self.num_units:
            raise CheckpointError(
                f"the last checkpoint has {last} units done, but the list of watched files has "
                f"{self.num_units}: restore the model directory's _arrivals from a copy"
            )
        super().restore(state)
        with self._lock:
            self._left_out_rows = state.get("watched", {}).get("left_out_rows", 0)
            again = [position for position in self._again if position >= self._first_arrived]
            self._kept = {position: self._range(position) for position in again}
            self._forget()

    def _range(self, position: int) -> tuple[str, int, int, int]:
        return self._kept.get(position) or self._queue[position - self._queue_begins]

    def _name(self, path: str) -> str:
        return path.removeprefix(f"{self._directory.absolute()}/")

    def _unit(self, position: int) -> Unit:
        if position < self._first_arrived:
            return super()._unit(position)
        path, first_row, num_rows, first_step = self._range(position)
        return Unit(
            position=position,
            path=path,
            first_row=first_row,
            num_rows=num_rows,
            first_step=self._stage.first_step + first_step,
            seed=self._seed_of(position),
        )

    def _forget(self) -> None:
        """Drops the units below the prefix."""
        while self._queue and self._queue_begins < self._prefix:
            _, _, num_rows, _ = self._queue.popleft()
            self._queue_begins += 1
            self._gone_steps += self._division.options.steps(num_rows)
            self._gone_rows += num_rows

    def _end_field(self) -> dict[str, int]:
        return {}

    def _sums(self) -> tuple[int, int]:
        """Returns the steps and the visited rows of the units that are done."""
        steps, rows = self._stage.sums(min(self._prefix, self._first_arrived), ())
        singles = [*range(max(self._queue_begins, self._first_arrived), self._prefix)]
        each = [self._unit(position).num_rows for position in [*singles, *self._beyond]]
        steps += self._gone_steps + sum(map(self._division.options.steps, each))
        aside = self._left_out_rows + sum(self._aside.values())
        return steps, rows + self._gone_rows + sum(each) - aside
