"""A mixing bijection of 64-bit values: hashes, shuffles and splits are made of it."""

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
    """Mixes in place (splitmix64's finalizer); returns `h`."""
    h ^= h >> np.uint64(30)
    h *= _FIRST
    h ^= h >> np.uint64(27)
    h *= _SECOND
    h ^= h >> np.uint64(31)
    return h


def seeded(seed: int, num: int) -> NDArray[np.uint64]:
    """Returns `num` times a value that depends on the seed."""
    return mix(np.full(num, (seed * GOLDEN + 1) % (1 << 64), np.uint64))


def unmix(h: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns what `mix` makes `h` of."""
    h = (h ^ (h >> np.uint64(31)) ^ (h >> np.uint64(62))) * _INVERSE_OF_SECOND
    h = (h ^ (h >> np.uint64(27)) ^ (h >> np.uint64(54))) * _INVERSE_OF_FIRST
    return np.asarray(h ^ (h >> np.uint64(30)) ^ (h >> np.uint64(60)))
