"""Draws rows of a synthetic click log, with the cardinalities of Criteo Kaggle.

Ids follow Zipf's law, counts have heavy tails, and some fields are missing together. The rates
(missing, zero, share of the first id) and the log-means of the counts are rounded measurements of a
Criteo Kaggle sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..criteo_format import IDS, INTEGERS

MISSING_RANK = -1


@dataclass(frozen=True, kw_only=True)
class CountColumn:
    """A count: 0, -1, or exp(normal(log_mean, log_std)) clipped to 1..max; rates are row shares."""

    missing: float
    zero: float
    log_mean: float
    log_std: float
    max: int
    negative: float = 0.0


@dataclass(frozen=True, kw_only=True)
class IdColumn:
    """Ids of ranks 0..cardinality-1, drawn by a bounded Zipf law; the first id has `top_share`."""

    cardinality: int
    missing: float
    top_share: float

    @property
    def exponent(self) -> float:
        """The Zipf exponent, found by bisection on the first id's share."""
        low, high = 0.0, 16.0
        for _ in range(60):
            middle = (low + high) / 2
            if self._share_of_first(middle) < self.top_share:
                low = middle
            else:
                high = middle
        return high

    def _share_of_first(self, exponent: float) -> float:
        power = 1.0 - exponent
        if abs(power) < 1e-9:
            power = 1e-9
        return float((2.0**power - 1.0) / ((self.cardinality + 1.0) ** power - 1.0))


def _counts(*values: float) -> CountColumn:
    missing, zero, log_mean, log_std, maximum = values
    return CountColumn(
        missing=missing, zero=zero, log_mean=log_mean, log_std=log_std, max=int(maximum)
    )


COUNT_COLUMNS: tuple[CountColumn, ...] = (
    _counts(0.453, 0.455, 1.1, 1.1, 5_000),
    CountColumn(missing=0.0, zero=0.18, log_mean=2.8, log_std=2.1, max=250_000, negative=0.1),
    _counts(0.206, 0.006, 2.0, 1.4, 65_535),
    _counts(0.210, 0.066, 1.5, 1.0, 1_000),
    _counts(0.040, 0.017, 7.4, 2.7, 20_000_000),
    _counts(0.242, 0.065, 3.7, 1.7, 400_000),
    _counts(0.048, 0.243, 1.8, 1.4, 50_000),
    _counts(0.001, 0.119, 2.2, 1.1, 6_000),
    _counts(0.048, 0.033, 3.7, 1.6, 25_000),
    _counts(0.453, 0.491, 0.2, 0.4, 12),
    _counts(0.048, 0.254, 0.8, 0.9, 250),
    _counts(0.774, 0.743, 0.8, 0.9, 4_000),
    _counts(0.210, 0.063, 1.8, 1.0, 7_500),
)

_ID_COLUMN_VALUES: tuple[tuple[int, float, float], ...] = (
    (1460, 0.0, 0.496),
    (583, 0.0, 0.120),
    (10131227, 0.033, 0.039),
    (2202608, 0.033, 0.058),
    (305, 0.0, 0.668),
    (24, 0.129, 0.497),
    (12517, 0.0, 0.012),
    (633, 0.0, 0.591),
    (3, 0.0, 0.894),
    (93145, 0.0, 0.258),
    (5683, 0.0, 0.018),
    (8351593, 0.033, 0.039),
    (3194, 0.0, 0.019),
    (27, 0.0, 0.356),
    (14992, 0.0, 0.016),
    (5461306, 0.033, 0.039),
    (10, 0.0, 0.441),
    (5652, 0.0, 0.041),
    (2173, 0.448, 0.603),
    (4, 0.448, 0.344),
    (7046547, 0.033, 0.039),
    (18, 0.798, 0.537),
    (15, 0.0, 0.446),
    (286181, 0.033, 0.065),
    (105, 0.448, 0.278),
    (142572, 0.448, 0.082),
)
ID_COLUMNS: tuple[IdColumn, ...] = tuple(
    IdColumn(cardinality=cardinality, missing=missing, top_share=top_share)
    for cardinality, missing, top_share in _ID_COLUMN_VALUES
)

# These fields are missing together in Criteo's logs, so they share one draw.
_MISSING_TOGETHER: tuple[tuple[str, ...], ...] = (
    ("I1", "I10"),
    ("I4", "I13"),
    ("I7", "I9", "I11"),
    ("C3", "C4", "C12", "C16", "C21", "C24"),
    ("C19", "C20", "C25", "C26"),
)

_ZIPF_POWERS = tuple(1.0 - column.exponent for column in ID_COLUMNS)


@dataclass(frozen=True, kw_only=True)
class ClickRows:
    """Rows without labels; arrays are [columns, rows]."""

    counts: NDArray[np.int64]
    count_missing: NDArray[np.bool_]
    ranks: NDArray[np.int64]
    """Each id's rank by frequency in its column; MISSING_RANK for a missing id."""

    @property
    def num_rows(self) -> int:
        return int(self.counts.shape[1])

    def head(self, num_rows: int) -> ClickRows:
        """Returns the first rows."""
        return ClickRows(
            counts=self.counts[:, :num_rows],
            count_missing=self.count_missing[:, :num_rows],
            ranks=self.ranks[:, :num_rows],
        )


def draw_rows(rng: np.random.Generator, num_rows: int) -> ClickRows:
    """Draws rows; the same generator state gives the same rows."""
    missing = _draw_missing(rng, num_rows)
    counts = np.empty((len(COUNT_COLUMNS), num_rows), np.int64)
    count_missing = np.zeros((len(COUNT_COLUMNS), num_rows), np.bool_)
    for i, column in enumerate(COUNT_COLUMNS):
        zeros = rng.random(num_rows, dtype=np.float32)
        logs = rng.standard_normal(num_rows, dtype=np.float32)
        logs *= np.float32(column.log_std)
        logs += np.float32(column.log_mean)
        values = np.clip(np.exp(logs), 1.0, float(column.max)).astype(np.int64)
        values[zeros < column.zero] = 0
        if column.negative:
            values[zeros >= 1.0 - column.negative] = -1
        counts[i] = values
        if (mask := missing.get(INTEGERS[i])) is not None:
            count_missing[i] = mask
    ranks = np.empty((len(ID_COLUMNS), num_rows), np.int64)
    for i, id_column in enumerate(ID_COLUMNS):
        power = _ZIPF_POWERS[i]
        draws = rng.random(num_rows)
        draws *= (id_column.cardinality + 1.0) ** power - 1.0
        draws += 1.0
        np.power(draws, 1.0 / power, out=draws)
        ranks[i] = draws
        ranks[i] -= 1
        np.clip(ranks[i], 0, id_column.cardinality - 1, out=ranks[i])
        if (mask := missing.get(IDS[i])) is not None:
            ranks[i][mask] = MISSING_RANK
    return ClickRows(counts=counts, count_missing=count_missing, ranks=ranks)


def rank_probability(column: int, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns each rank's probability in an id column, given that the field is not missing."""
    power = _ZIPF_POWERS[column]
    whole = (ID_COLUMNS[column].cardinality + 1.0) ** power - 1.0
    at = ranks.astype(np.float64)
    return np.asarray(((at + 2.0) ** power - (at + 1.0) ** power) / whole)


def _draw_missing(rng: np.random.Generator, num_rows: int) -> dict[str, NDArray[np.bool_]]:
    rates = dict(zip(INTEGERS, (column.missing for column in COUNT_COLUMNS), strict=True))
    rates |= dict(zip(IDS, (column.missing for column in ID_COLUMNS), strict=True))
    leaders = {name: names[0] for names in _MISSING_TOGETHER for name in names}
    masks: dict[str, NDArray[np.bool_]] = {}
    for name, rate in rates.items():
        leader = leaders.get(name, name)
        if rate > 0.0:
            masks[name] = (
                masks[leader]
                if leader in masks
                else rng.random(num_rows, dtype=np.float32) < np.float32(rate)
            )
    return masks
