"""Computes scores that are no sums over units: GAUC, and the scores of slices.

A unit returns the labels and predictions of its examples with its counts. Only the attempt that
completed returns them, and they are joined in the order of the units. So each example counts once,
whichever process died, and the scores have the same bits in one process and in many.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedps.data.dataset import Dataset
from embedps.engine.kept_examples import COLUMN, IS_KNOWN, LABEL, SCORE, WEIGHT, KeptExamples
from embedps.engine.step_model import StepModel
from embedps.errors import UsageError
from embedps.evaluation.paired_scores import log_losses, slices
from embedps.metrics import ClickScores, Counts
from embedps.run.slice_options import BYTES_PER_EXAMPLE, KNOWN, SliceOptions
from embedps.score_names import AT

Floats = NDArray[np.float64]

HOUR_MS = 3_600_000


def check_columns(dataset: Dataset, names: Iterable[str]) -> None:
    """Checks that examples can be divided by columns.

    Raises:
      UsageError: one has no single id, key or time per example.
    """
    singles = [feature.name for feature in dataset.categorical if not feature.ragged]
    allowed = [*singles, *dataset.keys, *([dataset.timestamp] if dataset.timestamp else [])]
    for name in names:
        if name not in allowed:
            raise UsageError(
                f"slices and groups go by columns of one id, key or time per example, but {name!r} "
                f"is none of {dataset.directory}: it has {', '.join(allowed) or 'none'}"
            )


def slice_name(dataset: Dataset, column: str, value: str, missing_id: int) -> str:
    """Names the rows of a column's value as scores show them."""
    return "missing" if value == str(missing_id) and column != dataset.timestamp else value


def known_groups(
    dataset: Dataset, name: str, values: NDArray[Any], missing_id: int
) -> NDArray[np.intp]:
    """Finds the examples that GAUC counts: missing ids are no group, as they are of anyone.

    Args:
      name: the column of groups.
      values: [n], the column's.
    """
    is_time = name == dataset.timestamp
    return np.flatnonzero((values != missing_id) | is_time)


def group_aucs(
    at: NDArray[Any], scores: NDArray[Any], positives: Floats, negatives: Floats, num_groups: int
) -> Floats:
    """Computes the AUC of each group of examples: a tie counts as half.

    Args:
      at: [n], each example's group, in [0, num_groups).
      scores: [n].
      positives: [n], how much of a positive each example is: its label, times its weight.
      negatives: [n], how much of a negative.
      num_groups: of all.

    Returns:
      [num_groups]; NaN without both labels, or if a score is not a number.
    """
    if not len(at):
        return np.full(num_groups, np.nan)
    order = np.lexsort((scores, at))
    group, score = at[order], scores[order]
    is_new = np.append(True, (group[1:] != group[:-1]) | (score[1:] != score[:-1]))
    starts = np.flatnonzero(is_new)
    group = group[starts]
    p, n = (np.add.reduceat(each[order], starts) for each in (positives, negatives))
    of_group = np.bincount(group, n, num_groups)
    below = np.cumsum(n) - n - (np.cumsum(of_group) - of_group)[group]
    pairs = np.bincount(group, p * (below + n / 2), num_groups)
    both = np.bincount(group, p, num_groups) * of_group
    found = np.full(num_groups, np.nan)
    np.divide(pairs, both, out=found, where=both > 0)
    found[at[np.isnan(scores)]] = np.nan
    return found


def gauc(
    groups: NDArray[Any], scores: NDArray[Any], labels: Floats, weights: Floats | None = None
) -> float:
    """Computes the mean AUC of groups by their examples; groups of one label are left out.

    Args:
      groups: [n], the group of each example.
      scores: [n].
      labels: [n], from 0 to 1.
      weights: [n], of the examples; by default 1.
    """
    w = np.ones(len(labels)) if weights is None else weights
    _, at = np.unique(groups, return_inverse=True)
    num_groups = int(at.max()) + 1 if len(at) else 0
    aucs = group_aucs(at, scores, labels * w, (1 - labels) * w, num_groups)
    if np.isnan(scores).any():
        return math.nan
    sizes = np.bincount(at, w, num_groups)
    counts = ~np.isnan(aucs)
    total = float(sizes[counts].sum())
    return float((sizes[counts] * aucs[counts]).sum()) / total if total else math.nan


def slice_scores(scores: NDArray[Any], labels: Floats, weights: Floats | None) -> dict[str, float]:
    """Computes the scores of the examples of a slice; see `gauc` for the arguments."""
    w = np.ones(len(labels)) if weights is None else weights
    total, positives = float(w.sum()), float((w * labels).sum())
    one = np.zeros(len(labels), np.int64)
    predicted = float((w * scores.astype(np.float64)).sum())
    return {
        "auc": float(group_aucs(one, scores, labels * w, (1 - labels) * w, 1)[0]),
        "logloss": float((w * log_losses(labels, scores)).sum()) / total if total else math.nan,
        "calibration": predicted / positives if positives else math.nan,
    }


class SlicedScores:
    """Computes the scores that `SliceOptions` ask for.

    Attributes:
      kept: what a unit keeps for that.
    """

    def __init__(
        self, options: SliceOptions, model: StepModel, dataset: Dataset, *, split: str | None
    ) -> None:
        """Finds out what to keep.

        Args:
          split: of the dataset, which must not have more examples than the options say; None does
            not check.

        Raises:
          UsageError: the dataset, the split or the model is not what the options need.
        """
        self._options = options
        plain = [name for name in options.slices if not name.startswith(KNOWN)]
        known = [name.removeprefix(KNOWN) for name in options.slices if name.startswith(KNOWN)]
        groups = [] if options.gauc is None else [options.gauc]
        check_columns(dataset, [*plain, *known, *groups])
        rows = 0 if split is None else dataset.split(split).rows
        if rows > options.max_slice_examples:
            raise UsageError(
                f"--gauc and --slices take {BYTES_PER_EXAMPLE} bytes per example, and split "
                f"{split!r} has {rows:,} examples, more than {options.max_slice_examples:,}: "
                f"with {rows * BYTES_PER_EXAMPLE / 1e9:.1f} GB to spare give --max-slice-examples "
                f"{rows}, else make a smaller split, such as by a hash of {options.gauc or 'a key'}"
            )
        self.kept = KeptExamples(
            model, dataset, columns=tuple(dict.fromkeys([*plain, *groups])), known=known
        )
        self._dataset = dataset
        self._missing_id = model.recommender.missing_id

    @property
    def group_scores(self) -> list[str]:
        """The names of the scores by groups."""
        return self._named("gauc") if self._options.gauc else []

    @property
    def slice_scores(self) -> list[str]:
        """The names of the scores of slices, without the slice."""
        return self._named("auc", "logloss", "calibration") if self._options.slices else []

    def _named(self, *scores: str) -> list[str]:
        return [
            prefix + weighed + score
            for label, prefix in self._prefixes.items()
            for weighed in ("", *(["weighted_"] if self.kept.weights[label] else []))
            for score in scores
        ]

    @property
    def _prefixes(self) -> dict[str, str]:
        """What names of scores begin with, by label."""
        parts = self.kept.labels.items()
        return {label: "" if said == "score" else f"{label}_" for label, said in parts}

    def of(self, counts: Sequence[Counts]) -> dict[str, float]:
        """Computes the scores of what units kept, in order."""
        names = [*self.kept.dtypes] if counts else []
        columns = {n: np.concatenate([np.asarray(each[n]) for each in counts]) for n in names}
        found: dict[str, float] = {}
        for label, prefix in self._prefixes.items() if columns else ():
            there = np.flatnonzero(~np.isnan(columns[LABEL + label]))
            is_whole = len(there) == len(columns[LABEL + label])
            of_label = columns if is_whole else {n: v[there] for n, v in columns.items()}
            found |= {prefix + n: value for n, value in self._of_label(label, of_label)}
        return found

    def _of_label(
        self, label: str, columns: Mapping[str, NDArray[Any]]
    ) -> Iterator[tuple[str, float]]:
        labels, scores = columns[LABEL + label].astype(np.float64), columns[SCORE + label]
        weighings: dict[str, Floats | None] = {"": None}
        if self.kept.weights[label]:
            weighings["weighted_"] = columns[WEIGHT + label].astype(np.float64)
        if group := self._options.gauc:
            values = self._groups_of(columns, group)
            is_there = known_groups(self._dataset, group, values, self._missing_id)
            for prefix, weights in weighings.items():
                w = None if weights is None else weights[is_there]
                yield f"{prefix}gauc", gauc(values[is_there], scores[is_there], labels[is_there], w)
        for column, value, rows in self._slices(columns):
            yield f"examples{AT}{column}={value}", len(rows)
            for prefix, weights in weighings.items():
                w = None if weights is None else weights[rows]
                for name, score in slice_scores(scores[rows], labels[rows], w).items():
                    yield f"{prefix}{name}{AT}{column}={value}", score

    def _slices(
        self, columns: Mapping[str, NDArray[Any]]
    ) -> Iterator[tuple[str, str, NDArray[Any]]]:
        for name in self._options.slices:
            if name.startswith(KNOWN):
                is_known = columns[IS_KNOWN + name.removeprefix(KNOWN)]
                for value, chosen in (("known", is_known), ("new", ~is_known)):
                    yield name, value, np.flatnonzero(chosen)
                continue
            values = self._groups_of(columns, name)
            for _, value, rows in slices({name: values}, [name], self._options.max_slices):
                yield name, slice_name(self._dataset, name, value, self._missing_id), rows

    def _groups_of(self, columns: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
        """Gives a column's values, of the time its hour of the day (UTC)."""
        values = columns[COLUMN + name]
        return values // HOUR_MS % 24 if name == self._dataset.timestamp else values


def total_of(
    model: StepModel, counts: Sequence[Counts], sliced: SlicedScores | None
) -> ClickScores:
    """Computes the scores of units, from what they counted and kept, in order."""
    total = model.accumulator(training=False)
    for each in counts:
        total.add(each)
    found = total.result()
    if sliced is None:
        return found
    values = {**found.values, **sliced.of(counts)}
    return ClickScores(values=values, examples=found.examples, details=found.details)
