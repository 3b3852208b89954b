"""How unevenly ids occur: shares of the most frequent ones, and Zipf's exponent."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

HOT_SHARE = 0.01  # of the ids, whose share of the updates is told
_LEAST_FREQUENCY = 5  # rarer ids say little of an exponent
_FITTED_RANKS = 200
_LEAST_IDS = 10
TOO_FEW_IDS = "too few ids"


class FrequencyCounts:
    """How many ids have which frequency."""

    def __init__(self, values: ArrayLike, counts: ArrayLike) -> None:
        """Takes the number of ids of each frequency.

        Args:
          values: frequencies, in any order.
          counts: how many ids have each of them.
        """
        found, numbers = np.asarray(values, np.float64), np.asarray(counts, np.int64)
        order = np.argsort(-found, kind="stable")
        order = order[numbers[order] > 0]
        self._values, self._counts = found[order], numbers[order]
        self._ends = np.cumsum(self._counts)  # the rank of the last id of each frequency

    @classmethod
    def of(cls, frequencies: ArrayLike) -> FrequencyCounts:
        """Counts the frequencies of ids."""
        return cls(*np.unique(np.asarray(frequencies), return_counts=True))

    @property
    def num_ids(self) -> int:
        """The number of ids."""
        return int(self._counts.sum())

    def at(self, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Gives the frequencies of ids by their ranks, which count from 1."""
        return np.asarray(self._values[np.searchsorted(self._ends, ranks)])

    def at_most(self, frequency: float) -> int:
        """Counts the ids of at most this frequency."""
        return int(self._counts[self._values <= frequency].sum())

    def share_of_top(self, share: float) -> float:
        """Gives the share of all occurrences that are of the most frequent ids.

        Args:
          share: of the ids; it is rounded to whole ids, and is one id at least.
        """
        top = max(1, round(share * self.num_ids))
        taken = np.clip(top - (self._ends - self._counts), 0, self._counts)
        total = float(self._values @ self._counts)
        return float(self._values @ taken) / total if total else 0.0

    def zipf_exponent(self, steps: int) -> float | None:
        """Fits the exponent s of frequency ~ rank^-s, by least squares of the logarithms.

        Args:
          steps: of training; a frequency counts an id once per step.

        Returns:
          The exponent; None if there are too few ids that are frequent and not in nearly all steps.
        """
        first = int(self._counts[self._values > 0.9 * steps].sum()) + 1
        last = int(self._counts[self._values >= _LEAST_FREQUENCY].sum())
        if last - first + 1 < _LEAST_IDS or last < 2 * first:
            return None
        # Ranks at equal distances of their logarithms: otherwise the tail alone would decide.
        ranks = np.unique(
            np.exp(np.linspace(np.log(first), np.log(last), _FITTED_RANKS)).astype(np.int64)
        )
        ranks = ranks[(ranks >= first) & (ranks <= last)]
        occurrences = expected_occurrences(self.at(ranks), steps)
        return float(-np.polyfit(np.log(ranks), np.log(occurrences), 1)[0])


def expected_occurrences(frequencies: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
    """Estimates how often ids occurred that are in so many of the steps: -steps ln(1 - f/steps).

    Occurrences are taken as spread evenly over the steps. An id in every step gives infinity.
    """
    with np.errstate(divide="ignore"):
        return np.asarray(-steps * np.log1p(-np.minimum(frequencies / max(steps, 1), 1.0)))


def exponent_text(exponent: float | None) -> str:
    """Formats Zipf's exponent."""
    return TOO_FEW_IDS if exponent is None else f"{exponent:.2f}"
