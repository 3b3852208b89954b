"""Percentiles of steps' staleness."""

import numpy as np
import pytest

from embedps.engine.steps.step_logs import staleness_percentile


@pytest.mark.parametrize("seed", range(20))
def test_percentile_is_that_of_the_sorted_steps(seed):
    rng = np.random.default_rng(seed)
    stale = rng.integers(0, 9, rng.integers(1, 60))
    values, counts = np.unique(stale, return_counts=True)
    by_staleness = dict(zip(values.tolist(), counts.tolist(), strict=True))
    for percent in (1, 50, 99, 100):
        expected = np.percentile(stale, percent, method="inverted_cdf")
        assert staleness_percentile(by_staleness, percent) == expected
