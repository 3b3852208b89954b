"""Finds the pairs of columns that act together on the label: what crosses are worth.

A number counts by bins of equal width, as `--cross` has it: `price/0.5` is price in bins of 0.5.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from embedps.data.dataset import Dataset
from embedps.data.number_bins import MAX_ROWS, copied, first_rows, in_bins

_MAX_CELLS = 80_000_000  # rows by pairs: some ten seconds
_SWEEPS = 8
_LEAST_DEVIATIONS = 4.0
"""Of chance, that a pair must be above it: of hundreds of pairs, few reach it so."""


def acting_pairs(dataset: Dataset, most: int) -> tuple[tuple[str, str], ...]:
    """Finds pairs of columns of single ids that act together, beyond what each does alone.

    It reads the first MAX_ROWS training rows, and fewer of very many columns.

    Args:
      dataset: whose first label is binary.
      most: pairs to find.

    Returns:
      Their names, those of numbers with `/` and a width, those that act most first; none if the
      dataset has no such pair.

    Raises:
      DatasetError: a file cannot be read.
    """
    single = [c.name for c in dataset.categorical if not c.ragged]
    numbers = [c.name for c in dataset.numeric]
    num = len(single) + len(numbers)
    if not dataset.label or num < 2 or "train" not in dataset.splits:
        return ()
    rows = min(MAX_ROWS, _MAX_CELLS // math.comb(num, 2))
    columns = first_rows(dataset, [dataset.label, *single, *numbers], rows)
    if not columns:
        return ()
    labels = columns.pop(dataset.label).astype(np.float64)
    of_numbers = {name: columns.pop(name) for name in numbers}
    copies = copied(of_numbers)
    columns |= dict(in_bins(name, of_numbers[name]) for name in numbers if name not in copies)
    known = ~np.isnan(labels)
    return rank_pairs(labels[known], {n: v[known] for n, v in columns.items()}, most)


def rank_pairs(
    labels: npt.NDArray[np.float64], columns: Mapping[str, npt.NDArray[Any]], most: int
) -> tuple[tuple[str, str], ...]:
    """Ranks pairs by what a logistic regression of the single columns leaves (a score test).

    For each pair, the squared sums of what is left in its cells, each by its variance, add up to
    about the degrees of freedom if the columns do not act together. A pair counts by the standard
    deviations that the sum is above that.

    Args:
      labels: float64 [n]. If one is not in [0, 1], no pair is given.
      columns: ids, [n] each.
      most: pairs to give.
    """
    if not len(labels) or labels.min() == labels.max() or labels.min() < 0 or labels.max() > 1:
        return ()
    codes = {name: np.unique(ids, return_inverse=True)[1] for name, ids in columns.items()}
    codes = _apart(codes)
    sizes = {name: int(code.max()) + 1 for name, code in codes.items()}
    chances = _additive(labels, codes)
    left, variance = labels - chances, chances * (1 - chances)
    found = []
    for a, b in itertools.combinations(codes, 2):
        cells, cell = np.unique(codes[a] * sizes[b] + codes[b], return_inverse=True)
        free = len(cells) - sizes[a] - sizes[b] + 1
        if free > 0:
            total = float((np.bincount(cell, left) ** 2 / np.bincount(cell, variance)).sum())
            found.append(((total - free) / np.sqrt(2 * free), (a, b)))
    found = sorted((each for each in found if each[0] > _LEAST_DEVIATIONS), reverse=True)
    return tuple(pair for _, pair in found[:most])


def _apart(codes: dict[str, npt.NDArray[np.int64]]) -> dict[str, npt.NDArray[np.int64]]:
    """Leaves out columns that divide the rows as one before them does: their pairs would too."""
    found: dict[str, npt.NDArray[np.int64]] = {}
    firsts = set()
    for name, code in codes.items():
        _, first, divided = np.unique(code, return_index=True, return_inverse=True)
        key = first[divided].tobytes()  # of each row, the first one of its part
        if key not in firsts:
            firsts.add(key)
            found[name] = code
    return found


def _additive(
    labels: npt.NDArray[np.float64], codes: Mapping[str, npt.NDArray[np.int64]]
) -> npt.NDArray[np.float64]:
    """Fits a weight per id, column after column, by Newton steps with L2; gives chances."""
    mean = labels.mean()
    logits = np.full(len(labels), np.log(mean / (1 - mean)))
    weights = {name: np.zeros(code.max() + 1) for name, code in codes.items()}
    for _ in range(_SWEEPS):
        for name, code in codes.items():
            chances = 1 / (1 + np.exp(-logits))
            slope = np.bincount(code, labels - chances) - weights[name]
            step = slope / (np.bincount(code, chances * (1 - chances)) + 1)
            weights[name] += step
            logits += step[code]
    fitted: npt.NDArray[np.float64] = 1 / (1 + np.exp(-logits))
    return fitted
