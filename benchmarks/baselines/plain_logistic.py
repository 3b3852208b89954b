"""A logistic regression with L2 over hashed one-hot columns, in NumPy alone.

Its strength is chosen by the log loss of three shares of the training rows, held out in turn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Of the L2 penalty, per sum of log losses; sklearn's C is their inverse."""
HASHED = 2**18
_FOLDS = 3
_ITERATIONS, _MEMORY = 60, 8


class Rows:
    """Rows as dense columns and hashed ids, each of which is a column of ones."""

    def __init__(self, numerics: Array, ids: Array, known: Array) -> None:
        """Standardizes numbers by the known rows; NaN becomes 0 and a column that tells it.

        Args:
          numerics: float [n, a].
          ids: int64 [n, b].
          known: numbers of the rows to train on.
        """
        missing = np.isnan(numerics)
        with np.errstate(all="ignore"):
            mean, std = np.nanmean(numerics[known], 0), np.nanstd(numerics[known], 0) + 1e-9
        shown = np.where(missing, 0, (numerics - mean) / std)
        self.dense = np.concatenate([shown, missing, np.ones([len(ids), 1])], axis=1)
        columns = []
        for j in range(ids.shape[1]):
            apart = ids[:, j].astype(np.uint64) ^ np.uint64((j + 1) * 0x9E3779B97F4A7C15 % 2**64)
            mixed = (apart ^ (apart >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
            columns.append((mixed >> np.uint64(46)).astype(np.int64) % HASHED)
        known_columns, places = np.unique(np.stack(columns, 1), return_inverse=True)
        self.hashed, self._hashed = places.reshape(ids.shape), len(known_columns)

    def logits(self, weights: Array, rows: Array) -> Array:
        """Computes logits, float64 [rows]."""
        logits: Array = self.dense[rows] @ weights[self._hashed :]
        logits += weights[self.hashed[rows]].sum(1)
        return logits

    def fit(self, labels: Array, rows: Array, strength: float) -> Array:
        """Minimizes the penalized log loss by L-BFGS; gives weights, float64 [columns]."""
        dense, hashed, y = self.dense[rows], self.hashed[rows], labels[rows]

        def loss(weights: Array) -> tuple[float, Array]:
            logits = dense @ weights[self._hashed :] + weights[hashed].sum(1)
            error = 1 / (1 + np.exp(-logits)) - y
            spread = np.repeat(error, hashed.shape[1])
            of_ids = np.bincount(hashed.ravel(), spread, self._hashed)
            penalty = strength * weights
            penalty[-1] = 0  # the bias
            value = float(np.logaddexp(0, logits).sum() - logits @ y + weights @ penalty / 2)
            return value, np.concatenate([of_ids, error @ dense]) + penalty

        return _lbfgs(loss, np.zeros(self._hashed + dense.shape[1]))


def _lbfgs(loss: Any, at: Array) -> Array:
    """Minimizes a smooth convex function (Nocedal and Wright 2006, algorithm 7.4)."""
    value, gradient = loss(at)
    steps: list[tuple[Array, Array]] = []
    for _ in range(_ITERATIONS):
        way, alphas = gradient.copy(), []
        for s, g in reversed(steps):
            alphas.append(s @ way / (s @ g))
            way -= alphas[-1] * g
        if steps:
            s, g = steps[-1]
            way *= s @ g / (g @ g)
        else:
            way /= max(1.0, float(np.abs(gradient).max()))
        for (s, g), alpha in zip(steps, reversed(alphas), strict=True):
            way += (alpha - g @ way / (s @ g)) * s
        size, slope = 1.0, float(gradient @ way)
        while size > 1e-6:
            new, new_gradient = loss(at - size * way)
            if new <= value - 1e-4 * size * slope:
                break
            size /= 2
        else:
            return at
        s, g = -size * way, new_gradient - gradient
        steps = [*steps[-_MEMORY + 1 :], (s, g)] if s @ g > 0 else steps
        is_done = value - new < 1e-7 * abs(value)
        at, value, gradient = at + s, new, new_gradient
        if is_done:
            break
    return at


def predict(numerics: Array, ids: Array, labels: Array, num_train: int) -> tuple[Array, float]:
    """Fits on the first rows; gives chances of the others, and the strength that was chosen."""
    train = np.arange(num_train)
    rows, parts = (
        Rows(numerics, ids, train),
        np.random.default_rng(0).integers(0, _FOLDS, num_train),
    )

    def held_out(strength: float) -> float:
        total = 0.0
        for fold in range(_FOLDS):
            check = np.flatnonzero(parts == fold)
            logits = rows.logits(rows.fit(labels, np.flatnonzero(parts != fold), strength), check)
            total += float(np.logaddexp(0, logits).sum() - logits @ labels[check])
        return total

    best = min(STRENGTHS, key=held_out)
    logits = rows.logits(rows.fit(labels, train, best), np.arange(num_train, len(labels)))
    return 1 / (1 + np.exp(-logits)), best
