"""Counts of what the tables' policies decided, over all shards."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from embedps import kernels
from embedps.constants import EVICTION_CAUSES
from embedps.tables.groups import TableGroup


class AdmissionStats(NamedTuple):
    """Counts of a table's admission over all shards, since the stores were made.

    Attributes:
      counters: of ids without a row, now.
      bytes: of these counters; a part of `TableStats.memory_bytes`.
      admitted: ids that got a row.
      refused: ids that got none, once per step that showed them; their gradients were dropped.
    """

    counters: int
    bytes: int
    admitted: int
    refused: int


def read_admissions(
    groups: Sequence[TableGroup], stores: Sequence[Sequence[tf.Tensor]], devices: Sequence[str]
) -> dict[str, AdmissionStats]:
    """Reads, by table, what admission decided; the arguments are as of `read_stats`."""
    library = kernels.load()
    totals = _add(groups, stores, devices, library.embedps_admission_stats)
    return {name: AdmissionStats(*counts.tolist()) for name, counts in totals.items()}


def read_evictions(
    groups: Sequence[TableGroup], stores: Sequence[Sequence[tf.Tensor]], devices: Sequence[str]
) -> dict[str, dict[str, int]]:
    """Reads how many rows went, by table and cause; the arguments are as of `read_stats`."""
    library = kernels.load()
    totals = _add(groups, stores, devices, library.embedps_eviction_stats)
    return {
        name: dict(zip(EVICTION_CAUSES, counts.tolist(), strict=True))
        for name, counts in totals.items()
    }


def _add(
    groups: Sequence[TableGroup],
    stores: Sequence[Sequence[tf.Tensor]],
    devices: Sequence[str],
    read: Callable[[tf.Tensor], tf.Tensor],
) -> dict[str, npt.NDArray[np.int64]]:
    """Adds what `read` gives for each store, by table."""
    totals: dict[str, npt.NDArray[np.int64]] = {}
    for group, of_group in zip(groups, stores, strict=True):
        counts = []
        for store, device in zip(of_group, devices, strict=True):
            with tf.device(device):
                counts.append(read(store).numpy())
        totals |= dict(zip((t.name for t in group.tables), sum(counts), strict=True))
    return totals
