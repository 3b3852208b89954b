"""Distinct ids are counted exactly up to a limit, closely beyond, and the same in any order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedps.data.distinct_ids import DistinctSketch

IDS = st.lists(st.one_of(st.integers(0, 40), st.integers(-1, (1 << 63) - 1)), max_size=60)


def sketch_of(*parts: list[int], max_hashes: int) -> DistinctSketch:
    sketch = DistinctSketch(max_hashes=max_hashes)
    for part in parts:
        sketch.add(np.array(part, np.int64))
    return sketch


@given(parts=st.lists(IDS, max_size=5))
def test_count_is_exact_below_the_limit(parts: list[list[int]]):
    sketch = sketch_of(*parts, max_hashes=1000)
    assert sketch.exact
    assert sketch.count == len({value for part in parts for value in part})


@settings(max_examples=60)
@given(parts=st.lists(IDS, min_size=1, max_size=6), max_hashes=st.integers(1, 16))
def test_merging_equals_adding_in_any_order(parts: list[list[int]], max_hashes: int):
    whole = sketch_of(*parts, max_hashes=max_hashes)
    merged = DistinctSketch(max_hashes=max_hashes)
    for part in reversed(parts):
        merged.add_hashes(sketch_of(part, max_hashes=max_hashes).hashes)
    np.testing.assert_array_equal(merged.hashes, whole.hashes)
    assert (merged.count, merged.exact) == (whole.count, whole.exact)


@pytest.mark.parametrize("distinct", [5_000, 60_000])
def test_estimate_is_close_beyond_the_limit(distinct: int):
    rng = np.random.default_rng(distinct)
    sketch = DistinctSketch(max_hashes=4096)
    for _ in range(4):
        sketch.add(rng.permutation(distinct).astype(np.int64) * 7)
    assert not sketch.exact
    # The relative standard error of a KMV sketch is 1/sqrt(k - 2); five of them are allowed.
    assert abs(sketch.count / distinct - 1) < 5 / np.sqrt(4094)
