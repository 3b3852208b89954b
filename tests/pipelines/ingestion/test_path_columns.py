"""Columns of a file's path, of text files too."""

import pytest

from embedps.features.table_schema import Table
from embedps.features.text_values import fingerprint
from embedps.pipelines.ingestion.line_blocks import LineBlock
from embedps.pipelines.ingestion.line_parser import LineParser
from embedps.pipelines.ingestion.path_columns import path_columns

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
