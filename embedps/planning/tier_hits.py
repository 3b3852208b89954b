"""How many of a step's rows are in the memory of servers whose other rows are on disk."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from embedps.engine.steps.in_process import STEPS_AHEAD
from embedps.planning.dataset_ids import StepIds, TableRows
from embedps.planning.step_sample import StepSample
from embedps.planning.tier_cache import TableMemory, simulate_tier
from embedps.tables.byte_limits import STRIPES, places, row_bytes
from embedps.tables.groups import TableGroup
from embedps.tables.specs import TableSpec

# As kernels/store has them.
_HEADER_BYTES = 16  # of a row, in row_bytes
_SLOT_BYTES = 8  # of a row in memory, besides its floats
_LIST_BYTES = 8  # of a slot
_RECORD_BYTES = 24  # of a row on disk, besides its floats
_HEAD_BYTES = 26  # of every row, with its index entry
_TABLE_BYTES = STRIPES * 1024  # of stripes, their sets and lists that are not full
_GROUP_BYTES = 1 << 20  # of buffers
_PAGE_BYTES, _LEAST_SLOTS, _WASTE_PARTS = 4096, 16, 16
_AWAITED_PARTS = 8  # nothing is read ahead if one of these parts of a table's rows is awaited
_POINTS = 512

_Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TierPlan:
    """The rows in memory on a number of parameter servers.

    Attributes:
      num_ps: how many.
      rows: in memory at the end of an epoch, on all of them.
      hits: the share of a step's rows that are in memory, in epochs after the first.
      misses: the other rows of a step, on all servers.
      ahead: those of the misses that are read while another step computes; only a process without
        servers does so.
      again: those of the misses that a step's update reads, as the rows left since its lookup.
    """

    num_ps: int
    rows: int
    hits: float
    misses: float
    ahead: float
    again: float


def plan_tier(
    groups: Sequence[TableGroup],
    rows: Mapping[str, TableRows],
    steps: StepIds,
    *,
    num_ps: int,
    max_memory_bytes: int,
    examples: int,
    sample: StepSample | None = None,
    shuffles: bool = True,
    lanes: int = 1,
) -> TierPlan:
    """Predicts a tier's hits: by a small copy of it, which takes a sample of the rows of all steps.

    Without one they are those of a cache that keeps the rows used last. It has the distinct rows of
    the last examples, as many as fit. What further examples would add to these is what it misses
    (Xiang et al., HOTL, 2013). An epoch's first examples show how the distinct rows of any others
    grow.

    A stripe with rows has a chunk for them, whatever the limit is. So a small memory has the rows
    of more examples of some tables than of others.

    A process without servers takes some steps per iteration. It looks up the first one's rows, and
    reads those of the others ahead. A table's rows come ahead as long as few of its rows in memory
    are awaited: those of the steps under way, and those that came ahead.

    Args:
      rows: of each table.
      steps: some of the epoch.
      num_ps: servers, with equal parts of the rows.
      max_memory_bytes: of each.
      examples: of an epoch.
      sample: of an epoch's steps, with the groups' tables in order.
      shuffles: whether each epoch has its units in another order.
      lanes: steps that a process without servers takes at once.
    """
    tables = [table for group in groups for table in group.tables]
    heads = sum(places(table, -(-rows[table.name].rows // num_ps)) for table in tables)
    others = _GROUP_BYTES * len(groups) + _TABLE_BYTES * len(tables) + _HEAD_BYTES * heads
    asked = np.array([steps.by_table[table.name] for table in tables])
    step_share = min(steps.num_rows / max(steps.num_steps, 1) / max(examples, 1), 1.0)
    shares = np.geomspace(step_share, 1.0, _POINTS)
    grown = np.array(
        [_grown(rows[t.name], steps.by_table[t.name], step_share, shares) for t in tables]
    )
    chunks = np.array([chunk_of(table) for table in tables])  # slots and bytes
    with_rows = -np.expm1(grown[:, -1] / num_ps * np.log1p(-1 / STRIPES))  # chance of a stripe
    least = num_ps * STRIPES * with_rows[:, None] * chunks
    room = num_ps * (max_memory_bytes - others)
    slot_bytes = chunks[:, 1] / chunks[:, 0]
    again: _Floats = np.zeros(len(tables))
    if np.maximum(slot_bytes * grown[:, -1], least[:, 1]).sum() <= room:
        kept, missed = grown[:, -1], np.zeros(len(tables))
    elif sample is not None:
        memory = [
            TableMemory(least_slots=least_slots, slot_bytes=of_slot)
            for least_slots, of_slot in zip(least[:, 0], slot_bytes, strict=True)
        ]
        kept, missed, again = simulate_tier(sample, memory, room, shuffles=shuffles)
    else:
        kept = _kept(grown, least, slot_bytes, room)
        missed = np.array(
            [_missed(*each, shares, step_share) for each in zip(grown, kept, asked, strict=True)]
        )
    ahead = (
        _ahead(kept, asked, missed - again, math.ceil(steps.unit_steps), lanes)
        if num_ps == 1
        else 0.0
    )
    misses = float(missed.sum())
    hits = float(np.clip(1 - misses / max(asked.sum(), 1e-9), 0, 1))
    return TierPlan(
        num_ps=num_ps,
        rows=round(kept.sum()),
        hits=hits,
        misses=misses,
        ahead=ahead,
        again=float(again.sum()),
    )


def _kept(grown: _Floats, least: _Floats, slot_bytes: _Floats, room: float) -> _Floats:
    """Gives each table's rows in memory.

    Args:
      grown: [tables, points], distinct rows of more and more examples.
      least: [tables, 2], the slots and bytes that it has whatever the limit is.
      slot_bytes: [tables], of a row.
      room: bytes.
    """
    floors = np.minimum(least[:, 0], grown[:, -1])
    taken = np.maximum(slot_bytes[:, None] * grown, least[:, 1:]).sum(axis=0)
    fits = np.flatnonzero(taken <= room)
    if len(fits):
        return np.asarray(np.maximum(grown[:, fits[-1]], floors))
    # Not even the rows of a step are there: a part of those that have no chunk of their own.
    left = (room - least[:, 1].sum()) / max(taken[0] - least[:, 1].sum(), 1.0)
    return np.asarray(floors + np.clip(left, 0, 1) * np.maximum(grown[:, 0] - floors, 0))


def _missed(grown: _Floats, kept: float, asked: float, shares: _Floats, step_share: float) -> float:
    """Gives the rows of a step that a table's rows in memory lack."""
    if kept >= grown[-1]:
        return 0.0
    if kept < grown[0]:  # rows go before the next step comes
        return asked
    slopes = np.gradient(grown, shares) if len(shares) > 1 else np.zeros(1)
    return float(min(np.interp(kept, grown, slopes) * step_share, asked))


def _ahead(kept: _Floats, asked: _Floats, missed: _Floats, unit_steps: int, lanes: int) -> float:
    """Gives the rows of a step that are read ahead, on average over an iteration's steps."""
    later = STEPS_AHEAD - 1
    room = kept / _AWAITED_PARTS - lanes * asked
    of_iteration = np.clip(room / lanes, 0, later * missed).sum()
    whole = unit_steps // STEPS_AHEAD * STEPS_AHEAD / max(unit_steps, 1)  # others come alone
    return float(whole * of_iteration / STEPS_AHEAD)


def record_bytes(table: TableSpec) -> int:
    """Gives the bytes of a row on disk, about."""
    return row_bytes(table) - _HEADER_BYTES + _RECORD_BYTES


def least_memory(table: TableSpec, rows: int) -> int:
    """Gives a limit with which about a tenth of a lone table's rows are in memory."""
    heads = _GROUP_BYTES + _TABLE_BYTES + _HEAD_BYTES * places(table, rows)
    slots, size = chunk_of(table)
    return heads + 2 * STRIPES * size + rows // 10 * size // slots


def chunk_of(table: TableSpec) -> tuple[int, int]:
    """Gives the slots of a chunk, and what it counts; as kernels/store/body_arena.cc."""
    slot = row_bytes(table) - _HEADER_BYTES + _SLOT_BYTES
    size = _PAGE_BYTES
    while size // slot < _LEAST_SLOTS or size % slot > size // _WASTE_PARTS:
        size += _PAGE_BYTES
    return size // slot, size + size // slot * _LIST_BYTES


def _grown(rows: TableRows, of_step: float, step_share: float, shares: _Floats) -> _Floats:
    """Gives a table's distinct rows after shares of an epoch, of which a step is the first."""
    ends, counts = (np.array(each) for each in rows.growth)
    later = (ends > step_share) & (counts > 0)
    x = np.log([step_share, *ends[later]])
    y = np.log(np.maximum([of_step, *(rows.rows * counts[later])], 1e-9))
    return np.asarray(np.exp(np.interp(np.log(shares), x, y)))
