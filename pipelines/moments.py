"""Count, mean and variance of numbers, as a value that adds up over parts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Moments:
    """The count, mean and sum of squared deviations of numbers."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Moments:
        """Computes the moments of the values that are not NaN."""
        values = values[~np.isnan(values)]
        if not len(values):
            return cls()
        mean = float(values.mean())
        return cls(count=len(values), mean=mean, squares=float(((values - mean) ** 2).sum()))

    def __add__(self, other: Moments) -> Moments:
        """Merges the moments of two parts (Chan et al., 1983)."""
        if not other.count:
            return self
        count = self.count + other.count
        delta = other.mean - self.mean
        return Moments(
            count=count,
            mean=self.mean + delta * other.count / count,
            squares=self.squares + other.squares + delta**2 * self.count * other.count / count,
        )

    @property
    def std(self) -> float:
        """The population standard deviation; 0 without numbers."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0
