"""Statistics of the tables in a checkpoint: sizes, updates, hottest ids, norms, growth, load.

A row's frequency counts its updates: the training steps that looked the row up, each once. So it is
an exact count of lookups by steps, which costs training nothing. An id that is in nearly every step
is in the batches more often than that; Zipf's exponent is corrected for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.format.rows import table_codes
from embedps.checkpoint.tools.inspect import format_bytes
from embedps.checkpoint.tools.replay import Partition, make_partitions
from embedps.checkpoint.tools.shard_skew import ShardSkew, find_skew
from embedps.console.tables import FINGERPRINTS, make_table
from embedps.errors import CheckpointError
from embedps.frequencies import HOT_SHARE, FrequencyCounts, exponent_text

NUM_HOTTEST = 1000
SHOWN_HOTTEST = 20
_PERCENTILES = (1, 10, 50, 90, 99)
_SHOWN_CHARACTERS = 40
_HEADER_BYTES = 16  # the id, the last step and the frequency
_NO_RANKS = np.empty(0, np.int64)
_COLUMNS = ("table", "rows", "bytes", "updates", "ids/step", "top 1%", "hottest id")
_DETAILS = ("Zipf", "once", "norm", "fullest shard")


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
      num_shards: how many there are; 1 if the chain has saves of several numbers of shards.
      shards: the load of each shard that has rows.
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
    num_shards: int
    shards: list[ShardLoad]

    @property
    def skew(self) -> ShardSkew | None:
        """Finds a shard whose ids may be chosen for it."""
        return find_skew(self.name, {s.shard: s.rows for s in self.shards}, self.num_shards)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointStatistics:
    """The statistics of a manifest's tables."""

    number: int
    step: int
    tables: list[TableStatistics]


def read_statistics(directory: CheckpointDirectory, manifest: Manifest) -> CheckpointStatistics:
    """Reads the rows of all tables; takes about 24 bytes of memory per row.

    Raises:
      CheckpointError: a file of the checkpoint is damaged.
    """
    directory.check_content(manifest, [file for save in manifest.chain for file in save.files])
    tables = {table["name"]: _TableRows(table) for table in manifest.tables}
    for part in make_partitions(directory, manifest.chain):
        for name in part.tables:
            if name in tables:
                tables[name].begin(part)
        for batch in part.rows():
            _add(tables, part, batch)
    for name, rows in tables.items():
        if not rows.has_files:
            raise CheckpointError(f"manifest {manifest.number} has no files of table {name!r}")
    return CheckpointStatistics(
        number=manifest.number,
        step=manifest.step,
        tables=[rows.statistics(manifest.step) for rows in tables.values()],
    )


def shown_ids(statistics: CheckpointStatistics) -> list[int]:
    """Lists the hottest ids that are shown, of all tables."""
    return [i for table in statistics.tables for i, _ in table.hottest[:SHOWN_HOTTEST]]


def _add(tables: Mapping[str, _TableRows], part: Partition, batch: pa.RecordBatch) -> None:
    """Adds the rows of a batch to their tables."""
    codes = table_codes(batch)
    flat = batch["embedding"].flatten().to_numpy().reshape(batch.num_rows, -1)
    columns = (
        batch["id"].to_numpy(),
        batch["frequency"].to_numpy(),
        np.sqrt(np.einsum("ij,ij->i", flat, flat, dtype=np.float64)).astype(np.float32),
        batch["last_step"].to_numpy(),
    )
    for code in np.unique(codes):
        if (rows := tables.get(part.tables[code])) is not None:
            mine = codes == code
            rows.add(part.shard, *(column[mine] for column in columns))


class _TableRows:
    """Keeps a few numbers of each of a table's rows."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._table = table
        self._name = table["name"]
        self._dim = int(table["dim"])
        self._row_bytes = 0
        self._num_shards = 1
        self._parts: list[tuple[NDArray[Any], ...]] = []
        self._shards: dict[int, list[int]] = {}

    @property
    def has_files(self) -> bool:
        """Whether a file can hold its rows."""
        return self._row_bytes > 0

    def begin(self, part: Partition) -> None:
        """Takes the layout of the rows, and how many shards there are."""
        self._row_bytes = self._row_bytes or _row_bytes(self._table, part.schema)
        self._num_shards = part.num_shards

    def add(
        self,
        shard: int,
        ids: NDArray[Any],
        frequencies: NDArray[Any],
        norms: NDArray[Any],
        steps: NDArray[Any],
    ) -> None:
        """Adds rows of a shard."""
        self._parts.append((ids, frequencies, norms, steps))
        load = self._shards.setdefault(shard, [0, 0])
        load[0] += len(ids)
        load[1] += int(frequencies.sum(dtype=np.int64))

    def statistics(self, step: int) -> TableStatistics:
        """Computes the statistics after so many training steps."""
        kinds = (np.int64, np.int64, np.float32, np.int64)
        ids, counts, norms, last_steps = (
            np.concatenate([np.empty(0, kind), *(part[i] for part in self._parts)]).astype(kind)
            for i, kind in enumerate(kinds)
        )
        self._parts.clear()
        rows, updates = len(ids), int(counts.sum())
        order = np.lexsort((ids, -counts))
        hottest = order[:NUM_HOTTEST]
        frequencies = FrequencyCounts.of(counts)
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
            hottest=[(int(ids[i]), int(counts[i])) for i in hottest],
            frequencies=[
                (int(rank), int(count))
                for rank, count in zip(ranks, frequencies.at(ranks), strict=True)
            ],
            once=frequencies.at_most(1),
            norms=[float(x) for x in np.percentile(norms, _PERCENTILES)] if rows else [],
            largest_norm=float(norms.max()) if rows else 0.0,
            median_age_steps=float(step - 1 - np.median(last_steps)) if rows else 0.0,
            num_shards=self._num_shards,
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


def _with_text(number: int, texts: Mapping[int, str]) -> str:
    text = texts.get(number)
    if text is None:
        return str(number)
    return f"{number} {text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + '…'}"


def print_statistics(
    statistics: CheckpointStatistics,
    console: Console,
    *,
    details: bool = True,
    texts: Mapping[int, str] | None = None,
) -> None:
    """Prints a line per table; with `details`, of its norms and the load of its shards too.

    Args:
      statistics: of a checkpoint.
      console: gets it.
      details: print all columns.
      texts: of hottest ids.
    """
    title = f"manifest {statistics.number}, step {statistics.step:,}"
    table = make_table(title, *_COLUMNS, *(_DETAILS if details else ()))
    for each in statistics.tables:
        updates = [shard.updates for shard in each.shards]
        fullest = max(updates, default=0) * each.num_shards / max(each.updates, 1)
        cells = [
            each.name,
            f"{each.rows:,}",
            format_bytes(each.rows * each.row_bytes),
            f"{each.updates:,}",
            f"{each.ids_per_step:,.1f}",
            f"{each.hot_share:.1%}",
            " ".join(_with_text(number, texts or {}) for number, _ in each.hottest[:1]),
            exponent_text(each.zipf_exponent),
            f"{each.once / max(each.rows, 1):.0%}",
            f"{each.norms[2]:.3g}" if each.norms else "",
            f"{fullest:.2f}x",
        ]
        table.add_row(*cells[: len(table.columns)])
    console.print(table)
    console.print(FINGERPRINTS, style=None, highlight=False)
    for each in statistics.tables:
        if each.skew is not None:
            console.print(Text(each.skew.text()))
