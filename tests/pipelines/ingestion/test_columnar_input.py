"""Rows of Parquet and ORC files: what is read of a file and its path, and what is set aside."""

from __future__ import annotations

import datetime as dt
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from embedps.errors import DatasetError
from embedps.features.table_schema import Table
from embedps.features.text_values import fingerprint
from embedps.pipelines.ingestion import batch_size
from embedps.pipelines.ingestion.bad_lines import BadLine
from embedps.pipelines.ingestion.columnar_input import read_rows
from embedps.pipelines.ingestion.job_progress import estimate_rows

LABEL = {"name": "y", "as": "label"}
USER = {"name": "user", "as": "categorical", "type": "string"}
DAY = {"name": "day", "as": "timestamp", "format": "%Y-%m-%d"}
FORMATS = pytest.mark.parametrize("kind", ["parquet", "orc"])


def read(
    kind: str, data: pa.Table, *columns: dict[str, Any], name: str = "a"
) -> tuple[list[dict[str, Any]], list[BadLine], list[float]]:
    """A file's rows, its bad rows, and the shares read."""
    sink = io.BytesIO()
    (pq if kind == "parquet" else orc).write_table(data, sink)
    table = Table.parse({"format": kind, "column": [LABEL, *columns]})
    rows, bad, shares = [], [], []
    for batch, more, share, _ in read_rows(io.BytesIO(sink.getvalue()), table, name):
        rows += batch.to_pylist()
        bad += more
        shares.append(share)
    return rows, bad, shares


@FORMATS
@pytest.mark.parametrize("in_list", [False, True], ids=["scalar", "list"])
def test_text_that_is_not_utf8_is_one_bad_value(kind: str, in_list: bool):
    offsets = pa.py_buffer(bytes(pa.array([0, 1, 2, 3, 4], pa.int32()).buffers()[1])[:20])
    texts = pa.StringArray.from_buffers(4, offsets, pa.py_buffer(b"ab\xffd"))
    column: dict[str, Any] = USER
    if in_list:
        texts = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3, 4], pa.int32()), texts)
        column = USER | {"as": "list"}
    rows, bad, _ = read(kind, pa.table({"y": [0, 1, 0, 1], "user": texts}), column)
    assert [row["y"] for row in rows] == [0, 1, 1]
    ids = [fingerprint(text) for text in "abd"]
    assert [row["user"] for row in rows] == ([[each] for each in ids] if in_list else ids)
    (line,) = bad
    assert (line.line, line.ends_file) == (3, False)
    assert line.reason == "user must be UTF-8: invalid start byte at byte 0"
    shown = "\\xff"
    assert json.loads(line.raw) == {"y": 0, "user": [shown] if in_list else shown}


@FORMATS
def test_undeclared_columns_are_not_read(kind: str):
    maps = pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32()))
    structs = pa.array([{"b": 1}, None])
    data = pa.table({"y": [0, 1], "user": ["a", "b"], "m": maps, "s": structs})
    rows, bad, _ = read(kind, data, USER)
    assert ([row["user"] for row in rows], bad) == ([fingerprint("a"), fingerprint("b")], [])
    with pytest.raises(DatasetError, match=r"^a: column 'm', .* it holds map.*: declare the path"):
        read(kind, data, USER | {"name": "m"})


def test_column_that_is_there_twice_matters_only_if_it_is_declared():
    arrays = [pa.array([0, 1]), pa.array(["a", "b"]), pa.array([5, 6]), pa.array([7, 8])]
    data = pa.Table.from_arrays(arrays, names=["y", "user", "key", "key"])
    assert len(read("parquet", data, USER)[0]) == 2
    with pytest.raises(DatasetError, match=r"^a: must have each declared column once, .* key more"):
        read("parquet", data, USER, {"name": "key", "as": "key", "type": "integer"})


@FORMATS
def test_share_of_the_rows_read_grows_to_one(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batch_size, "ROWS", 4)
    data = pa.table({"y": [0.0, 1.0] * 5, "user": ["a"] * 10})
    _, _, shares = read(kind, data, USER)
    assert shares == [0.4, 0.8, 1.0]


def test_rows_are_estimated_from_the_bytes_read():
    assert estimate_rows(100, 0, 10_000) == 100  # nothing is known yet
    assert estimate_rows(100, 1000, 10_000) == 1000
    assert estimate_rows(100, 20_000, 10_000) == 100  # the file grew


@FORMATS
def test_column_in_the_path_is_read_if_it_is_declared_and_not_in_the_file(kind: str):
    data = pa.table({"y": [0, 1], "user": ["a", "b"]})
    name = "day=2024-05-01/user=z/part-0"
    assert read(kind, data, USER, name=name)[0] == read(kind, data, USER)[0]
    rows, bad, _ = read(kind, data, USER, DAY, name=name)
    day = int(dt.datetime(2024, 5, 1, tzinfo=dt.UTC).timestamp() * 1000)
    assert ([row["day"] for row in rows], bad) == ([day, day], [])
    assert [row["user"] for row in rows] == [fingerprint("a"), fingerprint("b")]
    with pytest.raises(DatasetError, match="must have columns day, it has y, user"):
        read(kind, data, USER, DAY)
    city = {"name": "city", "as": "categorical", "type": "string"}
    rows, _, _ = read(kind, data, USER, city, name="city=__HIVE_DEFAULT_PARTITION__/a")
    assert [row["city"] for row in rows] == [-1, -1]


def test_file_of_another_kind_is_told_by_its_kind(tmp_path: Path):
    table = Table.parse({"format": "parquet", "column": [LABEL, USER]})
    ((rows, (line,), _, _),) = read_rows(io.BytesIO(b"clicked,user\n0,a\n" * 9), table, "a.csv")
    assert (rows.num_rows, line.ends_file) == (0, True)
    assert line.reason.startswith("the file must be Parquet, but it is text: leave it out by a pat")


def test_large_values_that_are_not_declared_are_read_few_at_a_time(monkeypatch):
    monkeypatch.setattr(batch_size, "BYTES", 1 << 20)
    pages = np.random.default_rng(0).bytes(400 * 20_000)
    rows = {
        "y": [0, 1] * 200,
        "user": ["a"] * 400,
        "page": [pages[i * 20_000 :][:20_000] for i in range(400)],
    }
    sink = io.BytesIO()
    pq.write_table(pa.table(rows), sink, row_group_size=100)
    table = Table.parse({"format": "parquet", "column": [LABEL, USER]})
    for with_records, most in ((True, 60), (False, 400)):
        found = list(read_rows(io.BytesIO(sink.getvalue()), table, "a", with_records=with_records))
        assert sum(part.rows.num_rows for part in found) == 400
        assert 0 < max(part.rows.num_rows for part in found) <= most
        assert len(found) == 1 or with_records
