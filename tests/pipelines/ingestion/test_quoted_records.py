"""A record is what a scanner of one character at a time reads, across any block's edge."""

from __future__ import annotations

import gzip
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedps.features.table_schema import Table
from embedps.features.text_values import fingerprint
from embedps.pipelines.ingestion import line_blocks, unpacked_stream
from embedps.pipelines.ingestion.bad_lines import BadLine
from embedps.pipelines.ingestion.line_blocks import LineBlockReader
from embedps.pipelines.ingestion.line_parser import LineParser

TABLE = Table.parse(
    {
        "header": False,
        "column": [
            {"name": "y", "as": "label"},
            {"name": "s", "as": "categorical", "type": "string"},
        ],
    }
)


def read(data: bytes, block_bytes: int = 1 << 12, table: Table = TABLE):
    """Returns the rows, the bad lines and the number of records."""
    reader = LineBlockReader(
        io.BytesIO(data), block_bytes=block_bytes, delimiter=table.delimiter, quote=table.quote
    )
    parser = LineParser(table, "a.csv")
    rows: list[dict[str, float]] = []
    bad: list[BadLine] = []
    for block in reader:
        good, bad_of_block = parser.parse(block)
        rows += good.to_pylist()
        bad += [*bad_of_block, *block.bad]
    return rows, bad, reader.num_records


def scan(text: str) -> tuple[list[list[str]], list[int]]:
    """Returns the fields of each record, none of one whose quote does not close, and its line."""
    records, lines = [], []
    at, line = 0, 1
    while at < len(text):
        start = at
        fields: list[str] = []
        is_bad = False
        while True:
            if text[at] == '"':
                opened, at, field = at, at + 1, ""
                while at < len(text) and (text[at] != '"' or text[at : at + 2] == '""'):
                    field += text[at]
                    at += 2 if text[at] == '"' else 1
                at += 1
                if not text.startswith((",", "\n", "\r\n"), at):
                    is_bad = True
                    closed = at - 1
                    if closed >= len(text) or (closed - 1 > opened and text[closed - 1] in ",\n"):
                        at = text.index("\n", opened)  # it never closes
                        break
                    at = min(i for i in (text.find(",", at), text.find("\n", at)) if i >= 0)
            else:
                stop = min(i for i in (text.find(",", at), text.find("\n", at)) if i >= 0)
                field, at = text[at:stop], stop
                if text[at] == "\n":
                    field = field.removesuffix("\r")
            fields.append(field)
            at += text.startswith("\r", at)
            if text[at] == "\n":
                break
            at += 1
        at += 1
        records.append([] if is_bad else fields)
        lines.append(line)
        line += text.count("\n", start, at)
    return records, lines


FIELD = st.one_of(
    st.sampled_from(["a", "", '"b"', '"c,d"', '"say ""no"""', '"', 'a"b', "é", '""', '"x"y']),
    st.sampled_from(
        ['"two\nlines"', '"\n\n"', '"cr\r\nlf"', '"\r"', '"1,e"', '""""', '"\n0,f', '"p\n0,q"r']
    ),
)


@settings(max_examples=150, deadline=None)
@given(
    records=st.lists(st.lists(FIELD, min_size=1, max_size=2), max_size=8),
    end=st.sampled_from(["\n", "\r\n"]),
    block_bytes=st.integers(1, 64),
)
def test_records_are_what_a_plain_scanner_reads(
    records: list[list[str]], end: str, block_bytes: int
):
    text = "".join(",".join(["1", *fields]) + end for fields in records)
    wanted, lines = scan(text)
    rows, bad, num_records = read(text.encode(), block_bytes)
    ids = [fields[1] for fields in wanted if len(fields) == 2 and fields[0] in ("0", "1")]
    assert [row["s"] for row in rows] == [fingerprint(x) if x else -1 for x in ids]
    is_good = [len(fields) == 2 and fields[0] in ("0", "1") for fields in wanted]
    assert [item.line for item in bad] == [
        n for n, good in zip(lines, is_good, strict=True) if not good
    ]
    assert num_records == len(wanted) == len(rows) + len(bad)
    for item in bad:
        assert ("must be closed" in item.reason) == (not wanted[lines.index(item.line)])


@pytest.mark.parametrize("record", ['1,"two\n0,lines"x', '1,"a"x,"two\n0,lines"'])
def test_text_after_a_closing_quote_invents_no_row(record: str):
    rows, bad, num_records = read(f"1,a\n{record}\n0,b\n".encode())
    assert [row["s"] for row in rows] == [fingerprint("a"), fingerprint("b")]
    assert [(item.line, item.raw) for item in bad] == [(2, record.encode())]
    assert num_records == 3


@pytest.mark.parametrize("packed", [False, True])
def test_line_breaks_in_quotes_invent_no_row(packed: bool):
    titles = [f"Part {n}" + "\n1,bonus" * (n % 3 == 0) for n in range(1000)]
    data = "".join(f'{n % 2},"{title}"\r\n' for n, title in enumerate(titles)).encode()
    rows, bad, num_records = read(gzip.compress(data) if packed else data)
    assert (bad, num_records) == ([], 1000)
    assert [row["s"] for row in rows] == [fingerprint(title) for title in titles]


def test_quote_within_a_field_of_several_lines_invents_no_row():
    rows, bad, num_records = read(b'1,"a\n0,bonus\nb"c"\n1,"d\n0,e\n1,"f"\n')
    assert [row["s"] for row in rows] == [fingerprint("e"), fingerprint("f")]
    assert [(item.line, item.raw) for item in bad] == [(1, b'1,"a\n0,bonus\nb"c"'), (4, b'1,"d')]
    assert num_records == 4


def test_quote_that_never_closes_sets_its_line_aside_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(line_blocks, "MAX_LINE_BYTES", 2000)
    monkeypatch.setattr(unpacked_stream, "_READ_BYTES", 512)
    lines = [f"{n % 2},u{n}" for n in range(5000)]
    lines[70] = '0,"5 inch TV'
    for data in (lines, lines[:100]):
        rows, bad, num_records = read("\n".join(data).encode(), block_bytes=1000)
        assert [(item.line, item.raw) for item in bad] == [(71, b'0,"5 inch TV')]
        assert "the quote at byte 2 must be closed" in bad[0].reason
        assert len(rows) == len(data) - 1 == num_records - 1
        assert [row["s"] for row in rows[70:]] == [
            fingerprint(f"u{n}") for n in range(71, len(data))
        ]


def test_too_long_line_within_quotes_is_set_aside_with_the_line_that_opens(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(line_blocks, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(unpacked_stream, "_READ_BYTES", 64)
    data = b'1,a\n1,"b\n' + b"x" * 1000 + b'"\n0,c\n'
    rows, bad, num_records = read(data, block_bytes=128)
    assert [row["s"] for row in rows] == [fingerprint("a"), fingerprint("c")]
    assert sorted({item.line for item in bad}) == [2, 3]
    assert num_records == 4


def test_quotes_are_characters_if_the_schema_says_so():
    table = Table.parse(TABLE.to_json() | {"quote": ""})
    rows, bad, _ = read(b'1,"a"\n0,"b\n', table=table)
    assert [row["s"] for row in rows] == [fingerprint('"a"'), fingerprint('"b')]
    assert bad == []


def test_header_may_hold_quotes_and_line_breaks():
    table = Table.parse(TABLE.to_json() | {"header": True})
    rows, bad, num_records = read(b'"y","a\nb","s"\n1,x,"u\n1"\n0,x,u2\n0,x\n', table=table)
    assert [row["s"] for row in rows] == [fingerprint("u\n1"), fingerprint("u2")]
    assert [item.line for item in bad] == [6]
    assert num_records == 4
