"""By which columns scores are divided: groups of a GAUC, slices of values, ids that are new."""

from __future__ import annotations

import dataclasses
from typing import Any

from embedps.config_fields import MAX_COUNT, check, option
from embedps.errors import UsageError
from embedps.score_names import slice_of, stem

KNOWN = "known:"
"""Before a column of ids: its slices are ids of rows that training has updated, and new ids."""

BYTES_PER_EXAMPLE = 200
"""Memory of a scoring with slices, at its peak (measured of 4M: 151 with a GAUC alone, 168 with a
column of slices beside it, 199 with three)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SliceOptions:
    """How the scores of a split are divided."""

    gauc: str | None = option(
        None,
        "also score by GAUC: the mean AUC per value of this column, such as a user's id, by their "
        "examples",
        metavar="COLUMN",
    )
    slices: tuple[str, ...] = option(
        (),
        "also score each slice: the values of columns of ids or keys, the hours (UTC) of the time, "
        "or with known:COLUMN the ids that are new and those that training has seen",
        metavar="COLUMN",
        several=True,
    )
    max_slices: int = option(
        20, "the most frequent values per column; all others are one slice", least=1, most=1000
    )
    max_slice_examples: int = option(
        10_000_000,
        f"with --gauc or --slices: the most examples to score; about {BYTES_PER_EXAMPLE} bytes of "
        "memory each",
        least=1,
        most=MAX_COUNT,
    )

    def __post_init__(self) -> None:
        check(self)
        if repeated := sorted({c for c in self.slices if self.slices.count(c) > 1}):
            raise UsageError(f"slices must name each column once but repeats {repeated[0]!r}")

    @property
    def divides(self) -> bool:
        """Whether anything is asked for."""
        return bool(self.gauc or self.slices)

    @property
    def divided_by(self) -> dict[str, Any]:
        """The options' values, for another config that has them."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(SliceOptions)}

    def check_metric(self, metric: str) -> None:
        """Checks that a score to go by is among what is asked for, as far as its name tells.

        Raises:
          UsageError: it is of a slice or of groups that nobody asked for.
        """
        slice_ = slice_of(metric)
        if slice_ and not any(slice_.startswith(f"{column}=") for column in self.slices):
            asked = ", ".join(self.slices) or "none"
            raise UsageError(
                f"metric {metric!r} is of a slice, COLUMN=VALUE, of a column of --slices, which "
                f"are {asked}: give --slices {slice_.partition('=')[0]}"
            )
        if stem(metric).endswith("gauc") and self.gauc is None:
            raise UsageError(f"metric {metric!r} needs --gauc COLUMN: the column of the groups")
