"""Computes metrics from counts that add up over batches, units and workers.

A batch's counts of clicks are some sums and two histograms of the logit. Counts can be added
exactly, so the metrics over any set of completed units equal those of one pass over their examples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedps.score_names import TITLES, slice_of

NUM_BINS = 16384
"""Of each histogram. Two examples in one bin count as a tie. A bin is 0.0015 wide in logits near 0,
and 0.15% of the logit far from 0. The AUC's error is therefore below 1e-4, unless the logits spread
over less than 20 bins (tests/test_metrics.py measures it)."""

ASINH_BOUND = 12.0
"""The histograms' bins are equally wide in asinh(logit), from -12 to 12: logits to +- 81,000."""


class ClickCounts(NamedTuple):
    """Counts of a set of examples.

    Attributes:
      sums: float64 [6], over the examples: 1, label, log loss, predicted probability, squared and
        absolute error; each times the weight, if there are weights.
      histograms: int64 [2, NUM_BINS] of the negatives' and the positives' logits; float64 of soft
        labels, and of examples times their weights.
    """

    sums: tf.Tensor
    histograms: tf.Tensor

    def plus(self, more: ClickCounts) -> ClickCounts:
        """Adds the counts of two sets of examples."""
        return ClickCounts(self.sums + more.sums, self.histograms + more.histograms)


NUM_SUMS = 6


def zero_counts() -> ClickCounts:
    """Returns the counts of no examples."""
    return ClickCounts(tf.zeros([NUM_SUMS], tf.float64), tf.zeros([2, NUM_BINS], tf.int64))


def count(
    labels: tf.Tensor,
    logits: tf.Tensor,
    weights: tf.Tensor | None = None,
    *,
    dtype: tf.DType = tf.int64,
) -> ClickCounts:
    """Counts a batch, in a graph.

    Args:
      labels: float32 [batch], 0 or 1; or from 0 to 1, if the dtype is float64. An example of label
        y counts as y of a positive and 1 - y of a negative.
      logits: float32 [batch].
      weights: float32 [batch]; whole numbers, if the dtype is int64. An example of weight 0 is not
        counted, whatever its label and logit are.
      dtype: of the histograms: int64 or float64.
    """
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    predicted = tf.sigmoid(logits)
    errors = tf.cast(predicted - labels, tf.float64)
    parts = [
        tf.ones_like(errors),
        *(tf.cast(each, tf.float64) for each in (labels, losses, predicted)),
        tf.square(errors),
        tf.abs(errors),
    ]
    times = None if weights is None else tf.cast(weights, tf.float64)
    if times is not None:
        parts = [tf.math.multiply_no_nan(each, times) for each in parts]
    bins = bins_of(logits)
    each = tf.ones_like(bins, dtype) if times is None else tf.cast(times, dtype)
    if dtype.is_integer:
        places = bins + tf.cast(labels > 0.5, tf.int32) * NUM_BINS
    else:
        positive = tf.cast(labels, dtype)
        places = tf.concat([bins, bins + NUM_BINS], 0)
        each = tf.concat([(1 - positive) * each, positive * each], 0)
    flat = tf.math.unsorted_segment_sum(each, places, num_segments=2 * NUM_BINS)
    sums = tf.stack([tf.reduce_sum(part) for part in parts])
    return ClickCounts(sums, tf.reshape(flat, [2, NUM_BINS]))


def bins_of(logits: tf.Tensor) -> tf.Tensor:
    """Gives the bins of logits in the histograms, int32 [batch]."""
    scaled = (tf.asinh(logits) + ASINH_BOUND) * (NUM_BINS / (2 * ASINH_BOUND))
    # A NaN could be cast to any bin. The loss shows it.
    scaled = tf.where(tf.math.is_nan(scaled), 0.0, scaled)
    return tf.cast(tf.clip_by_value(scaled, 0, NUM_BINS - 1), tf.int32)


def histogram_auc(histograms: tf.Tensor) -> tf.Tensor:
    """Computes the area under the ROC curve: the share of ordered pairs; a tie counts as half.

    A pair is a negative and a positive example, ordered if the positive has the greater score.

    Args:
      histograms: [2, bins] of the negatives' and the positives' scores.

    Returns:
      The AUC in [0, 1], float64 scalar; NaN without examples of both labels.
    """
    negatives, positives = tf.unstack(tf.cast(histograms, tf.float64))
    below = tf.cumsum(negatives) - 0.5 * negatives
    pairs = tf.reduce_sum(negatives) * tf.reduce_sum(positives)
    return tf.reduce_sum(positives * below) / pairs


def histogram_auprc(histograms: tf.Tensor) -> tf.Tensor:
    """Computes the average precision: the mean, over the positives, of the precision at theirs.

    Args:
      histograms: as of `histogram_auc`.

    Returns:
      Float64 scalar in [0, 1]; NaN without a positive.
    """
    negatives, positives = tf.unstack(tf.cast(histograms, tf.float64))
    true = tf.cumsum(positives, reverse=True)
    precision = tf.math.divide_no_nan(true, true + tf.cumsum(negatives, reverse=True))
    return tf.reduce_sum(positives * precision) / tf.reduce_sum(positives)


class ClickMetrics(tf.keras.metrics.Metric):
    """The scores of a click model: see `click_scores`.

    It is a Keras metric, for `update_state` in a model's `compute_loss`. Its two variables are the
    counts of the examples, as ClickCounts has them; with weights there are two more.
    """

    def __init__(self, name: str = "click", *, soft: bool = False, weighted: bool = False) -> None:
        """Makes the counts.

        Args:
          soft: labels are any numbers from 0 to 1.
          weighted: examples have weights: the scores are also those of examples times their
            weights, under names such as "weighted_auc".
        """
        super().__init__(name=name)
        self.mapped: Callable[[tf.Tensor], tf.Tensor] | None = None  # maps logits before they count
        self._counts = {"": self._add_counts("", tf.float64 if soft else tf.int64)}
        if weighted:
            self._counts["weighted_"] = self._add_counts("weighted_", tf.float64)

    def _add_counts(self, prefix: str, dtype: tf.DType) -> ClickCounts:
        shapes = {"sums": ([NUM_SUMS], tf.float64), "histograms": ([2, NUM_BINS], dtype)}
        return ClickCounts(
            **{
                name: self.add_weight(prefix + name, shape, dtype=kind, initializer="zeros")
                for name, (shape, kind) in shapes.items()
            }
        )

    def update_state(
        self,
        labels: tf.Tensor,
        logits: tf.Tensor,
        weights: tf.Tensor | None = None,
        present: tf.Tensor | None = None,
    ) -> None:
        """Counts a batch.

        Args:
          labels: float32 [batch], 0 or 1; with `soft`, from 0 to 1.
          logits: float32 [batch].
          weights: float32 [batch], if it is weighted.
          present: bool [batch]: which labels there are; by default all. The others do not count.
        """
        logits = logits if self.mapped is None else self.mapped(logits)
        there = None if present is None else tf.cast(present, tf.float32)
        for name, counted in self._counts.items():
            times = there
            if name and weights is not None:
                times = weights if there is None else weights * there
            more = count(labels, logits, times, dtype=counted.histograms.dtype)
            counted.sums.assign_add(more.sums)
            counted.histograms.assign_add(more.histograms)

    def reset_state(self) -> None:
        """Forgets what was counted."""
        for variable in self.variables:
            variable.assign(tf.zeros(variable.shape, variable.dtype))

    def details(self, values: Sequence[Any]) -> dict[str, Any]:
        """Gives `click_deciles`, and `nearly_equal` of scores where ties may matter, by name.

        Args:
          values: of the metric's variables.
        """
        found: dict[str, Any] = {}
        for prefix, sums, histograms in zip(self._counts, values[::2], values[1::2], strict=True):
            found[prefix + DECILES] = click_deciles(sums, histograms)
            if ties := nearly_equal(histograms):
                found[prefix + NEARLY_EQUAL] = ties
        return found

    def result(self) -> dict[str, Any]:
        """Computes the scores so far, as `click_scores` does."""
        return {
            prefix + name: value
            for prefix, counts in self._counts.items()
            for name, value in click_scores(*(each.read_value() for each in counts)).items()
        }


def click_scores(sums: tf.Tensor, histograms: tf.Tensor) -> dict[str, tf.Tensor]:
    """Computes a click model's scores from counts; one that is not defined is NaN.

    It is of TensorFlow's ops: Keras computes the scores after each step of `fit`.

    Returns:
      Float64 scalars.
      auc: area under the ROC curve; not defined if a logit is not a number.
      logloss: mean log loss, in nats.
      normalized_entropy: log loss over the entropy of the base rate (He et al. 2014); lower is
        better, and below 1 is better than predicting the base rate.
      calibration: predicted over actual positives; 1 is calibrated.
      auprc: area under the curve of precision over recall, as average precision.
      rmse, mae: root mean squared, and mean absolute, difference of probability and label.
    """
    examples, positives, loss, predicted, square, absolute = tf.unstack(tf.cast(sums, tf.float64))
    rate = positives / examples
    entropy = -(rate * tf.math.log(rate) + (1 - rate) * tf.math.log1p(-rate))
    logloss = loss / examples
    nan = tf.constant(float("nan"), tf.float64)
    is_nan = tf.math.is_nan(loss)
    return {
        "auc": tf.where(is_nan, nan, histogram_auc(histograms)),
        "logloss": logloss,
        "normalized_entropy": logloss / entropy,
        "calibration": tf.where(positives > 0, predicted / positives, nan),
        "auprc": tf.where(is_nan, nan, histogram_auprc(histograms)),
        "rmse": tf.sqrt(square / examples),
        "mae": absolute / examples,
    }


DECILES = "deciles"
_NUM_DECILES = 10


def click_deciles(sums: Any, histograms: Any) -> list[dict[str, float]]:
    """Computes the curve of calibration and the lift, by tenths of the examples.

    They are of the histograms: what is predicted of an example is known to its bin, which is 0.15%
    of the logit wide, and the examples of a bin that two tenths share are divided evenly.

    Args:
      sums: as of ClickCounts.
      histograms: as of ClickCounts.

    Returns:
      From the highest predictions to the lowest, each with examples (or their weights), the mean
      predicted, the actual rate, and the lift: actual over the rate of all. None without examples;
      the lift is NaN without a positive.
    """
    negatives, positives = np.asarray(histograms, np.float64)[:, ::-1]
    counts = negatives + positives
    total, positive = counts.sum(), positives.sum()
    if not total > 0 or not np.isfinite(np.asarray(sums, np.float64)[2]):
        return []
    centers = (np.arange(NUM_BINS)[::-1] + 0.5) * (2 * ASINH_BOUND / NUM_BINS) - ASINH_BOUND
    predicted = counts / (1 + np.exp(-np.clip(np.sinh(centers), -700, None)))
    ends = np.cumsum(counts)
    edges = np.linspace(0, total, _NUM_DECILES + 1)

    def between(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.diff(np.interp(edges, np.append(0, ends), np.append(0, np.cumsum(values))))

    parts = zip(between(counts), between(predicted), between(positives), strict=True)
    return [
        {
            "examples": float(n),
            "predicted": float(p / n),
            "actual": float(y / n),
            "lift": float(y / n / (positive / total)) if positive else float("nan"),
        }
        for n, p, y in parts
    ]


NEARLY_EQUAL = "nearly_equal"
_FULL_BIN = 0.05  # of all examples: a smooth histogram of so few bins is of hardly any spread
_LEAST_DOUBT = 0.005  # of an AUC


def nearly_equal(histograms: Any) -> dict[str, float]:
    """Bounds by how much ties of a bin may change the AUC, where scores crowd in few bins.

    Scores crowd where a network has collapsed, or has hardly begun to learn. Equal scores count as
    they should; nearly equal ones of a bin count as ties too.

    Args:
      histograms: as of ClickCounts.

    Returns:
      Empty if it hardly matters. share: of the examples that are in bins of a twentieth of all or
      more. auc_within: the AUC of the exact scores differs by at most this because of these bins.
    """
    negatives, positives = np.asarray(histograms, np.float64)
    counts, pairs = negatives + positives, negatives.sum() * positives.sum()
    full = counts >= _FULL_BIN * counts.sum()
    within = float((negatives * positives)[full].sum() / pairs / 2) if pairs else 0.0
    if within < _LEAST_DOUBT:
        return {}
    return {"share": float(counts[full].sum() / counts.sum()), "auc_within": within}


_SHOWN = 2  # of a model's own metrics, in a line of progress


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClickScores:
    """Scores of a set of examples.

    Attributes:
      values: the scores by name: those of the model's metrics. `loss`, the mean of what steps
        minimize, is among them unless the model has a log loss.
      examples: how many.
      details: what metrics of clicks tell beside scores, by name; see `ClickMetrics.details`.
    """

    values: Mapping[str, float]
    examples: int
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def get(self, name: str) -> float:
        """Returns a score; NaN if there is none of this name."""
        return self.values.get(name, float("nan"))

    @property
    def auc(self) -> float:
        """Area under the ROC curve; NaN if the model does not count it."""
        return self.get("auc")

    @property
    def logloss(self) -> float:
        """Mean log loss, in nats; NaN if the model does not count it."""
        return self.get("logloss")

    @property
    def normalized_entropy(self) -> float:
        """Log loss over the entropy of the base rate; NaN if the model does not count it."""
        return self.get("normalized_entropy")

    @property
    def calibration(self) -> float:
        """Predicted over actual positives; NaN if the model does not count it."""
        return self.get("calibration")

    @property
    def loss(self) -> float:
        """The log loss of a click model, or the mean of what its steps minimize."""
        return self.get("logloss" if "logloss" in self.values else "loss")

    def describe(self) -> str:
        """Formats the scores as a line."""
        digits = {"calibration": 4}
        parts = [
            f"{TITLES.get(name, name)} {value:.{digits.get(name, 5)}f}"
            for name, value in self.values.items()
            if not self._is_further(name)
        ]
        of_slices = len({slice_of(name) for name in self.values} - {""})
        parts += [f"{of_slices} slices"] if of_slices else []
        line = ", ".join([*parts, f"{self.examples:,} examples"]) + self._doubt()
        return line + " (some have a loss that is not a number)" * self._loses_numbers

    def _doubt(self) -> str:
        """Says by how much the AUC of a first label may be off because scores are nearly equal."""
        for name, ties in self.details.items():
            if name.endswith(NEARLY_EQUAL):
                return (
                    f" ({ties['share']:.0%} of the scores are nearly or quite equal, so the AUC "
                    f"may be off by {ties['auc_within']:.3f})"
                )
        return ""

    def _is_further(self, name: str) -> bool:
        """Tells whether a score is of a slice, or beside the AUC of the same label: not shown."""
        if slice_of(name):
            return True
        stem = name.removesuffix("auprc").removesuffix("rmse").removesuffix("mae")
        return stem != name and f"{stem}auc" in self.values

    @property
    def _loses_numbers(self) -> bool:
        counted = self.examples and not {"loss", "logloss"}.isdisjoint(self.values)
        return bool(counted) and not np.isfinite(self.loss)

    def brief(self) -> str:
        """Formats the loss and the first scores, for a line of progress."""
        others = [n for n, v in self.values.items() if n not in ("loss", "logloss") and v == v]
        shown = ["auc"] if "auc" in self.values else others[:_SHOWN]
        parts = [f"{TITLES.get(name, name)} {self.values[name]:.4f}" for name in shown]
        return ", ".join([f"loss {self.loss:.4f}", *parts])


Counts: TypeAlias = Mapping[str, Any]
"""What a unit counts, by name: "examples" and "loss", float64 scalars, and metrics' variables. With
slices, also what is KEPT of each example, which is not added."""

KEPT = "kept/"
"""What the names of columns of examples begin with: [examples] each."""


class Accumulator:
    """Adds counts up. Not thread-safe."""

    def __init__(
        self,
        scores: Callable[[Mapping[str, Any]], dict[str, float]],
        details: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda totals: {},
    ) -> None:
        """Starts with no examples.

        Args:
          scores: computes the scores of metrics from the sums of their counts.
          details: computes what metrics tell beside them, likewise.
        """
        self._scores, self._details = scores, details
        self._totals: dict[str, Any] = {}

    def add(self, counts: Counts) -> None:
        """Adds the counts of more examples."""
        for name, value in counts.items():
            if name.startswith(KEPT):
                continue
            more = np.asarray(value)
            self._totals[name] = self._totals[name] + more if name in self._totals else more

    def names(self, counts: Counts) -> list[str]:
        """Names the scores of counts, also of no examples."""
        found = list(self._scores({name: np.asarray(value) for name, value in counts.items()}))
        return found if "logloss" in found else ["loss", *found]

    def result(self) -> ClickScores:
        """Computes the scores so far; a score that is not defined is NaN."""
        examples = float(self._totals.get("examples", 0.0))
        scores = self._scores(self._totals) if examples else {}
        if "logloss" not in scores and examples:
            scores = {"loss": float(self._totals["loss"]) / examples} | scores
        details = self._details(self._totals) if examples else {}
        return ClickScores(values=scores, examples=int(examples), details=details)
