"""One scoring of a split by every process that joins: each scores units that no other one has.

    MODEL_DIR/_scoring/<manifest>-<split>/<unit>-<process>.claim    a process scores this unit
    MODEL_DIR/_scoring/<manifest>-<split>/<unit>-<process>.counts   its counts, as a dense file

A claim only tells others where to begin. A unit's counts are the same whoever computed them, so a
unit that two processes score costs time and no more. All counts are added in the units' order, so
the scores have the bits of one process. Processes come and go: the units of one that died are
scored by those that waited for them.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from embedps.checkpoint.format.dense import read_dense, write_dense
from embedps.errors import CheckpointError, CorruptCheckpointError
from embedps.metrics import Counts
from embedps.run.summary import read_evaluations
from embedps.storage.file_io import store_of, write_bytes

FOLDER = "_scoring"
_PATIENCE_SECS = 60.0
_POLL_SECS = 0.2
_MERGE = "all"

Arrays = Mapping[str, np.ndarray]


class SharedScoring:
    """Scores checkpoints together with other processes, by files in the model directory."""

    def __init__(
        self, model_dir: Path, *, split: str, patience_secs: float = _PATIENCE_SECS
    ) -> None:
        """Writes nothing yet.

        Args:
          model_dir: the run's directory.
          split: a digest of the split and of its units: others score something else.
          patience_secs: how long no unit of others may end before theirs are scored here.
        """
        self._model_dir, self._split = model_dir, split
        self._all = model_dir / FOLDER
        self._patience_secs = patience_secs
        self._process = uuid.uuid4().hex

    def begun(self) -> int | None:
        """Returns the number of the newest manifest that others score; None if they score none."""
        scored = self.scored()
        open_ones = [n for n, split in self._folders() if split == self._split and n > scored]
        return max(open_ones, default=None)

    def scored(self) -> int:
        """Returns the number of the newest manifest that evaluation.jsonl has; -1 if none."""
        return max((each["number"] for each in read_evaluations(self._model_dir)), default=-1)

    def clean(self) -> None:
        """Removes what is left of scorings that are over."""
        scored = self.scored()
        for number, split in self._folders():
            if number <= scored:
                with contextlib.suppress(OSError):  # another process removes it too
                    store_of(self._all).remove_directory(self._folder(number, split))

    def counts(
        self, number: int, units: Sequence[int], score: Callable[[int], Counts]
    ) -> list[Arrays] | None:
        """Scores what no other process does, and waits for theirs.

        Args:
          number: of the manifest.
          units: the positions of all units, in order.
          score: scores a unit.

        Returns:
          The counts of all units, in order, for the one process that logs the scores; None for the
          others, whose scores are in evaluation.jsonl.

        Raises:
          CheckpointError: the directory cannot be written.
        """
        self.clean()
        try:
            return self._counts(number, units, score)
        except CheckpointError:
            if self.scored() >= number:  # then others have removed the folder
                return None
            raise

    def _counts(
        self, number: int, units: Sequence[int], score: Callable[[int], Counts]
    ) -> list[Arrays] | None:
        folder = self._folder(number, self._split)
        found: dict[int, Arrays] = {}

        def score_here(unit: int) -> None:
            found[unit] = {name: np.asarray(value) for name, value in score(unit).items()}
            path = folder / f"{unit}-{self._process}.counts"
            write_dense(path, found[unit], root=self._model_dir)

        first = int(self._process, 16) % len(units)  # each begins elsewhere, so they seldom meet
        for unit in (*units[first:], *units[:first]):
            if self.scored() >= number:
                return None
            if not self._claims(folder, unit):
                self._claim(folder, unit)
                score_here(unit)

        last_change = time.monotonic()
        while missing := [unit for unit in units if unit not in found]:
            if self.scored() >= number:
                return None
            if more := dict(_read(folder, missing)):
                found |= more
                last_change = time.monotonic()
            elif time.monotonic() - last_change >= self._patience_secs:
                score_here(missing[0])
            else:
                time.sleep(_POLL_SECS)

        # Should two think that they are first, a line is there twice.
        if not self._claims(folder, _MERGE):
            self._claim(folder, _MERGE)
        deadline = time.monotonic() + self._patience_secs
        while min(self._claims(folder, _MERGE), default=self._process) != self._process:
            if self.scored() >= number:
                return None
            if time.monotonic() >= deadline:
                break
            time.sleep(_POLL_SECS)
        return None if self.scored() >= number else [found[unit] for unit in units]

    def _claim(self, folder: Path, what: int | str) -> None:
        write_bytes(folder / f"{what}-{self._process}.claim", b"")

    def _claims(self, folder: Path, what: int | str) -> list[str]:
        """Lists the processes that claim a unit, or the sum of all."""
        names = store_of(folder).names_in(folder)
        begin = f"{what}-"
        return [
            name.removeprefix(begin).removesuffix(".claim")
            for name in names
            if name.startswith(begin) and name.endswith(".claim")
        ]

    def _folders(self) -> Iterator[tuple[int, str]]:
        for name in store_of(self._all).names_in(self._all):
            number, _, split = name.partition("-")
            if number.isascii() and number.isdigit() and split:
                yield int(number), split

    def _folder(self, number: int, split: str) -> Path:
        return self._all / f"{number}-{split}"


def _read(folder: Path, units: Sequence[int]) -> Iterator[tuple[int, Arrays]]:
    """Reads the counts of units that others have scored."""
    wanted = {str(unit): unit for unit in units}
    for name in store_of(folder).names_in(folder):
        unit, _, rest = name.partition("-")
        if unit in wanted and rest.endswith(".counts"):
            with contextlib.suppress(CorruptCheckpointError):  # it was removed; or scored again
                yield wanted[unit], read_dense(folder / name)
