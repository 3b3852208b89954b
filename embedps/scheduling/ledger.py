"""The ledger: which units of the dataset are to do, in progress, and done.

A unit is a row range of one file. The seed determines the order of an epoch's units; epochs follow
each other. A unit's index in the sequence of all epochs is its `position`. If a unit's worker or
run dies, the unit is attempted again, so every row is visited at least once per epoch. The ledger
counts all attempts, and counts as repeated those that may visit rows a second time. Even then, a
server does not apply a step twice: see engine/steps/servers.py. With other data, or other units of
the same, a stage begins (stage.py): positions count from 0 again, steps go on.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
import threading
from collections.abc import Mapping
from typing import Any

from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.scheduling.division import Division, LedgerOptions, difference, options_of
from embedps.scheduling.stage import Stage, before_of, not_visited
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


class Ledger:
    """Hands out units and records their progress; thread-safe.

    Attributes:
      grows: whether more units may come when none is left.
      changes: lines that say what differs from the state that was restored.
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
        self._dataset = dataset
        self.deaths = deaths or UnitDeaths()
        self.changes: tuple[str, ...] = ()
        self._root = f"{dataset.directory.absolute()}/"
        self._division = Division(dataset, options)
        self._epochs = epochs
        self._enter(Stage(division=self._division))
        self._lock = threading.Lock()
        self._prefix = 0  # all positions below are done
        self._beyond: list[int] = []  # done positions above, sorted
        self._returned: list[int] = []  # given back, to hand out again, sorted
        self._aside: dict[int, int] = {}  # rows by position: done, but without these
        self._again: set[int] = set()  # positions of them that are to do again
        self._next = 0  # this position and all above were never handed out in this run
        self._begun_end = 0  # no unit from this position on was begun in runs before
        self._end = 0  # no step from this number on was taken in runs before, as the last one knew
        self._attempts: dict[int, int] = {}  # attempts over all runs, of units not done
        self._begun: set[int] = set()  # positions that a worker began in this run, and not done
        self._undone: set[int] = set()  # to do again, though some servers have applied them
        self._num_attempts = 0
        self._pause: float = math.inf
        self._repeated = 0

    def _enter(self, stage: Stage) -> None:
        """Begins a stage; raises UsageError if it has too many steps."""
        self._stage = stage
        if stage.first_step + (steps := stage.num_steps(self._epochs)) >= MAX_STEPS:
            after = f" after {stage.first_step} of earlier stages" if stage.first_step else ""
            raise UsageError(
                f"a run must have fewer than 2^32 steps but {self._epochs} epochs of "
                f"{self.steps_per_epoch} are {steps}{after}: use fewer epochs or larger batches"
            )

    def take_arrived(self) -> list[tuple[list[int], int | None]]:
        """Gives the files that arrived since the last call: their units' first steps, and a time.

        The first one comes after the epochs' units, of which those after the first epoch have no
        time. See WatchLedger.
        """
        return []

    @property
    def batch_rows(self) -> int:
        """Returns the rows of a batch; a unit's last batch may have fewer."""
        return self._division.options.batch_rows

    @property
    def units_per_epoch(self) -> int:
        """Returns the number of units per epoch."""
        return len(self._division.ranges)

    @property
    def num_units(self) -> int:
        """Returns the number of units of the stage's epochs."""
        return self._stage.num_units(self._epochs)

    @property
    def num_rows(self) -> int:
        """Returns the number of rows of all epochs, those that earlier stages visited included."""
        return self.rows_per_epoch * self._epochs

    @property
    def rows_per_epoch(self) -> int:
        """Returns the number of rows per epoch."""
        return self._division.rows_per_epoch

    @property
    def steps_per_epoch(self) -> int:
        """Returns the training steps per epoch; a unit's last step may have fewer rows."""
        return self._division.steps_per_epoch

    @property
    def first_step(self) -> int:
        """Returns the number of the stage's first step."""
        return self._stage.first_step

    @property
    def first_step_of_rows(self) -> int:
        """Returns the number of the first step on these rows, in whatever division."""
        return self._stage.first_step_of_rows

    @property
    def history(self) -> list[dict[str, Any]]:
        """Lists the stages before this one, oldest first; see `stage.entry_of`."""
        return [*map(dict, self._stage.history)]

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
        """Lists the units of an epoch of the stage in order, without handing them out.

        What is left of the division before belongs to the first one.
        """
        left, per = len(self._stage.left), self.units_per_epoch
        with self._lock:
            return [
                self._unit(position)
                for position in range(epoch and left + epoch * per, left + (epoch + 1) * per)
            ]

    def epoch_at(self, position: int) -> tuple[int, int]:
        """Gives the first position of a unit's epoch, and how many units the stage has of it."""
        return self._stage.epoch_at(position)

    def share_at(self, unit: Unit) -> float:
        """Gives the share of all epochs' rows that is visited in the middle of a unit."""
        before = min(self._stage.rows_before / self.num_rows, 1.0)
        return before + (1.0 - before) * (unit.position + 0.5) / self.num_units

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
            num_done = self._stage.units_before + self._num_done() - self._num_aside()
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
        """Returns the number of the stage's units done over all runs."""
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
        """Tells whether all units of the stage's epochs are done."""
        return self.num_done >= self.num_units

    def steps_done(self) -> int:
        """Returns the number of the next step if the units that are done were done in order."""
        with self._lock:
            return self._stage.first_step + self._sums()[0]

    def rows_done(self) -> int:
        """Returns the rows of the units that are done, in all stages; a repeat does not count."""
        with self._lock:
            earlier: int = sum(each["visited_rows"] for each in self._stage.history)
            return earlier + self._sums()[1]

    def is_of(self, state: Mapping[str, Any]) -> bool:
        """Tells whether a state is of this stage."""
        first_step = state.get("stage", {}).get("first_step", 0)
        return bool(
            state["dataset"] == self._division.fingerprint and first_step == self._stage.first_step
        )

    def state(self) -> dict[str, Any]:
        """Returns the state that a manifest stores, as JSON values."""
        with self._lock:
            return self._state()

    def _state(self) -> dict[str, Any]:
        stage = self._stage
        steps, rows = self._sums()
        return {
            "data": self._root.rstrip("/"),
            "columns": self._dataset.typed_columns(),
            "dataset": self._division.fingerprint,
            "made_of": self._division.made_of,
            "units_per_epoch": self.units_per_epoch,
            "prefix": self._prefix,
            "beyond": list(self._beyond),
            "visited": {"rows": rows, "steps": steps, "of": self.num_rows - stage.rows_before},
            **self._attempt_fields(sorted(self._begun | self._undone)),
            **({"set_aside": sorted(self._aside)} if self._aside else {}),
            **({"stage": stage.to_json()} if stage.history else {}),
        }

    def partially_applied(self, state: dict[str, Any]) -> dict[str, Any]:
        """Returns the fields of an earlier state to replace after the save has taken its snapshot.

        The snapshot may hold updates of units that were begun before it, but that the state does
        not list as done. A run that restores both will visit these units again.
        """
        with self._lock:
            listed, begun = set(state["beyond"]), self._begun | self._undone
            return self._attempt_fields(
                [p for p in state.get("set_aside", ()) if p in self._begun or p not in self._aside]
                + [
                    p
                    for p in range(state["prefix"], self._next)
                    if p not in listed and (p in begun or self._is_done(p))
                ]
            )

    def _attempt_fields(self, positions: list[int]) -> dict[str, Any]:
        return {
            "doing": positions,
            "attempts": [self._attempts.get(p, 1) for p in positions],
            "num_attempts": self._num_attempts,
            "repeated": self._repeated,
            **self._end_field(),
        }

    def _end_field(self) -> dict[str, int]:
        """Gives the number after the steps of all units that were handed out, for a next stage."""
        position = max(self._next, self._begun_end)
        if not position:
            return {"end_step": self._stage.first_step}
        last = self._unit(position - 1)
        end = last.first_step + self._division.options.steps(last.num_rows)
        return {"end_step": max(self._end, end)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resumes from a manifest's state; units in progress then will be handed out again.

        A state of other rows, or of other units of these, begins a stage. Other rows must have the
        same columns or more.

        Raises:
          UsageError: the state is of a run that watches a directory and this one does not, or
            watches it with other data or units; or the run would have too many steps.
          CorruptCheckpointError: the state contradicts itself.
        """
        if state["dataset"] != self._division.fingerprint:
            self._begin_stage(state)
            return
        if "watched" in state and not self.grows:
            raise UsageError(
                "the model directory is of a run that watches a directory: give --watch to go on"
            )
        self._enter(Stage.restored(self._division, state, self._dataset))
        with self._lock:
            self._prefix = state["prefix"]
            self._beyond = sorted(state["beyond"])
            self._next = self._prefix
            begun = (*state["beyond"], *state["doing"])
            self._begun_end = max([self._prefix, *(position + 1 for position in begun)])
            self._end = state.get("end_step", 0)
            self._begun = set()
            self._attempts = dict(zip(state["doing"], state["attempts"], strict=True))
            self._num_attempts = state["num_attempts"]
            self._repeated = state["repeated"] + len(state["doing"])
            aside = [self._unit(position) for position in state.get("set_aside", [])]
            self._aside = {unit.position: unit.num_rows for unit in aside}
            again = (u.position for u in aside if not self.deaths.is_aside(self.name_of(u)))
            self._again = set(again)
            self._returned = sorted(self._again)

    def go_back(self, state: Mapping[str, Any], *, in_part: bool) -> tuple[list[Unit], int]:
        """Goes back to an earlier state of this stage.

        Units that were done since, or begun, are handed out again.

        Args:
          in_part: some servers keep what they applied. Until these units are done, a state lists
            them as units that may be partially applied. What was repeated since stays counted.

        Returns:
          The units that were done since, and how many units may visit rows again: those in progress
          in that state, and with `in_part` also those in progress now.
        """
        before = {*range(state["prefix"]), *state["beyond"]} - {*state.get("set_aside", ())}
        with self._lock:
            end, begun, attempts = self._next, self._begun, self._attempts
            counts = self._num_attempts, self._repeated
            done = {*range(self._prefix), *self._beyond} - {*self._aside} - self._again
        self.restore(state)
        again = sorted(done - before)
        if not in_part:
            with self._lock:
                return [self._unit(position) for position in again], len(state["doing"])
        with self._lock:
            # Counted as repeated once they are attempted again, as `begin` does.
            self._begun = begun | {p for p in state["doing"] if not self._is_done(p)}
            self._num_attempts, self._repeated = counts
            self._attempts |= attempts
            self._undone |= {*again}
            self._next = max(self._next, end)
            left = (p for p in range(self._prefix, self._next) if not self._is_done(p))
            self._returned = sorted({*self._returned, *left})
            return [self._unit(position) for position in again], len(self._begun)

    @property
    def num_undone(self) -> int:
        """Returns how many units are to do again that some servers have applied."""
        with self._lock:
            return len(self._undone)

    def _begin_stage(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state of other rows, or of other units of these."""
        made, now = state.get("made_of"), self._division.made_of
        if made is None:  # of earlier checkpoints
            raise UsageError(
                "the model directory was trained on other data, or with another batch_size, "
                "unit_rows, shuffle or seed than this run has, and its checkpoint is too old to "
                "go on from with these: use what it was trained with, or start a new model "
                "directory"
            )
        options = options_of(made, self._division.options.split)
        is_same = Division(self._dataset, options).fingerprint == state["dataset"]
        if "watched" in state or (is_same and self.grows):
            what = difference(made, now) if is_same else "the data to train on is another"
            raise UsageError(
                f"{what}, which a run that watches a directory cannot change: use what it was "
                "trained with, or start a new model directory"
            )
        self._dataset.as_before(state.get("columns", ()))
        stage = Stage.after(self._division, state)
        if is_same:
            stage = stage.taking_over(before_of(state), self._dataset)
            self._num_attempts = state["num_attempts"]
            self._repeated = state["repeated"] + len(state["doing"])
            self.changes = (
                f"{difference(made, now)}: this holds from the next epoch on, and "
                f"{len(stage.left)} units are left of the one before",
            )
        else:
            left, data = not_visited(state), state.get("data") or "the data before"
            rows = f"{left:,} rows" if left else "nothing"
            self.changes = (
                f"goes on with other data, {self._root.rstrip('/')}, from step {stage.first_step} "
                f"on; not visited of {data}: {rows}",
            )
        self._enter(stage)

    def _mark_done(self, unit: Unit) -> None:
        self._begun.discard(unit.position)
        self._undone.discard(unit.position)
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

    def _sums(self) -> tuple[int, int]:
        """Returns the steps and the visited rows of the stage's units that are done."""
        steps, rows = self._stage.sums(self._prefix, self._beyond)
        return steps, rows - sum(self._aside.values())

    def _unit(self, position: int) -> Unit:
        (path, first_row, num_rows), steps = self._stage.range_at(position)
        return Unit(
            position=position,
            path=path,
            first_row=first_row,
            num_rows=num_rows,
            first_step=self._stage.first_step + steps,
            seed=self._seed_of(position),
        )

    def _seed_of(self, position: int) -> int:
        return self._division.options.seed * 1_000_003 + position
