"""Two-choice cuckoo arrays: each id of a table lies in one of two buckets of four places.

A lookup is two gathers and a comparison, so stock ops of TensorFlow can do it. An id's buckets are
functions of mix64(id * multiplier + summand), whose two numbers are a digest of all ids of the
table. So the same ids give the same arrays, but nobody can choose ids that share buckets: each
choice is hashed by other numbers. Empty places hold an id that belongs to another bucket, so
nothing says which places are empty, and every comparison is exact.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from typing import Final

import numpy as np
import numpy.typing as npt

from embedps import constants
from embedps.data.distinct_ids import sorted_distinct
from embedps.errors import CheckpointError

Ids = npt.NDArray[np.int64]

PLACES: Final = 4  # of a bucket
CHUNK_IDS: Final = 1 << 19  # placed at once; takes about 60 MB
_LOAD = 0.93  # the share of places that are taken; 0.97 is the limit of such arrays
_SMALL_BUCKETS = 1024
_MAX_ROUNDS = 1000  # of moves, until a larger array is tried
_MAX_SMALL_ROUNDS = 50  # a larger array costs little
_MAX_ARRAYS = 40  # that are tried, each a fiftieth larger; one or two are enough
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFF_FFFF)


def table_salt(name: str) -> int:
    """Hashes a table's name, as TableSalt of kernels/runtime/hash.h does."""
    salt = constants.FNV_OFFSET
    for byte in name.encode():
        salt = (salt ^ byte) * constants.FNV_PRIME % (1 << 64)
    return salt


def mix64(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mixes words, as Mix64 of kernels/runtime/hash.h does."""
    first, second = constants.SPLITMIX_MULTIPLIERS
    x = words + np.uint64(constants.SPLITMIX_INCREMENT)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(first)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(second)
    return np.asarray(x ^ (x >> np.uint64(31)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class IdHash:
    """The hash of a table's ids: mix64(id * multiplier + summand).

    Attributes:
      multiplier: odd, below 2^64.
      summand: below 2^64.
    """

    multiplier: int
    summand: int


def buckets_of(ids: Ids, id_hash: IdHash, num_buckets: int) -> tuple[Ids, Ids]:
    """Gives the two buckets of each id, in [0, num_buckets); they may be equal."""
    words = ids.view(np.uint64) * np.uint64(id_hash.multiplier) + np.uint64(id_hash.summand)
    x, n = mix64(words), np.uint64(num_buckets)
    return ((x >> _HALF) * n >> _HALF).view(np.int64), ((x & _LOW) * n >> _HALF).view(np.int64)


def find(buckets: Ids, ids: Ids, id_hash: IdHash) -> Ids:
    """Gives each id's place: bucket * PLACES + place in it; -1 of an absent one.

    Args:
      buckets: int64 [num_buckets, PLACES], as `place` returns them.
      ids: int64 [n].
      id_hash: as `place` returns it.
    """
    found = np.full(len(ids), -1, np.int64)
    for at in buckets_of(ids, id_hash, len(buckets)):
        places = at[:, None] * PLACES + np.arange(PLACES)
        found = np.maximum(found, np.where(buckets[at] == ids[:, None], places, -1).max(axis=1))
    return found


def place(chunks: list[Ids]) -> tuple[Ids, IdHash]:
    """Places a table's ids.

    Args:
      chunks: the ids; they are taken off the list, so that memory is freed.

    Returns:
      The buckets, int64 [num_buckets, PLACES], and the hash that finds ids in them.

    Raises:
      CheckpointError: no array of up to twice the size has places for them.
    """
    num_ids = sum(map(len, chunks))
    num_buckets = max(2, math.ceil(num_ids / (_LOAD * PLACES)))
    digest = hashlib.blake2b(digest_size=16)
    for chunk in chunks:
        digest.update(np.ascontiguousarray(chunk).data)
    for attempt in range(_MAX_ARRAYS):
        digest.update(bytes([attempt]))
        words = np.frombuffer(digest.digest(), "<u8").tolist()
        id_hash = IdHash(multiplier=words[0] | 1, summand=words[1])
        array = _Array(num_buckets, id_hash)
        left = array.place(chunks)
        if left is None:
            return array.filled(), id_hash
        ids = np.concatenate([left, array.ids(), *chunks])
        chunks[:] = [sorted_distinct(ids)]  # an id that came often would fill its buckets again
        num_buckets += max(1, num_buckets // 50)
    raise CheckpointError(
        f"the {num_ids} ids of a table must fit into arrays of two buckets for each, but did not "
        f"in {_MAX_ARRAYS} of up to {num_buckets * PLACES} places: export the checkpoint once more "
        "after it was compacted (python -m embedps.checkpoint compact), or without that table"
    )


class _Array:
    """Buckets that are being filled."""

    def __init__(self, num_buckets: int, id_hash: IdHash) -> None:
        self._id_hash = id_hash
        self._buckets = np.zeros([num_buckets, PLACES], np.int64)
        self._taken = np.zeros(num_buckets, np.int8)  # places, from the first on
        self._random = np.random.default_rng(num_buckets)

    def place(self, chunks: list[Ids]) -> Ids | None:
        """Places ids; gives those of a chunk that found no place, if there are."""
        while chunks:
            taken = [chunks.pop()]
            while chunks and sum(map(len, taken)) < CHUNK_IDS:
                taken.append(chunks.pop())
            ids = np.concatenate(taken)
            for start in range(0, len(ids), CHUNK_IDS):
                left = self._place(ids[start : start + CHUNK_IDS])
                if left is not None:
                    return np.concatenate([left, ids[start + CHUNK_IDS :]])
        return None

    def ids(self) -> Ids:
        """Gives the ids that are placed."""
        return self._buckets[np.arange(PLACES) < self._taken[:, None]]

    def filled(self) -> Ids:
        """Gives the buckets, with ids of other buckets in the empty places."""
        candidates = np.arange(1 << 12, dtype=np.int64)
        first, second = buckets_of(candidates, self._id_hash, len(self._buckets))
        # Two ids without a common bucket: one of them fits wherever the other does not.
        alone = np.flatnonzero(first == second) if len(self._buckets) < 4 else np.arange(1)
        one = alone[0]
        own = [first[one], second[one]]
        other = np.flatnonzero(~np.isin(first, own) & ~np.isin(second, own))[0]
        empty = np.arange(PLACES) >= self._taken[:, None]
        self._buckets[empty] = candidates[one]
        self._buckets[own] = np.where(empty[own], candidates[other], self._buckets[own])
        return self._buckets

    def _place(self, ids: Ids) -> Ids | None:
        first, second = buckets_of(ids, self._id_hash, len(self._buckets))
        at = np.where(self._taken[first] <= self._taken[second], first, second)
        is_small = len(self._buckets) < _SMALL_BUCKETS
        for _ in range(_MAX_SMALL_ROUNDS if is_small else _MAX_ROUNDS):
            ids, at = self._fill(ids, at)
            if not len(ids):
                return None
            ids, at = self._move(ids, at)
        return ids

    def _fill(self, ids: Ids, at: Ids) -> tuple[Ids, Ids]:
        """Puts ids into the free places of their buckets; gives those for which there is none."""
        order = np.argsort(at, kind="stable")
        ids, at = ids[order], at[order]
        starts = np.flatnonzero(np.append(True, at[1:] != at[:-1]))
        counts = np.diff(np.append(starts, len(at)))
        places = self._taken[at] + np.arange(len(at)) - np.repeat(starts, counts)
        fits = places < PLACES
        self._buckets[at[fits], places[fits]] = ids[fits]
        buckets = at[starts]
        self._taken[buckets] = np.minimum(self._taken[buckets] + counts, PLACES)
        return ids[~fits], at[~fits]

    def _move(self, ids: Ids, at: Ids) -> tuple[Ids, Ids]:
        """Puts ids into full buckets, and gives those that lay there, with their other buckets."""
        there = self._buckets[at]
        others = self._others(there.reshape(-1), np.repeat(at, PLACES)).reshape(-1, PLACES)
        # One whose other bucket has room ends the search; else any may move.
        room = PLACES - self._taken[others] + self._random.random(others.shape)
        which = np.argmax(room, axis=1)
        _, moved = np.unique(at * PLACES + which, return_index=True)
        rows = np.arange(len(ids))[moved]
        self._buckets[at[rows], which[rows]] = ids[rows]
        left, left_at = ids.copy(), self._others(ids, at)
        left[rows], left_at[rows] = there[rows, which[rows]], others[rows, which[rows]]
        return left, left_at

    def _others(self, ids: Ids, at: Ids) -> Ids:
        first, second = buckets_of(ids, self._id_hash, len(self._buckets))
        return np.where(first == at, second, first)
