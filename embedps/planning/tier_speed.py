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

from embedps.planning.speed import MeasuredStep
from embedps.planning.tier_hits import TierPlan, least_memory, record_bytes
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.groups import TableGroup
from embedps.tables.specs import FeatureSpec
from embedps.tables.tiered import Tiered

_MOST_FILE_BYTES = 256 << 20
_LEAST_ROWS, _LEAST_IDS = 1 << 16, 64
_FILL_IDS = 8192
_SECS = 2.0
_IN_MEMORY = 20  # lookups
_containers = itertools.count()


@dataclasses.dataclass(frozen=True, kw_only=True)
class MissCost:
    """What a row on disk costs.

    Attributes:
      secs: until a lookup has it, all threads reading.
      cpu_secs: of a core meanwhile.
    """

    secs: float
    cpu_secs: float


def step_secs(step: MeasuredStep, tier: TierPlan, miss: MissCost) -> float:
    """Predicts the seconds of a step whose rows are in part on disk.

    A step waits for the rows that its lookup reads. What reads of rows ahead take of a core, all
    threads of a step wait for, if it keeps that core busy. A disk may take longer than the step.
    """
    ahead = 0.0 if step.num_ps else tier.ahead
    in_memory = 1 / step.steps_per_sec
    busy = min(step.worker_cpu_secs / in_memory / step.cores, 1.0)
    beside = in_memory + busy * ahead * miss.cpu_secs
    return (tier.misses - ahead) * miss.secs + max(beside, ahead * miss.secs)


def measure_miss(
    groups: Sequence[TableGroup], directory: str, *, rows_on_disk: int, misses: float
) -> MissCost:
    """Measures lookups of rows on a disk, which updates follow.

    They bring rows in, for which others go to the disk, as in a run. A lookup has as large a part
    of the rows on disk as a run's step: one read brings those that are close to each other.

    Args:
      groups: of which the widest rows are taken.
      directory: on the disk, for up to 256 MB while this measures.
      rows_on_disk: of the run.
      misses: rows on disk that a step looks up.

    Raises:
      UsageError: no file can be in the directory.
    """
    widest = max((table for group in groups for table in group.tables), key=record_bytes)
    table = dataclasses.replace(
        widest,
        initializer=None,
        absent="zeros",
        capacity=0,
        admission=None,
        eviction=(),
        frozen_steps=0,
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
        in_memory = _Lookups(collection)
        for first in range(0, rows, _FILL_IDS):
            ids = np.arange(first, min(first + _FILL_IDS, rows))
            collection.lookup({"ids": tf.constant(ids)}, insert=True)
            if not first:
                for _ in range(_IN_MEMORY):
                    in_memory.add(ids)
        on_disk = _Lookups(collection)
        shuffled = np.random.default_rng(0).permutation(rows)
        end = time.perf_counter() + _SECS
        for first in range(0, rows, asked):
            on_disk.add(shuffled[first : first + asked])
            if time.perf_counter() > end:
                break
    finally:
        collection.drop()
    spent = on_disk.spent - on_disk.asked * in_memory.spent / in_memory.asked
    secs, cpu_secs = np.maximum(spent, 0.0) / max(on_disk.read, 1)
    return MissCost(secs=float(secs), cpu_secs=float(cpu_secs))


class _Lookups:
    """Takes the time of lookups, each followed by an update: what does not change is not written.

    Attributes:
      spent: seconds, and seconds of a core.
      asked, read: rows, and those of them that a disk had.
    """

    def __init__(self, collection: EmbeddingCollection) -> None:
        self.spent, self.asked, self.read = np.zeros(2), 0, 0
        self._collection = collection

    def add(self, ids: NDArray[np.int64]) -> None:
        batch, before = {"ids": tf.constant(ids)}, self._collection.tier_stats().read
        began = _clocks()
        found = self._collection.lookup(batch, insert=True)
        self.spent += _clocks() - began
        self.asked += len(ids)
        self.read += self._collection.tier_stats().read - before
        unchanged = tf.nest.map_structure(tf.zeros_like, found.rows)
        step = tf.constant(self.asked, tf.int64)
        self._collection.update(found, unchanged, learning_rate=tf.constant(0.0), step=step)


def _clocks() -> NDArray[np.float64]:
    return np.array([time.perf_counter(), time.process_time()])
