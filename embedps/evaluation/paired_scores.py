"""Tells by how much one model scores better than another on the same examples, and how surely.

The AUC's difference has the interval of DeLong et al. 1988, computed by midranks (Sun and Xu 2014).
The log loss is a mean, so its difference has the normal interval of the examples' differences. A
GAUC (Zhu et al. 2017), the mean of groups' AUCs by their examples, has that of the groups. All are
paired, and none is drawn at random, so the same scores give the same numbers.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Z95 = 1.959963984540054
CLIP = 1e-7
"""Probabilities are within CLIP of 0 and 1: float32 has none that is nearer to 1."""
REST = "rest"
LEAST_OF_LABEL, LEAST_OF_MEAN = 10, 30
"""Fewer positives, negatives, examples or groups have no error: it would be far too small."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """A score of two models.

    Attributes:
      first: of the first model; NaN if it is not defined.
      second: of the second.
      error: the standard error of second - first; NaN of too few examples.
      lower_is_better: as of a loss.
    """

    first: float
    second: float
    error: float
    lower_is_better: bool = False

    @property
    def value(self) -> float:
        """By how much the second's score is greater."""
        return self.second - self.first

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of `value`."""
        return self.value - Z95 * self.error, self.value + Z95 * self.error

    @property
    def p_value(self) -> float:
        """The chance of a value as far from 0, were the models as good; NaN if not defined."""
        if math.isnan(self.error):
            return math.nan
        if self.error > 0:
            return math.erfc(abs(self.value) / self.error / math.sqrt(2))
        return math.nan if math.isnan(self.value) else float(self.value == 0)

    @property
    def better(self) -> int:
        """Which model has the better score, 1 or 2; 0 if neither has."""
        gain = -self.value if self.lower_is_better else self.value
        return 0 if not gain else 2 if gain > 0 else 1


def midranks(values: NDArray[Any], groups: NDArray[Any] | None = None) -> Floats:
    """Ranks values from 1, those of each group by themselves; equal values share the mean rank.

    Args:
      values: [n].
      groups: [n], the group of each value; by default one group.
    """
    groups = np.zeros(len(values), np.int64) if groups is None else groups
    order = np.lexsort((values, groups))
    v, g = values[order], groups[order]
    changed = g[1:] != g[:-1]
    starts = np.flatnonzero(np.concatenate([[True], changed | (v[1:] != v[:-1])]))
    ends = np.append(starts[1:], len(v))
    first_of_group = np.flatnonzero(np.concatenate([[True], changed]))
    offset = first_of_group[np.searchsorted(first_of_group, starts, side="right") - 1]
    ranks = np.empty(len(v))
    ranks[order] = np.repeat((starts + ends + 1) / 2 - offset, ends - starts)
    return ranks


def auc_difference(labels: NDArray[Any], first: NDArray[Any], second: NDArray[Any]) -> Difference:
    """Compares two AUCs by DeLong's method; NaN without two examples of each label.

    Args:
      labels: [n], 0 or 1.
      first: [n], the scores of the first model.
      second: [n], those of the second.
    """
    positive = labels > 0.5
    m, n = int(positive.sum()), int((~positive).sum())
    if m < 2 or n < 2:
        return Difference(first=math.nan, second=math.nan, error=math.nan)
    of_positives, of_negatives = [], []
    for scores in (first, second):
        ranks = midranks(scores)
        of_positives.append((ranks[positive] - midranks(scores[positive])) / n)
        of_negatives.append(1 - (ranks[~positive] - midranks(scores[~positive])) / m)
    variance = sum(
        float(np.var(each[1] - each[0], ddof=1)) / len(each[0])
        for each in (of_positives, of_negatives)
    )
    return Difference(
        first=float(of_positives[0].mean()),
        second=float(of_positives[1].mean()),
        error=math.sqrt(variance) if min(m, n) >= LEAST_OF_LABEL else math.nan,
    )


def logloss_difference(
    labels: NDArray[Any],
    first: NDArray[Any],
    second: NDArray[Any],
    weights: NDArray[Any] | None = None,
) -> Difference:
    """Compares two mean log losses of probabilities; the error is that of their ratio of sums."""
    w = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    total = w.sum()
    if not total:
        return Difference(first=math.nan, second=math.nan, error=math.nan, lower_is_better=True)
    losses = [log_losses(labels, p) for p in (first, second)]
    means = [float((w * each).sum() / total) for each in losses]
    error = _error_of_mean(losses[1] - losses[0], w / total)
    return Difference(first=means[0], second=means[1], error=error, lower_is_better=True)


def _error_of_mean(values: Floats, shares: Floats) -> float:
    """Computes the standard error of the mean of values by their shares, which add up to 1."""
    if (shares**2).sum() * LEAST_OF_MEAN > 1 + 1e-9:  # as few as that many equal shares
        return math.nan
    return float(np.sqrt(((shares * (values - (shares * values).sum())) ** 2).sum()))


def log_losses(labels: NDArray[Any], probabilities: NDArray[Any]) -> Floats:
    """Computes the log loss of each example, in nats."""
    p = np.clip(probabilities.astype(np.float64), CLIP, 1 - CLIP)
    return np.asarray(-(labels * np.log(p) + (1 - labels) * np.log1p(-p)), np.float64)


def gauc_difference(
    labels: NDArray[Any], first: NDArray[Any], second: NDArray[Any], groups: NDArray[Any]
) -> Difference:
    """Compares the mean AUC of groups by their examples; groups of one label are left out."""
    _, at, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    positives = np.bincount(at, labels > 0.5)
    negatives = sizes - positives
    counts = (positives > 0) & (negatives > 0)
    if not counts.any():
        return Difference(first=math.nan, second=math.nan, error=math.nan)
    positive, sizes = labels > 0.5, sizes[counts].astype(np.float64)
    aucs = []
    for scores in (first, second):
        sums = np.bincount(at[positive], midranks(scores, at)[positive], minlength=len(counts))
        above = (sums - positives * (positives + 1) / 2)[counts]
        aucs.append(above / (positives * negatives)[counts])
    means = [float((sizes * each).sum() / sizes.sum()) for each in aucs]
    error = _error_of_mean(aucs[1] - aucs[0], sizes / sizes.sum())
    return Difference(first=means[0], second=means[1], error=error)


def calibration(labels: NDArray[Any], probabilities: NDArray[Any]) -> float:
    """Computes predicted over actual positives; NaN without any."""
    positives = float(labels.sum(dtype=np.float64))
    return float(probabilities.sum(dtype=np.float64)) / positives if positives else math.nan


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examples:
    """Examples that two models scored.

    Attributes:
      labels: float32 [n], from 0 to 1.
      first: float32 [n], the probabilities of the first model.
      second: float32 [n], those of the second.
      weights: float32 [n]; None if there are none.
      columns: by name [n], for slices and groups.
    """

    labels: NDArray[Any]
    first: NDArray[Any]
    second: NDArray[Any]
    weights: NDArray[Any] | None = None
    columns: Mapping[str, NDArray[Any]] = dataclasses.field(default_factory=dict)

    def of(self, rows: NDArray[Any]) -> Examples:
        """Gives some of the examples."""
        return Examples(
            labels=self.labels[rows],
            first=self.first[rows],
            second=self.second[rows],
            weights=None if self.weights is None else self.weights[rows],
            columns={name: values[rows] for name, values in self.columns.items()},
        )

    @property
    def is_hard(self) -> bool:
        """Whether all labels are 0 or 1."""
        return bool(np.isin(self.labels, (0, 1)).all())

    def differences(self) -> dict[str, Difference]:
        """Compares the models by each score."""
        found: dict[str, Difference] = {}
        if self.is_hard:
            found["auc"] = auc_difference(self.labels, self.first, self.second)
        found["logloss"] = logloss_difference(self.labels, self.first, self.second)
        if self.weights is not None:
            found["weighted_logloss"] = logloss_difference(
                self.labels, self.first, self.second, self.weights
            )
        return found

    def group_difference(self, name: str) -> dict[str, Difference]:
        """Compares them by the GAUC of a column's values; not if labels are soft."""
        if not self.is_hard:
            return {}
        key = self.columns[name]
        return {"gauc": gauc_difference(self.labels, self.first, self.second, key)}


def slices(
    columns: Mapping[str, NDArray[Any]], names: Sequence[str], most: int
) -> Iterator[tuple[str, str, NDArray[Any]]]:
    """Divides examples by a column's most frequent values; all others together are the rest.

    Args:
      columns: by name [n].
      names: of the columns to go by.
      most: values per column.

    Yields:
      The column, the value (or REST), and the rows that have it.
    """
    for name in names:
        values, at, counts = np.unique(columns[name], return_inverse=True, return_counts=True)
        order = np.lexsort((values, -counts))[:most]
        place = np.full(len(values), len(order))
        place[order] = np.arange(len(order))
        of_row = place[at]
        for i, value in enumerate(order):
            yield name, str(values[value]), np.flatnonzero(of_row == i)
        if len(values) > len(order):
            yield name, REST, np.flatnonzero(of_row == len(order))


def is_noise(p_values: Sequence[float], level: float = 0.05) -> list[bool]:
    """Tells which of several differences may be chance, by Holm 1979: one in 20 looks so else.

    Args:
      p_values: of the differences; NaN counts as 1.
      level: the chance that any of them is wrongly told to be none.
    """
    known = np.nan_to_num(np.asarray(p_values, np.float64), nan=1.0)
    found = np.ones(len(known), bool)
    for i, place in enumerate(np.argsort(known, kind="stable")):
        if known[place] > level / (len(known) - i):
            break
        found[place] = False
    return [bool(each) for each in found]
