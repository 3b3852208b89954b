"""How many of a step's rows are in the memory of servers whose other rows are on disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from embedps.planning.dataset_ids import StepIds, TableRows
from embedps.tables.byte_limits import STRIPES, places, row_bytes
from embedps.tables.groups import TableGroup
from embedps.tables.specs import TableSpec

# As kernels/store has them.
_HEADER_BYTES = 16  # of a row, in row_bytes
_SLOT_BYTES = 16  # of a row in memory, besides its floats
_RECORD_BYTES = 24  # of a row on disk, besides its floats
_HEAD_BYTES = 26  # of every row, with its index entry
_TABLE_BYTES = STRIPES * 3072
_GROUP_BYTES = 1 << 20  # of buffers
_CHUNK_BYTES, _LEAST_SLOTS = 4096, 16
_POINTS = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class TierPlan:
    """The rows in memory on a number of parameter servers.

    Attributes:
      num_ps: how many.
      rows: in memory at the end of an epoch, on all of them.
      hits: the share of a step's rows that are in memory, in epochs after the first.
      misses: the other rows of a step, on all servers.
    """

    num_ps: int
    rows: int
    hits: float
    misses: float


def plan_tier(
    groups: Sequence[TableGroup],
    rows: Mapping[str, TableRows],
    steps: StepIds,
    *,
    num_ps: int,
    max_memory_bytes: int,
    examples: int,
) -> TierPlan:
    """Predicts a tier's hits, as those of a cache that keeps the rows used last.

    Such a cache has the distinct rows of the last examples, as many as fit. What further examples
    would add to these is what it misses (Xiang et al., HOTL, 2013). An epoch's first examples show
    how the distinct rows of any others grow.

    Args:
      rows: of each table.
      steps: some of the epoch.
      num_ps: servers, with equal parts of the rows.
      max_memory_bytes: of each.
      examples: of an epoch.
    """
    tables = [table for group in groups for table in group.tables]
    heads = sum(places(table, -(-rows[table.name].rows // num_ps)) for table in tables)
    others = _GROUP_BYTES * len(groups) + _TABLE_BYTES * len(tables) + _HEAD_BYTES * heads
    asked = sum(steps.by_table[table.name] for table in tables)

    def plan(in_memory: float, hits: float) -> TierPlan:
        hits = float(np.clip(hits, 0, 1))
        return TierPlan(num_ps=num_ps, rows=round(in_memory), hits=hits, misses=(1 - hits) * asked)

    # A stripe with rows has a chunk, whatever the limit is.
    least = num_ps * np.array([_least_bytes(table) for table in tables])
    room = max(num_ps * (max_memory_bytes - others), least.sum())
    step_share = steps.num_rows / max(steps.num_steps, 1) / max(examples, 1)
    shares = np.geomspace(min(step_share, 1.0), 1.0, _POINTS)
    grown = np.array(
        [_grown(rows[t.name], steps.by_table[t.name], step_share, shares) for t in tables]
    )
    sizes = np.array([_slot_bytes(table) for table in tables])
    in_stripe = -np.expm1(grown / num_ps * np.log1p(-1 / STRIPES))  # chance of any row
    taken = np.maximum(sizes[:, None] * grown, least[:, None] * in_stripe).sum(axis=0)
    if taken[0] > room:  # not even the rows of a step are there
        return plan(room / taken[0] * grown[:, 0].sum(), 0.0)
    at = int(np.flatnonzero(taken <= room)[-1])
    in_memory = float(grown[:, at].sum())
    if at == len(shares) - 1 or not asked:
        return plan(in_memory, 1.0)
    missed = float(np.gradient(grown.sum(axis=0), shares)[at]) * step_share
    return plan(in_memory, 1 - missed / asked)


def record_bytes(table: TableSpec) -> int:
    """Gives the bytes of a row on disk, about."""
    return row_bytes(table) - _HEADER_BYTES + _RECORD_BYTES


def least_memory(table: TableSpec, rows: int) -> int:
    """Gives a limit with which about a tenth of a lone table's rows are in memory."""
    heads = _GROUP_BYTES + _TABLE_BYTES + _HEAD_BYTES * places(table, rows)
    return heads + 2 * _least_bytes(table) + rows // 10 * _slot_bytes(table)


def _least_bytes(table: TableSpec) -> int:
    return STRIPES * max(_CHUNK_BYTES, _LEAST_SLOTS * _slot_bytes(table))


def _slot_bytes(table: TableSpec) -> int:
    return row_bytes(table) - _HEADER_BYTES + _SLOT_BYTES


def _grown(
    rows: TableRows, of_step: float, step_share: float, shares: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Gives a table's distinct rows after shares of an epoch, of which a step is the first."""
    ends, counts = (np.array(each) for each in rows.growth)
    later = (ends > step_share) & (counts > 0)
    x = np.log([step_share, *ends[later]])
    y = np.log(np.maximum([of_step, *(rows.rows * counts[later])], 1e-9))
    return np.asarray(np.exp(np.interp(np.log(shares), x, y)))
