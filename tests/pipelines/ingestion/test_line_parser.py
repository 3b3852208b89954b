"""Blocks of Criteo lines become rows; bad lines are named, alone as among others."""

from __future__ import annotations

import math
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedps.errors import DatasetError
from embedps.features.table_schema import Table
from embedps.features.transforms import Transforms
from embedps.pipelines.criteo_format import FIELDS, IDS, INTEGERS
from embedps.pipelines.ingestion.bad_lines import BadLine
from embedps.pipelines.ingestion.line_blocks import LineBlock
from embedps.pipelines.ingestion.line_parser import LineParser
from tests.pipelines.builders import make_line, make_lines


def make_block(lines: list[bytes], first_line: int = 1) -> LineBlock:
    data = b"".join(line + b"\n" for line in lines)
    return LineBlock(first_line=first_line, num_lines=len(lines), data=data)


TABLE = Table.load("criteo")


def parse_block(block: LineBlock) -> tuple[pa.RecordBatch, list[BadLine]]:
    return LineParser(TABLE).parse(block)


def expected_row(line: bytes) -> list[float]:
    """What a good line holds, read in the plainest way."""
    fields = line.decode().split("\t")
    integers = [float(int(field)) if field else math.nan for field in fields[1:14]]
    ids = [int(field, 16) if field else -1 for field in fields[14:]]
    return [float(fields[0]), *integers, *ids]


def rows_of(batch: pa.RecordBatch) -> list[list[float]]:
    return [list(row.values()) for row in batch.to_pylist()]


def test_rows_hold_every_field_when_lines_are_good():
    lines = make_lines(1000)
    rows, bad = parse_block(make_block(lines))
    assert bad == []
    assert rows.schema == TABLE.row_schema
    np.testing.assert_array_equal(rows_of(rows), [expected_row(line) for line in lines])


def test_features_hold_logs_and_mark_missing():
    integers = ["0", "1", "-3", "", "2000000000", "-9223372036854775808", "9223372036854775807"]
    rows, _ = parse_block(make_block([make_line("1", [*integers, *[""] * 6])]))
    batch = Transforms(table=TABLE).apply_rows(rows)
    assert tuple(batch.schema.names) == FIELDS
    assert all(not field.nullable for field in batch.schema)
    values = [batch.column(name)[0].as_py() for name in ("I1", "I2", "I3", "I5", "I6", "I7")]
    wanted = [0.0, math.log(2), 0.0, math.log(2_000_000_001), 0.0, math.log(2.0**63)]
    np.testing.assert_allclose(values, wanted, rtol=1e-6)
    assert math.isnan(batch.column("I4")[0].as_py())
    assert batch.column("label")[0].as_py() == 1.0
    assert all(column.null_count == 0 for column in batch.columns)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "must have 40 fields, got 1"),
        (make_line() + b"\t", "must have 40 fields, got 41"),
        (make_line().rsplit(b"\t", 1)[0], "must have 40 fields, got 39"),
        (make_line("2"), "label must be 0 or 1, got '2'"),
        (make_line(""), "label must not be missing"),
        (make_line("01"), "label must be 0 or 1, got '01'"),
        (make_line(integers=["1.5", *["1"] * 12]), "I1 must be an integer or empty, got '1.5'"),
        (make_line(integers=[*["1"] * 12, "0x1F"]), "I13 must be an integer or empty, got '0x1F'"),
        (make_line(integers=[*["1"] * 12, " 7"]), "I13 must be an integer or empty, got ' 7'"),
        (make_line(integers=[*["1"] * 12, "+7"]), "I13 must be an integer or empty"),
        (make_line(integers=[*["1"] * 12, "1_0"]), "I13 must be an integer or empty"),
        (make_line(integers=[*["1"] * 12, "-"]), "I13 must be an integer or empty"),
        (make_line(integers=["9223372036854775808", *["1"] * 12]), "I1 must fit in 64 bits"),
        (make_line(integers=["-9223372036854775809", *["1"] * 12]), "I1 must fit in 64 bits"),
        (make_line(integers=["9" * 5000, *["1"] * 12]), "I1 must fit in 64 bits"),
        (make_line(ids=["0000000g", *["1"] * 25]), "C1 must be a hexadecimal id or empty"),
        (make_line(ids=[*["1"] * 25, "-1"]), "C26 must be a hexadecimal id or empty, got '-1'"),
        (make_line(ids=["1" + "0" * 16, *["1"] * 25]), "C1 must fit in 64 bits"),
        (make_line(ids=["f" * 16, *["1"] * 25]), "C1 must be at most 18446744073709551613"),
        (make_line()[:-1] + b"\xff", "must be UTF-8: invalid start byte at byte"),
        (make_line()[:-1] + b"\0", "C26 must be a hexadecimal id"),
        (make_line(ids=['"00000"1', *["1"] * 25]), "C1 must be a hexadecimal id"),
    ],
)
def test_bad_line_is_set_aside_with_its_reason(line: bytes, reason: str):
    good = make_lines(600)
    at = 300
    rows, bad = parse_block(make_block([*good[:at], line, *good[at:]], first_line=1001))
    assert [item.line for item in bad] == [1001 + at]
    assert reason in bad[0].reason
    assert bad[0].raw == line
    assert rows.column("I1").to_pylist() == [expected_row(line)[1] for line in good]


def test_long_field_is_shortened_in_the_reason_only():
    line = make_line(ids=["z" * 500, *["1"] * 25])
    _, bad = parse_block(make_block([line]))
    assert len(bad[0].reason) < 120
    assert bad[0].raw == line


@pytest.mark.parametrize(
    ("digits", "value"),
    [
        ("a", 10),
        ("ABCDEF01", 0xABCDEF01),
        ("7fffffffffffffff", (1 << 63) - 1),
        ("0" * 20, 0),
        ("fffffffffffffffd", -3),
    ],
)
def test_id_of_other_length_is_read(digits: str, value: int):
    rows, bad = parse_block(make_block([make_line(ids=[digits, *["00000001"] * 25])]))
    assert bad == []
    assert rows.column("C1").to_pylist() == [value]


def test_leading_zeros_of_integers_are_read():
    line = make_line(integers=["007", "-0", "-08", "0" * 30 + "5", *["1"] * 9])
    rows, bad = parse_block(make_block([line]))
    assert bad == []
    assert rows_of(rows)[0][1:5] == [7, 0, -8, 5]


def test_block_without_lines_gives_no_rows():
    rows, bad = parse_block(make_block([]))
    assert (rows.num_rows, bad) == (0, [])
    assert rows.schema == TABLE.row_schema


FIELD = st.one_of(
    st.integers(-(1 << 64), 1 << 64).map(str),
    st.text("0123456789abcdefABCDEF-", max_size=9),
    st.sampled_from(["", "-", "--1", "1-1", "0x1", " 1", "1 ", "1\r", '"1"', "é", "\x0b", "1e3"]),
)


@st.composite
def malformed_lines(draw: st.DrawFn) -> bytes:
    """A good line with some fields replaced, dropped or added, and perhaps a raw byte."""
    fields = draw(st.sampled_from(make_lines(20, seed=3))).decode().split("\t")
    for _ in range(draw(st.integers(0, 3))):
        fields[draw(st.integers(0, len(fields) - 1))] = draw(FIELD)
    if draw(st.integers(0, 9)) == 0:
        fields = fields[: draw(st.integers(0, 39))]
    line = "\t".join(fields).encode()
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(line)))
        line = line[:at] + draw(st.binary(max_size=3)).replace(b"\n", b"") + line[at:]
    return line


def plain_reason(line: bytes) -> str | None:
    """Why a line is bad, told field by field with Python's own parsers; None if it is good."""
    try:
        fields = line.decode("utf-8").split("\t")
    except UnicodeDecodeError:
        return "must be UTF-8"
    if len(fields) != 40:
        return f"must have 40 fields, got {len(fields)}"
    if "\r" in "".join(fields):
        return "must have no carriage return within"
    if not fields[0]:
        return "label must not be missing"
    if fields[0] not in ("0", "1"):
        return "label must be 0 or 1"
    for name, field in zip(INTEGERS, fields[1:14], strict=True):
        if field and not re.fullmatch("-?[0-9]+", field):
            return f"{name} must be an integer"
        if field and not -(1 << 63) <= int(field) < 1 << 63:
            return f"{name} must fit in 64 bits"
    for name, field in zip(IDS, fields[14:], strict=True):
        if field and not re.fullmatch("[0-9a-fA-F]+", field):
            return f"{name} must be a hexadecimal id"
        if field and int(field, 16) >= 1 << 64:
            return f"{name} must fit in 64 bits"
    return None


@settings(max_examples=40, deadline=None)
@given(lines=st.lists(malformed_lines(), max_size=12))
def test_any_lines_are_read_as_the_plain_way_reads_them(lines: list[bytes]):
    rows, bad = parse_block(make_block(lines))
    wanted = {i: reason for i, line in enumerate(lines, 1) if (reason := plain_reason(line))}
    assert [item.line for item in bad] == list(wanted)
    assert all(item.reason.startswith(wanted[item.line]) for item in bad)
    assert rows.num_rows + len(bad) == len(lines)
    good = [expected_row(line) for i, line in enumerate(lines, 1) if i not in wanted]
    np.testing.assert_array_equal(rows_of(rows), good if good else [])
    # One by one, each line goes the same way as among others.
    alone = [parse_block(make_block([line]))[1] for line in lines]
    assert [each[0].reason for each in alone if each] == [item.reason for item in bad]


SHOP = Table.parse(
    {
        "column": [
            {"name": "clicked", "as": "label"},
            {"name": "user", "as": "categorical", "type": "integer"},
            {"name": "note", "as": "ignore"},
        ]
    }
)


@pytest.mark.parametrize(
    ("header", "undeclared"),
    [
        (b"clicked,user,note,comment", ("comment",)),
        (b",user,clicked,note", ("",)),
        (b"key,clicked,key,user", ("key",)),
        (b"clicked,user,note", ()),
        (b"x\xff,clicked,user", ("x\ufffd",)),
    ],
)
def test_columns_of_a_header_that_no_declaration_names_are_not_read(
    header: bytes, undeclared: tuple[str, ...]
):
    names = header.split(b",")
    line = b",".join({b"clicked": b"1", b"user": b"7"}.get(name, b"x") for name in names)
    parser = LineParser(SHOP, "a.csv")
    rows, bad = parser.parse(make_block([header, line, b"1", line]))
    assert rows.to_pylist() == [{"clicked": 1.0, "user": 7}] * 2
    assert [(item.line, item.reason) for item in bad] == [
        (3, f"must have {len(names)} fields, got 1")
    ]
    assert parser.undeclared == undeclared


@pytest.mark.parametrize("header", [True, False])
def test_an_ignored_column_may_have_any_name(header: bool):
    ignored = [{"names": ["", "_c1"], "as": "ignore"}]
    shop = Table.parse({"header": header, "column": [*ignored, *SHOP.to_json()["column"]]})
    lines = [b",_c1,clicked,user,note"] * header + [b"0,x,1,7,y"]
    parser = LineParser(shop, "a.csv")
    rows, bad = parser.parse(make_block(lines))
    assert (rows.to_pylist(), bad) == ([{"clicked": 1.0, "user": 7}], [])
    assert parser.undeclared == ()


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"clicked,user,user", "'user' is repeated"),
        (b"clicked,item,note", "'user' is absent from 'clicked', 'item', 'note'"),
        (b"clicked;user;note", "'clicked', 'user' is absent from 'clicked;user;note'"),
    ],
)
def test_header_without_each_declared_column_once_is_refused(header: bytes, words: str):
    with pytest.raises(DatasetError, match=re.escape(words)):
        LineParser(SHOP, "a.csv").parse(make_block([header, b"1,2,x"]))


@pytest.mark.parametrize("other", [b"1,8,x", b"1,z,x"], ids=["alone", "beside a bad line"])
def test_bytes_that_are_not_utf8_are_bad_only_where_they_are_read(other: bytes):
    block = make_block([b"clicked,user,note", b"1,7,\xff", other, b"1,\xff,x"])
    rows, bad = LineParser(SHOP, "a.csv").parse(block)
    assert rows.column("user").to_pylist() == [7, 8][: rows.num_rows]
    assert [item.line for item in bad] == ([4] if other == b"1,8,x" else [3, 4])
    assert bad[-1].reason == "must be UTF-8: invalid start byte at byte 2"


@pytest.mark.parametrize("header", [b"clicked::user::note\n", b""], ids=["header", "no header"])
def test_a_delimiter_may_have_several_characters(header: bytes):
    columns = SHOP.to_json()["column"]
    table = Table.parse({"delimiter": "::", "quote": "", "header": bool(header), "column": columns})
    lines = [b"1::7::a:b", b"0:: ::x", b"1::8", b'0::9::"', b"1::5::a\x1fb", b"0::6::\xff"]
    data = header + b"".join(line + b"\n" for line in lines)
    block = LineBlock(first_line=1, num_lines=data.count(b"\n"), data=data)
    rows, bad = LineParser(table).parse(block)
    assert rows["user"].to_pylist() == [7, 9, 6]
    assert [line.reason for line in bad] == [
        "user must be an integer or empty, got ' '",
        "must have 3 fields, got 2",
        "must not have the character b'\\x1f' beside such a delimiter",
    ]
