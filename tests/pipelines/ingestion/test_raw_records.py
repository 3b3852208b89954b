"""Records of any format the schema reads, with the columns of their path, as features."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from embedps.errors import UsageError
from embedps.features.table_schema import Table
from embedps.features.text_values import fingerprint
from embedps.features.transforms import Transforms
from embedps.pipelines.ingestion.raw_records import RawReader

COLUMNS = [
    {"name": "y", "as": "label"},
    {"name": "user", "as": "categorical", "type": "integer"},
    {"name": "city", "as": "categorical", "type": "string"},
]
WRITE = {
    "parquet": pq.write_table,
    "orc": orc.write_table,
    "csv": csv.write_csv,
    "jsonl": lambda data, path: path.write_text(
        "".join(json.dumps(row) + "\n" for row in data.to_pylist())
    ),
}


@pytest.mark.parametrize("kind", WRITE)
def test_a_file_and_its_path_are_read_in_batches(tmp_path: Path, kind: str):
    path = tmp_path / "city=a%20b" / "part-0"
    path.parent.mkdir()
    WRITE[kind](pa.table({"user": [7, 8, 9]}), path)
    transforms = Transforms(table=Table.parse({"format": kind, "column": COLUMNS}))
    reader = RawReader(transforms, ["user", "city"], ["city"], batch_rows=2)
    records = list(reader.read(path))
    rows = [row for each in records for row in each.features.to_pylist()]
    assert rows == [{"user": user, "city": fingerprint("a b")} for user in (7, 8, 9)]
    assert [text for each in records for text in each.kept["city"].to_pylist()] == ["a b"] * 3
    assert all(each.readable.all() and not each.reasons for each in records)
    assert [len(each.readable) for each in records] == [2, 1]


def test_a_column_that_neither_file_nor_path_has_is_named(tmp_path: Path):
    pq.write_table(pa.table({"user": [7]}), tmp_path / "a")
    transforms = Transforms(table=Table.parse({"format": "parquet", "column": COLUMNS}))
    with pytest.raises(UsageError, match="must have column 'city', it has user"):
        list(RawReader(transforms, ["user", "city"], [], batch_rows=2).read(tmp_path / "a"))


def test_a_column_that_a_file_has_twice_is_named(tmp_path: Path):
    user = pa.array([7])
    table = pa.Table.from_arrays([user, user, pa.array(["a"])], ["user", "user", "city"])
    pq.write_table(table, tmp_path / "a")
    transforms = Transforms(table=Table.parse({"format": "parquet", "column": COLUMNS}))
    with pytest.raises(UsageError, match="must have column 'user' once, it has 2"):
        list(RawReader(transforms, ["user", "city"], [], batch_rows=2).read(tmp_path / "a"))


def test_a_key_that_no_json_line_has_is_named(tmp_path: Path):
    columns = [*COLUMNS[:2], COLUMNS[2] | {"path": "at.city"}]
    reader = RawReader(
        Transforms(table=Table.parse({"format": "jsonl", "column": columns})),
        ["user", "city"],
        [],
        batch_rows=2,
    )
    path = tmp_path / "a"
    path.write_text('{"user": 7}\n{"user": 8, "at": {"city": null}}\n{"user": 9}\n')
    assert sum(len(each.readable) for each in reader.read(path)) == 3
    path.write_text('{"user": 7}\n{"user": 8, "at": {"town": "a"}}\n{"user": 9}\n')
    with pytest.raises(UsageError, match=r"a: no line has at\.city: .* give null where"):
        list(reader.read(path))
    path.write_text("")
    assert sum(len(each.readable) for each in reader.read(path)) == 0


@pytest.mark.parametrize("kind", ["parquet", "tfrecord", "avro"])
def test_a_file_that_is_neither_columns_nor_lines_of_the_schema_is_refused(
    tmp_path: Path, kind: str
):
    (tmp_path / "a").write_bytes(b"Obj\x01")
    transforms = Transforms(table=Table.parse({"format": kind, "column": COLUMNS}))
    with pytest.raises(UsageError, match=f"must be a Parquet or ORC file: .* made of {kind} files"):
        list(RawReader(transforms, ["user"], [], batch_rows=2).read(tmp_path / "a"))
