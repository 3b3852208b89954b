"""Finds the pairs of columns that act together on the label: what crosses are worth.

A number counts by bins of equal width, as `--cross` has it: `price/0.5` is price in bins of 0.5.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from embedps.data.dataset import Dataset
from embedps.data.number_bins import MAX_ROWS, copied, first_rows, in_bins

Codes: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]

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
    labels: Floats, columns: Mapping[str, npt.NDArray[Any]], most: int
) -> tuple[tuple[str, str], ...]:
    """Ranks pairs by what a logistic regression of the single columns leaves (a score test).

    For each pair, the squared sums of what is left in its cells, each by its variance, add up to
    about the degrees of freedom if the columns do not act together. A pair counts by the standard
    deviations that the sum is above that. What a found pair explains is taken from what is left, so
    that pairs of near copies of its columns, such as coarser ones, do not follow it.

    Args:
      labels: float64 [n]. If one is not in [0, 1], no pair is given.
      columns: ids, [n] each.
      most: pairs to give.
    """
    if not len(labels) or labels.min() == labels.max() or labels.min() < 0 or labels.max() > 1:
        return ()
    codes = {name: np.unique(ids, return_inverse=True)[1] for name, ids in columns.items()}
    codes = _apart(codes)
    chances = _additive(labels, codes)
    left, variance = labels - chances, chances * (1 - chances)
    found: list[tuple[str, str]] = []
    heap = [
        (-_deviations(codes[a], codes[b], left, variance), (a, b), 0)
        for a, b in itertools.combinations(codes, 2)
    ]
    heapq.heapify(heap)
    while heap and len(found) < most and heap[0][0] < -_LEAST_DEVIATIONS:
        _, (a, b), known = heapq.heappop(heap)
        if known < len(found):
            fresh = _deviations(codes[a], codes[b], left, variance)
            heapq.heappush(heap, (-fresh, (a, b), len(found)))
            continue
        found.append((a, b))
        left, variance = _without(_cells(codes[a], codes[b])[0], left, variance)
    return tuple(found)


def _cells(a: Codes, b: Codes) -> tuple[Codes, int]:
    """Numbers the cells of two columns; gives the free parameters of the pair too."""
    _, cells = np.unique(a * (int(b.max()) + 1) + b, return_inverse=True)
    return cells, int(cells.max()) - int(a.max()) - int(b.max())


def _deviations(a: Codes, b: Codes, left: Floats, variance: Floats) -> float:
    """Tells by how many standard deviations what is left is more than chance; 0 of no cells."""
    cells, free = _cells(a, b)
    if free <= 0:
        return 0.0
    total = float((np.bincount(cells, left) ** 2 / np.bincount(cells, variance)).sum())
    return (total - free) / math.sqrt(2 * free)


def _without(cells: Codes, left: Floats, variance: Floats) -> tuple[Floats, Floats]:
    """Takes a step of Newton with L2 on weights of cells; gives what is left, and its variance."""
    sums = np.bincount(cells, variance)
    weight = (np.bincount(cells, left) / (sums + 1))[cells]
    part, of_cell = variance / (sums + 1)[cells], (sums / (sums + 1))[cells]
    return left - variance * weight, variance * (1 - 2 * part + part * of_cell)


def _apart(codes: dict[str, Codes]) -> dict[str, Codes]:
    """Leaves out columns that divide the rows as one before them does: their pairs would too."""
    found: dict[str, Codes] = {}
    firsts = set()
    for name, code in codes.items():
        _, first, divided = np.unique(code, return_index=True, return_inverse=True)
        key = first[divided].tobytes()  # of each row, the first one of its part
        if key not in firsts:
            firsts.add(key)
            found[name] = code
    return found


def _additive(labels: Floats, codes: Mapping[str, Codes]) -> Floats:
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
    fitted: Floats = 1 / (1 + np.exp(-logits))
    return fitted
