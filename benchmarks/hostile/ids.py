"""Ids whose public hashes agree in many bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from embedps.checkpoint.format.row_hashes import row_hashes
from embedps.splitmix import GOLDEN, unmix

Ids = npt.NDArray[np.int64]


def colliding(table: str, count: int, *, shared_bits: int) -> Ids:
    """Computes ids of a table whose hashes differ only above `shared_bits` bits; int64 [count]."""
    return _of_hashes(table, np.arange(count, dtype=np.uint64) << np.uint64(shared_bits))


def inseparable(table: str, count: int) -> Ids:
    """Computes ids that no split of the row index by the public hash parts; int64 [count].

    Their hashes differ in the four lowest bits, which leave them in a table's first stripe, and in
    those of a position in a segment (kernels/store/stripe.h). Of up to 65,536 ids, none is twice.
    """
    numbers = np.arange(count, dtype=np.uint64)
    low = numbers & np.uint64(15)
    return _of_hashes(table, numbers >> np.uint64(4) << np.uint64(12) | low)


def _of_hashes(table: str, hashes: npt.NDArray[np.uint64]) -> Ids:
    zero = np.zeros(1, np.int64)  # its hash gives the table's salt
    golden = np.uint64(GOLDEN)
    salt = unmix(row_hashes(table, zero)) - golden
    return np.asarray((unmix(hashes) - golden) ^ salt).view(np.int64)


def random(count: int, *, seed: int = 0) -> Ids:
    """Draws ids of all 64 bits; int64 [count]."""
    return np.random.default_rng(seed).integers(-(1 << 63), 1 << 63, count, dtype=np.int64)
