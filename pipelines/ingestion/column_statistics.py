"""What the steps learn from the rows to train on: moments of numbers, counts of ids.

Each file's rows give partial results; `fit` merges them in the order of the files, so that the fit
does not depend on the runner. Ids are counted in sorted pieces on disk, merged a range of hashes at
a time: memory does not grow with the number of distinct ids, but for those that are kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.ingestion.table_schema import Feature, Table
from pipelines.ingestion.transform_steps import MinCount, Standardize
from pipelines.ingestion.transforms import FOLDER_NAME, compute, numbers
from pipelines.ingestion.work_dir import FileRecord, WorkDir, replacing
from pipelines.splitmix import mix, unmix

_PIECE_IDS = 1 << 20
_MERGED_IDS = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Count, mean and sum of squared deviations of numbers."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Moments:
        """Returns the moments of the values that are not missing."""
        values = values[~np.isnan(values)]
        if not len(values):
            return cls()
        mean = float(values.mean())
        return cls(count=len(values), mean=mean, squares=float(((values - mean) ** 2).sum()))

    def __add__(self, other: Moments) -> Moments:
        """Chan et al. (1983)."""
        if not other.count:
            return self
        count = self.count + other.count
        delta = other.mean - self.mean
        return Moments(
            count=count,
            mean=self.mean + delta * other.count / count,
            squares=self.squares + other.squares + delta**2 * self.count * other.count / count,
        )

    @property
    def std(self) -> float:
        """Of a population."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0


class ColumnStatistics:
    """Gathers what one file's rows give to the fit."""

    def __init__(self, table: Table, work: WorkDir, file_index: int) -> None:
        self._work, self._file_index = work, file_index
        self._features = [(f, at) for f in table.features if (at := f.first_unfitted) is not None]
        self.moments: dict[str, Moments] = {}
        self._pending: dict[str, list[_Counts]] = {}
        self._num_pieces: dict[str, int] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds rows to train on."""
        for feature, at in self._features:
            if isinstance(feature.steps[at], Standardize):
                moments = Moments.of(numbers(feature, rows, at))
                self.moments[feature.name] = self.moments.get(feature.name, Moments()) + moments
            else:
                ids = compute(feature, rows, at)
                ids = ids.flatten() if pa.types.is_list(ids.type) else ids
                self._count(feature.name, ids.to_numpy())

    def _count(self, name: str, ids: NDArray[np.int64]) -> None:
        hashes, counts = np.unique(mix(ids.astype(np.uint64)), return_counts=True)
        pending = self._pending.setdefault(name, [])
        pending.append((hashes, counts))
        if sum(len(piece) for piece, _ in pending) >= _PIECE_IDS:
            self._write_piece(name)

    def _write_piece(self, name: str) -> None:
        hashes, counts = _merged(self._pending.pop(name))
        number = self._num_pieces.get(name, 0)
        self._num_pieces[name] = number + 1
        path = self._work.counts(self._file_index, name, number)
        with replacing(path) as temporary, open(temporary, "wb") as out:
            np.save(out, np.stack([hashes, counts.astype(np.uint64)]))

    def finish(self) -> dict[str, int]:
        """Writes what is pending; returns the number of pieces of each feature's counts."""
        for name in list(self._pending):
            self._write_piece(name)
        return self._num_pieces


_Counts = tuple[NDArray[np.uint64], NDArray[np.integer]]


def _merged(parts: Sequence[_Counts]) -> _Counts:
    hashes = np.concatenate([np.empty(0, np.uint64), *(part for part, _ in parts)])
    counts = np.concatenate([np.empty(0, np.int64), *(c.astype(np.int64) for _, c in parts)])
    order = np.argsort(hashes, kind="stable")
    hashes, counts = hashes[order], counts[order]
    first = np.ones(len(hashes), np.bool_)
    first[1:] = hashes[1:] != hashes[:-1]
    starts = np.flatnonzero(first)
    return hashes[starts], np.add.reduceat(counts, starts) if len(starts) else counts


def fit(table: Table, work: WorkDir, files: Sequence[FileRecord]) -> Table:
    """Returns the table with every step fitted; `files` are in order."""
    return table.with_features(tuple(_fit(feature, work, files) for feature in table.features))


def _fit(feature: Feature, work: WorkDir, files: Sequence[FileRecord]) -> Feature:
    at = feature.first_unfitted
    if at is None:
        return feature
    step = feature.steps[at]
    if isinstance(step, Standardize):
        moments = sum((f.moments.get(feature.name, Moments()) for f in files), Moments())
        step = replace(step, mean=moments.mean, std=moments.std)
    elif isinstance(step, MinCount):
        paths = [
            work.counts(file.index, feature.name, number)
            for file in files
            for number in range(file.num_count_pieces.get(feature.name, 0))
        ]
        kept = _frequent(paths, step.count)
        step = replace(step, kept=kept, file=f"{FOLDER_NAME}/{feature.name}.arrow")
    return replace(feature, steps=(*feature.steps[:at], step, *feature.steps[at + 1 :]))


def _frequent(paths: Sequence[Path], least: int) -> NDArray[np.int64]:
    """Returns the ids of at least so many counts in all pieces, ascending."""
    pieces = [np.load(path, mmap_mode="r") for path in paths]
    num_ranges = max(1, -(-sum(piece.shape[1] for piece in pieces) // _MERGED_IDS))
    bounds = [(i << 64) // num_ranges for i in range(num_ranges)]
    kept = [np.empty(0, np.int64)]
    for i, low in enumerate(bounds):
        parts = []
        for piece in pieces:
            start = np.searchsorted(piece[0], np.uint64(low))
            last = i + 1 == num_ranges
            stop = piece.shape[1] if last else np.searchsorted(piece[0], np.uint64(bounds[i + 1]))
            parts.append((piece[0, start:stop], piece[1, start:stop]))
        hashes, counts = _merged(parts)
        kept.append(unmix(hashes[counts >= least]).astype(np.int64))
    return np.sort(np.concatenate(kept))
