"""Formats click rows as Criteo's TSV, one block of rows at a time.

Every field has a fixed place in a [rows, width] byte matrix and is padded with NUL; deleting the
NULs gives the lines. Digits come from lookup tables, so no Python code runs per row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..criteo_format import NUM_IDS, NUM_INTEGERS
from .click_rows import MISSING_RANK, ClickRows

_INTEGER_WIDTH = 9  # a sign and 8 digits
_ID_WIDTH = 8
_ROW_WIDTH = 1 + NUM_INTEGERS * (1 + _INTEGER_WIDTH) + NUM_IDS * (1 + _ID_WIDTH) + 1


def _text_table(texts: list[str], width: int) -> NDArray[np.uint8]:
    joined = "".join(text.rjust(width, "\0") for text in texts).encode("ascii")
    return np.frombuffer(joined, np.uint8).reshape(len(texts), width)


# Each entry holds four characters as one uint32.
_DIGITS = _text_table([f"{i:04d}" for i in range(10_000)], 4).view(np.uint32).ravel()
_DIGITS_UNPADDED = _text_table([str(i) for i in range(10_000)], 4).view(np.uint32).ravel()
_HEX = _text_table([f"{i:04x}" for i in range(1 << 16)], 4).view(np.uint32).ravel()


def hash_id(column: int, ranks: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Hashes ranks (0..2**32-1) to 32-bit ids, by a different bijection per column."""
    h = ranks.astype(np.uint32)
    h += np.uint32(1 + (column * 0x9E3779B1) % (1 << 32))
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return h


def format_rows(labels: NDArray[np.bool_], rows: ClickRows) -> bytes:
    """Formats rows as lines; counts must be within -99,999,999..99,999,999."""
    matrix = np.zeros((rows.num_rows, _ROW_WIDTH), np.uint8)
    matrix[:, 0] = labels
    matrix[:, 0] += ord("0")
    at = 1
    for i in range(NUM_INTEGERS):
        matrix[:, at] = ord("\t")
        _put_integers(matrix[:, at + 1 : at + 1 + _INTEGER_WIDTH], rows.counts[i])
        missing = np.flatnonzero(rows.count_missing[i])
        matrix[missing, at + 1 : at + 1 + _INTEGER_WIDTH] = 0
        at += 1 + _INTEGER_WIDTH
    for i in range(NUM_IDS):
        matrix[:, at] = ord("\t")
        ids = hash_id(i, rows.ranks[i])
        words = np.empty((rows.num_rows, 2), np.uint32)
        words[:, 0] = _HEX[ids >> np.uint32(16)]
        words[:, 1] = _HEX[ids & np.uint32(0xFFFF)]
        words[rows.ranks[i] == MISSING_RANK] = 0
        matrix[:, at + 1 : at + 1 + _ID_WIDTH] = words.view(np.uint8)
        at += 1 + _ID_WIDTH
    matrix[:, at] = ord("\n")
    return matrix.tobytes().translate(None, b"\0")


def _put_integers(cells: NDArray[np.uint8], values: NDArray[np.int64]) -> None:
    magnitude = np.abs(values)
    high, low = np.divmod(magnitude, 10_000)
    words = np.empty((len(values), 2), np.uint32)
    large = high > 0
    words[:, 0] = np.where(large, _DIGITS_UNPADDED[high], np.uint32(0))
    words[:, 1] = np.where(large, _DIGITS[low], _DIGITS_UNPADDED[low])
    cells[:, 0] = np.where(values < 0, ord("-"), 0)
    cells[:, 1:] = words.view(np.uint8)
