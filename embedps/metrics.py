"""Computes metrics of a click model from counts that add up over batches, units and workers.

A batch's counts are four sums and two histograms of the logit. Counts can be added exactly, so the
metrics over any set of completed units equal those of one pass over their examples.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

NUM_BINS = 16384
"""Of each histogram. Two examples in one bin count as a tie. A bin is 0.0015 wide in logits near 0,
and 0.15% of the logit far from 0. The AUC's error is therefore below 1e-4, unless the logits spread
over less than 20 bins (tests/test_metrics.py measures it)."""

ASINH_BOUND = 12.0
"""The histograms' bins are equally wide in asinh(logit), from -12 to 12: logits to +- 81,000."""


class Counts(NamedTuple):
    """Counts of a set of examples.

    Attributes:
      sums: float64 [4]: examples, positives, sum of log losses, sum of predicted probabilities.
      histograms: int64 [2, NUM_BINS] of the negatives' and the positives' logits.
    """

    sums: tf.Tensor
    histograms: tf.Tensor

    def plus(self, more: Counts) -> Counts:
        """Adds the counts of two sets of examples."""
        return Counts(self.sums + more.sums, self.histograms + more.histograms)


def zero_counts() -> Counts:
    """Returns the counts of no examples."""
    return Counts(tf.zeros([4], tf.float64), tf.zeros([2, NUM_BINS], tf.int64))


def count(labels: tf.Tensor, logits: tf.Tensor) -> Counts:
    """Counts a batch, in a graph.

    Args:
      labels: float32 [batch], 0 or 1.
      logits: float32 [batch].
    """
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    sums = tf.stack(
        [
            tf.cast(tf.size(labels), tf.float64),
            tf.reduce_sum(tf.cast(labels, tf.float64)),
            tf.reduce_sum(tf.cast(losses, tf.float64)),
            tf.reduce_sum(tf.cast(tf.sigmoid(logits), tf.float64)),
        ]
    )
    scaled = (tf.asinh(logits) + ASINH_BOUND) * (NUM_BINS / (2 * ASINH_BOUND))
    # A NaN could be cast to any bin. The loss shows it.
    scaled = tf.where(tf.math.is_nan(scaled), 0.0, scaled)
    bins = tf.cast(tf.clip_by_value(scaled, 0, NUM_BINS - 1), tf.int32)
    offset = tf.cast(labels > 0.5, tf.int32) * NUM_BINS
    flat = tf.math.unsorted_segment_sum(
        tf.ones_like(bins, tf.int64), bins + offset, num_segments=2 * NUM_BINS
    )
    return Counts(sums, tf.reshape(flat, [2, NUM_BINS]))


def histogram_auc(histograms: npt.NDArray[np.int64]) -> float:
    """Computes the area under the ROC curve: the share of ordered pairs; a tie counts as half.

    A pair is a negative and a positive example, ordered if the positive has the greater score.

    Args:
      histograms: int64 [2, bins] of the negatives' and the positives' scores.

    Returns:
      The AUC in [0, 1]; NaN without examples of both labels.
    """
    negatives, positives = histograms.astype(np.float64)
    pairs = negatives.sum() * positives.sum()
    if pairs == 0:
        return float("nan")
    below = np.concatenate([[0.0], np.cumsum(negatives)[:-1]])
    return float((positives * (below + 0.5 * negatives)).sum() / pairs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metrics:
    """Scores of a set of examples.

    Attributes:
      auc: area under the ROC curve.
      logloss: mean log loss, in nats.
      normalized_entropy: log loss over the entropy of the base rate (He et al. 2014); lower is
        better, and below 1 is better than predicting the base rate.
      calibration: predicted over actual positives; 1 is calibrated.
      examples: how many.
    """

    auc: float
    logloss: float
    normalized_entropy: float
    calibration: float
    examples: int

    def describe(self) -> str:
        """Formats the scores as a line."""
        return (
            f"AUC {self.auc:.5f}, log loss {self.logloss:.5f}, NE {self.normalized_entropy:.5f}, "
            f"calibration {self.calibration:.4f}, {self.examples:,} examples"
        )


class Accumulator:
    """Adds counts up. Not thread-safe."""

    def __init__(self) -> None:
        self._sums = np.zeros(4)
        self._histograms = np.zeros([2, NUM_BINS], np.int64)

    def add(self, counts: Counts) -> None:
        """Adds the counts of more examples."""
        self._sums += np.asarray(counts.sums)
        self._histograms += np.asarray(counts.histograms)

    def result(self) -> Metrics:
        """Computes the scores so far; a score that is not defined is NaN."""
        examples, positives, loss, predicted = (float(x) for x in self._sums)
        nan = float("nan")
        rate = positives / examples if examples else nan
        entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate)) if 0 < rate < 1 else nan
        logloss = loss / examples if examples else nan
        return Metrics(
            auc=histogram_auc(self._histograms),
            logloss=logloss,
            normalized_entropy=float(logloss / entropy),
            calibration=predicted / positives if positives else nan,
            examples=int(examples),
        )
