"""Tells what the processor has, on which TensorFlow's order of summing depends."""

from pathlib import Path
from typing import Any

import numpy as np

from embedps.engine.batch_free import needs_twins

_FLAGS = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()

SUMS_IN_ORDER = not needs_twins()
"""With AVX-512, TensorFlow's products of matrices sum in order of the dimension, as ours do."""

STOCK_BOUND = 1e-6
"""What stock ops without AVX-512 may differ by from ours, of a value or of 1 if it is less."""

HAS_AMX = "amx_bf16" in _FLAGS
"""With AMX, our ops multiply bfloat16; else they multiply the float32 that they are given."""


def check_stock(found: Any, want: Any, of: str = "") -> None:
    """Compares what stock ops computed with what ours did, or the reverse, as scores.md says."""
    if SUMS_IN_ORDER:
        np.testing.assert_array_equal(found, want, of)
    else:
        wanted = np.asarray(want, np.float64)
        off = np.abs(np.asarray(found, np.float64) - wanted)
        worst = np.max(off / np.maximum(np.abs(wanted), 1), initial=0)
        assert np.shape(found) == np.shape(want)
        assert worst <= STOCK_BOUND, of
