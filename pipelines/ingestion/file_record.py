"""What stages tell each other: the record of one parsed input file, and of rows in the splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..moments import Moments
from .sorted_runs import SortedRunRecord
from .user_runs import UserRunRecord


@dataclass(frozen=True, kw_only=True)
class DividedRows:
    """The runs of some rows, and what the fit needs of those to train on.

    Attributes:
      index: the order of these rows among all, from 0.
      drawn: whether the rows are negatives that were drawn, not read.
      users_left: users with too few rows to hold one out.
      rows_left: rows without a user, which are not held out.
    """

    index: int
    runs: tuple[SortedRunRecord, ...]
    moments: Mapping[str, Moments] = field(default_factory=dict)
    num_count_pieces: Mapping[str, int] = field(default_factory=dict)
    drawn: bool = False
    users_left: int = 0
    rows_left: int = 0


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """One input file after parsing; `name` is its name in reports."""

    index: int
    name: str
    bytes: int
    xxh3_64: str
    lines: int
    """Records that should be rows; a header does not count."""
    lines_bad: int
    divided: DividedRows | None
    """The rows in the splits; None if the users' other rows decide."""
    user_runs: tuple[UserRunRecord, ...] = ()
    damage: str = ""
    """Why an unknown number of rows is lost: the file is cut, damaged or gone."""
    undeclared: tuple[str, ...] = ()
    """The columns of a text file's header that the table does not declare."""
    absent: tuple[str, ...] = ()
    """The declared columns that no object of a file of JSON Lines has."""
    unmatched: tuple[int, ...] = ()
    """By join, how many good rows have no row in its side table."""
    without_key: tuple[int, int] = (0, 0)
    """How many rows have no value of --split-key, and how many of these are held out."""
    missing_elements: Mapping[str, int] = field(default_factory=dict)
    """By column of lists, how many elements are texts that mean a missing value elsewhere."""
    num_text_pieces: tuple[int, ...] = ()
    """By the columns whose texts are kept."""


def in_order(files: Sequence[FileRecord]) -> list[FileRecord]:
    """Sorts records by the files' order; a runner returns them in any order."""
    return sorted(files, key=lambda file: file.index)


def all_runs(divided: Sequence[DividedRows]) -> list[SortedRunRecord]:
    """Lists the runs in the order of their rows; a runner returns the parts in any order."""
    return [run for part in sorted(divided, key=lambda part: part.index) for run in part.runs]
