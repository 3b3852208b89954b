"""Shards that write to and load from an object store."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from embedps.checkpoint.format.quantize import Encoding
from embedps.data.unit_reader import UnitReader
from embedps.errors import CheckpointError, CorruptCheckpointError
from embedps.storage import file_io
from embedps.storage.object_store import as_path
from embedps.tables import Adagrad
from embedps.tables.row_files import StoredFile
from tests.tables.builders import (
    cuts_of,
    group_files,
    ids,
    make_collection,
    make_table,
    remove,
    rows_of,
    train,
)

TABLES = [make_table("t", 8, optimizer=Adagrad())]


def step(collection, used, number):
    gradients = np.random.default_rng(number).standard_normal((len(used), 8)).astype(np.float32)
    train(collection, {"t": ids(*used)}, {"t": gradients}, step=number)


def test_chain_in_a_bucket_is_loaded_onto_other_shards(s3_dir, tmp_path):
    live = make_collection(TABLES, num_shards=2)
    step(live, range(300), 1)
    parts = [live.files.write("base", f"{s3_dir}/base-1", since={})]
    step(live, range(0, 300, 7), 2)
    remove(live, "t", [1, 2, 14])
    parts.append(live.files.write("delta", f"{s3_dir}/delta-2", since=cuts_of(parts[-1])))
    for part in parts:
        for file in part:
            assert file.path.startswith("s3://bucket/")
            # The shard reports its file correctly.
            assert file_io.checksum_file(as_path(file.path)) == (file.bytes, file.xxh3_64)
    restored = make_collection(TABLES, num_shards=3)
    for part in parts:
        restored.files.load(group_files(part))
    assert rows_of(restored, tmp_path / "restored") == rows_of(live, tmp_path / "live")


def test_large_file_is_uploaded_in_parts(s3_dir):
    """The file exceeds the 10 MB that Arrow uploads as one part."""
    live = make_collection([make_table("t", 64, optimizer=Adagrad())])
    used = np.arange(25_000)
    train(live, {"t": ids(*used)}, {"t": np.ones((len(used), 64), np.float32)})
    (file,) = live.files.write("base", f"{s3_dir}/base", since={})
    assert file.bytes > 12 << 20
    (small,) = live.files.write("base", f"{s3_dir}/small", since={}, encoding=Encoding(rows="int4"))
    assert small.bytes < file.bytes * 0.65
    other = make_collection([make_table("t", 64, optimizer=Adagrad())])
    assert other.files.load(group_files([file])) == len(used)


def test_damaged_and_absent_objects_are_named(s3_dir):
    live = make_collection(TABLES)
    step(live, range(100), 1)
    (file,) = live.files.write("base", f"{s3_dir}/base", since={})
    path = as_path(file.path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        CorruptCheckpointError, match=rf"{file.path}.*'bytes': expected {len(whole)}"
    ):
        live.files.load(group_files([file]))
    with pytest.raises(CorruptCheckpointError, match=rf"{file.path}.*cannot be decoded"):
        live.files.load({file.group: [StoredFile(file.path, *file_io.checksum_file(path))]})
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CorruptCheckpointError, match=rf"{file.path}.*'xxh3_64': expected"):
        live.files.load(group_files([file]))
    path.unlink()
    with pytest.raises(CorruptCheckpointError, match=file.path):
        live.files.load(group_files([file]))


def test_failed_upload_is_an_error_and_the_next_has_its_rows(s3_dir, tmp_path):
    live = make_collection(TABLES)
    step(live, range(10), 1)
    base = live.files.write("base", f"{s3_dir}/base", since={})
    step(live, [3, 4], 2)
    with pytest.raises(CheckpointError, match=r"could not write the delta in s3://no-such-bucket"):
        live.files.write("delta", "s3://no-such-bucket/delta", since=cuts_of(base))
    (delta,) = live.files.write("delta", f"{s3_dir}/delta", since=cuts_of(base))
    assert delta.rows == 2
    assert os.listdir(tmp_path) == []


def read_unit(path: str, first_row: int, num_rows: int) -> dict[str, np.ndarray]:
    reader = UnitReader(batch_rows=1000, ids=("id",), floats=("x",))
    unit = reader.open(path, first_row, num_rows)
    found = []
    while int((batch := reader.next(unit)).num_rows):
        found.append(batch.columns)
    return {name: np.concatenate([each[name].numpy() for each in found]) for name in ("id", "x")}


@pytest.mark.parametrize(
    ("num_rows", "bytes_"), [(5000, (0, 1 << 20)), (10**6, (9 << 20, 1 << 30))]
)
def test_unit_of_an_object_is_that_of_a_file(s3_dir, tmp_path, num_rows, bytes_):
    """An object of up to 8 MiB is read whole, a larger one by its column chunks."""
    rng = np.random.default_rng(0)
    columns = {"id": np.arange(num_rows), "x": rng.random(num_rows, np.float32)}
    schema = pa.schema(
        [pa.field(n, pa.from_numpy_dtype(c.dtype), False) for n, c in columns.items()]
    )
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table(columns, schema), file, row_group_size=1900 + num_rows // 5)
    assert bytes_[0] <= file.stat().st_size <= bytes_[1]
    path = as_path(s3_dir) / "rows.parquet"
    path.write_bytes(file.read_bytes())
    first, rows = num_rows // 3, num_rows // 3
    found = read_unit(str(path), first, rows)
    for name, values in columns.items():
        np.testing.assert_array_equal(found[name], values[first : first + rows])


def test_unit_of_an_absent_or_damaged_object_is_named(s3_dir):
    path = as_path(s3_dir) / "rows.parquet"
    with pytest.raises(tf.errors.NotFoundError, match=f"{path}"):
        read_unit(str(path), 0, 1)
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(tf.errors.DataLossError, match=f"{path}"):
        read_unit(str(path), 0, 1)
