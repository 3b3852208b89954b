"""Fits the layer that makes chances of predictions: Platt 1999, and isotonic regression (PAV)."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from embedps.engine.calibration import MAX_KNOTS, Curve
from embedps.errors import UsageError
from embedps.evaluation.paired_scores import CLIP

Floats = NDArray[np.float64]
Method: TypeAlias = Literal["platt", "isotonic"]

_STEPS = 100


def fit(method: Method, chances: NDArray[Any], labels: Floats, weights: Floats | None) -> Curve:
    """Fits a curve.

    Args:
      chances: float32 [n], the predictions.
      labels: [n], from 0 to 1.
      weights: [n], of the examples, by default 1; of a mean below 1, they are scaled to it.

    Raises:
      UsageError: the labels are all alike, or the predictions do not rank them.
    """
    w = np.ones(len(labels)) if weights is None else weights
    positives, negatives = float((w * labels).sum()), float((w * (1 - labels)).sum())
    if not (positives > 0 and negatives > 0):
        raise UsageError("a calibration must be fitted on labels of both kinds, but all are alike")
    if not np.isfinite(chances).all():
        raise UsageError("a calibration must be fitted on finite predictions, but some are not")
    p = chances.astype(np.float64)
    w = w * max(1.0, np.count_nonzero(w) / w.sum())  # shares of 1 are as many examples as rows
    return _platt(p, labels, w) if method == "platt" else isotonic(p, labels, w)


def _platt(p: Floats, labels: Floats, w: Floats) -> Curve:
    """Newton's method, on labels that are a little less sure, as Platt's are."""
    positives, negatives = (w * labels).sum(), (w * (1 - labels)).sum()
    high, low = (positives + 1) / (positives + 2), 1 / (negatives + 2)
    y = labels * high + (1 - labels) * low
    clipped = np.clip(p, CLIP, 1 - CLIP)
    x = np.log(clipped) - np.log1p(-clipped)

    def loss(at: Floats) -> float:
        z = at[0] * x + at[1]
        return float((w * (np.logaddexp(0, z) - y * z)).sum())

    found = np.array([1.0, 0.0])
    for _ in range(_STEPS):
        q = 1 / (1 + np.exp(-np.clip(found[0] * x + found[1], -700, 700)))
        gradient = np.array([(w * (q - y) * x).sum(), (w * (q - y)).sum()])
        c = w * q * (1 - q)
        hessian = np.array([[(c * x * x).sum(), (c * x).sum()], [(c * x).sum(), c.sum()]])
        step = np.linalg.solve(hessian + 1e-9 * np.trace(hessian) * np.eye(2), gradient)
        size = 1.0
        while size > 1e-9 and loss(found - size * step) > loss(found):
            size /= 2
        found = found - size * step
        if size <= 1e-9 or abs(size * step).max() < 1e-9:
            break
    if not found[0] > 0:
        raise UsageError(
            f"Platt's slope must be above 0 but is {found[0]:.3g}: the predictions do not rank "
            "these examples, so look at the model's AUC first"
        )
    return Curve(scale=float(found[0]), shift=float(found[1]))


def isotonic(p: Floats, labels: Floats, w: Floats) -> Curve:
    """Pools neighbours that fall (PAV); a knot is a pool's mean prediction and its rate.

    Equal predictions are of one pool from the start, so the order of the examples does not matter.
    Rates stay off 0 and 1 by half an example of all, so that no log loss is infinite.
    """
    order = np.argsort(p, kind="stable")
    order = order[w[order] > 0]
    starts = np.flatnonzero(np.append(True, np.diff(p[order]) > 0))
    part = starts * MAX_KNOTS // len(order)  # as many examples in each, if there are many
    starts = starts[np.append(True, np.diff(part) > 0)]
    pools: list[list[float]] = []  # weight, and the sums of predictions and labels
    for pool in np.add.reduceat(np.stack([w, w * p, w * labels])[:, order], starts, axis=1).T:
        pools.append(pool.tolist())
        while len(pools) > 1 and _falls(pools[-2], pools[-1]):
            last = pools.pop()
            pools[-1] = [a + b for a, b in zip(pools[-1], last, strict=True)]
    if len(pools) < 2:
        raise UsageError(
            "the predictions do not rank these examples: isotonic regression makes them all one "
            "chance, so look at the model's AUC first"
        )
    least = 0.5 / len(order)
    x = [predicted / weight for weight, predicted, _ in pools]
    y = [min(max(actual / weight, least), 1 - least) for weight, _, actual in pools]
    return Curve(x=tuple(x), y=tuple(y))


def _falls(first: list[float], second: list[float]) -> bool:
    """Tells whether two pools must become one: rates that fall, or predictions that are equal."""
    rates = first[2] / first[0] >= second[2] / second[0]
    # As float32: there the knots must still grow.
    return bool(rates or np.float32(first[1] / first[0]) >= np.float32(second[1] / second[0]))
