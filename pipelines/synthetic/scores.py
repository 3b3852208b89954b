"""Scores logits against labels, over blocks of rows in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_NUM_BINS = 1 << 16
_MAX_LOGIT = 16.0


@dataclass(frozen=True, kw_only=True)
class Score:
    """Sums over rows, which add up with `+`; labels are counted by bins of the logit."""

    positives: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_NUM_BINS, np.int64))
    negatives: NDArray[np.int64] = field(default_factory=lambda: np.zeros(_NUM_BINS, np.int64))
    loss: float = 0.0

    @classmethod
    def of(cls, logits: NDArray[np.float64], labels: NDArray[np.bool_]) -> Score:
        """Scores one block: logits float64 [rows], labels bool [rows]."""
        scaled = (logits + _MAX_LOGIT) * (_NUM_BINS / (2 * _MAX_LOGIT))
        bins = np.clip(scaled, 0, _NUM_BINS - 1).astype(np.int64)
        # log(1 + exp(-margin)); the margin is the logit, negated for a negative label.
        loss = np.logaddexp(0.0, np.where(labels, -logits, logits)).sum()
        return cls(
            positives=np.bincount(bins[labels], minlength=_NUM_BINS),
            negatives=np.bincount(bins[~labels], minlength=_NUM_BINS),
            loss=float(loss),
        )

    def __add__(self, other: Score) -> Score:
        return Score(
            positives=self.positives + other.positives,
            negatives=self.negatives + other.negatives,
            loss=self.loss + other.loss,
        )

    @property
    def rows(self) -> int:
        return int(self.positives.sum() + self.negatives.sum())

    @property
    def click_rate(self) -> float:
        """The share of positive labels; 0 without rows."""
        return int(self.positives.sum()) / max(self.rows, 1)

    @property
    def logloss(self) -> float:
        """The mean log loss in nats; 0 without rows."""
        return self.loss / max(self.rows, 1)

    @property
    def auc(self) -> float:
        """The area under the ROC curve; rows of one bin count as ties. 0.5 for a single class."""
        positives, negatives = int(self.positives.sum()), int(self.negatives.sum())
        if positives == 0 or negatives == 0:
            return 0.5
        below = np.cumsum(self.negatives) - 0.5 * self.negatives
        return float((self.positives * below).sum() / positives / negatives)
