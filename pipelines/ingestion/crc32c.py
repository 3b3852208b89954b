"""Computes the masked CRC32C of many byte ranges at once, as TFRecord files have it."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = np.uint32(0xA282EAD8)
_ONES = np.uint32(0xFFFFFFFF)
_WORD = 8
_MOST_BYTES = 1 << 20
"""Of ranges that are computed together, padded to one width."""


@cache
def _byte_tables() -> NDArray[np.uint32]:
    """Returns uint32 [8, 256]: what a byte adds to the CRC of a word, by its place from the end."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(_POLYNOMIAL), table >> 1)
    tables = [table]
    for _ in range(_WORD - 1):
        tables.append(table[tables[-1] & 0xFF] ^ tables[-1] >> 8)
    return np.stack(tables)


@cache
def _pair_tables() -> list[NDArray[np.uint32]]:
    """Returns four times uint32 [65536]: the same of two bytes at each place of a word."""
    low, high = np.arange(1 << 16) & 0xFF, np.arange(1 << 16) >> 8
    tables = _byte_tables()
    return [tables[7 - 2 * i][low] ^ tables[6 - 2 * i][high] for i in range(_WORD // 2)]


@cache
def _shift_tables(level: int) -> NDArray[np.uint32]:
    """Returns uint32 [4, 256]: a CRC after 8 * 2**level more zero bytes, by its bytes."""
    values = np.arange(256, dtype=np.uint32) << (np.arange(4, dtype=np.uint32) * 8)[:, None]
    if level == 0:
        zero_byte = _byte_tables()[0]
        for _ in range(_WORD):
            values = zero_byte[values & 0xFF] ^ values >> 8
        return values
    half = _shift_tables(level - 1)
    return _shifted(half, _shifted(half, values))


def _shifted(tables: NDArray[np.uint32], crc: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return np.asarray(
        tables[0][crc & 0xFF]
        ^ tables[1][crc >> 8 & 0xFF]
        ^ tables[2][crc >> 16 & 0xFF]
        ^ tables[3][crc >> 24]
    )


def masked_crc32c(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """Computes the checksum of each range of the data, as TensorFlow masks it: uint32 [ranges].

    A CRC is linear: ranges are padded in front to words, and the CRCs of neighbours are joined
    until there is one.
    """
    lengths = ends - starts
    crcs = np.zeros(len(starts), np.uint32)
    data = np.concatenate([np.zeros(int(lengths.max(initial=0)) * 2 + _WORD, np.uint8), data])
    starts = starts + int(lengths.max(initial=0)) * 2 + _WORD
    levels = np.ceil(np.log2(np.maximum(lengths, _WORD) / _WORD)).astype(np.int64)
    for level in np.unique(levels):
        width = _WORD << int(level)
        chosen = np.flatnonzero(levels == level)
        step = max(_MOST_BYTES // width, 1)
        for first in range(0, len(chosen), step):
            at = chosen[first : first + step]
            crcs[at] = _crcs_of_width(data, starts[at], lengths[at], width)
    crcs ^= _ONES
    return np.asarray((crcs >> 15 | crcs << 17) + _MASK_DELTA)


def _crcs_of_width(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], width: int
) -> NDArray[np.uint32]:
    """Computes the CRCs before the last inversion, of ranges of up to `width` bytes."""
    rows = np.lib.stride_tricks.sliding_window_view(data, width)[starts + lengths - width]
    rows *= np.arange(width, dtype=np.int32) >= (width - lengths).astype(np.int32)[:, None]
    # The register begins with ones, which is to invert the first four bytes.
    for i in range(4):
        longer = np.flatnonzero(lengths > i)
        rows[longer, width - lengths[longer] + i] ^= np.uint8(0xFF)
    pairs = rows.view("<u2").reshape(len(starts), -1, _WORD // 2)
    crcs = np.zeros(pairs.shape[:2], np.uint32)
    for i, table in enumerate(_pair_tables()):
        crcs ^= table.take(pairs[:, :, i])
    level = 0
    while crcs.shape[1] > 1:
        crcs = _shifted(_shift_tables(level), crcs[:, ::2]) ^ crcs[:, 1::2]
        level += 1
    result = crcs[:, 0]
    # Of fewer than four bytes, the ones that no byte met are shifted by what there is.
    for length in range(4):
        short = lengths == length
        if short.any():
            left = np.uint32(0xFFFFFFFF >> 8 * length)
            result[short] ^= left
    return result
