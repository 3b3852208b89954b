"""The ids that a model looks up in a dataset: all of the training split, and those of some steps.

Batches come from the reader and the model that training uses, so ids that a model draws or cuts off
are counted as training looks them up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from embedps.checkpoint.format.row_hashes import row_hashes, shards_of
from embedps.data.dataset import Dataset
from embedps.data.distinct_ids import DistinctSketch
from embedps.engine.step_model import StepModel
from embedps.planning.step_sample import StepSample
from embedps.run.config import TrainConfig
from embedps.scheduling.division import LedgerOptions
from embedps.scheduling.ledger import Ledger
from embedps.splitmix import unmix
from embedps.tables import ops
from embedps.tables.batch_ids import flatten_ids
from embedps.tables.groups import TableGroup

_SCAN_ROWS = 32768
_SAMPLED_UNITS = 8
_GROWTH_SHARES = (1 / 64, 1 / 32, *(i / 16 for i in range(1, 16)))

Progress = Callable[[int], None]
"""Gets the number of rows that were read since the last call."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableRows:
    """The distinct ids of a table.

    Attributes:
      rows: how many there are.
      exact: whether they were counted; otherwise they are estimated.
      hashes: their row hashes, or a random part of them; None if only their number is known.
      growth: shares of the examples, ascending, and the shares of the rows that they have.
    """

    rows: int
    exact: bool
    hashes: NDArray[np.uint64] | None
    growth: tuple[Sequence[float], Sequence[float]] = ((0.0, 1.0), (0.0, 1.0))

    def by_shard(self, num_shards: int) -> NDArray[np.float64]:
        """Divides the rows over shards."""
        if self.hashes is None or not len(self.hashes):
            return np.full(num_shards, self.rows / num_shards)
        counts = np.bincount(shards_of(self.hashes, num_shards), minlength=num_shards)
        return np.asarray(counts * (self.rows / len(self.hashes)))

    def share_after(self, share: float) -> float:
        """Gives the share of the rows that a share of the examples has."""
        return float(np.interp(share, *self.growth))


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepIds:
    """The distinct ids of some steps.

    Attributes:
      num_steps: how many steps were sampled.
      num_units: of how many units.
      num_rows: how many examples they have in all.
      hashes: by group, the row hashes of all steps' distinct ids.
      by_table: mean number of distinct ids per step.
    """

    num_steps: int
    num_units: int
    num_rows: int
    hashes: tuple[NDArray[np.uint64], ...]
    by_table: Mapping[str, float]

    @property
    def unit_steps(self) -> float:
        """Returns the mean number of steps of a unit."""
        return self.num_steps / max(self.num_units, 1)

    def by_shard(self, group: int, num_shards: int) -> NDArray[np.float64]:
        """Gives the mean number of a group's distinct ids per step on each shard."""
        counts = np.bincount(shards_of(self.hashes[group], num_shards), minlength=num_shards)
        return np.asarray(counts / self.num_steps)


def known_rows(groups: Sequence[TableGroup], dataset: Dataset) -> dict[str, TableRows]:
    """Gives the rows of each table by the dataset's own counts, which include its other splits."""
    columns = {column.name: column for column in dataset.categorical}
    found: dict[str, TableRows] = {}
    for group in groups:
        for table in group.tables:
            names = [f.name for f in group.features if f.table_name == table.name]
            known = [columns[name] for name in names if name in columns]
            rows = max((c.cardinality + (c.missing > 0) for c in known), default=0)
            exact = len(names) == 1 and all(c.cardinality_exact for c in known)
            found[table.name] = TableRows(rows=rows, exact=exact, hashes=None)
    return found


def count_rows(
    model: StepModel,
    groups: Sequence[TableGroup],
    dataset: Dataset,
    progress: Progress,
    *,
    batch_rows: int = _SCAN_ROWS,
    sample: StepSample | None = None,
) -> dict[str, TableRows]:
    """Counts the distinct ids that each table is asked for in the training split.

    Args:
      batch_rows: to read at once; those of a step, for a sample.
      sample: is given each batch's.
    """
    sketches = {table.name: DistinctSketch() for group in groups for table in group.tables}
    total = dataset.split("train").rows
    points = [max(1, round(total * share)) for share in _GROWTH_SHARES]
    read, ends = 0, [0]
    counts = {name: [0] for name in sketches}

    def note_growth() -> None:
        ends.append(read)
        for name, sketch in sketches.items():
            counts[name].append(sketch.count)

    reader = model.input(batch_rows=min(batch_rows, points[0]), shuffle_rows=0)
    for path in dataset.paths("train"):
        handle = reader.open(str(path), 0, -1)
        while (batch := reader.next(handle)).num_rows.numpy():
            columns = model.prepare(batch.columns, training=True)
            found: dict[str, NDArray[np.uint64]] = {}
            for group in groups:
                found |= _distinct(group, columns)
            for name, hashes in found.items():
                sketches[name].add(hashes.view(np.int64))
            if sample is not None:
                sample.add(found)
            read += int(batch.num_rows)
            if points and read >= points[0]:
                points = [point for point in points if point > read]
                note_growth()
            progress(int(batch.num_rows))
    note_growth()
    return {
        # A sketch keeps hashes of what it is given; what it is given are row hashes.
        name: TableRows(
            rows=sketch.count,
            exact=sketch.exact,
            hashes=unmix(sketch.hashes),
            growth=(_shares(ends), _shares(counts[name])),
        )
        for name, sketch in sketches.items()
    }


def _shares(counts: Sequence[int]) -> list[float]:
    return [count / max(counts[-1], 1) for count in counts]


def sample_steps(
    model: StepModel,
    groups: Sequence[TableGroup],
    dataset: Dataset,
    config: TrainConfig,
    progress: Progress,
) -> StepIds:
    """Reads the batches of some units, as training does, and finds each step's distinct ids."""
    units = Ledger(dataset, LedgerOptions.of_run(config), epochs=1).units_of(0)
    reader = model.input(
        batch_rows=config.batch_size, shuffle_rows=config.unit_rows if config.shuffle else 0
    )
    hashes: list[list[NDArray[np.uint64]]] = [[] for _ in groups]
    by_table = {table.name: 0 for group in groups for table in group.tables}
    steps = rows = 0
    sampled = np.unique(np.linspace(0, len(units) - 1, _SAMPLED_UNITS).astype(int))
    for k in sampled:
        unit = units[k]
        handle = reader.open(unit.path, unit.first_row, unit.num_rows, unit.seed)
        while (batch := reader.next(handle)).num_rows.numpy():
            columns = model.prepare(batch.columns, training=True)
            for g, group in enumerate(groups):
                for name, found in _distinct(group, columns).items():
                    hashes[g].append(found)
                    by_table[name] += len(found)
            steps += 1
            rows += int(batch.num_rows)
            progress(int(batch.num_rows))
    return StepIds(
        num_steps=steps,
        num_units=len(sampled),
        num_rows=rows,
        hashes=tuple(np.concatenate(parts) for parts in hashes),
        by_table={name: count / max(steps, 1) for name, count in by_table.items()},
    )


def _distinct(
    group: TableGroup, columns: Mapping[str, tf.Tensor | tf.RaggedTensor]
) -> dict[str, NDArray[np.uint64]]:
    """Finds the row hashes of the distinct ids that a batch looks up in each table of a group."""
    names = [table.name for table in group.tables]
    routed = ops.route(
        [flatten_ids(feature, columns)[0] for feature in group.features],
        feature_tables=group.feature_tables,
        tables=names,
        num_shards=1,
    )
    ids, splits = routed.shard_ids[0].numpy(), routed.shard_splits[0].numpy()
    return {name: row_hashes(name, ids[splits[t] : splits[t + 1]]) for t, name in enumerate(names)}
