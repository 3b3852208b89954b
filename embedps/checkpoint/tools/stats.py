"""Statistics of the tables in a checkpoint: sizes, updates, hottest ids, norms, growth, load.

A row's frequency counts its updates: the training steps that looked the row up, each once. So it is
an exact count of lookups by steps, which costs training nothing. An id that is in nearly every step
is in the batches more often than that; Zipf's exponent is corrected for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.format.rows import table_codes
from embedps.checkpoint.tools.replay import Partition, make_partitions
from embedps.errors import CheckpointError
from embedps.frequencies import HOT_SHARE, FrequencyCounts, exponent_text

NUM_HOTTEST = 1000
_PERCENTILES = (1, 10, 50, 90, 99)
_HEADER_BYTES = 16  # the id, the last step and the frequency
_NO_RANKS = np.empty(0, np.int64)
_COLUMNS = (
    "table",
    "rows",
    "bytes",
    "updates",
    "ids/step",
    "top 1%",
    "Zipf",
    "once",
    "norm",
    "fullest shard",
    "hottest id",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardLoad:
    """A shard's part of a table."""

    shard: int
    rows: int
    updates: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableStatistics:
    """What a checkpoint tells of a table.

    Attributes:
      name: of the table.
      dim: floats per embedding.
      rows: how many there are.
      row_bytes: of a row's floats and bookkeeping, as restored.
      updates: of all rows; each is a distinct id of a training step.
      ids_per_step: updates per training step.
      hot_share: the share of the updates that the most frequent 1% of ids have.
      zipf_exponent: of the ids' frequencies by rank; None if too few ids are frequent.
      hottest: the most frequent ids with their updates, in order; 1000 at most.
      frequencies: the updates of the rows at some ranks, as (rank from 1, updates).
      once: rows with one update at most.
      norms: percentiles 1, 10, 50, 90 and 99 of the embeddings' Euclidean norms.
      largest_norm: of all embeddings.
      median_age_steps: steps since the last update of half of the rows.
      shards: the load of each shard.
    """

    name: str
    dim: int
    rows: int
    row_bytes: int
    updates: int
    ids_per_step: float
    hot_share: float
    zipf_exponent: float | None
    hottest: list[tuple[int, int]]
    frequencies: list[tuple[int, int]]
    once: int
    norms: list[float]
    largest_norm: float
    median_age_steps: float
    shards: list[ShardLoad]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointStatistics:
    """The statistics of a manifest's tables."""

    number: int
    step: int
    tables: list[TableStatistics]


def read_statistics(directory: CheckpointDirectory, manifest: Manifest) -> CheckpointStatistics:
    """Reads the rows of all tables; takes about 20 bytes of memory per row of the largest table.

    Raises:
      CheckpointError: a file of the checkpoint is damaged.
    """
    directory.check_content(manifest, [file for save in manifest.chain for file in save.files])
    parts = make_partitions(directory, manifest.chain)
    tables = []
    for table in manifest.tables:
        name = table["name"]
        mine = [part for part in parts if name in part.tables]
        if not mine:
            raise CheckpointError(f"manifest {manifest.number} has no files of table {name!r}")
        tables.append(_TableRows(table, mine).statistics(manifest.step))
    return CheckpointStatistics(number=manifest.number, step=manifest.step, tables=tables)


class _TableRows:
    """Reads a table's rows, shard by shard, and keeps a few numbers of each."""

    def __init__(self, table: Mapping[str, Any], parts: Sequence[Partition]) -> None:
        name, dim = table["name"], int(table["dim"])
        self._name = name
        self._dim = dim
        self._row_bytes = _row_bytes(table, parts[0].schema)
        ids, frequencies, norms, steps = [], [], [], []
        self._shards: dict[int, list[int]] = {}
        for part in parts:
            for batch in _rows_of(part, name):
                ids.append(batch["id"].to_numpy())
                frequencies.append(batch["frequency"].to_numpy())
                steps.append(batch["last_step"].to_numpy())
                flat = batch["embedding"].flatten().to_numpy().reshape(-1, dim)
                norms.append(np.sqrt(np.einsum("ij,ij->i", flat, flat, dtype=np.float64)))
                load = self._shards.setdefault(part.shard, [0, 0])
                load[0] += batch.num_rows
                load[1] += int(frequencies[-1].sum(dtype=np.int64))
        self._ids = _joined(ids, np.int64)
        self._frequencies = _joined(frequencies, np.int64)
        self._norms = _joined(norms, np.float32)
        self._last_steps = _joined(steps, np.int64)

    def statistics(self, step: int) -> TableStatistics:
        """Computes the statistics after so many training steps."""
        rows, updates = len(self._ids), int(self._frequencies.sum())
        order = np.lexsort((self._ids, -self._frequencies))
        hottest = order[:NUM_HOTTEST]
        frequencies = FrequencyCounts.of(self._frequencies)
        ranks = np.unique(np.geomspace(1, rows, 100).astype(np.int64)) if rows else _NO_RANKS
        return TableStatistics(
            name=self._name,
            dim=self._dim,
            rows=rows,
            row_bytes=self._row_bytes,
            updates=updates,
            ids_per_step=updates / max(step, 1),
            hot_share=frequencies.share_of_top(HOT_SHARE),
            zipf_exponent=frequencies.zipf_exponent(step),
            hottest=[(int(self._ids[i]), int(self._frequencies[i])) for i in hottest],
            frequencies=[
                (int(rank), int(count))
                for rank, count in zip(ranks, frequencies.at(ranks), strict=True)
            ],
            once=frequencies.at_most(1),
            norms=[float(x) for x in np.percentile(self._norms, _PERCENTILES)] if rows else [],
            largest_norm=float(self._norms.max()) if rows else 0.0,
            median_age_steps=float(step - 1 - np.median(self._last_steps)) if rows else 0.0,
            shards=[
                ShardLoad(shard=shard, rows=load[0], updates=load[1])
                for shard, load in sorted(self._shards.items())
            ],
        )


def _row_bytes(table: Mapping[str, Any], schema: pa.Schema) -> int:
    """Counts a row's bytes in memory, as kernels/store/row_layout.h lays it out."""
    slot_floats = sum(
        field.type.list_size
        for field in schema
        if pa.types.is_fixed_size_list(field.type) and field.name != "embedding"
    )
    of_parts = ((int(table["dim"]), "row_dtype"), (slot_floats, "slot_dtype"))
    sizes = [n * (4 if table.get(key, "float32") == "float32" else 2) for n, key in of_parts]
    return _HEADER_BYTES + sum(-(-size // 4) * 4 for size in sizes)


def _rows_of(part: Partition, name: str) -> Iterator[pa.RecordBatch]:
    code = part.tables.index(name)
    for batch in part.rows(name):
        if (table_codes(batch) == code).any():
            yield batch


def _joined(parts: Sequence[np.ndarray], dtype: type) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *parts]).astype(dtype)


def print_statistics(statistics: CheckpointStatistics, console: Console) -> None:
    """Prints a line per table, and the load of its shards."""
    table = Table(title=f"manifest {statistics.number}, step {statistics.step:,}")
    for i, column in enumerate(_COLUMNS):
        table.add_column(column, justify="left" if i == 0 else "right")
    for each in statistics.tables:
        updates = [shard.updates for shard in each.shards]
        fullest = max(updates, default=0) * len(updates) / max(each.updates, 1)
        table.add_row(
            escape(each.name),
            f"{each.rows:,}",
            f"{each.rows * each.row_bytes:,}",
            f"{each.updates:,}",
            f"{each.ids_per_step:,.1f}",
            f"{each.hot_share:.1%}",
            exponent_text(each.zipf_exponent),
            f"{each.once / max(each.rows, 1):.0%}",
            f"{each.norms[2]:.3g}" if each.norms else "",
            f"{fullest:.2f}x",
            str(each.hottest[0][0]) if each.hottest else "",
        )
    console.print(table)
