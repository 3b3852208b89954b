"""Finds how many accesses of a stream a cache of some size can have: Belady's optimum, and LRU."""

from __future__ import annotations

import heapq
from collections import OrderedDict

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.int64]


def optimum_hits(keys: Keys, capacity: int, begin: int) -> float:
    """Gives the hit rate from access `begin` on if the key whose next use is farthest goes.

    Each key that is asked for comes in (Belady, 1966). At the first access the cache has the keys
    that are used soonest.
    """
    next_use = next_uses(keys).tolist()
    soonest, first = np.unique(keys, return_index=True)
    order = np.argsort(first)[:capacity]
    # The next use of each key.
    held = dict(zip(soonest[order].tolist(), first[order].tolist(), strict=True))
    farthest = [(-use, key) for key, use in held.items()]  # some are out of date
    heapq.heapify(farthest)
    hits = 0
    for at, key in enumerate(keys.tolist()):
        if key in held:
            hits += at >= begin
        elif len(held) >= capacity:
            while True:
                use, other = heapq.heappop(farthest)
                if held.get(other) == -use:
                    del held[other]
                    break
        held[key] = next_use[at]
        heapq.heappush(farthest, (-next_use[at], key))
    return hits / max(len(keys) - begin, 1)


def next_uses(keys: Keys) -> Keys:
    """Gives for each access the next one of its key; past the end where there is none."""
    order = np.lexsort((np.arange(len(keys)), keys))
    follows = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    found = np.arange(len(keys)) + len(keys)  # all differ: nothing is as far as another
    found[order[follows]] = order[follows + 1]
    return found


def lru_hits(keys: Keys, capacity: int, begin: int, before: Keys) -> float:
    """Gives the hit rate from access `begin` on if the key that was used longest ago goes.

    At the first access the cache has the last of the keys `before`.
    """
    held: OrderedDict[int, None] = OrderedDict.fromkeys(before[-capacity:].tolist())
    hits = 0
    for at, key in enumerate(keys.tolist()):
        if key in held:
            hits += at >= begin
            held.move_to_end(key)
            continue
        if len(held) >= capacity:
            held.popitem(last=False)
        held[key] = None
    return hits / max(len(keys) - begin, 1)
