"""Differences of scores, against their definitions over all pairs, and how often they hold."""

from __future__ import annotations

import math

import numpy as np
import pytest

from embedps.evaluation.paired_scores import (
    Difference,
    auc_difference,
    gauc_difference,
    is_noise,
    logloss_difference,
    midranks,
    slices,
)
from tests import plain_scores


def draw(rng, num, *, noise=(1.0, 1.0), levels=0):
    """Labels, and the chances of two models that see the same signal with own noise."""
    signal = rng.normal(0, 1, num)
    labels = (rng.random(num) < 1 / (1 + np.exp(-signal))).astype("f4")
    logits = [signal + rng.normal(0, each, num) for each in noise]
    if levels:
        logits = [np.round(each * levels) / levels for each in logits]
    return labels, *((1 / (1 + np.exp(-each))).astype("f4") for each in logits)


def plain_delong(labels, first, second):
    """The structural components of DeLong et al., pair by pair."""
    positive = labels > 0.5
    ten, one = [], []
    for scores in (first, second):
        x, y = scores[positive], scores[~positive]
        order = (x[:, None] > y) + 0.5 * (x[:, None] == y)
        ten.append(order.mean(1))
        one.append(order.mean(0))
    s10, s01 = np.cov(ten), np.cov(one)
    spread = lambda s: s[0, 0] + s[1, 1] - 2 * s[0, 1]  # noqa: E731
    return math.sqrt(spread(s10) / len(ten[0]) + spread(s01) / len(one[0]))


@pytest.mark.parametrize("levels", [0, 3])
def test_auc_and_its_error_are_those_of_all_pairs(levels):
    labels, first, second = draw(np.random.default_rng(1), 1500, noise=(0.2, 3), levels=levels)
    found = auc_difference(labels, first, second)
    assert found.first == pytest.approx(plain_scores.auc(labels, first))
    assert found.second == pytest.approx(plain_scores.auc(labels, second))
    assert found.error == pytest.approx(plain_delong(labels, first, second))
    assert (found.better, found.value < 0) == (1, True)
    assert found.p_value < 1e-4
    swapped = auc_difference(labels, second, first)
    assert (swapped.better, swapped.value) == (2, -found.value)


def test_intervals_hold_and_equal_models_are_noise_as_often_as_said():
    """Over drawn sets: 95% of the intervals hold 0 where the models are as good."""
    rng, outside = np.random.default_rng(2), np.zeros(3)
    for _ in range(400):
        labels, first, second = draw(rng, 400)
        found = [
            auc_difference(labels, first, second),
            logloss_difference(labels, first, second),
            gauc_difference(labels, first, second, rng.integers(0, 40, 400)),
        ]
        outside += [not low <= 0 <= high for low, high in (each.interval for each in found)]
        assert all(
            (each.p_value < 0.05) == (abs(each.value) > 1.95996399 * each.error) for each in found
        )
    assert np.all((outside > 6) & (outside < 36)), outside


def test_a_model_against_itself_differs_by_nothing():
    labels, first, _ = draw(np.random.default_rng(3), 100)
    for found in (auc_difference(labels, first, first), logloss_difference(labels, first, first)):
        assert (found.value, found.error, found.p_value, found.better) == (0, 0, 1, 0)


@pytest.mark.parametrize("weighted", [False, True])
def test_log_loss_is_the_mean_and_its_error_that_of_the_differences(weighted):
    rng = np.random.default_rng(4)
    labels, first, second = draw(rng, 500)
    weights = rng.integers(0, 4, 500).astype("f4") if weighted else None
    w = np.ones(500) if weights is None else weights
    found = logloss_difference(labels, first, second, weights)
    losses = [-np.log(np.where(labels > 0.5, p, 1 - p).astype("f8")) for p in (first, second)]
    assert found.first == pytest.approx(np.average(losses[0], weights=w), rel=1e-5)
    assert found.better == (2 if found.second < found.first else 1)
    if not weighted:
        error = np.std(losses[1] - losses[0]) / math.sqrt(500)
        assert found.error == pytest.approx(error, rel=1e-4)
    certain = logloss_difference(np.ones(3), np.ones(3, "f4"), np.zeros(3, "f4"))
    assert certain.second == pytest.approx(-math.log(1e-7))


@pytest.mark.parametrize("levels", [0, 2])
def test_gauc_is_the_mean_of_the_groups_that_have_both_labels(levels):
    rng = np.random.default_rng(5)
    labels, first, second = draw(rng, 600, noise=(0.2, 3), levels=levels)
    groups = rng.zipf(1.5, 600) % 100
    found = gauc_difference(labels, first, second, groups)
    for scores, ours in ((first, found.first), (second, found.second)):
        parts = [groups == g for g in np.unique(groups)]
        both = [rows for rows in parts if 0 < labels[rows].mean() < 1]
        each = [plain_scores.auc(labels[rows], scores[rows]) for rows in both]
        assert ours == pytest.approx(np.average(each, weights=[rows.sum() for rows in both]))
    assert found.better == 1
    alone = gauc_difference(labels, first, second, np.arange(600))
    assert math.isnan(alone.value)
    assert math.isnan(alone.p_value)


def test_midranks_share_ties_within_their_group():
    ranks = midranks(np.array([3, 1, 3, 2, 1, 1]), np.array([0, 0, 0, 7, 7, 7]))
    np.testing.assert_array_equal(ranks, [2.5, 1, 2.5, 3, 1.5, 1.5])


def test_too_few_examples_have_no_auc():
    found = auc_difference(np.array([0, 1, 1]), np.arange(3.0), np.arange(3.0))
    assert math.isnan(found.first)
    assert found.better == 0 or math.isnan(found.value)


def test_a_column_of_a_million_values_has_the_most_frequent_and_the_rest():
    column = np.concatenate([np.repeat([7, 5], [300, 200]), np.arange(1000, 1_001_000)])
    found = list(slices({"c": column}, ["c"], 3))
    assert [(value, len(rows)) for _, value, rows in found] == [
        ("7", 300), ("5", 200), ("1000", 1), ("rest", 999_999),
    ]  # fmt: skip
    np.testing.assert_array_equal(found[0][2], np.arange(300))
    assert len(list(slices({"c": column[:500]}, ["c"], 2))) == 2


def test_of_many_slices_chance_alone_is_noise():
    assert is_noise([0.01, 0.04, 0.03]) == [False, True, True]
    assert is_noise([0.01, math.nan, 0.02]) == [False, True, False]
    assert is_noise([0.049]) == [False]
    assert is_noise([]) == []
    rng = np.random.default_rng(6)
    wrong = sum(not all(is_noise(list(rng.random(50)))) for _ in range(400))
    assert wrong < 36


def test_lower_is_better_of_a_loss():
    assert Difference(first=0.3, second=0.2, error=0.01, lower_is_better=True).better == 2
    assert Difference(first=0.3, second=0.2, error=0.01).better == 1


def test_few_examples_prove_nothing():
    """One example has no spread at all: its interval would be a point."""
    one = logloss_difference(np.ones(1), np.full(1, 0.6), np.full(1, 0.9))
    assert one.value < 0
    assert math.isnan(one.error)
    assert math.isnan(one.p_value)
    assert is_noise([one.p_value]) == [True]
    rng = np.random.default_rng(0)
    labels, (first, second) = np.arange(60) % 2, rng.random([2, 60])
    enough = logloss_difference(labels, first, second)
    assert enough.error > 0
    assert math.isnan(logloss_difference(labels[:29], first[:29], second[:29]).error)
    heavy = np.where(np.arange(60) == 0, 100.0, 1.0)  # as if it were one
    assert math.isnan(logloss_difference(labels, first, second, heavy).error)
    assert auc_difference(labels[:20], first[:20], second[:20]).error > 0
    assert math.isnan(auc_difference(labels[:19], first[:19], second[:19]).error)
    groups = np.arange(60) // 3
    assert math.isnan(gauc_difference(labels, first, second, groups).error)
