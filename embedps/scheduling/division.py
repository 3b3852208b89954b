"""How a split is divided into units: their ranges of rows, and their order in each epoch."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from embedps.data.dataset import Dataset
from embedps.errors import UsageError
from embedps.run.config import TrainConfig

Range = tuple[str, int, int]
"""A file, its first row, and how many."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerOptions:
    """Says how a split is divided into units, and in which order they are visited.

    Attributes:
      inner_share: of each unit, the share of its rows that is left out.
      inner_fold: which share: 0 is at the unit's end, 1 is before it.
      inner: these rows are the units instead.
    """

    split: str = "train"
    batch_rows: int
    unit_rows: int
    shuffle: bool = True
    seed: int = 0
    # Not in repr: the fingerprints of runs without inner rows are hashes of it.
    inner_share: float = dataclasses.field(default=0.0, repr=False)
    inner_fold: int = dataclasses.field(default=0, repr=False)
    inner: bool = dataclasses.field(default=False, repr=False)

    def __post_init__(self) -> None:
        if self.batch_rows < 1 or self.unit_rows < self.batch_rows:
            raise UsageError(
                "a unit must hold at least one batch, and a batch at least one row, but got "
                f"unit_rows={self.unit_rows} and batch_rows={self.batch_rows}"
            )

    @classmethod
    def of_run(cls, config: TrainConfig, *, inner: bool = False) -> LedgerOptions:
        """Gives what a run trains on, or its inner rows."""
        return cls(
            batch_rows=config.batch_size,
            unit_rows=config.unit_rows,
            shuffle=config.shuffle,
            seed=config.seed,
            inner_share=config.evaluation.inner_share,
            inner_fold=config.evaluation.inner_fold,
            inner=inner,
        )

    def steps(self, rows: int) -> int:
        """Counts the steps of a unit; the last one may have fewer rows."""
        return -(-rows // self.batch_rows)

    def chosen(self, whole: Range) -> list[Range]:
        """Gives what units have of a range of rows: two parts if it is left out between them."""
        path, first, rows = whole
        left_out = int(rows * self.inner_share)
        after = left_out * self.inner_fold
        before = rows - after - left_out
        if self.inner:
            return [(path, first + before, left_out)]
        return [(path, first, before), (path, first + rows - after, after)]


class Division:
    """A split as units.

    Attributes:
      options: how it is divided.
      ranges: of the units, in the order of the files.
      fingerprint: a hash of what determines the sequence of units, but not the dataset's place.
      made_of: what a user can compare of that, by the user's names.
    """

    def __init__(self, dataset: Dataset, options: LedgerOptions) -> None:
        """Divides a split; raises UsageError if it has no rows."""
        self.options = options
        self.ranges = split_into_ranges(dataset, options)
        inner = f" inner_share={options.inner_share}" if options.inner_share else ""
        inner += f" inner_fold={options.inner_fold}" if options.inner_fold else ""
        self.fingerprint = _hash(repr(options) + inner, dataset, options.split)
        self.made_of = _made_of(dataset, options, self.rows_per_epoch)
        self._epoch = -1
        self._order: list[int] = []
        self._first_steps: list[int] = []

    @functools.cached_property
    def rows_per_epoch(self) -> int:
        """The rows of an epoch."""
        return sum(rows for _, _, rows in self.ranges)

    @functools.cached_property
    def steps_per_epoch(self) -> int:
        """The steps of an epoch."""
        return sum(self.options.steps(rows) for _, _, rows in self.ranges)

    def unit(self, epoch: int, k: int) -> tuple[Range, int]:
        """Gives the range of an epoch's k-th unit, and how many steps of the epoch are before it.

        For one thread at a time.
        """
        if epoch != self._epoch:
            order = np.arange(len(self.ranges))
            if self.options.shuffle:
                np.random.default_rng([self.options.seed, epoch]).shuffle(order)
            self._order = order.tolist()
            steps = [self.options.steps(self.ranges[i][2]) for i in self._order]
            self._first_steps = [0, *np.cumsum(steps)[:-1].tolist()]
            self._epoch = epoch
        return self.ranges[self._order[k]], self._first_steps[k]


def split_into_ranges(dataset: Dataset, options: LedgerOptions) -> list[Range]:
    """Splits a split's files into ranges (path, first row, rows) of at most `unit_rows`.

    A range ends at the end of a row group, unless a row group is larger than a unit.
    """
    ranges: list[Range] = []
    split = dataset.split(options.split)
    for file in split.files:
        path = str(dataset.absolute_path(file))
        first = 0
        pending = 0
        for group in [*file.row_groups, None]:  # None: the file's end
            if group is None or pending + group > options.unit_rows:
                for start in range(0, pending, options.unit_rows):
                    rows = min(options.unit_rows, pending - start)
                    ranges += options.chosen((path, first + start, rows))
                first += pending
                pending = 0
            pending += group or 0
    ranges = [each for each in ranges if each[2]]
    if not ranges:
        which = (
            f"has no {options.inner_share:g} of a unit's rows" if options.inner else "has no rows"
        )
        raise UsageError(f"{dataset.directory}: split {options.split!r} {which}")
    return ranges


def _made_of(dataset: Dataset, options: LedgerOptions, rows: int) -> dict[str, Any]:
    """Gives what a user can compare of what determines the units, by the user's names."""
    files = dataset.split(options.split).files
    return {
        "batch_size": options.batch_rows,
        "unit_rows": options.unit_rows,
        "shuffle": options.shuffle,
        "seed": options.seed,
        "rows": rows,
        "files": len(files),
        **({"inner_share": options.inner_share} if options.inner_share else {}),
        **({"inner_fold": options.inner_fold} if options.inner_fold else {}),
    }


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Says which options differ, given `made_of` of two divisions of the same rows."""
    return "; ".join(
        f"{name} is {now.get(name, 0)}, the checkpoint has {before.get(name, 0)}"
        for name in {**now, **before}
        if before.get(name, 0) != now.get(name, 0)
    )


def options_of(made: Mapping[str, Any], split: str) -> LedgerOptions:
    """Gives the options that `made_of` tells."""
    return LedgerOptions(
        split=split,
        batch_rows=made["batch_size"],
        unit_rows=made["unit_rows"],
        shuffle=made["shuffle"],
        seed=made["seed"],
        inner_share=made.get("inner_share", 0.0),
        inner_fold=made.get("inner_fold", 0),
    )


def rows_digest(dataset: Dataset, split: str) -> str:
    """Hashes a split's files, in whatever way they are divided, but not the dataset's place."""
    return _hash("", dataset, split)


def _hash(first: str, dataset: Dataset, split: str) -> str:
    h = hashlib.sha256(first.encode())
    for file in dataset.split(split).files:
        h.update(f"{file.path} {file.rows} {file.xxh3_64} {file.row_groups}\n".encode())
    return h.hexdigest()[:32]
