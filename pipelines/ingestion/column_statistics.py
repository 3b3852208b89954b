"""Column statistics that fit the transforms: moments of numbers, counts of ids.

Only the rows to train on count. Each file gives partial statistics; `fit_features` merges them in
the order of the files, so the fit does not depend on the runner. Ids are counted in sorted pieces
on disk, which are merged one range of hashes at a time: memory grows only with the number of ids
that are kept, not with the number of distinct ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from embedps.features.table_columns import Feature
from embedps.features.table_schema import Table
from embedps.features.transform_steps import RareIds, Standardize
from embedps.features.transforms import FOLDER_NAME, compute_feature, compute_numbers
from embedps.splitmix import mix, unmix
from embedps.storage.file_io import replacing

from ..moments import Moments
from .file_record import DividedRows
from .work_dir import WorkDir

_PIECE_IDS = 1 << 20
_MERGED_IDS = 1 << 22


class ColumnStatistics:
    """Gathers the statistics of one file's rows."""

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
                moments = Moments.of(compute_numbers(feature, rows, at))
                self.moments[feature.name] = self.moments.get(feature.name, Moments()) + moments
            else:
                ids = compute_feature(feature, rows, at)
                ids = ids.flatten() if pa.types.is_list(ids.type) else ids
                self._count(feature.name, ids.to_numpy())

    def _count(self, name: str, ids: NDArray[np.int64]) -> None:
        hashes, counts = np.unique(mix(ids.astype(np.uint64)), return_counts=True)
        pending = self._pending.setdefault(name, [])
        pending.append((hashes, counts))
        if sum(len(piece) for piece, _ in pending) >= _PIECE_IDS:
            self._write_piece(name)

    def _write_piece(self, name: str) -> None:
        hashes, counts = _merge_counts(self._pending.pop(name))
        number = self._num_pieces.get(name, 0)
        self._num_pieces[name] = number + 1
        path = self._work.counts(self._file_index, name, number)
        with replacing(path) as temporary, open(temporary, "wb") as out:
            np.save(out, np.stack([hashes, counts.astype(np.uint64)]))

    def finish(self) -> dict[str, int]:
        """Writes the counts still in memory; returns the number of pieces of each feature."""
        for name in list(self._pending):
            self._write_piece(name)
        return self._num_pieces


_Counts = tuple[NDArray[np.uint64], NDArray[np.integer]]


def _merge_counts(parts: Sequence[_Counts]) -> _Counts:
    """Adds up the counts of equal hashes; returns the hashes ascending."""
    hashes = np.concatenate([np.empty(0, np.uint64), *(part for part, _ in parts)])
    counts = np.concatenate([np.empty(0, np.int64), *(c.astype(np.int64) for _, c in parts)])
    order = np.argsort(hashes, kind="stable")
    hashes, counts = hashes[order], counts[order]
    first = np.ones(len(hashes), np.bool_)
    first[1:] = hashes[1:] != hashes[:-1]
    starts = np.flatnonzero(first)
    return hashes[starts], np.add.reduceat(counts, starts) if len(starts) else counts


def fit_features(table: Table, work: WorkDir, parts: Sequence[DividedRows]) -> Table:
    """Fits every step of a table's features; `parts` are in order."""
    return table.with_features(
        tuple(_fit_feature(feature, work, parts) for feature in table.features)
    )


def _fit_feature(feature: Feature, work: WorkDir, parts: Sequence[DividedRows]) -> Feature:
    at = feature.first_unfitted
    if at is None:
        return feature
    step = feature.steps[at]
    if isinstance(step, Standardize):
        moments = sum((p.moments.get(feature.name, Moments()) for p in parts), Moments())
        step = replace(step, mean=moments.mean, std=moments.std)
    elif isinstance(step, RareIds):
        paths = [
            work.counts(part.index, feature.name, number)
            for part in parts
            for number in range(part.num_count_pieces.get(feature.name, 0))
        ]
        kept = _frequent_ids(paths, step.count)
        step = replace(step, kept=kept, file=f"{FOLDER_NAME}/{feature.name}.arrow")
    return replace(feature, steps=(*feature.steps[:at], step, *feature.steps[at + 1 :]))


def _frequent_ids(paths: Sequence[Path], min_count: int) -> NDArray[np.int64]:
    """Returns the ids that all pieces together count at least `min_count` times, ascending."""
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
        hashes, counts = _merge_counts(parts)
        kept.append(unmix(hashes[counts >= min_count]).astype(np.int64))
    return np.sort(np.concatenate(kept))
