"""Values inside structs, lists of structs and maps, by their paths."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedps.errors import DatasetError, UsageError
from embedps.features.nested_lists import cut_levels, cut_values
from embedps.features.table_schema import Table
from embedps.pipelines.ingestion.columnar_input import read_rows

WRITE = {"parquet": pq.write_table, "orc": orc.write_table}
SEEN = pa.list_(pa.struct([("item", pa.int64()), ("secs", pa.float32())]))
DATA = pa.table({
    "y": [1, 0, 1],
    "user": pa.array([{"id": 3, "at": {"zip": 9}}, None, {"id": 5, "at": None}]),
    "seen": pa.array([[{"item": 1, "secs": 2.5}, {"item": 2, "secs": 1}], None, []], SEEN),
    "counts": pa.array([[("a", 7), ("b", 8)], [], None], pa.map_(pa.string(), pa.int64())),
    "tags": pa.array([[[1, 2], [3]], None, [[], None, [4]]], pa.list_(pa.list_(pa.int64()))),
})  # fmt: skip
ID = {"as": "categorical", "type": "integer"}
IDS = {"as": "list", "type": "integer"}


def read(kind: str, *columns: dict[str, Any], data: pa.Table = DATA) -> list[dict[str, Any]]:
    sink = io.BytesIO()
    WRITE[kind](data, sink)
    table = Table.parse({"format": kind, "column": [{"name": "y", "as": "label"}, *columns]})
    found = read_rows(io.BytesIO(sink.getvalue()), table, "a")
    return [row for batch, bad, _, _ in found for row in [*batch.to_pylist(), *bad]]


@pytest.mark.parametrize("kind", WRITE)
def test_a_path_leads_into_structs_lists_and_maps(kind: str):
    rows = read(
        kind,
        {"name": "user", "path": "user.id", **ID},
        {"name": "zip", "path": "user.at.zip", **ID},
        {"name": "items", "path": "seen.item", **IDS},
        {"name": "secs", "path": "seen.secs", "as": "float_list"},
        {"name": "b", "path": "counts.b", **ID},
        {"name": "tags", "flatten": True, **IDS},
    )
    names = ["y", "user", "zip", "items", "secs", "b", "tags"]
    assert [[row[name] for name in names] for row in rows] == [
        [1, 3, 9, [1, 2], [2.5, 1], 8, [1, 2, 3]],
        [0, -1, -1, [], [], -1, []],
        [1, 5, -1, [], [], -1, [4]],
    ]


@pytest.mark.parametrize("kind", WRITE)
def test_lists_are_cut_as_declared(kind: str):
    rows = read(
        kind,
        {"name": "first", "path": "tags", "cut": [1, 1], **IDS},
        {"name": "last", "path": "tags", "cut": [-1, 0], **IDS},
        {"name": "all", "path": "tags", "cut": -2, "flatten": True, **IDS},
        {"name": "items", "path": "seen.item", "cut": 1, **IDS},
        {"name": "secs", "path": "seen.secs", "cut": -1, "as": "float_list"},
    )
    names = ["first", "last", "all", "items", "secs"]
    assert [[row[name] for name in names] for row in rows] == [
        [[1], [3], [2, 3], [1], [1]],
        [[], [], [], [], []],
        [[], [4], [4], [], []],
    ]
    with pytest.raises(DatasetError, match=r"one number for each level of lists, it has 3 for li"):
        read(kind, {"name": "tags", "cut": [1, 1, 1], **IDS})
    with pytest.raises(DatasetError, match=r"declare a list with flatten = true .* or with cut = "):
        read(kind, {"name": "tags", "cut": 3, **IDS})


SMALL = st.lists(st.integers(0, 9), max_size=4) | st.none()
LISTS = st.lists(st.lists(SMALL, max_size=4) | st.none())


@given(LISTS, st.lists(st.integers(-3, 3), min_size=2, max_size=2), st.sampled_from([0, 1, 2]))
def test_values_and_arrays_are_cut_alike(rows: Any, cuts: list[int], kind: int):
    def cut(values: list[Any] | None, most: int) -> list[Any]:
        found = values or []
        return found[:most] if most > 0 else found[max(0, len(found) + most) :] if most else found

    inner = pa.list_(pa.int64())
    types = [pa.list_(inner), pa.large_list(inner), pa.list_(pa.large_list(pa.int64()))]
    wanted = [[n for each in cut(row, cuts[0]) for n in cut(each, cuts[1])] for row in rows]
    array = pa.array([[[0]], *rows, [[1]]], types[kind])[1:-1]
    found = cut_levels(array, cuts)
    assert found is not None
    assert found.to_pylist() == wanted
    assert [cut_values(row, cuts) or [] for row in rows] == wanted


@pytest.mark.parametrize("cut", [0, [0, 0], [], [1] * 9, True, "3", [1.5], 1 << 31])
def test_a_cut_that_is_none_is_refused(cut: Any):
    with pytest.raises(UsageError, match="column 'tags': cut must be how many elements"):
        Table.parse({"column": [{"name": "tags", "cut": cut, **IDS}]})
    with pytest.raises(UsageError, match="cut belongs to a list or float_list"):
        Table.parse({"column": [{"name": "tags", "cut": 3, **ID}]})


@pytest.mark.parametrize("wanted", [
    ({"name": "user.id", **ID}, "declare path = 'user.id' if it is within user"),
    ({"name": "u", "path": "user.name", **ID}, "must name one field, 'name' is absent"),
    ({"name": "u", "path": "y.name", **ID}, "must lead into structs, lists or maps"),
    ({"name": "u", "path": "none.name", **ID}, "must have columns none, it has y, user"),
    ({"name": "tags", **IDS}, "must hold lists of values"),
    ({"name": "tags", **ID}, "declare a list with flatten = true"),
    ({"name": "seen", **IDS}, 'declare the path of a value in it, such as path = "seen.item"'),
    ({"name": "user", **ID}, 'declare the path of a value in it, such as path = "user.id"'),
    ({"name": "counts", **ID}, 'declare the path of a value in it, such as path = "counts.KEY"'),
])  # fmt: skip
def test_a_path_that_leads_to_no_value_is_named(wanted: tuple[dict[str, Any], str]):
    column, message = wanted
    with pytest.raises(DatasetError, match=message.replace(".", r"\.")):
        read("parquet", column)


def test_keys_of_a_map_are_of_its_type():
    counts = pa.array([[(1, 5), (2, 6)]], pa.map_(pa.int32(), pa.int64()))
    data = pa.table({"y": [1], "counts": counts})
    (row,) = read("parquet", {"name": "n", "path": "counts.2", **ID}, data=data)
    assert row["n"] == 6
    with pytest.raises(DatasetError, match="must have a key of int32, got 'two'"):
        read("parquet", {"name": "n", "path": "counts.two", **ID}, data=data)
