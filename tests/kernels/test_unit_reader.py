"""The native unit reader reads the same rows as pyarrow."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from embedps import kernels
from embedps.data.unit_reader import UnitReader
from tests.kernels.unit_files import (
    NUM_ROWS,
    column,
    make_input,
    make_table,
    numerics,
    read_batches,
    write_table,
)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return make_table()


@pytest.fixture(scope="module")
def path(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_table(table, tmp_path_factory.mktemp("unit"))


def expected_lists(rows: pa.Table, missing: int) -> list[list[int]]:
    return [
        [missing if value is None else value for value in (values or [])]
        for values in rows["tags"].to_pylist()
    ]


def expected_numerics(rows: pa.Table) -> np.ndarray:
    return np.stack([rows["I1"].to_numpy(), rows["I2"].to_numpy().astype(np.float32)], axis=1)


@pytest.mark.parametrize(
    ("first_row", "num_rows"),
    [(0, NUM_ROWS), (0, 230), (229, 2), (460, 230), (333, 444), (999, 1), (0, 1)],
)
@pytest.mark.parametrize("batch_rows", [1, 64, 2000])
def test_range_equals_pyarrow(table, path, first_row, num_rows, batch_rows):
    rows = table.slice(first_row, num_rows)
    batches, _ = read_batches(make_input(batch_rows=batch_rows), path, first_row, num_rows)

    sizes = [int(batch.num_rows) for batch in batches]
    assert all(size == batch_rows for size in sizes[:-1])
    assert sum(sizes) == num_rows
    np.testing.assert_array_equal(
        np.concatenate([batch.columns["label"].numpy() for batch in batches]),
        rows["label"].to_numpy(),
    )
    np.testing.assert_array_equal(numerics(batches), expected_numerics(rows))
    np.testing.assert_array_equal(column(batches, "C1"), rows["C1"].to_numpy())
    c2 = [-1 if value is None else value for value in rows["C2"].to_pylist()]
    np.testing.assert_array_equal(column(batches, "C2"), c2)
    lists = [values for batch in batches for values in batch.columns["tags"].to_list()]
    assert lists == expected_lists(rows, -1)


def test_minus_one_rows_reads_to_the_end(table, path):
    batches, _ = read_batches(make_input(), path, 990, -1)
    np.testing.assert_array_equal(column(batches, "row"), np.arange(990, NUM_ROWS))


def test_missing_id_replaces_nulls_of_ids_and_lists(table, path):
    batches, _ = read_batches(make_input(missing_id=-77), path, 0, NUM_ROWS)
    assert np.count_nonzero(column(batches, "C2") == -77) == table["C2"].null_count > 0
    lists = [values for batch in batches for values in batch.columns["tags"].to_list()]
    assert lists == expected_lists(table, -77)


@pytest.mark.parametrize("num_rows", [0, 130])
def test_end_gives_empty_tensors_again_and_again(path, num_rows):
    unit = make_input()
    reader = unit.open(path, 5, num_rows)
    while int(unit.next(reader).num_rows) > 0:
        pass
    for _ in range(2):
        batch = unit.next(reader)
        assert batch.columns["label"].shape == (0,)
        assert batch.columns["numerics"].shape == (0, 2)
        assert batch.columns["C1"].shape == (0,)
        assert batch.columns["tags"].to_list() == []


def shuffled_by_reference(num_rows: int, shuffle_rows: int, seed: int) -> list[int]:
    """The documented shuffle in Python: SplitMix64, Lemire's bound, Fisher-Yates from the end."""
    mask = (1 << 64) - 1

    def splitmix(state: int) -> tuple[int, int]:
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return state, z ^ (z >> 31)

    order: list[int] = []
    for block, start in enumerate(range(0, num_rows, shuffle_rows)):
        state, first = splitmix(seed & mask)
        state = first ^ block
        run = list(range(start, min(start + shuffle_rows, num_rows)))
        for i in range(len(run) - 1, 0, -1):
            limit = i + 1
            while True:
                state, random = splitmix(state)
                if (random * limit) & mask >= ((1 << 64) - limit) % limit:
                    break
            j = (random * limit) >> 64
            run[i], run[j] = run[j], run[i]
        order += run
    return order


@pytest.mark.parametrize(
    ("seed", "shuffle_rows"), [(0, 150), (1, 1), (-1, 230), (2**62, 150), (3, 5000)]
)
def test_shuffle_within_runs_follows_from_the_seed_alone(path, seed, shuffle_rows):
    unit = make_input(shuffle_rows=shuffle_rows, batch_rows=90)
    batches, _ = read_batches(unit, path, 70, 700, seed)
    wanted = [70 + row for row in shuffled_by_reference(700, shuffle_rows, seed)]
    assert column(batches, "row").tolist() == wanted


@pytest.mark.parametrize(
    "arrow_type",
    [
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.uint8(),
        pa.uint16(),
        pa.uint32(),
        pa.uint64(),
        pa.float32(),
        pa.float64(),
        pa.bool_(),
    ],
    ids=str,
)
@pytest.mark.parametrize("nullable", [False, True])
def test_every_flat_type_is_read_as_number_and_as_id(tmp_path, arrow_type, nullable):
    if pa.types.is_boolean(arrow_type):
        values: list = [True, False, True, True]
    elif pa.types.is_floating(arrow_type):
        values = [0.0, -3.0, 16777216.0, 5.0]
    else:
        info = np.iinfo(str(arrow_type))
        values = [0, 1, int(info.max), int(info.min)]
    if nullable:
        values.insert(2, None)
    array = pa.array(values, arrow_type)
    schema = pa.schema([pa.field("x", arrow_type, nullable=nullable)])
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table([array], schema), file)

    as_number = UnitReader(batch_rows=8, numerics=("x",))
    batches, _ = read_batches(as_number, str(file), 0, len(values))
    expected = [np.nan if value is None else np.float32(value) for value in values]
    np.testing.assert_array_equal(numerics(batches)[:, 0], np.array(expected, np.float32))

    as_id = UnitReader(batch_rows=8, ids=("x",))
    batches, _ = read_batches(as_id, str(file), 0, len(values))
    bits = [-1 if value is None else int(value) for value in values]
    expected_ids = [bit - 2**64 if bit >= 2**63 else bit for bit in bits]
    assert column(batches, "x").tolist() == expected_ids


@pytest.mark.parametrize("value_type", [pa.int32(), pa.uint32(), pa.int64(), pa.uint16()], ids=str)
@pytest.mark.parametrize("nullable", [False, True])
def test_list_types_and_nullability(tmp_path, value_type, nullable):
    top = int(np.iinfo(str(value_type)).max)
    lists: list = [[1, 2, 3], [], [top], [], [0, top]]
    if nullable:
        lists += [None, [None, 4]]
    item = pa.field("item", value_type, nullable=nullable)
    schema = pa.schema([pa.field("x", pa.list_(item), nullable=nullable)])
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table([pa.array(lists, pa.list_(item))], schema), file, row_group_size=3)

    unit = UnitReader(batch_rows=2, id_lists=("x",), missing_id=-9)
    batches, _ = read_batches(unit, str(file), 1, len(lists) - 1)
    found = [values for batch in batches for values in batch.columns["x"].to_list()]
    assert found == [[-9 if v is None else v for v in values or []] for values in lists[1:]]


def test_long_lists_cross_reader_chunks(tmp_path):
    lists = [list(range(i)) for i in (5000, 0, 4096, 9000, 1, 4095)]
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": lists}), file, data_page_size=1024)
    unit = UnitReader(batch_rows=1, id_lists=("x",))
    batches, _ = read_batches(unit, str(file), 0, -1)
    assert [batch.columns["x"].to_list()[0] for batch in batches] == lists


def test_more_rows_than_a_block_and_many_row_groups(tmp_path):
    num_rows = 50_001
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": np.arange(num_rows)}), file, row_group_size=7_777)
    unit = UnitReader(batch_rows=3000, ids=("x",))
    batches, _ = read_batches(unit, str(file), 12_345, -1)
    np.testing.assert_array_equal(column(batches, "x"), np.arange(12_345, num_rows))


def test_reader_without_label_gives_no_labels(path):
    unit = UnitReader(batch_rows=10, ids=("C1",))
    batch = unit.next(unit.open(path, 0, 10))
    assert set(batch.columns) == {"numerics", "C1"}
    assert batch.columns["numerics"].shape == (10, 0)


@tf.function
def read_in_graph(unit: UnitReader, path: tf.Tensor, first_row: tf.Tensor, num_rows: tf.Tensor):
    reader = unit.open(path, first_row, num_rows)
    batch = unit.next(reader)
    total = tf.constant(0, tf.int64)
    num_batches = 0
    while batch.num_rows > 0:
        total += tf.reduce_sum(batch.columns["row"])
        total += tf.cast(batch.columns["tags"].nrows(), tf.int64)
        num_batches += 1
        batch = unit.next(reader)
    return total, num_batches, kernels.load().embedps_process_id()


def test_while_loop_in_a_function_reads_the_unit_in_this_process(path):
    unit = make_input()
    for first_row, num_rows in ((0, NUM_ROWS), (100, 300), (7, 0)):
        total, num_batches, process_id = read_in_graph(
            unit,
            tf.constant(path),
            tf.constant(first_row, tf.int64),
            tf.constant(num_rows, tf.int64),
        )
        assert int(total) == sum(range(first_row, first_row + num_rows)) + num_rows
        assert int(num_batches) == -(-num_rows // 64)
        assert int(process_id) == os.getpid()


def live_readers() -> int:
    return int(kernels.load().embedps_unit_reader_live_count())


def test_readers_end_with_their_last_tensor(path):
    before = live_readers()
    unit = make_input()
    reader = unit.open(path, 0, NUM_ROWS)
    unit.next(reader)
    assert live_readers() == before + 1
    del reader  # in the middle of the unit, while its thread waits at a full queue
    assert live_readers() == before
    arguments = (tf.constant(path), tf.constant(0, tf.int64), tf.constant(500, tf.int64))
    for _ in range(3):
        read_in_graph(unit, *arguments)
    assert live_readers() == before


def test_readers_end_when_their_step_fails(path):
    unit = make_input()

    @tf.function
    def fail(path):
        batch = unit.next(unit.open(path, 0, NUM_ROWS))
        with tf.control_dependencies([tf.debugging.assert_less(batch.num_rows, tf.int64.min)]):
            return tf.identity(batch.num_rows)

    before = live_readers()
    with pytest.raises(tf.errors.InvalidArgumentError):
        fail(tf.constant(path))
    assert live_readers() == before


@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 0, 0, 4), (3, 4, 0), (0, 0, 7, 0, 0)])
def test_empty_row_groups_are_passed_over(tmp_path, sizes):
    file = tmp_path / "x.parquet"
    schema = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.int64()))])
    with pq.ParquetWriter(file, schema) as writer:
        for size, first in zip(sizes, np.cumsum((0, *sizes)).tolist(), strict=False):
            ids = list(range(first, first + size))
            group = pa.table({"id": ids, "tags": [[i] * i for i in ids]}, schema)
            writer.write_table(group)
    assert [pq.read_metadata(file).row_group(i).num_rows for i in range(len(sizes))] == [*sizes]
    unit = UnitReader(batch_rows=2, ids=("id",), id_lists=("tags",))
    for first_row in range(8):
        batches, _ = read_batches(unit, str(file), first_row, -1)
        ids = [i for batch in batches for i in batch.columns["id"].numpy().tolist()]
        lists = [row for batch in batches for row in batch.columns["tags"].to_list()]
        assert ids == list(range(first_row, 7))
        assert lists == [[i] * i for i in ids]
