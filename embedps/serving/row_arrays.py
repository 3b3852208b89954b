"""Arrays of a checkpoint's rows, which stock ops look up: one pair per dim, for all its tables.

The files are read twice, batch by batch: first the ids, which are placed (cuckoo.py), then the
rows, which go to their places (placed_rows.py). Memory is that of the arrays, and of a batch; with
a disk for rows, that of the ids: 9 bytes a row, and 17 while they are placed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.format.quantize import quantize, to_bfloat16, to_nearest
from embedps.checkpoint.format.rows import RowFile, by_table
from embedps.checkpoint.tools.replay import NumberedBatch, Partition, make_partitions
from embedps.errors import CorruptCheckpointError
from embedps.serving.cuckoo import PLACES, IdHash, find, place
from embedps.serving.placed_rows import Arrays, Layout, aligned_zeros, place_rows
from embedps.tables.specs import TableSpec

if TYPE_CHECKING:  # it imports TensorFlow
    from embedps.tables.tiered import Tiered

RowDtype: TypeAlias = Literal["float32", "bfloat16", "int8"]
OnRows: TypeAlias = Callable[[int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableRange:
    """Where a table lies in its stack's arrays.

    Attributes:
      name: of the table.
      first_bucket: of the table.
      num_buckets: of the table, at least 2.
      num_rows: of the table.
      id_hash: finds its ids in the buckets.
      steps: of training that its rows' updates were counted in.
    """

    name: str
    first_bucket: int
    num_buckets: int
    num_rows: int
    id_hash: IdHash
    steps: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowStack:
    """The rows of all tables of one dim.

    Attributes:
      dim: floats per row.
      row_dtype: of the stored rows.
      tables: by name.
      ids: int64 [buckets, PLACES].
      arrays: the rows by place, then a row of zeros for absent ids. float32: "rows", float32
        [places + 1, dim]. bfloat16: "rows", its bits as uint16. int8: "codes", uint8 [places + 1,
        dim], and "scales", float32 [places + 1, 2], a row's scale and offset. If asked for,
        "updates", float32 [places + 1], how many steps updated each row.
    """

    dim: int
    row_dtype: RowDtype
    tables: Mapping[str, TableRange]
    ids: npt.NDArray[np.int64]
    arrays: dict[str, npt.NDArray[Any]]

    @property
    def num_bytes(self) -> int:
        """The bytes of all arrays."""
        return int(self.ids.nbytes + sum(array.nbytes for array in self.arrays.values()))

    @property
    def num_rows(self) -> int:
        """The rows of all tables."""
        return sum(table.num_rows for table in self.tables.values())


def stack_rows(
    directory: CheckpointDirectory,
    manifest: Manifest,
    tables: Sequence[TableSpec],
    *,
    row_dtype: RowDtype = "float32",
    with_updates: bool = False,
    memory: Tiered | None = None,
    on_rows: OnRows = lambda rows: None,
) -> list[RowStack]:
    """Makes the arrays of a checkpoint's rows, which are first rounded as their tables hold them.

    Args:
      manifest: one of them.
      tables: those to read.
      with_updates: keep how often rows were updated.
      memory: of all arrays. Where they need more, the ids stay in it, and the rows go to files.
      on_rows: called with the rows that were read since; each is read twice.

    Returns:
      A stack per dim.

    Raises:
      CorruptCheckpointError: a file is not what was written.
      UsageError: the memory is too small, or its directory has no place.
    """
    dims = {table.name: table.embedding_dim for table in tables}
    held_in = {table.name: table.row_dtype for table in tables}
    parts = make_partitions(directory, manifest.chain)
    live = [_live(part) for part in parts]
    found: dict[str, list[npt.NDArray[np.int64]]] = {name: [] for name in dims}
    steps: dict[str, int] = {}  # of each group, whose tables take their steps together
    group_of: dict[str, str] = {}
    for part, name, records, mask in _live_records(parts, live, dims):
        found[name].append(records.ids[mask])
        group_of[name] = part.group
        last = int(records.batch["last_step"].to_numpy()[mask].max())
        steps[part.group] = max(steps.get(part.group, 0), last + 1)
        on_rows(int(mask.sum()))
    steps_of = {name: steps[group] for name, group in group_of.items()}
    begun = _begun(directory, manifest, tables, found)
    for name, (ids, _) in begun.items():
        found[name].append(ids)
    stacks = [
        _place_ids(
            dim,
            {name: found.pop(name) for name, d in dims.items() if d == dim},
            row_dtype,
            steps_of=steps_of,
        )
        for dim in sorted(set(dims.values()))
    ]
    placed = place_rows(
        [_layout(stack, with_updates=with_updates) for stack in stacks],
        memory,
        ids_bytes=sum(stack.ids.nbytes for stack in stacks),
    )
    of_table = {name: at for at, stack in enumerate(stacks) for name in stack.tables}

    def put(
        name: str,
        ids: npt.NDArray[np.int64],
        rows: npt.NDArray[np.float32],
        updates: npt.NDArray[Any],
    ) -> None:
        at = of_table[name]
        values = _as_stored(to_nearest(rows, held_in[name]), row_dtype)
        if with_updates:
            values["updates"] = updates
        placed[at].put(_places(stacks[at], name, ids), values)

    for _, name, records, mask in _live_records(parts, live, dims):
        rows = _embeddings(records.batch, dims[name], name)[mask]
        put(name, records.ids[mask], rows, records.batch["frequency"].to_numpy()[mask])
        on_rows(int(mask.sum()))
    for name, (ids, rows) in begun.items():
        put(name, ids, rows, np.zeros(len(ids), np.float32))
    return [
        dataclasses.replace(stack, arrays=rows.arrays())
        for stack, rows in zip(stacks, placed, strict=True)
    ]


def _begun(
    directory: CheckpointDirectory,
    manifest: Manifest,
    tables: Sequence[TableSpec],
    found: Mapping[str, Sequence[npt.NDArray[np.int64]]],
) -> dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]:
    """Reads the vectors of ids without a row, where a table reads these as they begin."""
    dims = {table.name: table.embedding_dim for table in tables if table.absent == "initial"}
    parts: dict[str, list[pa.RecordBatch]] = {}
    for entry in manifest.vectors if dims else ():
        file = RowFile(directory.file(entry))
        for name, batch in by_table(file.batches(), file.tables):
            if name in dims:
                parts.setdefault(name, []).append(batch)
    begun = {}
    for name, batches in parts.items():
        ids = np.concatenate([batch["id"].to_numpy() for batch in batches])
        rows = np.concatenate([_embeddings(batch, dims[name], name) for batch in batches])
        unique, last = np.unique(ids[::-1], return_index=True)
        absent = ~np.isin(unique, np.concatenate([np.zeros(0, np.int64), *found[name]]))
        begun[name] = unique[absent], rows[::-1][last[absent]]
    return begun


def _live(part: Partition) -> npt.NDArray[np.bool_]:
    """Tells which records are rows. An id that one file has twice is found twice, and then once."""
    if len(part.files) > 1:
        return part.live()
    removed = [records.removed for records in part.records()]
    return ~np.concatenate([*removed, np.zeros(0, bool)])


def _live_records(
    parts: list[Partition], live: list[npt.NDArray[np.bool_]], wanted: Mapping[str, int]
) -> Iterator[tuple[Partition, str, NumberedBatch, npt.NDArray[np.bool_]]]:
    """Yields each batch once per table that has rows in it, with their mask."""
    for part, is_live in zip(parts, live, strict=True):
        for records in part.records():
            mask = is_live[records.first : records.first + len(records.tables)]
            for table in np.unique(records.tables[mask]):
                if part.tables[table] in wanted:
                    yield part, part.tables[table], records, mask & (records.tables == table)


def _place_ids(
    dim: int,
    chunks: dict[str, list[npt.NDArray[np.int64]]],
    row_dtype: RowDtype,
    *,
    steps_of: Mapping[str, int],
) -> RowStack:
    """Makes a stack without arrays."""
    placed, tables, first = [], {}, 0
    for name, of_table in chunks.items():
        num_rows = sum(map(len, of_table))
        buckets, id_hash = place(of_table)
        tables[name] = TableRange(
            name=name,
            first_bucket=first,
            num_buckets=len(buckets),
            num_rows=num_rows,
            id_hash=id_hash,
            steps=steps_of.get(name, 0),
        )
        placed.append(buckets)
        first += len(buckets)
    ids = aligned_zeros((first, PLACES), np.int64)
    for table in reversed(tables.values()):
        ids[table.first_bucket : table.first_bucket + table.num_buckets] = placed.pop()
    return RowStack(dim=dim, row_dtype=row_dtype, tables=tables, ids=ids, arrays={})


def _layout(stack: RowStack, *, with_updates: bool) -> Layout:
    layouts: dict[str, dict[str, tuple[Any, tuple[int, ...]]]] = {
        "float32": {"rows": (np.float32, (stack.dim,))},
        "bfloat16": {"rows": (np.uint16, (stack.dim,))},
        "int8": {"codes": (np.uint8, (stack.dim,)), "scales": (np.float32, (2,))},
    }
    of_row = layouts[stack.row_dtype]
    if with_updates:
        of_row["updates"] = (np.float32, ())
    return Layout(places=stack.ids.size + 1, of_row=of_row)


def _places(stack: RowStack, name: str, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    table = stack.tables[name]
    buckets = stack.ids[table.first_bucket : table.first_bucket + table.num_buckets]
    return find(buckets, ids, table.id_hash) + table.first_bucket * PLACES


def _embeddings(batch: pa.RecordBatch, dim: int, table: str) -> npt.NDArray[np.float32]:
    column = batch["embedding"]
    if column.type.list_size != dim:
        raise CorruptCheckpointError(
            f"a row file: field 'embedding': expected {dim} floats per row of table {table!r}, "
            f"found {column.type.list_size}"
        )
    values: npt.NDArray[np.float32] = column.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(-1, dim)


def _as_stored(rows: npt.NDArray[np.float32], row_dtype: RowDtype) -> Arrays:
    if row_dtype == "float32":
        return {"rows": rows}
    if row_dtype == "bfloat16":
        return {"rows": to_bfloat16(rows)}
    codes, scales, offsets = quantize(rows, "int8")
    return {"codes": codes, "scales": np.stack([scales, offsets], axis=1)}
