"""Small checkpoints, made file by file in Python."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.dense import write_dense
from embedps.checkpoint.format.manifest import FileEntry, Manifest, SaveKind, SaveSet
from embedps.checkpoint.format.quantize import FLOAT32, Encoding, encode
from embedps.storage import file_io

DIM = 2
GROUP = "dim2"
TABLES = ("C1", "C2")
_any_float = st.one_of(
    st.floats(-(2.0**124), 2.0**124, width=32),
    st.floats(-1, 1, width=32),
    st.sampled_from([0.0, -0.0, 1.0, -7.5, 7.5, 2.0**-149, -(2.0**-126), 1e6, 1e6 + 0.0625]),
)
some_rows = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=17),
    elements=_any_float.map(np.float32),
)


@dataclasses.dataclass(frozen=True)
class Record:
    """A record of a row file; value None is a removal."""

    table: str
    id: int
    value: float | None = 0.0


def row_schema(dim: int = DIM, tables: Sequence[str] = TABLES) -> pa.Schema:
    def floats(width: int) -> pa.DataType:
        return pa.list_(pa.field("item", pa.float32(), nullable=False), width)

    fields = [
        ("table", pa.dictionary(pa.int16(), pa.string())),
        ("id", pa.int64()),
        ("embedding", floats(dim)),
        ("accumulator", floats(1)),
        ("last_step", pa.uint32()),
        ("frequency", pa.uint32()),
        ("removed", pa.bool_()),
    ]
    metadata = {"embedps.row_file": "1", "embedps.num_tables": str(len(tables))}
    metadata |= {f"embedps.table.{i}": name for i, name in enumerate(tables)}
    return pa.schema([pa.field(n, t, nullable=False) for n, t in fields], metadata)


def row_batch(records: Sequence[Record], tables: Sequence[str] = TABLES) -> pa.RecordBatch:
    """A record's embedding is (value, -value), its accumulator 10 * value, its frequency its id."""
    schema = row_schema(tables=tables)
    values = np.array([record.value or 0.0 for record in records], np.float32)
    embeddings = np.stack([values, -values], axis=1).reshape(-1)
    indices = pa.array([tables.index(record.table) for record in records], pa.int16())
    arrays = [
        pa.DictionaryArray.from_arrays(indices, pa.array(list(tables))),
        pa.array([record.id for record in records], pa.int64()),
        pa.FixedSizeListArray.from_arrays(pa.array(embeddings), type=schema.field(2).type),
        pa.FixedSizeListArray.from_arrays(pa.array(10 * values), type=schema.field(3).type),
        pa.array(range(len(records)), pa.uint32()),
        pa.array([record.id % 1000 for record in records], pa.uint32()),
        pa.array([record.value is None for record in records], pa.bool_()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def write_rows(
    directory: CheckpointDirectory,
    kind: SaveKind,
    number: int,
    records: Sequence[Record],
    shard: int = 0,
    num_shards: int = 1,
    tables: Sequence[str] = TABLES,
    encoding: Encoding = FLOAT32,
) -> FileEntry:
    path = directory.shard_path(kind, number, GROUP, shard, num_shards)
    batches = [row_batch(records, tables)] if records else []
    stored = encode(pa.Table.from_batches(batches, row_schema(tables=tables)), encoding)
    with file_io.write_atomically(path) as file:
        with pa.ipc.new_file(file, stored.schema) as writer:
            if records:
                writer.write_table(stored)
        removed = sum(record.value is None for record in records)
        return FileEntry.of(
            directory.relative(path), file.digest, rows=len(records) - removed, removed=removed
        )


def write_save(
    directory: CheckpointDirectory,
    kind: SaveKind,
    number: int,
    records: Sequence[Record],
    num_shards: int = 2,
    since: int | None = None,
    encoding: Encoding = FLOAT32,
) -> SaveSet:
    """`since` is the save just before, if not given."""
    shards = [[r for r in records if r.id % num_shards == s] for s in range(num_shards)]
    files = [
        write_rows(directory, kind, number, some, s, num_shards, encoding=encoding)
        for s, some in enumerate(shards)
    ]
    return SaveSet(
        kind=kind,
        number=number,
        step=100 * number,
        since=None if kind == "base" else number - 1 if since is None else since,
        files=tuple(files),
    )


def make_manifest(
    number: int,
    chain: Sequence[SaveSet],
    dense: FileEntry | None = None,
    ledger: Mapping[str, object] | None = None,
) -> Manifest:
    optimizer = {"kind": "adagrad"}
    tables = [{"name": t, "dim": DIM, "optimizer": optimizer, "group": GROUP} for t in TABLES]
    return Manifest(
        number=number,
        step=100 * number,
        wall_time=1.7e9 + number,
        chain=tuple(chain),
        dense=dense,
        ledger=dict(ledger or {}),
        tables=tuple(tables),
        num_shards=2,
        history="0123456789abcdef",
    )


class CheckpointRun:
    """Commits checkpoints one after the other, as a training run does."""

    def __init__(self, path: Path, encoding: Encoding = FLOAT32, *, num_shards: int = 2) -> None:
        self.directory = CheckpointDirectory(path)
        self.encoding, self.num_shards = encoding, num_shards
        self.chain: list[SaveSet] = []

    def base(self, records: Sequence[Record]) -> Manifest:
        return self._commit("base", records)

    def delta(self, records: Sequence[Record]) -> Manifest:
        return self._commit("delta", records)

    def _commit(self, kind: SaveKind, records: Sequence[Record]) -> Manifest:
        number = self.directory.next_number()
        since = self.chain[-1].number if kind == "delta" else None
        save = write_save(
            self.directory,
            kind,
            number,
            records,
            self.num_shards,
            since=since,
            encoding=self.encoding,
        )
        self.chain = [save] if kind == "base" else [*self.chain, save]
        arrays = {"w": np.full((2, 3), number, np.float32)}
        dense = write_dense(self.directory.dense_path(number), arrays, root=self.directory.path)
        manifest = make_manifest(number, self.chain, dense)
        self.directory.commit(manifest)
        return manifest


def make_run(path: Path) -> CheckpointRun:
    """A base of ten rows (1), two deltas with a removal each (2, 3)."""
    run = CheckpointRun(path)
    run.base([Record("C1", i, float(i)) for i in range(8)] + [Record("C2", 5, 0.5)])
    run.delta([Record("C1", 3, None), Record("C1", 4, 40.0), Record("C2", 6, 0.25)])
    run.delta([Record("C1", 3, 33.0), Record("C2", 5, None)])
    return run
