"""What a compressed file claims is not believed: no room is made for more than a batch may need."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pytest

from embedps.checkpoint.format import rows
from embedps.checkpoint.format.dense import SCHEMA, read_dense
from embedps.checkpoint.format.lengths import Blocks
from embedps.checkpoint.format.rows import RowFile
from embedps.errors import CorruptCheckpointError
from tests.checkpoint.builders import Record, row_batch, row_schema

HUGE = 1 << 50
NUM_TABLES = rows._NUM_TABLES_KEY


class Looked(str):
    """A prefix of keys that notes each key that is made of it."""

    def __new__(cls, text: str, looked_for: list[object]) -> Looked:
        made = super().__new__(cls, text)
        made.looked_for = looked_for
        return made

    looked_for: list[object]

    def __format__(self, spec: str) -> str:
        self.looked_for.append(spec)
        return str.__str__(self)


def write_rows(path: Path, num_records: int, compression: str | None) -> None:
    schema = row_schema()
    batch = row_batch([Record("C1", 1, 2.0)])
    many = pa.Table.from_batches([batch]).take(pa.array([0] * num_records)).combine_chunks()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(str(path), schema, options=options) as writer:
        writer.write_table(many.cast(schema), max_chunksize=num_records)


def first_batch_bytes(path: Path) -> int:
    blocks = Blocks(pa.memory_map(str(path)))
    return blocks.decompressed_bytes(blocks.batches[0])


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_claimed_sizes_are_the_buffers_own(tmp_path: Path, compression: str):
    plain_path, path = tmp_path / "plain.arrow", tmp_path / "rows.arrow"
    write_rows(plain_path, 1000, None)
    assert first_batch_bytes(plain_path) == 0
    (plain,) = RowFile(plain_path).batches()
    write_rows(path, 1000, compression)
    buffers = sum(column.nbytes for column in plain.columns[1:])  # without the dictionary's
    indices = plain["table"].indices.nbytes
    # Arrow leaves as they are those that would not shrink, and rounds the others up to 8 bytes.
    assert buffers * 0.9 < first_batch_bytes(path) <= buffers + indices + 8 * 10
    (read,) = RowFile(path).batches()
    assert read.equals(plain)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_buffer_that_claims_more_than_a_batch_may_need_is_refused(tmp_path: Path, compression: str):
    path = tmp_path / "rows.arrow"
    write_rows(path, 1000, compression)
    data = path.read_bytes()
    claimed = struct.pack("<q", 8000)  # of the ids, and of the embeddings
    assert data.count(claimed) == 2
    path.write_bytes(data.replace(claimed, struct.pack("<q", HUGE)))
    file = RowFile(path)
    with pytest.raises(
        CorruptCheckpointError, match=r"batch 0: expected at most \d+ .* found 22517"
    ):
        file.batch(0)


def test_dictionary_that_claims_more_than_a_batch_may_need_is_refused(tmp_path: Path):
    path = tmp_path / "rows.arrow"
    names = ["C" * 5000, "C2"]
    schema = row_schema(tables=names)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(str(path), schema, options=options) as writer:
        writer.write_batch(row_batch([Record(names[0], 1, 2.0)], tables=names))
    data = path.read_bytes()
    claimed = struct.pack("<q", 5002)
    assert data.count(claimed) == 1
    path.write_bytes(data.replace(claimed, struct.pack("<q", HUGE)))
    with pytest.raises(CorruptCheckpointError, match="dictionary: expected at most"):
        RowFile(path)


def test_batch_of_too_many_records_is_refused(tmp_path: Path):
    path = tmp_path / "rows.arrow"
    write_rows(path, 65537, None)
    with pytest.raises(CorruptCheckpointError, match="at most 65536 records, found 65537"):
        RowFile(path).batch(0)


def test_dense_file_is_not_compressed(tmp_path: Path):
    path = tmp_path / "dense.arrow"
    row = {"name": ["v"], "dtype": ["float32"], "shape": [[2000]], "data": [bytes(8000)]}
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(str(path), SCHEMA, options=options) as writer:
        writer.write_table(pa.table(row, schema=SCHEMA))
    with pytest.raises(CorruptCheckpointError, match="expected buffers that are not compressed"):
        read_dense(path)


@pytest.mark.parametrize("count", [b"2147483648", b"3", b"9" * 5000, "٢".encode(), b""])
def test_tables_are_no_more_than_are_named(tmp_path: Path, count: bytes, monkeypatch):
    path = tmp_path / "rows.arrow"
    write_rows(path, 1, None)
    schema = RowFile(path).schema
    looked_for: list[object] = []
    monkeypatch.setattr(rows, "_TABLE_KEY", Looked("embedps.table.", looked_for))
    with pytest.raises(CorruptCheckpointError, match="expected as many tables as are named"):
        rows.tables_in(path, schema.with_metadata({**schema.metadata, NUM_TABLES: count}))
    assert len(looked_for) <= len(schema.metadata)


def test_shape_of_many_dims_is_refused(tmp_path: Path):
    path = tmp_path / "dense.arrow"
    row = {"name": ["v"], "dtype": ["float32"], "shape": [[1] * 65], "data": [bytes(4)]}
    with pa.ipc.new_file(str(path), SCHEMA) as writer:
        writer.write_table(pa.table(row, schema=SCHEMA))
    with pytest.raises(CorruptCheckpointError, match="variable 'v': expected the bytes of"):
        read_dense(path)
