"""The hash that decides a row's shard, in NumPy; kernels/runtime/hash.h has it for training."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embedps import constants
from embedps.splitmix import GOLDEN, mix


def row_hashes(table: str, ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Computes the hashes of a table's ids: a bijection of 64-bit words; uint64 [n]."""
    salt = constants.FNV_OFFSET
    for byte in table.encode():
        salt = (salt ^ byte) * constants.FNV_PRIME % 2**64
    with np.errstate(over="ignore"):
        return mix((ids.view(np.uint64) ^ np.uint64(salt)) + np.uint64(GOLDEN))


def shards_of(hashes: NDArray[np.uint64], num_shards: int) -> NDArray[np.int64]:
    """Computes the shard of each row: the hash's upper half, scaled; int64 [n]."""
    upper = hashes >> np.uint64(32)
    return np.asarray((upper * np.uint64(num_shards)) >> np.uint64(32)).astype(np.int64)
