"""Values inside structs, lists of structs and maps, by their paths."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from embedps.errors import DatasetError
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


@pytest.mark.parametrize("wanted", [
    ({"name": "user.id", **ID}, "declare path = 'user.id' if it is within user"),
    ({"name": "u", "path": "user.name", **ID}, "must name one field, 'name' is absent"),
    ({"name": "u", "path": "y.name", **ID}, "must lead into structs, lists or maps"),
    ({"name": "u", "path": "none.name", **ID}, "must have columns none, it has y, user"),
    ({"name": "tags", **IDS}, "must hold lists of values"),
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
