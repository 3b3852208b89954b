"""The linear baselines of retrieval equal their formulas in dense NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.baselines import linear_retrieval
from benchmarks.baselines.linear_retrieval import Lists, Pairs, Weights

USERS, ITEMS = 60, 25


@pytest.fixture
def seen() -> npt.NDArray[np.float64]:
    return (np.random.default_rng(1).random((USERS, ITEMS)) < 0.5).astype(np.float64)


def pairs_of(seen: npt.NDArray[np.float64], at_once: int = 1000) -> Pairs:
    users, items = np.nonzero(seen)
    return Pairs.of(Lists.of(users, items, USERS), ITEMS, at_once)


def dense(weights: Weights) -> npt.NDArray[Any]:
    return np.stack([weights.scores(np.array([item])) for item in range(ITEMS)])


def test_pairs_count_the_users_that_have_both(seen: npt.NDArray[np.float64]) -> None:
    asked = np.array([3, -1, 7, 7])
    found = pairs_of(seen).among(asked)
    wanted = seen.T @ seen
    for i, first in enumerate(asked):
        for j, second in enumerate(asked):
            assert found[i, j] == (wanted[first, second] if min(first, second) >= 0 else 0)


def test_neighbours_are_weighed_by_the_formula(seen: npt.NDArray[np.float64]) -> None:
    users = seen.sum(0)
    wanted = seen.T @ seen / ((users[:, None] * users[None, :]) ** 0.3 + 5.0)
    np.fill_diagonal(wanted, 0)
    found = dense(linear_retrieval.neighbours((0.3, 5.0), pairs_of(seen)))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("most", [0, linear_retrieval.MAX_DENSE_ITEMS])
def test_ease_regresses_each_item_on_all_others(
    seen: npt.NDArray[np.float64], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the sparse form too, where all pairs of items share users."""
    monkeypatch.setattr(linear_retrieval, "MAX_DENSE_ITEMS", most)
    found = dense(linear_retrieval.ease(4.0, pairs_of(seen)))
    for item in range(ITEMS):
        others = np.delete(np.arange(ITEMS), item)
        left = seen[:, others]
        solved = np.linalg.solve(left.T @ left + 4.0 * np.eye(ITEMS - 1), left.T @ seen[:, item])
        np.testing.assert_allclose(found[others, item], solved, atol=1e-4)
        assert found[item, item] == 0


def test_sparse_ease_takes_the_nearest(
    seen: npt.NDArray[np.float64], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_retrieval, "MAX_DENSE_ITEMS", 0)
    monkeypatch.setattr(linear_retrieval, "MAX_NEIGHBOURS", 3)
    found = dense(linear_retrieval.ease(4.0, pairs_of(seen)))
    gram, users = seen.T @ seen, seen.sum(0)
    near = gram / np.sqrt(users[:, None] * users[None, :])
    np.fill_diagonal(near, -1)
    for item in range(ITEMS):
        assert set(np.flatnonzero(found[:, item])) <= set(np.argsort(-near[:, item])[:3])
        assert np.count_nonzero(found[:, item]) == 3


def test_scores_leave_out_what_users_had(seen: npt.NDArray[np.float64]) -> None:
    items, users = np.arange(40), np.zeros(2, np.int64)
    train, test = Lists.of(users, items[:2], 1), Lists.of(users, items[2:4], 1)
    scores = -items.astype(np.float32)  # the best are those that the user had, then those wanted
    found = linear_retrieval.recall_and_gain(lambda _: scores.copy(), train, test, users[:1])
    assert found == pytest.approx((1.0, 1.0))
