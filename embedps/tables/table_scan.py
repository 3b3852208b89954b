"""What a walk over all rows tells of each table: updates, hottest ids and norms."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from embedps import kernels
from embedps.frequencies import FrequencyCounts
from embedps.tables.groups import TableGroup

NUM_HOTTEST = 1000  # kernels/store/table_scan.h
_Outputs = list[list[Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableScan:
    """A table's rows over all shards, each as of some moment of the walk.

    Attributes:
      rows: how many there were.
      updates: of these rows: the steps that looked a row up since it was made, each once.
      frequencies: how many rows have how many updates; exact below 64, within 2% above.
      hottest: the ids with the most updates and these, in order; 1000 at most.
      norm_values, norm_counts: how many of every 16th row have an L2 norm, within 2%.
    """

    rows: int
    updates: int
    frequencies: FrequencyCounts
    hottest: list[tuple[int, int]]
    norm_values: NDArray[np.float64]
    norm_counts: NDArray[np.int64]

    def norm_percentiles(self, percentiles: Sequence[float]) -> list[float]:
        """Gives percentiles of the embeddings' norms; none if there are no rows."""
        ends = np.cumsum(self.norm_counts)
        if not ends[-1]:
            return []
        wanted = np.ceil(np.asarray(percentiles) / 100 * ends[-1])
        return [float(x) for x in self.norm_values[np.searchsorted(ends, np.maximum(wanted, 1))]]


def make_scan(
    groups: Sequence[TableGroup], stores: Sequence[Sequence[tf.Tensor]], devices: Sequence[str]
) -> Callable[[], dict[str, TableScan]]:
    """Makes a function that walks over all rows, on all shards at once.

    A walk rests often while training uses the rows: it takes half a percent of a server's cores.

    Args:
      stores: each group's store on each shard.
      devices: each shard's.
    """

    def walk() -> dict[str, TableScan]:
        # No tf.function: TensorFlow would wait for every server to take it, a silent worker too.
        with concurrent.futures.ThreadPoolExecutor(len(devices)) as pool:
            shards = pool.map(
                lambda shard: scan_shard(stores, shard, devices[shard]), range(len(devices))
            )
            return merge_scans(groups, list(shards))

    return walk


def scan_shard(stores: Sequence[Sequence[tf.Tensor]], shard: int, device: str) -> _Outputs:
    """Walks over the rows of one shard; gives each group's part of a scan."""
    found = []
    for of_group in stores:  # one after the other: together they take one walk's share
        with tf.device(device):
            outputs = kernels.load().embedps_scan_tables(of_group[shard])
            found.append([output.numpy() for output in outputs])
    return found


def merge_scans(groups: Sequence[TableGroup], shards: Sequence[_Outputs]) -> dict[str, TableScan]:
    """Merges what `scan_shard` gave for each shard."""
    return {
        table.name: _merge(t, [found[g] for found in shards])
        for g, group in enumerate(groups)
        for t, table in enumerate(group.tables)
    }


def _merge(t: int, shards: _Outputs) -> TableScan:
    """Adds the shards' parts of one table of a group."""
    totals = np.sum([totals[t] for totals, *_ in shards], axis=0)
    frequencies = np.sum([counts[t] for _, counts, *_ in shards], axis=0)
    norms = np.sum([of_shard[3][t] for of_shard in shards], axis=0)
    hottest = np.concatenate([hot[hot[:, 0] == t] for *_, hot in shards])
    order = np.lexsort((hottest[:, 1], -hottest[:, 2]))[:NUM_HOTTEST]
    return TableScan(
        rows=int(totals[0]),
        updates=int(totals[1]),
        frequencies=FrequencyCounts(shards[0][2], frequencies),
        hottest=[(int(i), int(n)) for i, n in hottest[order, 1:]],
        norm_values=shards[0][4],
        norm_counts=norms,
    )
