"""The arrivals: the files that a run took from the directory that it watches, in their order.

    MODEL_DIR/_arrivals/<index of the first>.json    files, listed before they are trained

The list decides which files were taken, in which order: no clock and no name does. A file that is
listed is not taken again. The position of each of its units follows from the list, so a checkpoint
needs only to say which positions are done.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embedps.checkpoint.format.manifest import is_count
from embedps.errors import CorruptCheckpointError
from embedps.storage import file_io

FOLDER = "_arrivals"
_MAX_FILES = 1000  # that many become one


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arrival:
    """A file that was taken.

    Attributes:
      path: within the watched directory.
      row_groups: the rows of each; none if it was refused.
      refused: why it cannot be trained; empty if it can.
      scores: of its rows, by the model before it trained on them.
      event_ms: the least timestamp of its rows, in milliseconds since 1970; None if the dataset has
        no timestamps, or the file no statistics of them.
      time: when it was taken, in seconds since 1970.
    """

    path: str
    row_groups: tuple[int, ...] = ()
    refused: str = ""
    scores: Mapping[str, float | None] = dataclasses.field(default_factory=dict)
    time: float = 0.0
    event_ms: int | None = None

    @property
    def rows(self) -> int:
        """The rows of the file."""
        return sum(self.row_groups)


class Arrivals:
    """The list of a run."""

    def __init__(self, model_dir: Path) -> None:
        """Reads the list of a model directory.

        Raises:
          CorruptCheckpointError: a file of it is damaged or absent.
        """
        self._folder = model_dir / FOLDER
        self.files: list[Arrival] = []
        self._unmerged: list[Path] = []
        found = sorted(p for p in self._folder.glob("*.json")) if self._folder.exists() else []
        for path in found:
            first, listed = _read(path)
            if first > len(self.files):
                raise CorruptCheckpointError(
                    f"{self._folder}: expected file {len(self.files)}, found {path.name}: restore "
                    "the folder from a copy, or start a new model directory"
                )
            more = listed[len(self.files) - first :]
            if not more and first < len(self.files):  # an ended merge left it
                path.unlink(missing_ok=True)
                continue
            self.files += more
            if len(listed) < _MAX_FILES:
                self._unmerged.append(path)

    def append(self, arrivals: Sequence[Arrival]) -> None:
        """Adds files to the list, durably.

        Raises:
          CheckpointError: it cannot be written.
        """
        file_io.store_of(self._folder).make_directories(self._folder)
        self._unmerged.append(self._write(len(self.files), arrivals))
        self.files += arrivals
        if len(self._unmerged) >= _MAX_FILES:
            self._merge()

    def _write(self, first: int, arrivals: Sequence[Arrival]) -> Path:
        document = [dataclasses.asdict(each) for each in arrivals]
        text = json.dumps(document) + "\n"  # ASCII: a name may have bytes that are no UTF-8
        path = self._folder / f"{first:012d}.json"
        file_io.write_bytes(path, text.encode())
        return path

    def _merge(self) -> None:
        """Writes what was listed since the last merge into one file."""
        first, *others = self._unmerged
        self._write(int(first.stem), self.files[int(first.stem) :])
        for path in others:
            path.unlink(missing_ok=True)
        self._unmerged = []


def _read(path: Path) -> tuple[int, list[Arrival]]:
    try:
        document = json.loads(file_io.read_bytes(path))
        return int(path.stem), [_decode(each) for each in document]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptCheckpointError(
            f"{path}: must be a list of watched files: {error}: restore it from a copy, or start a "
            "new model directory"
        ) from error


def _decode(node: Any) -> Arrival:
    arrival = Arrival(**{**node, "row_groups": tuple(node["row_groups"])})
    fits = isinstance(arrival.path, str) and all(map(is_count, arrival.row_groups))
    if not fits or not isinstance(arrival.event_ms, int | None):
        raise TypeError(f"{node!r:.80}")
    return arrival
