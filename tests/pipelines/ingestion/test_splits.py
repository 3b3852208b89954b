"""A row's split follows from its content, its key, its time or its file, and the seed."""

from __future__ import annotations

import datetime as dt
import uuid

import numpy as np
import pyarrow as pa
import pytest

from embedps.errors import UsageError
from embedps.features.table_columns import LIST_TYPE
from embedps.features.table_schema import Table
from embedps.pipelines.ingestion.options import parse_options
from embedps.pipelines.ingestion.record_hash import hash_lines, hash_records
from embedps.pipelines.ingestion.splits import SplitRule, hash_rows

TABLE = Table.parse(
    {
        "column": [
            {"name": "label", "as": "label"},
            {"name": "time", "as": "timestamp", "type": "seconds"},
            {"name": "user", "as": "key", "type": "integer"},
            {"name": "x", "as": "numeric"},
            {"name": "c", "as": "categorical", "type": "integer"},
            {"name": "tags", "as": "list", "type": "integer"},
        ]
    }
)


def make_rows(num_rows: int, seed: int = 0) -> pa.RecordBatch:
    rng = np.random.default_rng(seed)
    tags = [rng.integers(0, 1000, n).tolist() for n in rng.integers(0, 4, num_rows)]
    columns = [
        pa.array(rng.integers(0, 2, num_rows).astype(np.float32)),
        pa.array(np.arange(num_rows) * 1000),
        pa.array(rng.integers(0, 50, num_rows)),
        pa.array(rng.normal(size=num_rows)),
        pa.array(rng.integers(-1, 1 << 32, num_rows)),
        pa.array(tags, LIST_TYPE),
    ]
    return pa.record_batch(columns, schema=TABLE.row_schema)


def by_record(rule: SplitRule, rows: pa.RecordBatch) -> np.ndarray:
    return rule.held_out(TABLE, rows, False, hash_records(rows, rule.seed))


MAP = pa.map_(pa.string(), pa.int64())


def hashes(rows: pa.RecordBatch, seed: int) -> np.ndarray:
    return hash_rows(rows.columns, seed)


def test_hash_does_not_depend_on_order_or_neighbours():
    rows = make_rows(500)
    at = np.random.default_rng(1).permutation(500)[:200]
    np.testing.assert_array_equal(hashes(rows.take(pa.array(at)), 3), hashes(rows, 3)[at])
    np.testing.assert_array_equal(hashes(rows.slice(100, 50), 3), hashes(rows, 3)[100:150])


@pytest.mark.parametrize("name", TABLE.row_schema.names)
def test_hash_changes_with_every_column(name: str):
    rows = make_rows(50)
    index = rows.schema.get_field_index(name)
    if name == "tags":
        changed = pa.array([[*row.as_py(), 7] for row in rows.column(index)], LIST_TYPE)
    else:
        changed = pa.array(rows.column(index).to_numpy() + 1)
    after = rows.set_column(index, rows.schema.field(index), changed)
    assert (hashes(rows, 0) != hashes(after, 0)).all()


def test_hash_of_lists_depends_on_their_order_and_lengths():
    lists = [[1, 2], [2, 1], [1], [2], [], [1, 2, 2]]
    assert len(set(hash_rows([pa.array(lists, LIST_TYPE)], 0).tolist())) == len(lists)


def test_hash_of_a_record_is_of_its_values_and_their_names():
    day = dt.date(2024, 1, 2)
    columns = {
        "n": pa.array([1, 2, None, 2], pa.int32()),
        "f": pa.array([0.5, None, 2.0, None], pa.float32()),
        "t": pa.array(["a", "b", None, "b"]),
        "d": pa.array([day, None, day, None]),
        "b": pa.array([True, None, False, None]),
    }
    rows = pa.record_batch(columns)
    found = hash_records(rows, 5)
    assert len({*found.tolist()}) == 3
    assert found[1] == found[3]
    wider = {
        "none": pa.array([None] * 4, pa.string()),
        "t": columns["t"].cast(pa.binary()).dictionary_encode(),
        "b": columns["b"],
        "d": columns["d"],
        "n": columns["n"].cast(pa.int64()),
        "f": columns["f"].cast(pa.float64()),
    }
    np.testing.assert_array_equal(hash_records(pa.record_batch(wider), 5), found)
    for name in columns:
        fewer = pa.record_batch({n: c for n, c in columns.items() if n != name})
        assert hash_records(fewer, 5)[0] != found[0]
    swapped = pa.record_batch({"x": [1, 2], "y": [2, 1]})
    assert len({*hash_records(swapped, 0).tolist()}) == 2


@pytest.mark.parametrize(
    "values",
    [
        pa.array([[1, 2], [2, 1], [1], [], [1, 2, 0], [None, 1, 2], None]),
        pa.array([["a"], ["a", "b"], ["b", "a"]], pa.large_list(pa.string())),
        pa.array([[1.0, 2.0], [2.0, 1.0], None], pa.list_(pa.float32(), 2)),
        pa.array([[[1], [2]], [[1, 2]], [[], [1, 2]], [[2], [1]]]),
        pa.array([{"a": 1, "b": [2]}, {"a": 2, "b": [1]}, {"a": 1, "b": []}, {"a": 1}]),
        pa.array([[("a", 1)], [("b", 1)], [("a", 2)], [("a", 1), ("b", 1)]], MAP),
        pa.array([b"a", b"b", b"\xff", None]),
        pa.array([b"ab", b"ba"], pa.binary(2)),
        pa.array([uuid.UUID(int=1), uuid.UUID(int=2**127), None], pa.uuid()),
    ],
)
def test_hash_of_a_record_is_also_of_nested_values_and_of_bytes(values: pa.Array):
    label = pa.array([1] * len(values))
    rows = pa.record_batch({"label": label, "x": values})
    found = hash_records(rows, 0)
    assert len({*found.tolist()}) == len(values)
    at = np.roll(np.arange(len(values)), 1)
    np.testing.assert_array_equal(hash_records(rows.take(pa.array(at)), 0), found[at])
    np.testing.assert_array_equal(hash_records(rows.slice(1), 0), found[1:])


def test_hash_of_lines_is_of_their_bytes_and_the_seed():
    lines = [b"a,1", b"a,2", b"a,1", b""]
    found = hash_lines(lines, 3).tolist()
    assert found[0] == found[2]
    assert len({*found, *hash_lines(lines, 4).tolist()}) == 6


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.999])
def test_held_out_share_is_the_fraction(fraction: float):
    rule = SplitRule(seed=7, fraction=fraction)
    held_out = by_record(rule, make_rows(40_000)).mean()
    # Five standard deviations of a binomial share.
    assert abs(held_out - fraction) <= 5 * np.sqrt(fraction * (1 - fraction) / 40_000)


def test_seeds_give_independent_splits():
    rows = make_rows(40_000)
    first, second = (by_record(SplitRule(seed=s, fraction=0.3), rows) for s in (0, 1))
    assert abs((first & second).mean() - 0.09) < 5 * np.sqrt(0.09 * 0.91 / 40_000)


def test_larger_fraction_holds_out_the_same_rows_and_more():
    rows = make_rows(5_000)
    small, large = (by_record(SplitRule(fraction=f), rows) for f in (0.1, 0.2))
    assert (large[small]).all()


def test_rows_of_a_key_stay_together():
    rows = make_rows(3_000)
    held_out = SplitRule(fraction=0.4, keys=("user",)).held_out(TABLE, rows, False)
    users = rows.column("user").to_numpy()
    assert set(users[held_out]) | set(users[~held_out]) == set(range(50))
    assert set(users[held_out]) & set(users[~held_out]) == set()
    assert 5 <= len(set(users[held_out])) <= 40


def test_rows_from_a_time_on_are_held_out():
    held_out = SplitRule(fraction=None, from_ms=60_000).held_out(TABLE, make_rows(100), False)
    np.testing.assert_array_equal(held_out, np.arange(100) >= 60)


def test_rows_with_a_value_are_held_out():
    rule = SplitRule(fraction=None, where=("user", "7"))
    rows = make_rows(500)
    held_out = rule.held_out(TABLE, rows, False)
    np.testing.assert_array_equal(held_out, rows.column("user").to_numpy() == 7)
    assert 0 < held_out.sum() < 100


@pytest.mark.parametrize("eval_file", [False, True])
def test_rows_of_a_given_file_are_held_out(eval_file: bool):
    held_out = SplitRule(fraction=None).held_out(TABLE, make_rows(9), eval_file)
    assert held_out.tolist() == [eval_file] * 9


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--eval-from=2020-01-01", "--eval-fraction=0.1"), "give one of --eval-fraction"),
        (("--eval-input", "x", "--split-key=C1"), "give one of --eval-fraction"),
        (("--eval-from=yesterday",), "--eval-from must be a time such as"),
        (("--eval-from=2020-01-01",), "--eval-from needs a timestamp column"),
        (("--split-key=I1",), "--split-key I1 must be a key or categorical column"),
        (("--split-key=nope",), "there is no column 'nope'"),
        (("--eval-where=C1",), "--eval-where must be COLUMN=VALUE, got 'C1'"),
        (("--eval-where=C1=x",), "--eval-where C1=x: must be a hexadecimal id"),
        (("--eval-where=I1=2",), "--eval-where I1: must be a key or categorical column"),
        (("--eval-where=C1=a", "--split-key=C1"), "give one of --eval-fraction"),
    ],
)
def test_split_that_cannot_be_is_a_usage_error(flags: tuple[str, ...], message: str):
    with pytest.raises(UsageError, match=message):
        parse_options(["--input=a", "--output=b", *flags], "criteo")


def test_flags_make_the_rule():
    flags = ["--input=a", "--output=b", "--schema=avazu", "--seed=4"]
    assert parse_options(flags).split == SplitRule(seed=4)
    at = parse_options([*flags, "--eval-from=1970-01-02"]).split
    assert at == SplitRule(seed=4, fraction=None, from_ms=86_400_000)
    key = parse_options([*flags, "--split-key=device_ip", "--eval-fraction=0.3"]).split
    assert key == SplitRule(seed=4, fraction=0.3, keys=("device_ip",))
    where = parse_options([*flags, "--eval-where=device_ip=0a"]).split
    assert where == SplitRule(seed=4, fraction=None, where=("device_ip", "0a"))
    files = parse_options([*flags, "--eval-input", "x"])
    assert (files.split, files.held_out.eval_input) == (SplitRule(seed=4, fraction=None), ("x",))
