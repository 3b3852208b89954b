"""The splitmix64 bijection of 64-bit values; hashes, shuffles and splits use it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E3779B97F4A7C15


def mix(h: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Applies splitmix64's finalizer in place; returns `h`."""
    h ^= h >> np.uint64(30)
    h *= np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(27)
    h *= np.uint64(0x94D049BB133111EB)
    h ^= h >> np.uint64(31)
    return h


def seed_hashes(seed: int, num: int) -> NDArray[np.uint64]:
    """Returns an array of `num` equal hashes of the seed."""
    return mix(np.full(num, (seed * GOLDEN + 1) % (1 << 64), np.uint64))


def unmix(h: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Inverts `mix`; does not change `h`."""
    h = (h ^ (h >> np.uint64(31)) ^ (h >> np.uint64(62))) * np.uint64(0x319642B2D24D8EC3)
    h = (h ^ (h >> np.uint64(27)) ^ (h >> np.uint64(54))) * np.uint64(0x96DE1B173F119089)
    return np.asarray(h ^ (h >> np.uint64(30)) ^ (h >> np.uint64(60)))
