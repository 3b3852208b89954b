"""Avro files as fastavro writes them: what is read of them, and what is set aside or refused."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import uuid
import zlib
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from embedps.errors import DatasetError
from embedps.features.table_schema import Table
from embedps.features.text_values import fingerprint
from embedps.pipelines.infer import InferConfig, infer
from embedps.pipelines.ingestion import avro_blocks
from embedps.pipelines.ingestion.avro_blocks import AvroReader
from embedps.pipelines.ingestion.avro_records import AvroParser
from embedps.pipelines.ingestion.bad_lines import BadLine
from tests.builders import read_split
from tests.pipelines.shop import as_rows, bad_lines, make

UTC = dt.UTC
COLUMNS: list[dict[str, Any]] = [
    {"name": "y", "as": "label"},
    {"name": "time", "as": "timestamp"},
    {"name": "user", "as": "key", "type": "integer", "keep": True, "path": "who.id"},
    {"name": "city", "as": "categorical", "type": "string", "path": "who.home.city"},
    {"name": "price", "as": "numeric"},
    {"name": "kind", "as": "categorical", "type": "string"},
    {"name": "tags", "as": "list", "type": "string"},
    {"name": "seen", "as": "list", "type": "integer", "path": "views.item"},
    {"name": "clicks", "as": "numeric", "path": "counts.click"},
    {"name": "vector", "as": "float_list"},
]
TABLE = Table.parse({"format": "avro", "column": COLUMNS})


def optional(kind: Any) -> list[Any]:
    return ["null", kind]


HOME = {"type": "record", "name": "Home", "fields": [{"name": "city", "type": optional("string")}]}
VIEW = {"type": "record", "name": "View", "fields": [{"name": "item", "type": "long"}]}
WHO = {
    "type": "record",
    "name": "Who",
    "fields": [{"name": "id", "type": "long"}, {"name": "home", "type": optional(HOME)}],
}
SCHEMA = {
    "type": "record",
    "name": "Event",
    "namespace": "a.b",
    "fields": [
        {"name": "y", "type": "boolean"},
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "who", "type": WHO},
        {
            "name": "price",
            "type": optional(
                {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}
            ),
        },
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["web", "app"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "views", "type": optional({"type": "array", "items": VIEW})},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "vector", "type": {"type": "array", "items": "float"}},
        {"name": "note", "type": optional("string"), "default": None},
    ],
}


def make_rows(num_rows: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    start = dt.datetime(2024, 5, 1, tzinfo=UTC)
    return [
        {
            "y": i % 2 == 0,
            "time": start + dt.timedelta(seconds=int(rng.integers(0, 10**7)), milliseconds=i % 7),
            "who": {"id": i % 40, "home": {"city": f"city {i % 7}"} if i % 5 else None},
            "price": None if i % 6 == 0 else Decimal(int(rng.integers(-999, 9999))).scaleb(-2),
            "kind": ("web", "app")[i % 2],
            "tags": [f"é{tag}" for tag in rng.integers(0, 9, i % 4)],
            "views": None if i % 9 == 0 else [{"item": int(n)} for n in rng.integers(0, 5, i % 3)],
            "counts": {"click": i, "view": 2} if i % 3 else {},
            "vector": [0.5 * i, 1.5],
            "note": f"note {i}",
        }
        for i in range(num_rows)
    ]


def write(path: Path | None, rows: list[dict[str, Any]], schema: Any = SCHEMA, **how: Any) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(schema), rows, **how)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(out.getvalue())
    return out.getvalue()


def read(data: bytes, table: Table = TABLE) -> tuple[list[dict[str, Any]], list[BadLine]]:
    reader, parser = AvroReader(io.BytesIO(data), "a.avro"), AvroParser(table, "a.avro")
    rows, bad = [], []
    for block in reader:
        found, more = parser.parse(block)
        rows += found.to_pylist()
        bad += [*more, *block.bad]
        assert len(parser.records()) == found.num_rows
    assert reader.num_records == len(rows) + len(bad)
    assert reader.num_bytes == len(data)
    return rows, bad


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "zstandard"])
def test_a_file_of_any_codec_gives_the_rows_of_parquet(tmp_path: Path, codec: str):
    rows = make_rows(300)
    try:
        write(tmp_path / "a.avro", rows, codec=codec, sync_interval=2000)
    except ValueError:
        pytest.skip(f"fastavro has no {codec} here")
    counts = pa.map_(pa.string(), pa.int32())
    parquet = pa.Table.from_pylist(rows)
    mapped = pa.array([[*row["counts"].items()] for row in rows], counts)
    parquet = parquet.set_column(parquet.schema.get_field_index("counts"), "counts", mapped)
    pq.write_table(parquet, tmp_path / "a.parquet")
    plain = Table.parse({"format": "parquet", "column": COLUMNS})
    sets = [
        make(table, tmp_path / name, tmp_path / f"set {name}", split_key=("user",))
        for table, name in ((TABLE, "a.avro"), (plain, "a.parquet"))
    ]
    assert (sets[0].input.lines_read, sets[0].input.lines_bad) == (300, 0)
    for split in ("train", "eval"):
        first, second = (as_rows(read_split(each, split)) for each in sets)
        assert first == second
        assert first


def packed(data: bytes, codec: bytes, pack: Callable[[bytes], bytes]) -> bytes:
    """Packs the only block of a file without a codec as the specification says."""
    at = data.index(b"avro.codec") + len(b"avro.codec")
    head_end = data.index(b"\0", at) + 1 + 16
    head, sync = data[:head_end], data[head_end - 16 : head_end]
    block = io.BytesIO(data[head_end:])
    count: Any = fastavro.schemaless_reader(block, "long", None)
    content: Any = fastavro.schemaless_reader(block, "bytes", None)
    head = head.replace(long(4) + b"null", long(len(codec)) + codec)
    content = pack(content)
    return head + long(count) + long(len(content)) + content + sync


def as_snappy(content: bytes) -> bytes:
    crc = zlib.crc32(content).to_bytes(4, "big")
    return bytes(pa.Codec("snappy").compress(content, asbytes=True)) + crc


def _instead(content: bytes, _: bytes) -> bytes:
    return content


def test_snappy_and_zstd_are_read_and_bounded(monkeypatch: pytest.MonkeyPatch):
    data = write(None, make_rows(20), codec="null")
    plain = repr(read(data))
    snappy = packed(data, b"snappy", as_snappy)
    # Cut before its end.
    zstd = packed(
        data, b"zstandard", lambda d: zstandard.ZstdCompressor().compressobj().compress(d)
    )
    whole = zstandard.ZstdCompressor()
    assert repr(read(packed(data, b"zstandard", whole.compress))) == plain
    assert repr(read(snappy)) == plain
    assert "damaged in the block" in read(zstd)[1][0].reason
    wrong = bytearray(snappy)
    wrong[-17] ^= 1  # of the checksum before the last mark
    assert "its checksum must be" in read(bytes(wrong))[1][0].reason
    monkeypatch.setattr(avro_blocks, "MAX_BLOCK_BYTES", 1500)
    for codec, pack in ((b"snappy", as_snappy), (b"zstandard", whole.compress)):
        content = pack(bytes(9000))
        bomb = packed(write(None, make_rows(1)), codec, partial(_instead, content))
        assert "must unpack to at most 1500 bytes" in read(bomb)[1][0].reason


def test_times_decimals_and_uuids_are_what_the_file_says():
    def of(kind: str, logical: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "logicalType": logical, **more}

    fields = {
        "y": "int",
        "time": of("long", "timestamp-millis"),
        "day": of("int", "date"),
        "amount": of("fixed", "decimal", precision=30, scale=3, size=16, name="Amount"),
        "id": of("string", "uuid"),
        "whole": of("bytes", "decimal", precision=20),
        "raw": {"type": "fixed", "name": "Raw", "size": 2},
    }
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }
    row = {
        "y": 1,
        "time": dt.datetime(1969, 12, 31, 23, 59, 59, 500_000, tzinfo=UTC),
        "day": dt.date(2024, 1, 2),
        "amount": Decimal("-123456789012345678.125"),
        "id": uuid.UUID(int=7),
        "whole": Decimal(2**60 + 1),
        "raw": b"ab",
    }
    columns = [
        {"name": "y", "as": "label"},
        {"name": "time", "as": "timestamp"},
        {"name": "amount", "as": "numeric"},
        {"name": "id", "as": "categorical", "type": "string"},
        {"name": "whole", "as": "categorical", "type": "integer"},
        {"name": "raw", "as": "categorical", "type": "string"},
    ]
    data = write(None, [row, row], schema)
    rows, bad = read(data, Table.parse({"format": "avro", "column": columns}))
    assert bad == []
    assert rows == 2 * [{
        "y": 1.0, "time": -500, "amount": -123456789012345678.125,
        "id": fingerprint(str(uuid.UUID(int=7))), "whole": 2**60 + 1, "raw": fingerprint("ab"),
    }]  # fmt: skip
    day = [columns[0], {"name": "day", "as": "timestamp"}, columns[2]]
    rows, _ = read(data, Table.parse({"format": "avro", "column": day}))
    assert rows[0]["day"] == int(dt.datetime(2024, 1, 2, tzinfo=UTC).timestamp() * 1000)


def test_a_value_beyond_what_a_column_holds_sets_its_row_aside():
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 70, "scale": 0}
    fields = [{"name": "y", "type": "int"}, {"name": "x", "type": kind}]
    schema = {"type": "record", "name": "R", "fields": fields}
    rows = [{"y": 0, "x": Decimal(x)} for x in (5, 10**60, 6)]
    table = {"format": "avro", "column": [COLUMNS[0], {"name": "x", "as": "numeric"}]}
    found, (line,) = read(write(None, rows, schema), Table.parse(table))
    assert [row["x"] for row in found] == [5.0, 6.0]
    assert (line.line, "fits in 32 bits" in line.reason) == (2, True)


def test_a_record_that_is_no_row_is_set_aside():
    rows = make_rows(6)
    data = write(None, rows)
    place = data.index("é".encode())
    wrong = bytearray(data)
    wrong[place] = 0xFF
    found, (line,) = read(bytes(wrong))
    assert len(found) == 5
    assert line.reason == "must be UTF-8"
    few = {"format": "avro", "column": [*COLUMNS[:2], {"name": "note", "as": "numeric"}]}
    found, bad = read(data, Table.parse(few))
    assert found == []
    assert [line.line for line in bad] == [1, 2, 3, 4, 5, 6]
    assert all(line.reason.startswith("note must be a number") for line in bad)
    assert json.loads(bad[2].raw)["note"] == "note 2"


def test_a_file_that_is_cut_anywhere_ends_in_one_line():
    table = Table.parse({"format": "avro", "column": [*COLUMNS[:4], COLUMNS[5]]})
    whole = write(None, make_rows(8), sync_interval=100)
    good, _ = read(whole, table)
    head = len(write(None, []))
    ends = {head + 1}
    for size in range(1, len(whole)):
        rows, bad = read(whole[:size], table)
        assert rows == good[: len(rows)]
        if not bad:
            ends.add(size)
            continue
        (line,) = bad
        assert line.ends_file
        assert line.reason.startswith("the Avro file is ")
    assert 3 < len(ends) < 12  # a file may end after its header or after a block


def test_a_file_of_which_any_byte_is_wrong_fails_in_lines(tmp_path: Path):
    whole = write(None, make_rows(4), sync_interval=100)
    head = len(write(None, []))
    read(whole)
    for at in range(head, len(whole)):
        for bit in (0, 7):
            wrong = bytearray(whole)
            wrong[at] ^= 1 << bit
            read(bytes(wrong))
    for at in range(4, head, 3):
        wrong = bytearray(whole)
        wrong[at] ^= 4
        with contextlib.suppress(DatasetError):
            read(bytes(wrong))
    (tmp_path / "a.avro").write_bytes(whole[:-20])
    with pytest.raises(DatasetError, match=r"a\.avro after .* good rows .*cut off at byte"):
        make(TABLE, tmp_path / "a.avro", tmp_path / "set")
    settings = {"allow_damaged_files": True, "eval_fraction": 0.0, "max_bad_fraction": 1.0}
    dataset = make(TABLE, tmp_path / "a.avro", tmp_path / "set", **settings)
    assert dataset.splits["train"].rows + 1 == bad_lines(dataset)[-1]["line"]


def long(value: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", value)
    return out.getvalue()


def file_of(schema: Any, blocks: list[tuple[int, bytes]], codec: bytes = b"null") -> bytes:
    meta = b"".join(
        long(len(each)) + each
        for each in (b"avro.schema", json.dumps(schema).encode(), b"avro.codec", codec)
    )
    sync = bytes(16)
    data = b"Obj\x01" + long(2) + meta + b"\0" + sync
    return data + b"".join(long(n) + long(len(c)) + c + sync for n, c in blocks)


def record(*kinds: Any, name: str = "R") -> dict[str, Any]:
    fields = [{"name": f"f{i}", "type": kind} for i, kind in enumerate(kinds)]
    return {"type": "record", "name": name, "fields": fields}


F0 = Table.parse({"format": "avro", "column": [{"name": "f0", "as": "numeric"}]})


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (record("int", {"type": "array", "items": "null"}), "elements of a byte or more"),
        (record("null"), "must have a field of a byte or more"),
        (record("int", *["null"] * 1001), "at most 1000 fields of type null"),
        (record("int", ["null", "R"]), "'R' must not hold itself"),
        (record("int", {"type": "fixed", "name": "F", "size": 0}), "must have a byte or more"),
        ("long", "must have records"),
        ({"type": "record"}, "is not valid"),
        (record("int", "unknown"), "is not valid"),
    ],
)
def test_a_schema_whose_values_cost_no_bytes_is_refused(schema: Any, reason: str):
    with pytest.raises(DatasetError, match=reason):
        read(file_of(schema, []), F0)


def test_deep_schemas_are_refused():
    kind: Any = "int"
    for depth in range(70):
        kind = record(kind, name=f"R{depth}")
    with pytest.raises(DatasetError, match="at most 64 deep"):
        read(file_of(kind, []), F0)
    text = b'{"type":' * 5000 + b'"int"' + b"}" * 5000
    data = file_of("S", []).replace(long(3) + b'"S"', long(len(text)) + text)
    _, (line,) = read(data, F0)
    assert "its schema must be JSON" in line.reason


def test_a_block_does_not_choose_memory_or_time(monkeypatch: pytest.MonkeyPatch):
    schema = record("int", {"type": "array", "items": "int"})
    good = (2, b"\x02\x00" * 2)
    for block, reason in (
        ((1 << 60, b"\x02\x00"), "at most as many records as bytes, 2"),
        ((-1, b"\x02\x00"), "got -1"),
        ((1, b"\x02" + long(1 << 60) + b"\x02"), "damaged in the block at byte"),
        ((1, b"\x02\x00" + bytes(9)), "9 bytes are left after its 1 records"),
    ):
        rows, (line,) = read(file_of(schema, [good, block, good]), F0)
        assert len(rows) in (2, 3)
        assert reason in line.reason
        assert line.ends_file
    huge = file_of(schema, [good]) + long(1) + long(1 << 50) + b"\x02"
    rows, (line,) = read(huge, F0)
    assert len(rows) == 2
    assert "a size must be 0 to 16777216" in line.reason
    pack = zlib.compressobj(wbits=-15)
    bomb = pack.compress(bytes(20 << 20)) + pack.flush()
    monkeypatch.setattr(avro_blocks, "MAX_BLOCK_BYTES", 1 << 20)
    rows, (line,) = read(file_of(schema, [(1, bomb)], b"deflate"), F0)
    assert "must unpack to at most 1048576 bytes" in line.reason


def test_another_file_codec_and_a_mixed_column_are_named():
    _, (line,) = read(b"y,user\n" * 9)
    assert "it must begin with b'Obj" in line.reason
    with pytest.raises(DatasetError, match=r"a\.avro: its codec must be one of null, .*'lz9'"):
        read(file_of(record("int"), [], b"lz9"), F0)
    mixed = record([{"type": "int", "logicalType": "date"}, "long"])
    with pytest.raises(DatasetError, match=r"f0 must be of one kind, its union has .*date"):
        read(file_of(mixed, [(1, b"\x00\x02")]), F0)


def test_equal_records_are_in_one_split_whatever_columns_are_declared(tmp_path: Path):
    rows = make_rows(200)
    write(tmp_path / "in/a.avro", rows)
    write(tmp_path / "in/b.avro", rows, codec="deflate", sync_interval=500)
    dataset = make(TABLE, tmp_path / "in", tmp_path / "set", eval_fraction=0.3)
    train, held = (as_rows(read_split(dataset, name)) for name in ("train", "eval"))
    assert not set(train) & set(held)
    fewer = Table.parse({"format": "avro", "column": COLUMNS[:4]})
    other = make(fewer, tmp_path / "in", tmp_path / "fewer", eval_fraction=0.3)
    assert other.splits["eval"].rows == dataset.splits["eval"].rows > 0


def test_a_schema_is_proposed_of_a_file_and_reads_it(tmp_path: Path):
    write(tmp_path / "a.avro", make_rows(300), codec="deflate")
    text = infer(InferConfig(input=str(tmp_path / "a.avro"), label="y"))
    assert 'format = "avro"' in text
    assert 'path = "who.id"' in text
    (tmp_path / "schema.toml").write_text(text)
    table = Table.load(str(tmp_path / "schema.toml"))
    time = table.role("timestamp")
    assert time is not None
    assert time.name == "time"
    dataset = make(table, tmp_path / "a.avro", tmp_path / "set")
    assert (dataset.input.lines_read, dataset.input.lines_bad) == (300, 0)
