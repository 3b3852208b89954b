"""The splitmix64 bijection of 64-bit values; hashes, shuffles and splits use it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embedps import constants

GOLDEN = constants.SPLITMIX_INCREMENT
_FIRST, _SECOND = map(np.uint64, constants.SPLITMIX_MULTIPLIERS)
_INVERSE_OF_FIRST, _INVERSE_OF_SECOND = (
    np.uint64(pow(multiplier, -1, 1 << 64)) for multiplier in constants.SPLITMIX_MULTIPLIERS
)


def mix(h: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Applies splitmix64's finalizer in place; returns `h`."""
    h ^= h >> np.uint64(30)
    h *= _FIRST
    h ^= h >> np.uint64(27)
    h *= _SECOND
    h ^= h >> np.uint64(31)
    return h


def seed_hashes(seed: int, num: int) -> NDArray[np.uint64]:
    """Returns an array of `num` equal hashes of the seed."""
    return mix(np.full(num, (seed * GOLDEN + 1) % (1 << 64), np.uint64))


def unmix(h: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Inverts `mix`; does not change `h`."""
    h = (h ^ (h >> np.uint64(31)) ^ (h >> np.uint64(62))) * _INVERSE_OF_SECOND
    h = (h ^ (h >> np.uint64(27)) ^ (h >> np.uint64(54))) * _INVERSE_OF_FIRST
    return np.asarray(h ^ (h >> np.uint64(30)) ^ (h >> np.uint64(60)))
