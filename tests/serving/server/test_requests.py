"""Requests of tensors become columns; what does not fit is refused by name."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from embedps.data.columns import Columns
from embedps.data.unit_reader import NUMERICS
from embedps.features.text_values import fingerprint
from embedps.features.transforms import Transforms
from embedps.serving.server.json_bodies import columns_of, rows_of
from embedps.serving.server.made_columns import of_raw
from embedps.serving.server.messages import PredictRequest
from embedps.serving.server.request_error import RequestError
from embedps.serving.server.requests import RequestFormat, concatenate, split
from embedps.serving.server.tensor_values import fill, read_vector
from tests.pipelines.shop import load as load_table

FORMAT = RequestFormat(
    Columns(numerics=("I1",), ids=("C1", "C2"), id_lists=("tags",)), missing_id=-1
)


def ints(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


def floats(values: list[float]) -> np.ndarray:
    return np.array(values, np.float32)


def arrays(**change: Any) -> dict[str, np.ndarray]:
    given = {
        "I1": floats([0.5, 1.5]),
        "C1": ints([1, 2]),
        "C2": ints([3]),
        "tags": ints([7, 8, 9]),
        "tags_lengths": ints([1, 2]),
    }
    return {name: value for name, value in (given | change).items() if value is not None}


def test_one_row_counts_for_all_and_batches_keep_the_order() -> None:
    one = FORMAT.request(arrays(tags=ints([4, 5]), tags_lengths=ints([2])))
    assert one.floats.tolist() == [[0.5, 1.5]]
    assert one.integers.tolist() == [[1, 2], [3, 3]]
    assert [part.tolist() for part in one.lists[0]] == [[4, 5, 4, 5], [2, 2]]
    both = concatenate([one, FORMAT.request(arrays())])
    assert both.rows == 4
    assert both.integers.tolist() == [[1, 2, 1, 2], [3, 3, 3, 3]]
    columns = FORMAT.columns(*map(tf.constant, both.arguments()))
    assert columns["tags"].to_list() == [[4, 5], [4, 5], [7], [8, 9]]
    assert columns[NUMERICS].numpy().tolist() == [[0.5], [1.5], [0.5], [1.5]]
    empty = {name: array[:0] for name, array in arrays().items()}
    assert FORMAT.request(empty | {"C2": ints([3])}).rows == 0


@settings(max_examples=50, deadline=None)
@drawn(
    lengths=st.lists(st.integers(0, 5), max_size=30),
    max_rows=st.integers(1, 40),
    max_values=st.integers(1, 12),
)
def test_parts_make_the_request_again(lengths: list[int], max_rows: int, max_values: int) -> None:
    rows, values = len(lengths), sum(lengths)
    whole = FORMAT.request(
        {
            "I1": np.arange(rows, dtype=np.float32),
            "C1": np.arange(rows),
            "C2": np.arange(rows) + 100,
            "tags": np.arange(values),
            "tags_lengths": ints(lengths),
        }
    )
    parts = [*split(whole, max_rows=max_rows, max_values=max_values)]
    for part in parts:
        assert part.rows == part.floats.shape[1] == part.integers.shape[1] == len(part.lists[0][1])
        assert part.rows <= max_rows
        assert len(part.lists[0][0]) <= max_values or part.rows == 1
    assert all(part.rows for part in parts) or rows == 0
    # Each takes as many records as it may.
    for part, after in pairwise(parts):
        more = len(part.lists[0][0]) + after.lists[0][1][0]
        assert part.rows == max_rows or more > max_values
    again = concatenate(parts)
    assert again.rows == rows
    for found, wanted in zip(again.arguments(), whole.arguments(), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"C1": None}, "lacks C1"),
        ({"C9": ints([1])}, "has C9 besides"),
        ({"C1": ints([1, 2, 3])}, "one row or all 3, but that of column 'I1' has 2"),
        ({"tags_lengths": ints([1, 1])}, "add up to its 3 values"),
        ({"I1": floats([0.5, np.inf])}, "'I1' must have numbers that are finite in float32, or"),
        ({"I1": floats([-np.inf])}, "'I1' must have numbers that are finite in float32, or NaN"),
        ({"tags_lengths": ints([-1, 4])}, "must be 0 or more"),
        ({"tags_lengths": ints([2**62, 2**62])}, "must be 0 or more and add up"),
    ],
)
def test_what_does_not_fit_is_refused(change: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        FORMAT.request(arrays(**change))
    assert refused.value.code == "INVALID_ARGUMENT"


def tensor(**fields: Any) -> Any:
    made = PredictRequest().inputs["x"]
    made.dtype = fields.pop("dtype", tf.float32.as_datatype_enum)
    for size in fields.pop("shape", [2]):
        made.tensor_shape.dim.add(size=size)
    for name, value in fields.items():
        if name == "tensor_content":
            made.tensor_content = value
        else:
            getattr(made, name).extend(value)
    return made


def test_texts_are_no_content() -> None:
    enum = tf.string.as_datatype_enum
    texts = tensor(dtype=enum, string_val=[b"a\0", b""])
    assert read_vector("x", texts, tf.string, most=2).tolist() == [b"a\0", b""]
    with pytest.raises(RequestError, match="has 0 values"):
        read_vector("x", tensor(dtype=enum, tensor_content=bytes(16)), tf.string, most=2)


def test_vectors_are_read_in_each_form() -> None:
    filled = PredictRequest().inputs["x"]
    fill(filled, floats([1, 2]))
    for each in (
        filled,
        tensor(float_val=[1, 2]),
        tensor(tensor_content=floats([1, 2]).tobytes(), shape=[2, 1]),
    ):
        assert read_vector("x", each, tf.float32, most=2).tolist() == [1, 2]
    assert read_vector("x", tensor(float_val=[3]), tf.float32, most=2).tolist() == [3, 3]
    assert read_vector("x", tensor(shape=[0]), tf.float32, most=2).tolist() == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": 9}, "must be float32 but is int64"),
        ({"dtype": 999}, "dtype number 999"),
        ({"shape": []}, r"of shape \[rows\] but is of shape \[\]"),
        ({"shape": [2, 2]}, r"of shape \[2, 2\]"),
        ({"shape": [-1]}, r"of shape \[-1\]"),
        ({"shape": [2**40], "float_val": [1]}, "at most 5 values"),
        ({"tensor_content": b"123"}, "must have 8 bytes"),
        ({"float_val": [1, 2, 3]}, "has 3 values"),
        ({}, "has 0 values"),
    ],
)
def test_malformed_tensors_are_refused(fields: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_vector("x", tensor(**fields), tf.float32, most=5)


def read_json(text: str, form: Any = FORMAT) -> Any:
    return form.request(columns_of(json.loads(text), form))


REST = '{"I1": [null], "C2": [3], "tags": [7], "tags_lengths": [1], "C1": %s}'


def test_ids_of_json_keep_their_64_bits_and_null_is_the_missing_id() -> None:
    ids = [2**53 + 1, 2**63 - 1, -5, 2**63, 2**64 - 3]
    wanted = [2**53 + 1, 2**63 - 1, -5, -(2**63), -3]  # from 2^63 on, the id of the same bits
    for given in (ids, [str(each) for each in ids]):
        assert read_json(REST % json.dumps(given)).integers[0].tolist() == wanted
    assert read_json(REST % '[null, "7", 8]').integers[0].tolist() == [-1, 7, 8]
    listed = read_json(REST.replace('"tags": [7]', '"tags": [null]') % "[1]")
    assert [part.tolist() for part in listed.lists[0]] == [[-1], [1]]
    rows = [{"I1": 0.5, "C1": None, "C2": "9007199254740993", "tags": ["1", None]}]
    made = FORMAT.request(rows_of(rows, FORMAT))
    assert made.integers.tolist() == [[-1], [2**53 + 1]]
    assert made.lists[0][0].tolist() == [1, -1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("[1.5]", "'C1' must hold whole numbers, or their digits as texts, but has 1.5; null is a"),
        ("[3.0]", "but has 3.0"),
        ("[1e17]", r"but has 1e\+17"),
        ('["1e17"]', 'but has "1e17"'),
        ('["1.5"]', 'but has "1.5"'),
        ('["x"]', 'but has "x"'),
        ("[true]", "but has true"),
        ("[[1]]", r"but has \[1\]"),
        ('["18446744073709551616"]', "of 64 bits but has 18446744073709551616"),
        ("[-9223372036854775809]", "of 64 bits but has -9223372036854775809"),
    ],
)
def test_other_ids_of_json_are_refused(given: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_json(REST % given)
    with pytest.raises(RequestError, match="'tags_lengths' must hold whole numbers"):
        read_json((REST % "[1]").replace('"tags_lengths": [1]', '"tags_lengths": [null]'))


RAW_SCHEMA = """
missing = ["", "NA"]
column = [
  { name = "bought", as = "label" },
  { name = "user", as = "categorical", type = "string" },
  { name = "tags", as = "list", type = "string" },
  { name = "site", as = "categorical", type = "hex" },
  { name = "at", as = "timestamp", format = "%Y-%m-%d" },
]
[[feature]]
name = "day"
from = "at"
transform = ["weekday"]
"""


def test_raw_values_of_json_are_texts_where_the_column_is_text(tmp_path: Path) -> None:
    transforms = Transforms(table=load_table(tmp_path, RAW_SCHEMA))
    columns = Columns(ids=("user", "site", "day"), id_lists=("tags",))
    whole = RequestFormat(columns, missing_id=-1)
    raw = of_raw(whole, columns, transforms, missing_id=-1)
    assert raw.specs["user"].dtype == raw.specs["tags"].dtype == raw.specs["at"].dtype == tf.string
    rows: list[dict[str, Any]] = [
        {"user": "ann", "tags": ["é", "b c"], "site": "ff", "at": "2026-01-05"},
        {"user": None, "tags": [], "site": None, "at": "2026-01-06"},
        {"user": "NA", "tags": ["b c"], "site": "NA", "at": "2026-01-07"},
    ]
    found = raw.request(rows_of(rows, raw))
    by_name = dict(zip(whole.integers, found.integers.tolist(), strict=True))
    assert by_name == {
        "user": [fingerprint("ann"), -1, -1],
        "site": [255, -1, -1],
        "day": [0, 1, 2],  # from Monday
    }
    values, lengths = found.lists[0]
    assert values.tolist() == [fingerprint(each) for each in ("é", "b c", "b c")]
    assert lengths.tolist() == [2, 0, 1]
    with pytest.raises(RequestError, match="column 'at': row 1: must be a time of format"):
        raw.request(rows_of([rows[0], {**rows[1], "at": "yesterday"}], raw))
    with pytest.raises(RequestError, match="'user' must hold texts"):
        rows_of([{**rows[0], "user": 7}], raw)


def test_texts_in_a_list_are_the_ids_of_the_dataset(tmp_path: Path) -> None:
    transforms = Transforms(table=load_table(tmp_path, RAW_SCHEMA))
    tags: list[list[Any]] = [["NA", "b"], [""], ["b", None, " c"]]
    others = {name: ["7"] * 3 for name in ("user", "site")} | {"at": ["2026-01-05"] * 3}
    wanted = transforms.apply(pa.record_batch({"tags": tags, **others}))["tags"].to_pylist()
    columns = Columns(id_lists=("tags",))
    raw = of_raw(RequestFormat(columns, missing_id=-1), columns, transforms, missing_id=-1)
    values, lengths = raw.request(rows_of([{"tags": each} for each in tags], raw)).lists[0]
    assert values.tolist() == [each for row in wanted for each in row]
    assert lengths.tolist() == [2, 1, 3]


def test_raw_values_must_have_the_columns_that_ingestion_joined(tmp_path: Path) -> None:
    schema = RAW_SCHEMA.replace('{ name = "site", as = "categorical", type = "hex" },', "")
    schema += """
[[join]]
file = "users.csv"
on = "user"
column = [{ name = "site", as = "categorical", type = "hex" }]
"""
    transforms = Transforms(table=load_table(tmp_path, schema))
    columns = Columns(ids=("user", "site"))
    raw = of_raw(RequestFormat(columns, missing_id=-1), columns, transforms, missing_id=-1)
    found = raw.request(rows_of([{"user": "ann", "site": "ff"}], raw))
    assert sorted(found.integers.ravel().tolist()) == sorted([fingerprint("ann"), 255])
    with pytest.raises(RequestError, match="lacks site"):
        rows_of([{"user": "ann"}], raw)
