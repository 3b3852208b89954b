"""Columns of every kind are read as pyarrow reads them, also from other programs' files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from embedps.data.columns import Columns
from embedps.data.dataset_metadata import LabelColumn
from embedps.data.unit_reader import NUMERICS, Batch
from tests.kernels.unit_files import read_batches

ROWS = 1000
ALL = Columns(
    labels=(
        LabelColumn(name="clicked", kind="binary"),
        LabelColumn(name="stars", kind="classes", classes=5),
        LabelColumn(name="seconds", kind="number"),
        LabelColumn(name="bought", kind="binary"),
    ),
    weight="weight",
    numerics=("I1", "I2"),
    integers=("user", "time"),
    ids=("C1", "C2"),
    id_lists=("tags",),
    float_lists=("vector", "scores"),
)


def make_table(rows: int = ROWS) -> pa.Table:
    rng = np.random.default_rng(3)
    lengths = rng.integers(0, 5, rows)
    vectors = [rng.normal(size=n).astype(np.float32).tolist() for n in lengths]
    fields = {
        "clicked": pa.array(rng.integers(0, 2, rows), pa.float32()),
        "stars": pa.array(rng.integers(0, 5, rows)),
        "seconds": pa.array(rng.normal(size=rows), pa.float32()),
        "bought": pa.array(rng.integers(0, 2, rows), pa.float32()),
        "weight": pa.array(rng.exponential(size=rows), pa.float32()),
        "I1": pa.array(rng.normal(size=rows), pa.float32()),
        "I2": pa.array(rng.normal(size=rows), pa.float32()),
        "user": pa.array(rng.integers(-(2**63), 2**63 - 1, rows)),
        "time": pa.array(np.arange(rows) * 1000),
        "C1": pa.array(rng.integers(0, 50, rows)),
        "C2": pa.array(rng.integers(0, 50, rows)),
        "tags": pa.array([rng.integers(0, 9, n).tolist() for n in lengths[::-1]]),
        "vector": pa.array(vectors, pa.list_(pa.float32())),
        "scores": pa.array([[float(i)] * (i % 3) for i in range(rows)], pa.list_(pa.float32())),
    }
    inner = pa.field("element", pa.float32(), nullable=False)
    fields["vector"] = fields["vector"].cast(pa.list_(inner))
    schema = pa.schema(
        [pa.field(name, array.type, nullable=False) for name, array in fields.items()]
    )
    return pa.table(fields, schema)


def read(table: pa.Table, folder: Path, columns: Columns = ALL, **options: int) -> list[Batch]:
    file = folder / "rows.parquet"
    pq.write_table(table, file, row_group_size=230, data_page_size=512)
    reader = columns.reader(**{"batch_rows": 64, "shuffle_rows": 0, "missing_id": -1, **options})
    batches, end = read_batches(reader, str(file), 0, -1)
    assert {*end.columns} == {*columns.names, NUMERICS}
    return batches


def values(batches: list[Batch], name: str) -> Any:
    parts = [batch.columns[name] for batch in batches]
    if isinstance(parts[0], tf.RaggedTensor):
        return [row for part in parts for row in part.to_list()]
    return np.concatenate([part.numpy() for part in parts])


def test_every_kind_equals_pyarrow(tmp_path: Path) -> None:
    table = make_table()
    batches = read(table, tmp_path)
    for name in ALL.names:
        found = values(batches, name)
        if isinstance(found, list):
            assert found == table[name].to_pylist()
            continue
        expected = table[name].to_numpy()
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)
    packed = np.stack([table[name].to_numpy() for name in ("I1", "I2")], axis=1)
    np.testing.assert_array_equal(values(batches, NUMERICS), packed)


def test_shuffled_rows_stay_whole(tmp_path: Path) -> None:
    table = make_table()
    batches = read(table, tmp_path, shuffle_rows=300)
    order = values(batches, "time") // 1000
    assert np.any(order != np.arange(ROWS))
    assert sorted(order) == list(range(ROWS))
    rows = table.take(pa.array(order))
    for name in ALL.names:
        assert list(values(batches, name)) == rows[name].to_pylist()


@pytest.mark.parametrize("nullable", [True, False])
def test_lists_of_one_element_are_read_as_scalars(tmp_path: Path, nullable: bool) -> None:
    table = make_table()
    plain = {name: values(read(table, tmp_path), name) for name in ALL.names}
    listed = {}
    for field in table.schema:
        array = table[field.name].combine_chunks()
        if not pa.types.is_list(field.type):
            item = pa.field("item", field.type, nullable=nullable)
            array = pa.array([[value] for value in array.to_pylist()], pa.list_(item))
        listed[field.name] = array
    batches = read(pa.table(listed), tmp_path)
    for name, expected in plain.items():
        assert list(values(batches, name)) == list(expected)


def test_null_in_a_list_of_one_element_is_a_missing_value(tmp_path: Path) -> None:
    table = pa.table(
        {
            "C1": pa.array([[1], [None], [3]], pa.list_(pa.int64())),
            "I1": pa.array([[None], [1.5], [2]], pa.list_(pa.float64())),
            "flag": pa.array([[True], [False], [True]]),
        }
    )
    columns = Columns(
        labels=(LabelColumn(name="flag", kind="binary"),), ids=("C1",), numerics=("I1",)
    )
    batches = read(table, tmp_path, columns, missing_id=-7)
    assert values(batches, "C1").tolist() == [1, -7, 3]
    np.testing.assert_array_equal(values(batches, "I1"), np.array([np.nan, 1.5, 2], np.float32))
    assert values(batches, "flag").tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    "kind", [pa.float32(), pa.float64(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()], ids=str
)
@pytest.mark.parametrize("nullable", [True, False])
def test_float_lists_of_every_type(tmp_path: Path, kind: pa.DataType, nullable: bool) -> None:
    lists: list[Any] = [[1, 2, 3], [], [250], [0, 7]]
    if nullable:
        lists += [None, [None, 4]]
    item = pa.field("item", kind, nullable=nullable)
    schema = pa.schema([pa.field("x", pa.list_(item), nullable=nullable)])
    table = pa.table([pa.array(lists, pa.list_(item))], schema)
    found = values(read(table, tmp_path, Columns(float_lists=("x",)), batch_rows=2), "x")
    expected = [[np.nan if v is None else v for v in values or []] for values in lists]
    np.testing.assert_equal(found, expected)


FILLED: dict[str, Callable[[int], Any]] = {
    "stars": lambda rows: tf.zeros([rows], tf.int64),
    "seconds": lambda rows: tf.zeros([rows]),
    "user": lambda rows: tf.zeros([rows], tf.int64),
    "I2": lambda rows: tf.zeros([rows]),
}


def test_fill_adds_what_a_batch_lacks(tmp_path: Path) -> None:
    batch = read(make_table(), tmp_path)[0].columns
    few = {name: batch[name] for name in (NUMERICS, "C1", "tags", "I1")}
    filled = ALL.fill(few)
    assert {*filled} == {*batch}
    for name, value in batch.items():
        assert filled[name].dtype == value.dtype
        assert filled[name].shape[0] == value.shape[0] == 64
    for name in few:
        assert filled[name] is few[name]
    for name, make in FILLED.items():
        np.testing.assert_array_equal(filled[name], make(64))
    assert filled["vector"].to_list() == [[]] * 64
    assert filled["vector"].row_splits.dtype == tf.int64


def test_sample_has_the_types_of_a_batch(tmp_path: Path) -> None:
    batch = read(make_table(), tmp_path)[0].columns
    for name, value in ALL.sample().items():
        assert type(value) is type(batch[name])
        assert value.dtype == batch[name].dtype
        assert value.shape.rank == batch[name].shape.rank
        if isinstance(value, tf.RaggedTensor):
            assert value.row_splits.dtype == tf.int64
    assert {*ALL.sample()} == {*batch}


def test_columns_can_be_chosen() -> None:
    kept = ALL.keep(["user", "stars", "vector", "weight"])
    assert kept.names == ("stars", "weight", "user", "vector")
    assert kept.label_names == ("stars",)
