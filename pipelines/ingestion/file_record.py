"""The record of one parsed input file, which later stages read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..moments import Moments
from .sorted_runs import SortedRunRecord


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
    runs: tuple[SortedRunRecord, ...]
    damage: str = ""
    """Why an unknown number of rows is lost: the file is cut, damaged or gone."""
    undeclared: tuple[str, ...] = ()
    """The columns of a text file's header that the table does not declare."""
    absent: tuple[str, ...] = ()
    """The declared columns that no object of a file of JSON Lines has."""
    moments: Mapping[str, Moments] = field(default_factory=dict)
    num_count_pieces: Mapping[str, int] = field(default_factory=dict)
    num_text_pieces: tuple[int, ...] = ()
    """By the columns whose texts are kept."""


def in_order(files: Sequence[FileRecord]) -> list[FileRecord]:
    """Sorts records by the files' order; a runner returns them in any order."""
    return sorted(files, key=lambda file: file.index)
