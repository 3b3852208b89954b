"""Scores by their definitions, over all pairs of examples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def auc(labels: NDArray, scores: NDArray, weights: NDArray | None = None) -> float:
    """The share of pairs that are ordered, ties by half; label y is y of a positive."""
    w = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    y, s = labels.astype(np.float64), scores.astype(np.float64)
    order = (s[:, None] > s) + 0.5 * (s[:, None] == s)
    pairs = (w * y)[:, None] * (w * (1 - y))
    return float((order * pairs).sum() / pairs.sum())


def average_precision(labels: NDArray, scores: NDArray, weights: NDArray | None = None) -> float:
    """The mean, over positives, of the precision among all that score as much or more."""
    w = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    above = scores >= scores[:, None]
    precision = (above * (w * labels)).sum(1) / np.maximum((above * w).sum(1), 1e-300)
    return float((precision * w * labels).sum() / (w * labels).sum())


def click_scores(
    labels: NDArray, logits: NDArray, weights: NDArray | None = None
) -> dict[str, float]:
    """The scores of embedps.metrics.click_scores."""
    y, x = labels.astype(np.float64), logits.astype(np.float64)
    w = np.ones(len(y)) if weights is None else weights.astype(np.float64)
    p = 1 / (1 + np.exp(-x))
    rate = (w * y).sum() / w.sum()
    loss = float((w * (np.logaddexp(0, x) - y * x)).sum() / w.sum())
    return {
        "auc": auc(y, x, w),
        "logloss": loss,
        "normalized_entropy": loss / -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate)),
        "calibration": (w * p).sum() / (w * y).sum(),
        "auprc": average_precision(y, x, w),
        "rmse": float(np.sqrt((w * (p - y) ** 2).sum() / w.sum())),
        "mae": float((w * np.abs(p - y)).sum() / w.sum()),
    }
