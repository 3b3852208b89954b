"""Shares of ids and Zipf's exponent are those of the ids' exact counts."""

import numpy as np
import pytest

from embedps.frequencies import FrequencyCounts, exponent_text


def zipf_stream(rng: np.random.Generator, exponent: float, steps: int, batch: int) -> np.ndarray:
    weights = np.arange(1, 50_001) ** -exponent
    return rng.choice(50_000, (steps, batch), p=weights / weights.sum())


def test_counts_answer_as_the_sorted_frequencies_do():
    rng = np.random.default_rng(3)
    frequencies = rng.integers(1, 50, 1234)
    ranked = np.sort(frequencies)[::-1]
    counts = FrequencyCounts.of(rng.permutation(frequencies))
    assert counts.num_ids == 1234
    np.testing.assert_array_equal(counts.at(np.arange(1, 1235)), ranked)
    assert counts.at_most(1) == (frequencies <= 1).sum()
    for share in (0.0, 0.01, 0.3, 1.0):
        top = max(1, round(share * 1234))
        assert counts.share_of_top(share) == pytest.approx(ranked[:top].sum() / ranked.sum())


def test_the_exponent_of_a_zipf_stream_is_found():
    exponent, steps = 1.1, 3000
    stream = zipf_stream(np.random.default_rng(5), exponent, steps, 256)
    updates = np.zeros(50_000, np.int64)
    for ids in stream:
        updates[np.unique(ids)] += 1  # what a row counts: each step once
    found = FrequencyCounts.of(updates).zipf_exponent(steps)
    assert found == pytest.approx(exponent, abs=0.05)


def test_too_few_frequent_ids_have_no_exponent():
    assert FrequencyCounts.of([9, 8, 7]).zipf_exponent(100) is None
    assert FrequencyCounts.of(np.ones(1000)).zipf_exponent(100) is None
    assert FrequencyCounts([], []).zipf_exponent(100) is None
    assert exponent_text(None) == "too few ids"
    assert exponent_text(1.234) == "1.23"


def test_no_ids_have_no_share():
    assert FrequencyCounts([], []).share_of_top(0.01) == 0.0
