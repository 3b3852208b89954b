"""Stages: a model goes on with other rows, or with the same rows divided into other units.

A ledger's positions count the units of its stage. Step numbers go on: a stage's first step comes
after all that earlier stages may have used. Of the same rows, a stage first visits what is left of
the epochs that were begun, in the units of before, and then whole epochs in its own.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embedps.data.dataset import Dataset
from embedps.errors import CorruptCheckpointError
from embedps.scheduling.division import Division, Range, options_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """Maps positions to units.

    Attributes:
      division: of the stage's own epochs.
      first_step: the number of its first step.
      history: the stages before, oldest first, as `entry_of` describes them.
      before: the ledger's state in which the same rows were divided in another way; None if this is
        the first division of these rows.
      left: the ranges that are left of that division's epochs.
      left_epoch: the epoch of the first of them.
      first_epoch: the epoch after the last of them, which is the first of the stage's own.
      units_before: how many units of these rows were done in stages before.
      rows_before: how many of these rows were visited in stages before, over all epochs.
    """

    division: Division
    first_step: int = 0
    history: tuple[Mapping[str, Any], ...] = ()
    before: Mapping[str, Any] | None = None
    left: tuple[Range, ...] = ()
    left_epoch: int = 0
    first_epoch: int = 0
    units_before: int = 0
    rows_before: int = 0

    @classmethod
    def restored(cls, division: Division, state: Mapping[str, Any], dataset: Dataset) -> Stage:
        """Gives the stage of a ledger's state whose own division this is."""
        stored = state.get("stage", {})
        stage = cls(
            division=division,
            first_step=stored.get("first_step", 0),
            history=tuple(stored.get("history", ())),
        )
        before = stored.get("before")
        return stage if before is None else stage.taking_over(before, dataset)

    @classmethod
    def after(cls, division: Division, state: Mapping[str, Any]) -> Stage:
        """Makes the stage that follows on a ledger's state of other rows."""
        history = (*state.get("stage", {}).get("history", ()), entry_of(state))
        return cls(division=division, first_step=end_step(state), history=history)

    def taking_over(self, state: Mapping[str, Any], dataset: Dataset) -> Stage:
        """Gives this stage with what a state of another division of these rows has left.

        Raises:
          CorruptCheckpointError: the state is of other rows.
        """
        options = options_of(state["made_of"], self.division.options.split)
        division = Division(dataset, options)
        if state["dataset"] != division.fingerprint:
            raise CorruptCheckpointError(
                "the last checkpoint's ledger.stage.before must be of the rows of its ledger: go "
                "back to an earlier one by `embedps checkpoint rollback`"
            )
        before = Stage.restored(division, state, dataset)
        beyond, aside = set(state["beyond"]), set(state.get("set_aside", ()))
        end, per = max([state["prefix"], *(p + 1 for p in beyond)]), len(division.ranges)
        begun = -(-max(end - len(before.left), 0) // per)
        epochs, end = before.first_epoch + begun, len(before.left) + begun * per
        positions = [p for p in range(state["prefix"], end) if p not in beyond]
        positions = sorted({*positions, *aside})
        done = state["prefix"] + len(beyond) - len(aside)
        _, rows = before.sums(state["prefix"], state["beyond"])
        ranges = tuple(before.range_at(position)[0] for position in positions)
        rows -= sum(before.range_at(position)[0][2] for position in aside)
        return dataclasses.replace(
            self,
            before=state,
            left=ranges,
            left_epoch=before.epoch_of(positions[0]) if positions else epochs,
            first_epoch=epochs,
            units_before=before.units_before + done,
            rows_before=before.rows_before + rows,
        )

    def to_json(self) -> dict[str, Any]:
        """Gives the field "stage" of a ledger's state."""
        before = {} if self.before is None else {"before": dict(self.before)}
        return {"first_step": self.first_step, "history": [*map(dict, self.history)], **before}

    @property
    def first_step_of_rows(self) -> int:
        """The first step of the first division of these rows."""
        first, before = self.first_step, self.before
        for entry in reversed(self.history):
            if before is None:
                break
            first, before = entry["first_step"], before.get("stage", {}).get("before")
        return int(first)

    def num_units(self, epochs: int) -> int:
        """Counts the units until so many epochs of the rows are done, earlier stages' included."""
        left = len(self.left) if epochs > self.left_epoch else 0
        return left + len(self.division.ranges) * max(epochs - self.first_epoch, 0)

    def num_steps(self, epochs: int) -> int:
        """Counts the steps of `num_units`, and those of what is left in any case."""
        own = max(epochs - self.first_epoch, 0)
        return self._left_steps[-1] + own * self.division.steps_per_epoch

    def epoch_of(self, position: int) -> int:
        """Gives the epoch of a unit; of several that are left, the first one."""
        own = position - len(self.left)
        return self.left_epoch if own < 0 else self.first_epoch + own // len(self.division.ranges)

    def epoch_at(self, position: int) -> tuple[int, int]:
        """Gives the first position of a unit's epoch, and how many units this stage has of it."""
        left, per = len(self.left), len(self.division.ranges)
        return (0, left) if position < left else (position - (position - left) % per, per)

    def range_at(self, position: int) -> tuple[Range, int]:
        """Gives a unit's range, and how many steps of the stage are before it."""
        if position < len(self.left):
            return self.left[position], self._left_steps[position]
        epoch, k = divmod(position - len(self.left), len(self.division.ranges))
        found, steps = self.division.unit(self.first_epoch + epoch, k)
        return found, self._left_steps[-1] + epoch * self.division.steps_per_epoch + steps

    def sums(self, prefix: int, others: Sequence[int]) -> tuple[int, int]:
        """Counts the steps and the rows of all units below a position, and of some others."""
        division, left = self.division, self.left
        epochs, rest = divmod(max(prefix - len(left), 0), len(division.ranges))
        whole = min(prefix, len(left))
        singles = [*range(prefix - rest, prefix), *others]
        rows = [self.range_at(position)[0][2] for position in singles]
        steps = self._left_steps[whole] + epochs * division.steps_per_epoch
        of_left = sum(rows for _, _, rows in left[:whole])
        return (
            steps + sum(map(division.options.steps, rows)),
            of_left + epochs * division.rows_per_epoch + sum(rows),
        )

    @functools.cached_property
    def _left_steps(self) -> list[int]:
        """The steps before each of the ranges that are left, and those of all."""
        each = [self.division.options.steps(rows) for _, _, rows in self.left]
        return [0, *np.cumsum(each, dtype=np.int64).tolist()]


def end_step(state: Mapping[str, Any]) -> int:
    """Gives the number after all steps that a ledger's stage may have taken, by its state."""
    if "end_step" in state:
        return int(state["end_step"])
    made = state["made_of"]  # earlier versions stored no number: a unit has at most so many
    begun = [state["prefix"], *(position + 1 for position in (*state["beyond"], *state["doing"]))]
    return int(max(begun) * -(-made["unit_rows"] // made["batch_size"]))


def entry_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Describes a stage that has ended, by its ledger's last state."""
    visited = state.get("visited", {})
    return {
        "data": state.get("data", ""),
        "dataset": state["dataset"],
        "rows": state["made_of"]["rows"],
        "visited_rows": visited.get("rows", 0),
        "steps": visited.get("steps", 0),
        "first_step": state.get("stage", {}).get("first_step", 0),
    }


def not_visited(state: Mapping[str, Any]) -> int:
    """Counts the rows that a ledger's state has left to visit, in all epochs that were asked."""
    per_epoch, visited = state["made_of"]["rows"], state.get("visited", {})
    rows = visited.get("rows", 0)
    asked = visited.get("of", -(-rows // max(per_epoch, 1)) * per_epoch)
    return int(max(asked - rows, 0))


def before_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Keeps of a ledger's state what tells which of its units are done."""
    kept = ("dataset", "made_of", "units_per_epoch", "prefix", "beyond", "set_aside")
    found = {name: state[name] for name in kept if name in state}
    if (before := state.get("stage", {}).get("before")) is not None:
        found["stage"] = {"before": before}
    return found
