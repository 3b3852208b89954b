"""A typed column gives what the same values give as texts, whatever Arrow type holds them."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedps.errors import DatasetError
from embedps.features.decode import decode_column
from embedps.features.table_columns import Column
from embedps.features.text_values import fingerprint

ID = Column(name="c", role="categorical", type="integer")
STRING = Column(name="c", role="categorical", type="string")
SECONDS = Column(name="c", role="timestamp", type="seconds")
MS = dt.timedelta(milliseconds=1)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def decimals(*values: str | None) -> list[decimal.Decimal | None]:
    return [None if value is None else decimal.Decimal(value) for value in values]


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (pa.array([7.0, math.nan, -3.0, None, 2.0**53]), [7, -1, -3, -1, 2**53]),
        (pa.array([7.0, math.nan, None], pa.float32()), [7, -1, -1]),
        (pa.array([np.float16(7), None], pa.float16()), [7, -1]),
        (pa.array([True, False, None]), [1, 0, -1]),
        (pa.array(decimals("7", None, "-3"), pa.decimal128(20, 0)), [7, -1, -3]),
        (pa.array(decimals("7.00", str(2**63)), pa.decimal256(40, 2)), [7, -(2**63)]),
        (pa.array([5, 2**63, 2**64 - 3, None], pa.uint64()), [5, -(2**63), -3, -1]),
        (pa.array(["5", None, "7"]).dictionary_encode(), [5, -1, 7]),
        (pa.array([5, None]).dictionary_encode(), [5, -1]),
        (pa.array([b"5", None], pa.binary()), [5, -1]),
        (pa.array([b"5", b"7"], pa.binary(1)), [5, 7]),
        (pa.array(["5", None], pa.large_string()), [5, -1]),
        (pa.array(["5", None], pa.string_view()), [5, -1]),
        (pa.nulls(2), [-1, -1]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_integer_ids_come_in_any_type_alone_and_in_lists(array: pa.Array, wanted: list[int]):
    ids, bad = decode_column(ID, array, ())
    assert (ids.to_pylist(), bad) == (wanted, {})
    key, bad = decode_column(Column(name="c", role="key", type="integer"), array, ())
    assert (key.to_pylist(), bad) == (wanted, {})
    listed = Column(name="c", role="list", type="integer")
    lists = pa.ListArray.from_arrays(pa.array([0, 0, len(array)], pa.int32()), array)
    found, bad = decode_column(listed, lists, ())
    assert (found.to_pylist(), bad) == ([[], wanted], {})
    kind = pa.list_(array.type, len(array))
    fixed = pa.FixedSizeListArray.from_arrays(array, type=kind)
    assert decode_column(listed, fixed, ())[0].to_pylist() == [wanted]
    alone, bad = decode_column(listed, array, ())  # a value is a list of one
    assert (alone.to_pylist(), bad) == ([[] if each == -1 else [each] for each in wanted], {})


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (pa.array([1.0, 7.5]), "must be a whole number, got 7.5"),
        (pa.array([1.0, math.inf]), "must be a whole number, got inf"),
        (pa.array([1.0, 2.0**53 + 2]), "must be within 2^53, beyond which floats lose digits"),
        (pa.array([1.0, 2.0**24 + 2], pa.float32()), "must be within 2^24"),
        (pa.array(decimals("1", "7.5"), pa.decimal128(20, 1)), "must be a whole number from -2^63"),
        (pa.array(decimals("1", str(2**64 - 2)), pa.decimal128(20, 0)), "whole number from -2^63"),
        (pa.array([1, 2**64 - 2], pa.uint64()), "as the two above mean missing and rare"),
        (pa.array([b"1", b"\xff"]), "must be UTF-8: invalid start byte at byte 0"),
        (pa.array([[1], [2, 3]]), "must be one value or a list of one, got a list of 2"),
    ],
    ids=str,
)
def test_id_that_is_none_is_one_bad_value(array: pa.Array, reason: str):
    ids, bad = decode_column(ID, array, ())
    assert list(bad) == [1]
    assert reason in bad[1]
    assert ids[0].as_py() == 1


def test_uuids_are_the_ids_of_their_texts_alone_and_in_lists(tmp_path: Path):
    keys = [uuid.UUID(int=7), None, uuid.UUID(int=2**127 + 9)]
    wanted = [-1 if key is None else fingerprint(str(key)) for key in keys]
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"c": pa.array(keys, pa.uuid())}), path)  # of a logical type there
    array = pq.read_table(path)["c"].combine_chunks()
    ids, bad = decode_column(STRING, array, ())
    assert (ids.to_pylist(), bad) == (wanted, {})
    lists = pa.ListArray.from_arrays(pa.array([0, 3], pa.int32()), array)
    found, bad = decode_column(Column(name="c", role="list", type="string"), lists, ())
    assert (found.to_pylist(), bad) == ([wanted], {})


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint64(), pa.decimal128(20, 0)])
def test_whole_number_declared_string_is_its_decimal_text(kind: pa.DataType):
    array = pa.array([5, None, 7], pa.int8()).cast(kind)
    ids, bad = decode_column(STRING, array, ("7",))
    assert (ids.to_pylist(), bad) == ([fingerprint("5"), -1, -1], {})  # "7" means missing
    lists, _ = decode_column(Column(name="c", role="list", type="string"), pa.array([[5], []]), ())
    assert lists.to_pylist() == [[fingerprint("5")], []]
    classes = Column(name="c", role="label", type="number", task="classes", classes=("5", "7"))
    label, bad = decode_column(classes, pa.array([7, 5]), ())
    assert (label.to_pylist(), bad) == ([1, 0], {})


@pytest.mark.parametrize(
    "array",
    [
        pa.array([0.0, 2.0, math.nan, None, 1.5, 5.0]),
        pa.array(decimals("0", "2", None, None, "1.5", "5"), pa.decimal128(5, 1)),
    ],
)
def test_classes_come_as_whole_numbers_of_any_type(array: pa.Array):
    column = Column(name="c", role="label", type="number", task="classes", classes=3)
    values, bad = decode_column(column, array, ())
    assert values.to_pylist()[:2] == [0, 2]
    assert sorted(bad) == [2, 3, 4, 5] if pa.types.is_decimal(array.type) else [3, 4, 5]


def test_times_come_as_dates_and_as_seconds_with_a_fraction():
    day = dt.date(2024, 5, 1)
    wanted = (dt.datetime(2024, 5, 1, tzinfo=dt.UTC) - EPOCH) // MS
    for kind in (pa.date32(), pa.date64(), pa.timestamp("ns"), pa.timestamp("s", "UTC")):
        times, bad = decode_column(SECONDS, pa.array([day, None], pa.date32()).cast(kind), ())
        assert (times[0].as_py(), bad) == (wanted, {1: "must not be missing"})
    seconds = [1714564800.25, -0.5, math.nan, math.inf, 1e300]
    times, bad = decode_column(SECONDS, pa.array(seconds), ())
    assert times.to_pylist()[:2] == [1714564800250, -500]
    assert sorted(bad) == [2, 3, 4]
    texts, bad = decode_column(SECONDS, pa.array(["1714564800.25", "-0.5", "7", "x"]), ())
    assert texts.to_pylist()[:3] == [1714564800250, -500, 7000]
    assert list(bad) == [3]


def test_times_of_each_unit_are_those_of_their_texts():
    texts = Column(name="c", role="timestamp", type="text", format="iso")
    micros = [0, -1, 1, -999, -1000, -1001, 999, 1001, -86_400_000_001, 1_714_564_800_000_999]
    times = [EPOCH + dt.timedelta(microseconds=each) for each in micros]
    wanted, bad = decode_column(texts, pa.array([each.isoformat() for each in times]), ())
    assert not bad
    for kind in (pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("ns", "Europe/Berlin")):
        array = pa.array(micros, pa.timestamp("us", kind.tz)).cast(kind)
        found, bad = decode_column(SECONDS, array, ())
        assert (found.to_pylist(), bad) == (wanted.to_pylist(), {})
    limit = (2**63 - 1) // 1000
    for unit in ("s", "ms"):
        array = pa.array([limit, -limit, limit + 1, -(2**63), None], pa.timestamp(unit))
        found, bad = decode_column(SECONDS, array, ())
        scale = 1000 if unit == "s" else 1
        assert found.to_pylist()[:2] == [limit * scale, -limit * scale]
        assert sorted(bad) == [2, 3, 4]


def test_iso_times_are_read_with_and_without_a_fraction_and_a_zone():
    column = Column(name="c", role="timestamp", type="text", format="iso")
    texts = {
        "2024-05-01": "2024-05-01T00:00:00+00:00",
        "2024-05-01 12:30:00": "2024-05-01T12:30:00+00:00",
        "2024-05-01T12:30:00.123": "2024-05-01T12:30:00.123+00:00",
        "2024-05-01T12:30:00.123456789Z": "2024-05-01T12:30:00.123+00:00",
        "2024-05-01T12:30:00Z": "2024-05-01T12:30:00+00:00",
        "2024-05-01T12:30:00.5+02:00": "2024-05-01T10:30:00.5+00:00",
        "1969-12-31T23:59:59.999": "1969-12-31T23:59:59.999+00:00",
    }
    times, bad = decode_column(column, pa.array([*texts, "12:30", ""]), ("",))
    wanted = [(dt.datetime.fromisoformat(text) - EPOCH) // MS for text in texts.values()]
    assert times.to_pylist()[: len(texts)] == wanted
    assert list(bad) == [len(texts), len(texts) + 1]
    assert "ISO 8601" in bad[len(texts)]
    fixed = Column(name="c", role="timestamp", type="text", format="%Y-%m-%dT%H:%M:%S")
    _, bad = decode_column(fixed, pa.array(["2024-05-01T12:30:00", "2024-05-01T12:30:00.5"]), ())
    assert 'which format = "iso" reads' in bad[1]


@pytest.mark.parametrize(
    ("column", "kind", "remedy"),
    [
        (STRING, pa.float64(), {"type": "integer"}),
        (STRING, pa.bool_(), {"type": "integer"}),
        (STRING, pa.decimal128(20, 2), {"type": "integer"}),
        (Column(name="c", role="categorical", type="hex"), pa.float64(), {"type": "integer"}),
        (ID, pa.date32(), {"role": "timestamp", "type": "seconds"}),
        (ID, pa.timestamp("us"), {"role": "timestamp", "type": "seconds"}),
        (ID, pa.list_(pa.int64(), 2), {"role": "list"}),
        (
            Column(name="c", role="timestamp", type="text", format="iso"),
            pa.int64(),
            {"type": "seconds", "format": ""},
        ),
        (SECONDS, pa.bool_(), {"role": "numeric", "type": "float"}),
    ],
    ids=str,
)
def test_type_that_a_declaration_does_not_fit_names_one_that_does(
    column: Column, kind: pa.DataType, remedy: dict[str, Any]
):
    array = pa.nulls(2, kind)
    with pytest.raises(DatasetError, match="it holds") as caught:
        decode_column(column, array, ())
    assert remedy.get("role", remedy.get("type", "")) in str(caught.value)
    settings: dict[str, Any] = {"name": "c", "role": column.role, "type": column.type} | remedy
    decode_column(Column(**settings), array, ())


PATH = "declare the path of a value in it, such as path = "
LISTS = "declare a list with flatten = true for one list of all values, or with cut = "


@pytest.mark.parametrize("role", ["categorical", "list", "numeric", "timestamp", "float_list"])
@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (pa.map_(pa.string(), pa.int8()), f'{PATH}"c.KEY"'),
        (pa.struct({"a": pa.int8()}), f'{PATH}"c.a"'),
        (pa.list_(pa.struct({"a": pa.int8()})), f'{PATH}"c.a"'),
        (pa.list_(pa.list_(pa.int8())), LISTS),
        (pa.list_(pa.list_view(pa.int8())), LISTS),
        (pa.list_(pa.duration("s")), "leave the column out of the schema|as = "),
        (pa.duration("s"), "leave the column out of the schema"),
    ],
    ids=["map", "struct", "structs", "lists", "views", "durations", "duration"],
)
def test_type_that_no_plain_declaration_reads_is_one_line(
    role: str, kind: pa.DataType, remedy: str
):
    types = {"categorical": "integer", "list": "string", "timestamp": "seconds"}
    column = Column(name="c", role=role, type=types.get(role, "float"))
    with pytest.raises(DatasetError, match=remedy) as caught:
        decode_column(column, pa.nulls(2, kind), ())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("inner", [pa.list_, pa.large_list, pa.list_view, pa.large_list_view])
@pytest.mark.parametrize("outer", [pa.list_, pa.large_list, pa.list_view])
def test_lists_of_lists_of_any_kind_are_read_as_declared(outer: Any, inner: Any):
    array = pa.array([[[1, 2], None, [3]], None, [[]]], outer(inner(pa.int8())))
    wanted = {(): [1, 2, 3], (-1,): [3], (2, 1): [1], (-1, 0): [3], (0, 1): [1, 3]}
    for cut, values in wanted.items():
        column = Column(name="c", role="list", type="integer", cut=cut, flatten=len(cut) < 2)
        lists, bad = decode_column(column, array, ())
        assert (lists.to_pylist(), bad) == ([values, [], []], {})
