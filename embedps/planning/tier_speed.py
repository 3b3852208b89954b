"""The time of a row that is on a server's disk, measured on a store that is filled here."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from embedps.planning.tier_hits import least_memory, record_bytes
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.groups import TableGroup
from embedps.tables.specs import FeatureSpec
from embedps.tables.tier import Tiered

_MOST_FILE_BYTES = 256 << 20
_LEAST_ROWS, _LEAST_IDS = 1 << 16, 64
_FILL_IDS = 8192
_SECS = 2.0
_containers = itertools.count()


def measure_miss(
    groups: Sequence[TableGroup], directory: str, *, rows_on_disk: int, misses: float
) -> float:
    """Measures lookups of rows on a disk; gives the seconds per row, all threads reading.

    They bring rows in, for which others go to the disk, as in a run. A lookup has as large a part
    of the rows on disk as a run's step: one read brings those that are close to each other.

    Args:
      groups: of which the widest rows are taken.
      directory: on the disk, for up to 256 MB while this measures.
      rows_on_disk: of the run.
      misses: of a step, rows on disk.

    Raises:
      UsageError: no file can be in the directory.
    """
    widest = max((table for group in groups for table in group.tables), key=record_bytes)
    table = dataclasses.replace(
        widest, initializer=None, absent="zeros", capacity=0, admission=None, eviction=()
    )
    rows = max(min(rows_on_disk, _MOST_FILE_BYTES // record_bytes(table)), _LEAST_ROWS)
    asked = max(round(misses * rows / max(rows_on_disk, 1)), _LEAST_IDS)
    collection = EmbeddingCollection(
        [table],
        [FeatureSpec(name="ids", table=table)],
        devices=["/device:CPU:0"],
        container=f"embedps-plan-tier-{os.getpid()}-{next(_containers)}",
        memory=Tiered(max_memory_bytes=least_memory(table, rows), directory=directory),
    )
    try:
        for first in range(0, rows, _FILL_IDS):
            ids = tf.range(first, min(first + _FILL_IDS, rows), dtype=tf.int64)
            collection.lookup({"ids": ids}, insert=True)
        return _time_misses(collection, np.random.default_rng(0).permutation(rows), asked)
    finally:
        collection.drop()


def _time_misses(collection: EmbeddingCollection, ids: NDArray[np.int64], asked: int) -> float:
    """Looks ids up twice, so that the second time tells what a lookup takes without a disk."""
    taken, before = 0.0, collection.tier_stats().read
    end = time.perf_counter() + _SECS
    for first in range(0, len(ids), asked):
        batch = {"ids": tf.constant(ids[first : first + asked])}
        for sign in (1, -1):
            began = time.perf_counter()
            collection.lookup(batch, insert=True, partial=True)
            taken += sign * (time.perf_counter() - began)
        if time.perf_counter() > end:
            break
    read = collection.tier_stats().read - before
    return max(taken, 0.0) / max(read, 1)
