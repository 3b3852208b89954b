"""What a cache can have of a stream."""

import functools
import itertools

import numpy as np
import pytest

from benchmarks.cache_bounds import lru_hits, next_uses, optimum_hits


def most_hits(keys: list[int], capacity: int) -> int:
    """Tries every choice of who goes, and every choice of what is there at first."""

    @functools.cache
    def after(at: int, held: frozenset[int]) -> int:
        if at == len(keys):
            return 0
        key = keys[at]
        if key in held:
            return 1 + after(at + 1, held)
        if len(held) < capacity:
            return after(at + 1, held | {key})
        return max(after(at + 1, held - {other} | {key}) for other in held)

    firsts = itertools.combinations(sorted(set(keys)), min(capacity, len(set(keys))))
    return max(after(0, frozenset(first)) for first in firsts)


@pytest.mark.parametrize("seed", range(20))
def test_optimum_equals_the_best_of_all_choices(seed):
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 6, 12)
    for capacity in (1, 2, 3):
        found = optimum_hits(keys, capacity, begin=0) * len(keys)
        assert round(found) == most_hits(keys.tolist(), capacity)


def test_next_uses_are_the_next_places_of_a_key():
    assert next_uses(np.array([5, 7, 5, 5])).tolist()[:3] == [2, 4 + 1, 3]
    assert next_uses(np.array([5, 7, 5, 5]))[3] >= 4


def test_lru_counts_from_the_beginning_that_is_asked_for():
    before, keys = np.array([1, 2, 3]), np.array([2, 9, 3, 2])
    # It holds 2 and 3; 9 pushes 3 out, 3 pushes 2 out, and so on.
    assert lru_hits(keys, 2, 0, before) == 0.25
    assert lru_hits(keys, 2, 1, before) == 0.0
    assert lru_hits(keys, 3, 1, before) == 2 / 3
