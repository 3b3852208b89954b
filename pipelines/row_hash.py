"""Which split a row is in: a hash of its content, so that no runner, order or file name matters.

Equal rows are always in the same split: none of the held-out rows was trained on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipelines.parse import ParsedRows


def mix(h: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mixes in place, a bijection of 64-bit values (splitmix64's finalizer); returns `h`."""
    h ^= h >> np.uint64(30)
    h *= np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(27)
    h *= np.uint64(0x94D049BB133111EB)
    h ^= h >> np.uint64(31)
    return h


def hash_rows(rows: ParsedRows, seed: int) -> NDArray[np.uint64]:
    """Returns a hash of each row's label, integers and ids."""
    h = np.full(rows.num_rows, (seed * 0x9E3779B97F4A7C15 + 1) % (1 << 64), np.uint64)
    h = mix(h)
    h ^= rows.labels.astype(np.uint64)
    for column in (*rows.integers, *rows.ids):
        h *= np.uint64(0x9E3779B97F4A7C15)
        h ^= h >> np.uint64(32)
        h ^= column.view(np.uint64)
    return mix(h)


def is_eval(rows: ParsedRows, seed: int, eval_fraction: float) -> NDArray[np.bool_]:
    """Tells which rows are held out: `eval_fraction` of the hashes, the lowest ones."""
    return hash_rows(rows, seed) < np.uint64(min(int(eval_fraction * 2.0**64), (1 << 64) - 1))
