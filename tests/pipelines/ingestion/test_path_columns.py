"""Columns of a file's path, of text files too."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from embedps.errors import DatasetError
from embedps.features.table_schema import Table
from embedps.features.text_values import fingerprint
from embedps.pipelines.ingestion.line_blocks import LineBlock
from embedps.pipelines.ingestion.line_parser import LineParser
from embedps.pipelines.ingestion.path_columns import path_columns
from tests.builders import read_split
from tests.pipelines.shop import make

NAMES = ["day", "city", "x", "e", "part"]
COLUMNS = [
    {"name": "y", "as": "label"},
    {"name": "city", "as": "categorical", "type": "string"},
    {"name": "user", "as": "categorical", "type": "integer"},
]


def test_columns_of_a_path_are_those_of_its_folders():
    path = "day=2024-05-01/city=S%C3%A3o%20Paulo/x=__HIVE_DEFAULT_PARTITION__/e=/part=0.parquet"
    wanted = {"day": "2024-05-01", "city": "São Paulo", "x": None, "e": ""}
    assert path_columns(path, NAMES) == wanted
    assert path_columns(path, ["city"]) == {"city": "São Paulo"}
    assert path_columns("plain/=x/a.parquet", NAMES) == {}


@pytest.mark.parametrize(
    ("header", "text", "city"),
    [
        (True, b"user,y\n7,1\n", "a b"),
        (True, b"user,city,y\n7,z,1\n", "z"),
        (False, b"1,7\n", "a b"),
        (False, b"1,z,7\n", "z"),
        ("auto", b"user,y\n7,1\n", "a b"),
        ("auto", b"1,7\n", "a b"),
    ],
)
def test_a_text_file_lacks_the_columns_of_its_path_or_has_its_own(header, text, city):
    table = Table.parse({"header": header, "column": COLUMNS})
    parser = LineParser(table, "in/city=a%20b/part-0.csv")
    lines = text.count(b"\n")
    rows, bad = parser.parse(LineBlock(data=text, first_line=1, num_lines=lines))
    assert (rows.to_pylist(), bad) == ([{"y": 1.0, "city": fingerprint(city), "user": 7}], [])
    rows, bad = parser.parse(LineBlock(data=b"1,7\n0,8,9,9\n", first_line=lines + 1, num_lines=2))
    assert len(bad) >= 1  # of four fields


def test_a_missing_value_of_a_path_is_the_missing_id():
    table = Table.parse({"missing": ["", "NA"], "column": COLUMNS})
    for value in ("__HIVE_DEFAULT_PARTITION__", "NA"):
        parser = LineParser(table, f"city={value}/part-0.csv")
        rows, _ = parser.parse(LineBlock(data=b"user,y\n7,1\n", first_line=1, num_lines=2))
        assert rows.column("city").to_pylist() == [-1]


def make_partition(tmp_path: Path, kind: str, folder: str, data: pa.Table) -> None:
    path = tmp_path / "in" / folder / f"part-0.{kind}"
    path.parent.mkdir(parents=True)
    if kind == "csv":
        csv.write_csv(data, path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in data.to_pylist()))
    else:
        (pq if kind == "parquet" else orc).write_table(data, path)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "orc"])
def test_a_column_of_file_and_path_must_be_the_same(tmp_path: Path, kind: str):
    columns = [*COLUMNS, {"name": "x", "as": "numeric"}]
    table = Table.parse({"format": kind, "column": columns})
    good = pa.table({"y": [1, 0], "user": [7, 8], "x": [2.0, 2.0], "city": ["a b", "a b"]})
    make_partition(tmp_path, kind, "city=a%20b/x=2", good)
    make_partition(tmp_path, kind, "city=a%20b/x=__HIVE_DEFAULT_PARTITION__", good.drop(["x"]))
    dataset = make(table, tmp_path / "in", tmp_path / "out", eval_fraction=0.0)
    rows = read_split(dataset, "train")
    assert rows["city"].to_pylist() == [fingerprint("a b")] * 4
    assert sorted(map(str, rows["x"].to_pylist())) == ["2.0", "2.0", "nan", "nan"]
    make_partition(tmp_path, kind, "city=c/x=2.0", good)
    with pytest.raises(
        DatasetError,
        match=r"city=c/x=2\.0/part-0\.\w+: column 'city' must be the same in the file and in its "
        r"path, but it is \S+ in a row and 'c' \(\S+\) in the path: correct one",
    ):
        make(table, tmp_path / "in", tmp_path / "other", eval_fraction=0.0)
