"""The mixing bijection has an inverse."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from embedps.splitmix import mix, unmix


@given(st.lists(st.integers(0, (1 << 64) - 1), max_size=20))
def test_unmix_is_the_inverse_of_mix(values: list[int]):
    h = np.array(values, np.uint64)
    np.testing.assert_array_equal(unmix(mix(h.copy())), h)
