"""The native unit reader refuses bad files, columns, values, ranges and settings."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from embedps.data.unit_reader import UnitReader
from embedps.errors import UsageError
from tests.kernels.unit_files import (
    NUM_ROWS,
    make_input,
    make_table,
    numerics,
    read_batches,
    write_table,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_table(make_table(), tmp_path_factory.mktemp("unit"))


def test_absent_file_is_not_found(tmp_path):
    absent = str(tmp_path / "absent.parquet")
    with pytest.raises(
        tf.errors.NotFoundError, match=r"cannot open Parquet file '.*absent.parquet'"
    ):
        make_input().open(absent, 0, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": ("nope",)}, "no column 'nope': the file has 'label', 'I1', 'I2', 'C1'"),
        (
            {"ids": ("nested",), "id_lists": ()},
            "'nested' must be one number a row but is a list",
        ),
        ({"float_lists": ("I1",), "numerics": ()}, "'I1' must be a list of numbers but is FLOAT"),
        ({"floats": ("nope",)}, "no column 'nope'"),
        ({"integers": ("text",)}, "'text' must be one number a row but is BYTE_ARRAY"),
        ({"id_lists": ("C1",), "ids": ()}, "'C1' must be a list of integers but is INT64"),
    ],
)
def test_wrong_columns_are_named(tmp_path, changes, message):
    nested = pa.array([[[1]]] * NUM_ROWS)
    table = make_table().append_column("nested", nested)
    path = write_table(table.append_column("text", pa.array(["a"] * NUM_ROWS)), tmp_path)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message) as error:
        make_input(**changes).open(path, 0, 1)
    assert path in str(error.value)


@pytest.mark.parametrize("array", [pa.array(["a"]), pa.array([{"a": 1, "b": 2}])], ids=str)
def test_columns_that_are_no_numbers_are_refused(tmp_path, array):
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": array}), file)
    for unit in (
        UnitReader(batch_rows=1, numerics=("x",)),
        UnitReader(batch_rows=1, id_lists=("x",)),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="column 'x' must be"):
            unit.open(str(file), 0, 1)


def test_timestamps_are_not_taken_for_integers(tmp_path):
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": pa.array([1], pa.timestamp("us"))}), file)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"one number a row but is INT64 .Time"
    ):
        UnitReader(batch_rows=1, ids=("x",)).open(str(file), 0, 1)


@pytest.mark.parametrize(("first_row", "num_rows"), [(0, 1001), (1001, 0), (999, 2), (2**62, -1)])
def test_rows_beyond_the_file_are_refused(path, first_row, num_rows):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"has 1000 rows: the unit's \["):
        make_input().open(path, first_row, num_rows)


@pytest.mark.parametrize(("first_row", "num_rows"), [(-1, 5), (0, -2)])
def test_negative_ranges_are_refused(path, first_row, num_rows):
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be at least 0"):
        make_input().open(path, first_row, num_rows)


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize(
    ("column", "kind", "value", "message"),
    [
        ("label", pa.float32(), 2.0, "'label' must be 0 or 1 but is 2"),
        ("label", pa.int8(), -1, "'label' must be 0 or 1 but is -1"),
        ("label", pa.float64(), 0.5, "'label' must be 0 or 1 but is 0.5"),
        ("label", pa.float32(), np.nan, "'label' must be 0 or 1 but is NaN"),
        ("label", pa.float32(), np.inf, "'label' must be 0 or 1 but is inf"),
        ("label", pa.float32(), None, "'label' must not have nulls but has one"),
        ("x", pa.float32(), np.inf, "'x' must be finite in float32, or NaN .*, but is inf"),
        ("x", pa.float64(), -np.inf, "'x' must be finite in float32, or NaN .*, but is -inf"),
        ("x", pa.float64(), 1e300, "'x' must be finite in float32, or NaN .*, but is inf"),
        ("id", pa.float64(), 2.5, r"'id' is read as int64.* but one is 2\.50*"),
    ],
)
def test_wrong_value_is_named_with_its_file_and_row(
    tmp_path, column, kind, value, message, nullable
):
    nullable = nullable or value is None
    rows, at = 25_000, 17_003
    columns = {"label": [0.0, 1.0] * (rows // 2), "x": [np.nan, -1.5] * (rows // 2)}
    columns["id"] = list(range(rows))
    columns[column][at] = value
    kinds = {"label": pa.float32(), "x": pa.float32(), "id": pa.int64(), column: kind}
    fields = [pa.field(name, kinds[name], nullable=nullable) for name in columns]
    arrays = [pa.array(columns[f.name], f.type, from_pandas=False) for f in fields]
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table(arrays, pa.schema(fields)), file, row_group_size=7000)
    unit = UnitReader(
        batch_rows=500, labels=("label",), numerics=("x",), ids=("id",), shuffle_rows=2000
    )
    message = f"x.parquet', row group 2: column {message} at row {at} of the file, counted from 0"
    for first_row in (0, 3, 7000, 16_999):
        with pytest.raises(tf.errors.DataLossError, match=message):
            read_batches(unit, str(file), first_row, -1)
    rest = read_batches(unit, str(file), at + 1, -1)[0]
    assert sum(int(batch.num_rows) for batch in rest) == rows - at - 1


@pytest.mark.parametrize(
    ("setting", "kind", "value", "message"),
    [
        ({"labels": ("y", "x")}, pa.float32(), 0.5, "'x' must be 0 or 1 but is 0.5"),
        ({"labels": ("y", "x")}, pa.float32(), None, "'x' must not have nulls but has one"),
        (
            {"weights": ("x",)},
            pa.float32(),
            -1.0,
            "'x' must be finite in float32 and at least 0 but is -1",
        ),
        ({"weights": ("x",)}, pa.float32(), np.inf, "'x' must be finite .* but is inf"),
        ({"weights": ("x",)}, pa.float32(), np.nan, "'x' must be finite .* but is NaN"),
        ({"floats": ("x",)}, pa.float64(), 1e300, "'x' must be finite in float32 but is inf"),
        ({"floats": ("x",)}, pa.float32(), np.nan, "'x' must be finite in float32 but is NaN"),
        ({"floats": ("x",)}, pa.float32(), None, "'x' must not have nulls but has one"),
        ({"integers": ("x",)}, pa.int64(), None, "'x' must not have nulls but has one"),
        ({"integers": ("x",)}, pa.float64(), np.nan, "'x' must not have nulls but has one"),
        ({"integers": ("x",)}, pa.float64(), 1.5, "'x' is read as int64.* but one is 1.50*"),
        ({"class_labels": (("x", 3),)}, pa.int64(), 3, r"'x' must be in \[0, 3\) but is 3"),
        ({"class_labels": (("x", 3),)}, pa.int32(), -1, r"'x' must be in \[0, 3\) but is -1"),
        ({"class_labels": (("x", 3),)}, pa.int64(), None, "'x' must not have nulls but has one"),
        (
            {"float_lists": ("x",)},
            pa.list_(pa.float32()),
            [1.0, np.inf],
            "'x' must be finite in float32, or NaN .*, but is inf",
        ),
        *(
            (
                setting,
                pa.list_(kind),
                value,
                "'x' is read as one number per row: its lists must have one element but one has "
                f"{n}",
            )
            for setting, kind in (
                ({"ids": ("x",)}, pa.int64()),
                ({"integers": ("x",)}, pa.int64()),
                ({"numerics": ("x",)}, pa.float32()),
                ({"labels": ("x",)}, pa.float32()),
            )
            for value, n in (([1, 0], 2), ([], 0), (None, 0))
        ),
        ({"labels": ("x",)}, pa.list_(pa.float32()), [2.0], "'x' must be 0 or 1 but is 2"),
        ({"integers": ("x",)}, pa.list_(pa.int64()), [None], "'x' must not have nulls but has one"),
    ],
)
def test_a_value_that_its_kind_must_not_have_is_named(tmp_path, setting, kind, value, message):
    rows, at = 9000, 8500
    good = [0] if pa.types.is_list(kind) else 0
    values = [good] * rows
    values[at] = value
    columns = {"x": pa.array(values, kind, from_pandas=False), "y": [0.0] * rows}
    columns["id"] = list(range(rows))
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table(columns), file, row_group_size=4000)
    ids = ("id", *setting.get("ids", ()))
    unit = UnitReader(batch_rows=500, **{**setting, "ids": ids})
    message = f"x.parquet', row group 2: column {message} at row {at} of the file, counted from 0"
    for first_row in (0, 8100):
        with pytest.raises(tf.errors.DataLossError, match=message):
            read_batches(unit, str(file), first_row, -1)
    rest = read_batches(unit, str(file), at + 1, -1)[0]
    assert sum(int(batch.num_rows) for batch in rest) == rows - at - 1


@pytest.mark.parametrize("kind", ["pipe", "directory"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path, kind):
    file = tmp_path / "x.parquet"
    os.mkfifo(file) if kind == "pipe" else file.mkdir()
    with pytest.raises(tf.errors.DataLossError, match=r"x.parquet' must be a file but is not"):
        make_input().open(str(file), 0, 1)


@pytest.mark.parametrize("damage", ["empty", "text", "footer", "truncated"])
def test_file_that_is_not_parquet_is_data_loss(tmp_path, path, damage):
    whole = Path(path).read_bytes()
    footer_bytes = int.from_bytes(whole[-8:-4], "little") + 8
    content = {
        "empty": b"",
        "text": b"label\tI1\tI2\n" * 100,
        "footer": whole[:-footer_bytes] + bytes(64) + whole[64 - footer_bytes :],
        "truncated": whole[: len(whole) // 2],
    }[damage]
    file = tmp_path / "bad.parquet"
    file.write_bytes(content)
    with pytest.raises(tf.errors.DataLossError, match=r"bad.parquet', footer: "):
        make_input().open(str(file), 0, 1)


def test_flipped_bytes_end_in_rows_or_in_data_loss(tmp_path):
    """Damaged pages never crash or hang the reader; page checksums detect all damage."""
    good = tmp_path / "good.parquet"
    pq.write_table(make_table(400), good, row_group_size=150, write_page_checksum=True)
    data_end = max(
        group.column(c).total_compressed_size
        + (group.column(c).dictionary_page_offset or group.column(c).data_page_offset)
        for group in [pq.read_metadata(good).row_group(g) for g in range(3)]
        for c in range(group.num_columns)
    )
    whole = good.read_bytes()
    unit = make_input()
    wanted = numerics(read_batches(unit, str(good), 0, -1)[0])
    num_refused = 0
    file = tmp_path / "bad.parquet"
    for at in range(4, data_end, 97):
        damaged = bytearray(whole)
        damaged[at] ^= 0x55
        file.write_bytes(damaged)
        try:
            batches, _ = read_batches(unit, str(file), 0, -1)
        except tf.errors.DataLossError:
            num_refused += 1
        else:  # an unused byte of a page header
            np.testing.assert_array_equal(numerics(batches), wanted)
    assert num_refused > 0.9 * len(range(4, data_end, 97))


def test_error_comes_again_at_the_next_call(tmp_path):
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": [2.5]}), file)
    unit = UnitReader(batch_rows=1, ids=("x",))
    reader = unit.open(str(file), 0, -1)
    for _ in range(2):
        with pytest.raises(tf.errors.DataLossError, match=r"2\.5"):
            unit.next(reader)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_rows": 0}, r"batch_rows must be in \[1, 2147483647\] but is 0"),
        ({"shuffle_rows": -1}, r"shuffle_rows must be in \[0, 2147483647\] but is -1"),
        ({"prefetch_batches": 0}, r"prefetch_batches must be in \[1, "),
        ({"ids": ("C1", "I1")}, r"name each column once, it repeats \['I1'\]"),
        ({"ids": ("label",)}, r"repeats \['label'\]"),
        ({"ids": ("",)}, "empty name"),
        ({"ids": (), "numerics": (), "id_lists": ()}, "must have a column"),
        ({"floats": ("row",)}, r"repeats \['row'\]"),
        ({"class_labels": (("tags", 3),)}, r"repeats \['tags'\]"),
        ({"class_labels": (("x", 0),)}, "label 'x' must have 1 to 2147483647 classes but has 0"),
    ],
)
def test_wrong_settings_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        make_input(**changes)
