"""TFRecord files as TensorFlow writes them: what is read of them, and what is set aside."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from embedps.data.dataset import Dataset
from embedps.errors import DatasetError
from embedps.features.table_schema import Table
from embedps.features.text_values import fingerprint
from embedps.pipelines.ingestion import record_blocks
from embedps.pipelines.ingestion.bad_lines import BadLine
from embedps.pipelines.ingestion.record_blocks import RecordReader, masked_crc32c
from embedps.pipelines.ingestion.tf_examples import ExampleParser
from tests.builders import read_split
from tests.pipelines.shop import as_rows, bad_lines, make

COLUMNS: list[dict[str, Any]] = [
    {"name": "y", "as": "label"},
    {"name": "user", "as": "key", "type": "integer", "keep": True},
    {"name": "shop", "as": "categorical", "type": "string"},
    {"name": "x", "as": "numeric"},
    {"name": "tags", "as": "list", "type": "string"},
    {"name": "vector", "as": "float_list"},
]
TABLE = Table.parse({"format": "tfrecord", "column": COLUMNS})


def feature(values: list[Any]) -> tf.train.Feature:
    if all(isinstance(each, bytes | str) for each in values):
        data = [each.encode() if isinstance(each, str) else each for each in values]
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=data))
    if all(isinstance(each, int) for each in values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def example(**values: list[Any]) -> bytes:
    features = tf.train.Features(feature={name: feature(each) for name, each in values.items()})
    return tf.train.Example(features=features).SerializeToString()


def write(path: Path, records: list[bytes], kind: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), kind or None) as writer:
        for record in records:
            writer.write(record)
    return path


def make_rows(num_rows: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    return [
        {
            "y": i % 2,
            "user": i % 40,
            "shop": f"shop {i % 7}",
            "x": float(np.float32(rng.normal())),
            "tags": [f"t{tag}" for tag in rng.integers(0, 9, i % 4)],
            "vector": [0.5 * i, 1.5],
        }
        for i in range(num_rows)
    ]


def as_examples(rows: list[dict[str, Any]]) -> list[bytes]:
    return [
        example(**{name: v if isinstance(v, list) else [v] for name, v in row.items()})
        for row in rows
    ]


def read(data: bytes, table: Table = TABLE) -> tuple[list[dict[str, Any]], list[BadLine], int]:
    reader, parser = RecordReader(io.BytesIO(data)), ExampleParser(table)
    rows, bad = [], []
    for block in reader:
        found, more = parser.parse(block)
        rows += found.to_pylist()
        bad += [*more, *block.bad]
    assert reader.num_records == len(rows) + len(bad)
    assert reader.num_bytes == len(data)
    return rows, bad, reader.num_records


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("plain")
    pq.write_table(pa.Table.from_pylist(make_rows(300)), folder / "a.parquet")
    table = Table.parse({"format": "parquet", "column": COLUMNS})
    return make(table, folder / "a.parquet", folder / "set", split_key=("user",))


@pytest.mark.parametrize("kind", ["", "GZIP"])
def test_a_file_of_tensorflow_gives_the_rows_of_parquet(tmp_path: Path, plain: Dataset, kind: str):
    path = write(tmp_path / "a.tfrecord", as_examples(make_rows(300)), kind)
    dataset = make(TABLE, path, tmp_path / "set", split_key=("user",))
    assert (dataset.input.lines_read, dataset.input.lines_bad) == (300, 0)
    for split in ("train", "eval"):
        assert dataset.splits[split].rows == plain.splits[split].rows > 0
        assert as_rows(read_split(dataset, split)) == as_rows(read_split(plain, split))


def test_equal_examples_are_in_one_split_in_whatever_order_their_features_are(tmp_path: Path):
    rows = make_rows(200)
    turned = [{name: row[name] for name in reversed(row)} for row in rows]
    write(tmp_path / "in/a.tfrecord", as_examples(rows))
    write(tmp_path / "in/b.tfrecord", as_examples(turned))
    dataset = make(TABLE, tmp_path / "in", tmp_path / "set", eval_fraction=0.3)
    train, held = (as_rows(read_split(dataset, name)) for name in ("train", "eval"))
    assert not set(train) & set(held)
    fewer = Table.parse({"format": "tfrecord", "column": COLUMNS[:3]})
    other = make(fewer, tmp_path / "in", tmp_path / "fewer", eval_fraction=0.3)
    assert other.splits["eval"].rows == dataset.splits["eval"].rows


def test_feature_lists_of_a_sequence_example_are_lists():
    def steps(*values: list[Any]) -> tf.train.FeatureList:
        return tf.train.FeatureList(feature=[feature(each) for each in values])

    lists = {"items": steps([3], [4], [5]), "groups": steps([1, 2], [], [9]), "none": steps()}
    record = tf.train.SequenceExample(
        context=tf.train.Features(feature={"y": feature([1]), "user": feature([7])}),
        feature_lists=tf.train.FeatureLists(feature_list=lists),
    )
    ids = {"as": "list", "type": "integer"}
    columns: list[dict[str, Any]] = [*COLUMNS[:2], {"name": "items", **ids}]
    columns += [
        {"name": "all", "path": ["groups"], "flatten": True, **ids},
        {"name": "none", **ids},
    ]
    table = Table.parse({"format": "tfrecord", "column": columns})
    ((block),) = RecordReader(io.BytesIO(framed([record.SerializeToString()])))
    rows, bad = ExampleParser(table).parse(block)
    assert bad == []
    wanted = {"y": 1.0, "user": 7, "items": [3, 4, 5], "all": [1, 2, 9], "none": []}
    assert rows.to_pylist() == [wanted]
    nested = Table.parse(
        {"format": "tfrecord", "column": [*columns[:2], {"name": "groups", **ids}]}
    )
    _, (line,) = ExampleParser(nested).parse(block)
    assert "flatten = true" in line.reason


def framed(records: list[bytes]) -> bytes:
    """The bytes of a TFRecord file."""
    out = b""
    for record in records:
        length = len(record).to_bytes(8, "little")
        out += length + crc(length) + record + crc(record)
    return out


def crc(data: bytes) -> bytes:
    return masked_crc32c([data]).astype("<u4").tobytes()


def test_checksums_are_those_of_tensorflow(tmp_path: Path):
    chance = random.Random(0)
    sizes = [*range(70), 127, 128, 129, 1000, 4096, 70_000]
    records = [chance.randbytes(size) for size in sizes]
    assert framed(records) == write(tmp_path / "a", records).read_bytes()


def test_a_record_that_is_no_row_is_set_aside():
    row = make_rows(1)[0]
    good = as_examples([row])[0]
    values = {name: v if isinstance(v, list) else [v] for name, v in row.items()}
    wrong = [
        (b"\x0a\xff\xff", "must be a tf.Example or tf.SequenceExample"),
        (example(**values | {"shop": [b"\xff"]}), "shop must be UTF-8"),
        (example(**values | {"y": []}), "y must not be missing"),
        (example(**values | {"x": [1.0, 2.0]}), "x must be one value or a list of one"),
        (example(**values | {"user": ["a"]}), "user must be an integer"),
    ]
    rows, bad, _ = read(framed([good, *(record for record, _ in wrong), good]))
    assert [row["shop"] for row in rows] == [fingerprint("shop 0")] * 2
    assert [line.line for line in bad] == [2, 3, 4, 5, 6]
    for line, (record, reason) in zip(bad, wrong, strict=True):
        assert reason in line.reason
        assert line.raw == record
        json.loads(line.to_json("a"))


def test_a_file_that_is_cut_anywhere_ends_in_one_line():
    records = as_examples(make_rows(4))
    ends = np.cumsum([0, *(len(record) + 16 for record in records)])
    data = framed(records)
    for size in range(1, len(data)):
        rows, bad, _ = read(data[:size])
        assert len(rows) == int(np.searchsorted(ends, size, side="right")) - 1
        if size in ends:
            assert bad == []
        else:
            (line,) = bad
            assert line.ends_file
            assert "the TFRecord file is cut off here, at byte" in line.reason


def test_a_file_of_which_any_byte_is_wrong_ends_in_one_line(tmp_path: Path):
    records = as_examples(make_rows(3))
    ends = np.cumsum([0, *(len(record) + 16 for record in records)])
    data = framed(records)
    for at in range(len(data)):
        wrong = bytearray(data)
        wrong[at] ^= 1 << at % 8
        rows, (line,), _ = read(bytes(wrong))
        whole = int(np.searchsorted(ends, at, side="right")) - 1
        assert len(rows) == whole
        assert line.ends_file
        assert f"damaged at byte {ends[whole]} of its records: the checksum of" in line.reason
    (tmp_path / "a.tfrecord").write_bytes(wrong)
    with pytest.raises(DatasetError, match=r"a\.tfrecord after 2 good rows .*copy or write the"):
        make(TABLE, tmp_path / "a.tfrecord", tmp_path / "set")
    settings = {"allow_damaged_files": True, "eval_fraction": 0.0, "max_bad_fraction": 1.0}
    dataset = make(TABLE, tmp_path / "a.tfrecord", tmp_path / "set", **settings)
    assert dataset.splits["train"].rows == 2
    assert [line["line"] for line in bad_lines(dataset)] == [3]


def test_another_file_and_a_damaged_packing_are_named(tmp_path: Path):
    _, (line,), _ = read(b"y,user,shop\n" * 9)
    assert "must be" in line.reason
    assert "declare the format that it has" in line.reason
    path = write(tmp_path / "a.gz", as_examples(make_rows(50)), "GZIP")
    rows, (line,), _ = read(path.read_bytes()[:-200])
    assert 0 < len(rows) < 50
    assert "the gzip stream ends early" in line.reason


def test_a_record_does_not_choose_how_much_memory_it_takes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(record_blocks, "MAX_RECORD_BYTES", 2000)
    monkeypatch.setattr(record_blocks, "BLOCK_BYTES", 500)
    monkeypatch.setattr("embedps.pipelines.ingestion.unpacked_stream._READ_BYTES", 64)
    records = as_examples(make_rows(6))
    long = example(y=[1], user=[1] * 50_000)
    held = []

    class Reader(RecordReader):
        def _block(self, data: bytes) -> Any:
            held.append(len(data))
            return super()._block(data)

    data = framed([*records[:2], long, *records[2:4], long, *records[4:]])
    rows, bad = 0, []
    for block in Reader(io.BytesIO(data)):
        rows += block.num_records
        bad += [(each.line, each.reason) for each in block.bad]
    assert rows == 6
    reason = f"a record must have at most 2000 bytes, got {len(long)}"
    assert bad == [(3, reason), (6, reason)]
    assert max(held) < 3000
    huge = (1 << 62).to_bytes(8, "little")
    rows_before, (line, end), _ = read(framed(records[:1]) + huge + crc(huge) + bytes(100))
    assert len(rows_before) == 1
    assert line.reason == f"a record must have at most 2000 bytes, got {1 << 62}"
    assert end.ends_file


def test_a_column_that_no_example_has_is_named(tmp_path: Path):
    path = write(tmp_path / "a.tfrecord", [example(y=[1], user=[2])] * 5)
    with pytest.raises(DatasetError, match="no line of the input has shop, tags, vector, x: spell"):
        make(TABLE, path, tmp_path / "set", eval_fraction=0.0)
