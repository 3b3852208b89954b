"""Profiles a dataset's columns: reads its shards, one row group at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from embedps.data.arrow_errors import check_statistics, naming
from embedps.data.dataset import Dataset
from embedps.data.dataset_metadata import CategoricalFeature, DataFile, NumericFeature

from ..moments import Moments

MAX_IDS = 1 << 16
NUM_BINS = 32


class TopIds:
    """Counts of the most frequent ids, exact up to 2 * MAX_IDS distinct ids.

    With more ids, the rarest are dropped from time to time, so a count is then a lower bound.
    """

    def __init__(self) -> None:
        self._ids = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)
        self.total = 0
        self.exact = True

    def add(self, ids: NDArray[np.int64]) -> None:
        """Adds ids; repeats count."""
        self.total += len(ids)
        new, counts = np.unique(ids, return_counts=True)
        merged, at = np.unique(np.concatenate([self._ids, new]), return_inverse=True)
        sums = np.bincount(at, np.concatenate([self._counts, counts]), len(merged))
        self._ids, self._counts = merged, sums.astype(np.int64)
        if len(merged) > 2 * MAX_IDS:
            kept = np.sort(np.argpartition(-self._counts, MAX_IDS)[:MAX_IDS])
            self._ids, self._counts = self._ids[kept], self._counts[kept]
            self.exact = False

    def top(self, number: int) -> list[tuple[int, int]]:
        """Returns the `number` most frequent ids with their counts, the most frequent first."""
        order = np.lexsort((self._ids, -self._counts))[:number]
        return [(int(self._ids[i]), int(self._counts[i])) for i in order]

    def share(self, number: int) -> float:
        """Returns the share of all ids added that the `number` most frequent ones make up."""
        return sum(count for _, count in self.top(number)) / max(self.total, 1)


@dataclass(kw_only=True)
class NumericProfile:
    """A numeric column: its moments and a histogram of its values."""

    name: str
    transform: str
    missing_rate: float
    low: float
    high: float
    moments: Moments = field(default_factory=Moments)
    bins: NDArray[np.int64] = field(default_factory=lambda: np.zeros(NUM_BINS, np.int64))

    def add(self, values: NDArray[np.float32]) -> None:
        """Adds a row group's values."""
        present = values[~np.isnan(values)].astype(np.float64)
        self.moments = self.moments + Moments.of(present)
        if len(present):
            width = (self.high - self.low) / NUM_BINS
            if np.isfinite(width) and self.low + width > self.low and self.high - width < self.high:
                self.bins += np.histogram(present, NUM_BINS, (self.low, self.high))[0]
            else:  # one value, or as good as one
                self.bins[0] += len(present)


@dataclass(kw_only=True)
class IdProfile:
    """A column of ids, or of lists of them."""

    name: str
    ragged: bool
    cardinality: int
    cardinality_exact: bool
    missing_rate: float
    top: TopIds = field(default_factory=TopIds)


@dataclass(frozen=True, kw_only=True)
class ShardProfile:
    """One shard."""

    split: str
    path: str
    rows: int
    bytes: int
    label_rate: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A dataset."""

    dataset: Dataset
    shards: tuple[ShardProfile, ...]
    numeric: tuple[NumericProfile, ...]
    ids: tuple[IdProfile, ...]


def make_profile(dataset: Dataset) -> Profile:
    """Reads all shards of a dataset, one row group at a time."""
    rows = max(sum(split.rows for split in dataset.splits.values()), 1)
    numeric = [_numeric_profile(dataset, feature, rows) for feature in dataset.numeric]
    ids = [_id_profile(feature, rows) for feature in dataset.categorical]
    shards = tuple(
        _read_shard(dataset, name, file, numeric, ids)
        for name, split in dataset.splits.items()
        for file in split.files
    )
    return Profile(dataset=dataset, shards=shards, numeric=tuple(numeric), ids=tuple(ids))


def _numeric_profile(dataset: Dataset, feature: NumericFeature, rows: int) -> NumericProfile:
    low, high = _bounds(dataset, feature.name)
    return NumericProfile(
        name=feature.name,
        transform=feature.transform,
        missing_rate=feature.missing / rows,
        low=low,
        high=high,
    )


def _id_profile(feature: CategoricalFeature, rows: int) -> IdProfile:
    return IdProfile(
        name=feature.name,
        ragged=feature.ragged,
        cardinality=feature.cardinality,
        cardinality_exact=feature.cardinality_exact,
        missing_rate=feature.missing / rows,
    )


def _read_shard(
    dataset: Dataset,
    split: str,
    file: DataFile,
    numeric: Sequence[NumericProfile],
    ids: Sequence[IdProfile],
) -> ShardProfile:
    """Adds a shard's rows to the column profiles; returns the shard's own profile."""
    positives, labelled = 0.0, 0
    label = next((label.name for label in dataset.labels if label.kind == "binary"), None)
    shard = dataset.directory / file.path
    with naming(shard):  # also what the rows hold: a damaged shard may have nulls
        for batch in _row_groups(shard):
            if label is not None:
                labels = batch.column(label).to_numpy()
                positives += float(np.nansum(labels, dtype=np.float64))
                labelled += int(np.count_nonzero(~np.isnan(labels)))
            for number in numeric:
                number.add(batch.column(number.name).to_numpy())
            for column in ids:
                _add_ids(column, batch.column(column.name), dataset.missing_id)
    return ShardProfile(
        split=split,
        path=file.path,
        rows=file.rows,
        bytes=file.bytes,
        label_rate=positives / max(labelled, 1),
    )


def _row_groups(shard: Path) -> Iterator[pa.Table]:
    with pq.ParquetFile(shard, page_checksum_verification=True) as file:
        for i in range(file.num_row_groups):
            yield file.read_row_group(i).combine_chunks()


def _add_ids(profile: IdProfile, column: pa.ChunkedArray, missing_id: int) -> None:
    array = column.combine_chunks()
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    ids = (array.flatten() if profile.ragged else array).to_numpy()
    profile.top.add(ids[ids != missing_id])


def _bounds(dataset: Dataset, name: str) -> tuple[float, float]:
    """Returns a column's smallest and largest value, from the shards' Parquet statistics."""
    lows, highs = [], []
    for split in dataset.splits:
        for path in dataset.paths(split):
            with naming(path), pq.ParquetFile(path) as file:
                check_statistics(file, name)
                metadata = file.metadata
                index = metadata.schema.names.index(name)
            for i in range(metadata.num_row_groups):
                group = metadata.row_group(i)
                statistics = group.column(index).statistics if group.num_rows else None
                if statistics is not None and statistics.has_min_max:
                    lows.append(float(statistics.min) + 0.0)  # Parquet may store a 0 as -0
                    highs.append(float(statistics.max))
    return (min(lows), max(highs)) if lows else (0.0, 1.0)
