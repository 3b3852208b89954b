"""Moments of parts add up to the moments of the whole."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from embedps.pipelines.moments import Moments


@given(
    parts=st.lists(
        st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(float("nan"))), max_size=9), max_size=6
    )
)
def test_moments_of_parts_add_up(parts: list[list[float]]):
    moments = sum((Moments.of(np.array(part, np.float64)) for part in parts), Moments())
    values = np.array([v for part in parts for v in part if v == v])
    assert moments.count == len(values)
    if len(values):
        np.testing.assert_allclose(moments.mean, values.mean(), rtol=1e-9, atol=1e-6)
        np.testing.assert_allclose(moments.std, values.std(), rtol=1e-6, atol=1e-3)
