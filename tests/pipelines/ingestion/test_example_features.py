"""Examples that are read together give what protobuf's parser gives for each."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from embedps.features.table_schema import Table
from embedps.pipelines.ingestion import example_features
from embedps.pipelines.ingestion.example_features import ExampleFeatures
from embedps.pipelines.ingestion.record_blocks import RecordBlock
from embedps.pipelines.ingestion.tf_examples import ExampleParser

ANY = Table.parse({
    "format": "tfrecord",
    "column": [
        {"name": "y", "as": "label"},
        {"name": "n", "as": "numeric"},
        {"name": "c", "as": "categorical", "type": "integer"},
        {"name": "cc", "as": "categorical", "type": "string"},
        {"name": "t", "as": "timestamp"},
        {"name": "ids", "as": "list", "type": "integer"},
        {"name": "texts", "as": "list", "type": "string"},
        {"name": "v", "as": "float_list"},
    ],
})  # fmt: skip
KINDS = ("bytes_list", "float_list", "int64_list")


def block_of(records: list[bytes]) -> RecordBlock:
    ends = np.cumsum([0, *map(len, records)])[1:]
    starts = ends - np.array([*map(len, records)], np.int64)
    return RecordBlock(first=1, data=b"".join(records), starts=starts, ends=ends)


def parse(records: list[bytes], table: Table = ANY, name: str = "") -> dict[str, Any]:
    parser = ExampleParser(table, name)
    rows, bad = parser.parse(block_of(records))
    found = {"rows": [repr(each) for each in rows.to_pylist()], "bad": bad}
    return found | {"records": parser.records(), "absent": parser.absent}


def check_equal(records: list[bytes], monkeypatch: pytest.MonkeyPatch, **settings: Any) -> int:
    """Compares both ways; returns how many records were read together."""
    together = parse(records, **settings)
    block = block_of(records)
    readable = ExampleFeatures(block.data, block.starts, block.ends).readable
    with monkeypatch.context() as patch:
        patch.setattr(example_features, "LEAST_AT_ONCE", 1 << 30)
        left = ExampleFeatures(block.data, block.starts, block.ends).readable
        assert left.sum() == records.count(b"\x0a\0")  # without a feature
        assert together == parse(records, **settings)
    return int(readable.sum())


def a_value(chance: random.Random, name: str) -> Any:
    """A feature that fits its column most often, and any other at times."""
    kind = {"y": 2, "n": 1, "c": 2, "cc": 0, "t": 2, "ids": 2, "texts": 0, "v": 1}.get(name, 1)
    kind = chance.randrange(3) if chance.random() < 0.05 else kind
    count = chance.choice([0, 1, 2, 3, 40]) if name in ("ids", "texts", "v") else 1
    count = chance.randrange(4) if chance.random() < 0.05 else count
    ints = [0, 1, -1, 127, 128, 300, -(2**63), 2**63 - 1, chance.getrandbits(40)]
    floats = [0.0, -1.5, float("inf"), float("nan"), chance.random()]
    texts = [b"", b"7", b"a", "é".encode(), b"\xff", chance.randbytes(200), b"x" * 300]
    if name == "y":
        ints, floats, texts = [0, 1], [0.0, 1.0], [b"0", b"1"]
    of_kind: Any = (texts, floats, ints)[kind]
    values = [chance.choice(of_kind) for _ in range(count)]
    if chance.random() < 0.03:
        return tf.train.Feature()
    lists = (tf.train.BytesList, tf.train.FloatList, tf.train.Int64List)
    return tf.train.Feature(**{KINDS[kind]: lists[kind](value=values)})


def a_record(chance: random.Random) -> bytes:
    names = [column.name for column in ANY.columns] + ["other", "o", "other é"]
    names = [name for name in names if chance.random() < 0.95]
    chance.shuffle(names)
    features = {name: a_value(chance, name) for name in names}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def test_any_examples_are_read_as_protobuf_reads_them(monkeypatch: pytest.MonkeyPatch):
    chance = random.Random(1)
    records = [a_record(chance) for _ in range(800)]
    assert check_equal(records, monkeypatch) > 700
    assert check_equal(records[:50], monkeypatch, name="cc=of the path/c=5/a.tfrecord") > 40


def test_damaged_examples_are_read_as_protobuf_reads_them(monkeypatch: pytest.MonkeyPatch):
    chance, together = random.Random(2), 0
    for _ in range(60):
        records = [bytearray(a_record(chance)) for _ in range(40)]
        for record in records[:25]:
            for _ in range(chance.choice([1, 1, 2, 9])):
                at = chance.randrange(len(record) or 1)
                match chance.randrange(3):
                    case 0:
                        record[at : at + 1] = chance.randbytes(1)
                    case 1:
                        del record[at : at + chance.choice([1, 5, 1000])]
                    case _:
                        record[at:at] = chance.choice([b"\x80", b"\0", b"\x0a\0", bytes(record)])
        together += check_equal([bytes(each) for each in records], monkeypatch)
    assert together > 60 * 10


def part(content: bytes, tag: int = 0x0A, size: bytes = b"") -> bytes:
    return bytes([tag]) + (size or bytes([len(content)])) + content


def entry(name: bytes, feature: bytes) -> bytes:
    return part(part(name) + part(feature, 0x12))


ONE = part(part(b"\x01"), 0x1A)  # the integer 1
OTHERS = {
    "a name twice": entry(b"y", ONE) + entry(b"y", part(part(b"\0"), 0x1A)),
    "integers that are not packed": entry(b"y", part(b"\x08\x01", 0x1A)),
    "two lists of integers": entry(b"y", part(part(b"\0") + part(b"\x01"), 0x1A)),
    "two kinds": entry(b"y", part(part(b"text")) + ONE),
    "an integer in more bytes than it needs": entry(b"y", part(part(b"\x81\x00"), 0x1A)),
    "a length in more bytes than it needs": part(
        part(b"y") + part(ONE, 0x12), 0x0A, bytes([0x80 + 5 + len(ONE), 0])
    ),
    "an integer of 11 bytes": entry(b"y", part(part(b"\xff" * 10 + b"\x01"), 0x1A)),
    "an integer that is cut": entry(b"y", part(part(b"\x80"), 0x1A)),
    "a float that is cut": entry(b"y", part(part(b"\0\0\x80"), 0x12)),
    "a feature before its name": part(part(ONE, 0x12) + part(b"y")),
    "a name without a feature": part(part(b"y")),
    "a feature without a name": part(part(ONE, 0x12)),
    "an empty name": entry(b"", ONE) + entry(b"y", ONE),
    "a name that is not UTF-8": entry(b"\xff", ONE) + entry(b"y", ONE),
    "another field": entry(b"y", ONE) + b"\x18\x05",
    "a part beyond the end": entry(b"y", ONE) + b"\x0a\x7f",
    "an empty list of two": entry(b"y", part(part(b"") + part(b""), 0x1A)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_writers_do_not_write_is_left_to_protobuf(what: str, monkeypatch: pytest.MonkeyPatch):
    table = Table.parse({
        "format": "tfrecord",
        "column": [
            {"name": "y", "as": "label"},
            {"name": "z", "as": "categorical", "type": "integer"},
        ],
    })  # fmt: skip
    good = part(entry(b"y", ONE) + entry(b"z", ONE))
    records = [good] * 10 + [part(OTHERS[what] + entry(b"z", ONE)), b"", b"\x0a\0"] + [good] * 10
    assert check_equal(records, monkeypatch, table=table) in (20, 21)


def test_few_long_records_take_no_step_each(monkeypatch: pytest.MonkeyPatch):
    short = entry(b"y", ONE) + entry(b"ids", ONE)
    texts = b"\x0a\0" * 5000
    length = bytes([2 * 5000 & 127 | 128, 2 * 5000 >> 7])
    whole = part(texts, 0x0A, length)
    long = entry(b"y", ONE)
    value = b"\x12" + bytes([len(whole) & 127 | 128, len(whole) >> 7]) + whole
    name = part(b"texts") + value
    long += b"\x0a" + bytes([len(name) & 127 | 128, len(name) >> 7]) + name
    record = b"\x0a" + bytes([len(long) & 127 | 128, len(long) >> 7]) + long
    steps = 0
    taken = example_features._lengths

    def count(*args: Any) -> Any:
        nonlocal steps
        steps += 1
        return taken(*args)

    with monkeypatch.context() as patch:
        patch.setattr(example_features, "_lengths", count)
        block = block_of([part(short)] * 50 + [record] * 3)
        features = ExampleFeatures(block.data, block.starts, block.ends)
    assert features.readable.tolist() == [True] * 50 + [False] * 3
    assert steps < 30
    assert check_equal([part(short)] * 50 + [record] * 3, monkeypatch) == 50
    assert check_equal([part(short)] * 5 + [record] * 9, monkeypatch) == 14
