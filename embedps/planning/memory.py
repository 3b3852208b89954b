"""The memory of tables, measured: a store of the same declaration is filled and asked for it."""

from __future__ import annotations

import dataclasses
import itertools
import os

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from embedps.tables.collection import EmbeddingCollection
from embedps.tables.groups import TableGroup
from embedps.tables.specs import FeatureSpec

_MOST_ROWS = 1 << 20
_STEPS_PER_DOUBLING = 4
_SPARE_SHARE, _LEAST_SPARE, _MOST_SPARE = 16, 8 << 20, 64 << 20  # kernels/store/page_pool.cc
_containers = itertools.count()


class MemoryCurve:
    """Memory of one table of a group on one shard, by its number of rows."""

    def __init__(self, group: TableGroup, most_rows: int) -> None:
        """Fills a store with rows, and reads its memory on the way.

        Args:
          group: whose table it is.
          most_rows: that will be asked for; beyond a million, memory grows in proportion.
        """
        table = dataclasses.replace(
            group.tables[0], capacity=0, admission=None, eviction=(), memory=None
        )
        collection = EmbeddingCollection(
            [table],
            [FeatureSpec(name="ids", table=table)],
            devices=["/device:CPU:0"],
            container=f"embedps-plan-{os.getpid()}-{next(_containers)}",
        )
        rows, sizes = [0], [collection.stats().table_bytes[table.name]]
        try:
            for target in _targets(min(most_rows, _MOST_ROWS)):
                ids = tf.range(rows[-1], target, dtype=tf.int64)
                # The rows stay in the lists of what the next checkpoint writes, as in a run.
                collection.lookup({"ids": ids}, insert=True)
                rows.append(target)
                sizes.append(collection.stats().table_bytes[table.name])
        finally:
            collection.drop()
        self._rows = np.array(rows, np.float64)
        self._sizes = np.array(sizes, np.float64)
        half = float(np.interp(rows[-1] / 2, self._rows, self._sizes))
        self._more_row_bytes = 2 * (self._sizes[-1] - half) / max(rows[-1], 1)

    def bytes_of(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Gives the bytes of tables of so many rows."""
        beyond = np.maximum(rows - self._rows[-1], 0)
        within = np.interp(rows, self._rows, self._sizes)
        return np.asarray(within + beyond * self._more_row_bytes)


def spare_bytes(used_bytes: float) -> float:
    """Gives the bytes of pages that a store of a group has ready for its next rows."""
    if used_bytes < _LEAST_SPARE:
        return 0.0
    return float(np.clip(used_bytes / _SPARE_SHARE, _LEAST_SPARE, _MOST_SPARE))


def _targets(most: int) -> list[int]:
    steps = np.arange(1, 32 * _STEPS_PER_DOUBLING)
    sizes = np.unique(np.ceil(2.0 ** (steps / _STEPS_PER_DOUBLING)).astype(np.int64))
    return [int(size) for size in sizes[sizes < most]] + [max(most, 1)]
