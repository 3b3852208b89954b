"""The planted click model: true click probabilities from ids, pairs of ids and counts.

logit = intercept + scale * sum over components of sqrt(share) * component. Each component has
variance 1 over the rows:

- `frequent` and `rare`: the effects of single ids, by frequency;
- `pairs`: dot products of the latent vectors of two ids;
- `numeric`: curves of log(1 + count).

Effects are functions of (seed, column, rank), so they need no tables. A pilot sample sets scale and
intercept so that the click rate and the best reachable AUC are those asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from embedps import constants

from .click_rows import (
    COUNT_COLUMNS,
    ID_COLUMNS,
    ClickRows,
    draw_rows,
    rank_probability,
)

Floats = NDArray[np.float64]

# One epoch over 2M rows can learn the effects that have most of the variance.
SHARES: dict[str, float] = {"frequent": 0.54, "numeric": 0.38, "pairs": 0.05, "rare": 0.03}
CLICK_RATE = 0.25
BEST_AUC = 0.80
PILOT_ROWS = 1 << 17
RARE_PROBABILITY = 1e-3
"""An id below this probability is rare (2,000 of 2M rows)."""

PAIRS: tuple[tuple[int, int], ...] = ((0, 13), (1, 5), (4, 22), (6, 16), (9, 7), (10, 25))
"""Columns (from 0) whose ids have a joint effect."""
_PAIR_DIM = 2

_NORMAL_BITS = 12
_NORMAL_QUANTILES = np.array(
    [NormalDist().inv_cdf((i + 0.5) / (1 << _NORMAL_BITS)) for i in range(1 << _NORMAL_BITS)]
)


def hash_normal(key: int, values: NDArray[np.int64]) -> Floats:
    """Hashes each value to a standard normal number: a pure function of (key, value)."""
    h = values.astype(np.uint64)
    h += np.uint64((key * constants.SPLITMIX_INCREMENT + 0xD1B54A32D192ED03) % (1 << 64))
    h ^= h >> np.uint64(30)
    h *= np.uint64(constants.SPLITMIX_MULTIPLIERS[0])
    h ^= h >> np.uint64(27)
    h *= np.uint64(constants.SPLITMIX_MULTIPLIERS[1])
    h >>= np.uint64(64 - _NORMAL_BITS)
    return _NORMAL_QUANTILES[h.astype(np.intp)]


@dataclass(frozen=True, kw_only=True)
class PlantedModel:
    """The true click probabilities of a seed; `PlantedModel.calibrated(seed)` makes one."""

    seed: int
    frequent_scales: Floats = field(default_factory=lambda: np.ones(len(ID_COLUMNS)))
    means: dict[str, float] = field(default_factory=dict)
    stds: dict[str, float] = field(default_factory=dict)
    scale: float = 1.0
    intercept: float = 0.0

    @classmethod
    def calibrated(
        cls, seed: int, *, click_rate: float = CLICK_RATE, best_auc: float = BEST_AUC
    ) -> PlantedModel:
        """Makes a model whose scales fit a pilot sample; the sample depends on the seed only."""
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
        pilot = draw_rows(rng, PILOT_ROWS)
        raw = cls(seed=seed)
        stds = np.array([raw._id_effect(i, pilot)[0].std() for i in range(len(ID_COLUMNS))])
        # A column with many frequent ids takes longer to learn, so it gets less weight.
        weights = 0.7 + 0.6 * np.random.default_rng([seed, 1]).random(len(ID_COLUMNS))
        weights *= np.where(np.array(FIRST_RARE_RANKS) < 100, 1.0, 0.6)
        raw = cls(seed=seed, frequent_scales=weights / stds)
        components = raw._components(pilot)
        raw = cls(
            seed=seed,
            frequent_scales=raw.frequent_scales,
            means={name: float(value.mean()) for name, value in components.items()},
            stds={name: float(value.std()) for name, value in components.items()},
        )
        logits = raw.logits(pilot)
        low, high = 0.0, 16.0
        for _ in range(30):
            scale = (low + high) / 2
            intercept = _intercept(logits * scale, click_rate)
            if expected_auc(sigmoid(logits * scale + intercept)) < best_auc:
                low = scale
            else:
                high = scale
        return cls(
            seed=seed,
            frequent_scales=raw.frequent_scales,
            means=raw.means,
            stds=raw.stds,
            scale=scale,
            intercept=intercept,
        )

    def logits(self, rows: ClickRows) -> Floats:
        """Computes the true logit of each row."""
        total = np.zeros(rows.num_rows)
        for name, component in self._components(rows).items():
            component -= self.means[name]
            component *= np.sqrt(SHARES[name]) / self.stds[name]
            total += component
        total *= self.scale
        total += self.intercept
        return total

    def _components(self, rows: ClickRows) -> dict[str, Floats]:
        frequent = np.zeros(rows.num_rows)
        rare = np.zeros(rows.num_rows)
        for i in range(len(ID_COLUMNS)):
            frequent_effect, rare_effect = self._id_effect(i, rows)
            frequent += frequent_effect * self.frequent_scales[i]
            rare += rare_effect
        return {
            "frequent": frequent,
            "numeric": self._numeric(rows),
            "pairs": self._pairs(rows),
            "rare": rare,
        }

    def _id_effect(self, column: int, rows: ClickRows) -> tuple[Floats, Floats]:
        """Returns the effect of each single id as (frequent, rare); one of the two is 0."""
        ranks = rows.ranks[column]
        effect = hash_normal(self._key(1, column), ranks)
        # Probability falls with rank, so the first rare rank separates the two.
        frequent = ranks < FIRST_RARE_RANKS[column]
        return effect * frequent, effect * ~frequent

    def _pairs(self, rows: ClickRows) -> Floats:
        total = np.zeros(rows.num_rows)
        for left, right in PAIRS:
            for k in range(_PAIR_DIM):
                factor = hash_normal(self._key(2 + k, left), rows.ranks[left])
                factor *= hash_normal(self._key(2 + k, right), rows.ranks[right])
                total += factor
        return total

    def _numeric(self, rows: ClickRows) -> Floats:
        rng = np.random.default_rng([self.seed, 2])
        total = np.zeros(rows.num_rows)
        for i, column in enumerate(COUNT_COLUMNS):
            slope, bend, gap = rng.normal(size=3)
            spread = column.log_std + column.log_mean / 2
            z = np.log1p(np.maximum(rows.counts[i], 0)) / spread
            z[rows.count_missing[i]] = 0.0
            total += slope * z + bend * np.tanh(2.0 * (z - 1.0)) / 2
            total += 0.25 * gap * rows.count_missing[i]
        return total

    def _key(self, kind: int, column: int) -> int:
        return (self.seed * 64 + kind) * 64 + column


def sigmoid(logits: Floats) -> Floats:
    """Computes 1 / (1 + exp(-logits))."""
    return np.asarray(1.0 / (1.0 + np.exp(-logits)))


def expected_auc(probabilities: Floats) -> float:
    """Computes the expected AUC of `probabilities` against labels drawn from them."""
    p = np.sort(probabilities)
    negatives = 1.0 - p
    below = np.cumsum(negatives) - 0.5 * negatives
    return float((p * below).sum() / (p.sum() * negatives.sum()))


def _intercept(logits: Floats, click_rate: float) -> float:
    low, high = -30.0, 30.0
    for _ in range(24):
        middle = (low + high) / 2
        if sigmoid(logits + middle).mean() < click_rate:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _first_rare_rank(column: int) -> int:
    low, high = 0, ID_COLUMNS[column].cardinality
    while low < high:
        middle = (low + high) // 2
        if rank_probability(column, np.array([middle]))[0] < RARE_PROBABILITY:
            high = middle
        else:
            low = middle + 1
    return low


FIRST_RARE_RANKS: tuple[int, ...] = tuple(_first_rare_rank(i) for i in range(len(ID_COLUMNS)))
