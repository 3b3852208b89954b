"""Ids whose public hashes agree in their lowest bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from embedps.splitmix import GOLDEN, unmix
from embedps.tables.row_hashes import row_hashes

Ids = npt.NDArray[np.int64]


def colliding(table: str, count: int, *, shared_bits: int) -> Ids:
    """Computes ids of a table whose hashes differ only above `shared_bits` bits; int64 [count]."""
    zero = np.zeros(1, np.int64)  # its hash gives the table's salt
    golden = np.uint64(GOLDEN)
    salt = unmix(row_hashes(table, zero)) - golden
    hashes = np.arange(count, dtype=np.uint64) << np.uint64(shared_bits)
    return np.asarray((unmix(hashes) - golden) ^ salt).view(np.int64)


def random(count: int, *, seed: int = 0) -> Ids:
    """Draws ids of all 64 bits; int64 [count]."""
    return np.random.default_rng(seed).integers(-(1 << 63), 1 << 63, count, dtype=np.int64)
