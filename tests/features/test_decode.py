"""A column decoded at once holds what its texts give one by one; the bad ones are told by row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedps.errors import DatasetError, UsageError
from embedps.features.decode import decode_batch, decode_column
from embedps.features.table_columns import Column
from embedps.features.table_schema import Table
from embedps.features.text_values import fingerprint, text_decoder
from embedps.pipelines.ingestion.line_blocks import LineBlock
from embedps.pipelines.ingestion.line_parser import LineParser

COLUMNS = {
    "label": Column(name="c", role="label", type="number"),
    "rating": Column(name="c", role="label", type="number", positive_from=3.5),
    "integer": Column(name="c", role="numeric", type="integer"),
    "float": Column(name="c", role="numeric", type="float"),
    "hex": Column(name="c", role="categorical", type="hex"),
    "id": Column(name="c", role="categorical", type="integer"),
    "string": Column(name="c", role="categorical", type="string"),
    "weight": Column(name="c", role="weight", type="float"),
    "seconds": Column(name="c", role="timestamp", type="seconds"),
    "milliseconds": Column(name="c", role="timestamp", type="milliseconds"),
    "text": Column(name="c", role="timestamp", type="text", format="%y%m%d%H"),
}
PLAIN = {
    "label": ["0", "1"],
    "rating": ["1", "3.5", "5"],
    "float": ["1.5", "-2e3", "0", ".5", "7."],
    "hex": ["0000000a", "DEADbeef", "ffffffff"],
    "text": ["14102100", "14123123"],
    "weight": ["0", "1.5", "3e-2"],
}
ODD = ["", "é", "+1", "1_0", "0x1F", "1e999", "-1", "nan", "inf", " 1", "1 ", "a" * 17, "9" * 30]
ODD += ["-9223372036854775808", "9223372036854775807", "9223372036854775808", "00000000001"]


def texts_of(name: str, odd: bool) -> st.SearchStrategy[list[str | None]]:
    plain = st.sampled_from(PLAIN.get(name, ["0", "1", "-5", "42", "1234567"]))
    one = st.one_of(plain, st.none(), st.sampled_from(ODD)) if odd else plain
    return st.lists(one, min_size=1, max_size=12)


@pytest.mark.parametrize("name", COLUMNS)
def test_least_integer_is_what_its_text_is(name: str):
    text = str(-(2**63))
    _, bad = decode_column(COLUMNS[name], pa.array([text], pa.string()), ("",))
    wanted = {}
    try:
        text_decoder(COLUMNS[name])(text)
    except ValueError as error:
        wanted[0] = str(error)
    assert bad == wanted


@pytest.mark.parametrize("odd", [False, True], ids=["plain", "odd"])
@pytest.mark.parametrize("name", COLUMNS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_column_is_what_its_texts_are_one_by_one(name: str, odd: bool, data: st.DataObject):
    column = COLUMNS[name]
    texts = data.draw(texts_of(name, odd))
    array, bad = decode_column(column, pa.array(texts, pa.string()), ("",))
    assert array.type == column.row_type
    assert array.null_count == 0
    decode = text_decoder(column)
    for row, text in enumerate(texts):
        if not text:
            wanted: Any = {"numeric": math.nan, "categorical": -1}.get(column.role)
            reason = None if wanted is not None else "must not be missing"
        else:
            try:
                wanted, reason = decode(text), None
            except ValueError as error:
                reason = str(error)
        assert bad.get(row) == reason
        if reason is None:
            value = array[row].as_py()
            kind = {"label": "f4", "weight": "f4", "numeric": "f8"}.get(column.role, "i8")
            np.testing.assert_equal(np.asarray(value, kind), np.asarray(wanted, kind))


UNSIGNED = {"0": 0, "7.0": 7, "-3.": -3, str(2**63): -(2**63), str(2**64 - 3): -3}


@pytest.mark.parametrize("role", ["categorical", "key", "list"])
def test_integer_ids_may_be_unsigned_or_written_with_a_point(role: str):
    column = Column(name="c", role=role, type="integer")
    ids, bad = decode_column(column, pa.array(UNSIGNED, pa.string()), ("",))
    assert bad == {}
    wanted = [[value] if role == "list" else value for value in UNSIGNED.values()]
    assert ids.to_pylist() == wanted
    for text in (str(2**64 - 1), str(2**64 - 2), str(2**64), str(-(2**63) - 1), "7.5", "1e3"):
        _, bad = decode_column(column, pa.array([text]), ("",))
        assert text in bad[0]


def test_hexadecimal_ids_are_the_integers_of_the_same_bits():
    values = [2**63 - 1, 2**63, 2**64 - 3]
    columns = [Column(name="c", role="categorical", type=kind) for kind in ("hex", "integer")]
    texts = [[f"{value:016x}" for value in values], [str(value) for value in values]]
    decoded = [
        decode_column(*each, ())[0] for each in zip(columns, map(pa.array, texts), strict=True)
    ]
    assert decoded[0] == decoded[1]


@pytest.mark.parametrize("name", ["float", "label", "weight"])
@pytest.mark.parametrize("value", ["1e39", "-1e39", "3.5e38", "inf", "-inf", "nan"])
def test_number_that_float32_cannot_hold_is_bad_in_text_and_typed(name: str, value: str):
    column = COLUMNS[name]
    if name == "label":
        column = Column(name="c", role="label", type="number", task="number")
    for array in (pa.array(["1", value]), pa.array([1.0, float(value)])):
        values, bad = decode_column(column, array, ("",))
        is_missing = name == "float" and value == "nan" and array.type == pa.float64()
        assert list(bad) == ([] if is_missing else [1])
        assert values[0].as_py() == 1
    assert decode_column(column, pa.array(["3.4028234e38"]), ())[1] == {}


GAPS = {"3,5,": [3, 5], ",4": [4], "3,,5": [3, 5], " 5": [5], "3, 5": [3, 5], " ": [], ",": []}
WRITTEN = {
    "[27, 9]": [27, 9],
    " [] ": [],
    "['27', '9']": [27, 9],
    '["27","9"]': [27, 9],
    "[27  9]": [27, 9],
    "(27, 9)": [27, 9],
    "(27,)": [27],
    "{27, 9}": [27, 9],
    "[27, None, 9]": [27, 9],
    "[18446744073709551613]": [-3],
}


@pytest.mark.parametrize(("text", "wanted"), (GAPS | WRITTEN).items())
def test_list_in_text_has_no_gaps_and_may_be_written_as_json_or_python(
    text: str, wanted: list[int]
):
    for kind in ("integer", "string"):
        column = Column(name="c", role="list", type=kind, separator=",")
        lists, bad = decode_column(column, pa.array(["1,2", text, None, text]), ())
        ids = [fingerprint(str(i % 2**64)) if kind == "string" else i for i in wanted]
        first = [fingerprint("1"), fingerprint("2")] if kind == "string" else [1, 2]
        assert (lists.to_pylist(), bad) == ([first, ids, [], ids], {})


def test_elements_of_a_written_list_are_texts_as_they_are():
    column = Column(name="c", role="list", type="string", separator="|")
    texts = ["['a, b', \" c\"]", '["d\\u00e9"]', "(no genres listed)", "e |f"]
    lists, bad = decode_column(column, pa.array(texts), ())
    wanted = [["a, b", " c"], ["dé"], ["(no genres listed)"], ["e", "f"]]
    assert lists.to_pylist() == [[fingerprint(text) for text in each] for each in wanted]
    assert bad == {}


@pytest.mark.parametrize("text", ["[a, b]", "[1, [2]]", '{"a": 1}', "[1, True]", "{a,b}", "[f()]"])
def test_brackets_that_are_no_list_are_named(text: str):
    column = Column(name="c", role="list", type="string", separator=",")
    _, bad = decode_column(column, pa.array(["1", text]), ())
    assert list(bad) == [1]
    assert "must be a list as JSON or Python writes it" in bad[1]
    assert text in bad[1]


def test_numbers_of_a_list_keep_their_places():
    column = Column(name="c", role="float_list", type="float", separator=",")
    texts = ["1, 2.5", "[1, 2.5]", "[1.  2.5]", "1,,2", "[1, null]", "1,", ""]
    lists, bad = decode_column(column, pa.array(texts), ("",))
    assert lists.slice(0, 3).to_pylist() == [[1, 2.5]] * 3
    assert bad == dict.fromkeys([3, 4, 5], "must have no missing number")
    assert lists[6].as_py() == []
    spaced = Column(name="c", role="float_list", type="float")
    assert decode_column(spaced, pa.array([" 1  2.5 "]), ())[0].to_pylist() == [[1, 2.5]]


@settings(max_examples=60, deadline=None)
@given(
    lists=st.lists(
        st.one_of(st.none(), st.lists(st.sampled_from(["1", "-7", "x", "33"]), max_size=4)),
        min_size=1,
        max_size=8,
    )
)
def test_lists_of_texts_and_of_values_are_the_same(lists: list[list[str] | None]):
    column = Column(name="c", role="list", type="integer", separator="|")
    texts = pa.array([None if x is None else "|".join(x) for x in lists], pa.string())
    array, bad = decode_column(column, texts, ("",))
    assert set(bad) == {row for row, x in enumerate(lists) if x and "x" in x}
    for row, x in enumerate(lists):
        if row not in bad:
            assert array[row].as_py() == [int(i) for i in x or []]
    for kind in (pa.list_(pa.string()), pa.large_list(pa.string())):
        again, bad_again = decode_column(column, pa.array(lists, kind), ("",))
        assert set(bad_again) == set(bad)
        assert [again[i].as_py() for i in range(len(lists)) if i not in bad] == [
            array[i].as_py() for i in range(len(lists)) if i not in bad
        ]


def test_slice_of_a_batch_is_decoded_as_the_slice():
    table = Table.load("criteo")
    column = pa.array([None, "0000000a", "ffffffff", None, "00000001"])
    batch = pa.record_batch({"C1": column, "I1": pa.array(["1", None, "-3", "4", "5"])})
    rows, bad = decode_batch(table, batch.slice(1, 3))
    assert bad == {}
    assert rows.column("C1").to_pylist() == [10, 0xFFFFFFFF, -1]
    np.testing.assert_array_equal(rows.column("I1").to_numpy(), [math.nan, -3, 4])


def test_fingerprint_is_never_an_id_of_meaning_and_spreads():
    ids = {fingerprint(f"text {i}") for i in range(10_000)}
    assert len(ids) == 10_000
    assert not ids & {-1, -2}
    assert 4_500 < sum(i < 0 for i in ids) < 5_500


QUOTED = Table.parse(
    {
        "quote": '"',
        "header": False,
        "column": [
            {"name": "y", "as": "label"},
            {"name": "x", "as": "numeric"},
            {"name": "s", "as": "categorical", "type": "string"},
        ],
    }
)


def test_quoted_field_holds_the_delimiter_and_quotes():
    data = b'1,"2",say\n0,3,"a, ""b"""\n'
    rows, bad = LineParser(QUOTED).parse(LineBlock(first_line=1, num_lines=2, data=data))
    assert bad == []
    assert rows.column("x").to_pylist() == [2.0, 3.0]
    assert rows.column("s").to_pylist() == [fingerprint("say"), fingerprint('a, "b"')]


@pytest.mark.parametrize(
    "kind",
    [lambda value: pa.list_(value), lambda value: pa.large_list(value), lambda v: pa.list_(v, 1)],
    ids=["list", "large_list", "fixed_size_list"],
)
@pytest.mark.parametrize(
    ("role", "type_", "value_type", "values", "missing"),
    [
        ("label", "number", pa.float32(), [1, 0, 1, 0], None),
        ("numeric", "float", pa.float64(), [1.5, -2.0, None, 0.25], math.nan),
        ("categorical", "integer", pa.int32(), [7, -3, None, 2**30], -1),
        ("categorical", "hex", pa.string(), ["ff", "0a", None, "1"], -1),
        ("timestamp", "seconds", pa.int64(), [1, 2, 3, 4], None),
    ],
)
def test_lists_of_one_are_read_as_the_value(
    kind: Any, role: str, type_: str, value_type: pa.DataType, values: list[Any], missing: Any
):
    column = Column(name="c", role=role, type=type_)
    flat, bad = decode_column(column, pa.array(values, value_type), ())
    assert not bad
    lists = pa.array([[value] for value in values], kind(value_type))
    for array, rows in ((lists, flat), (lists.slice(1, 2), flat.slice(1, 2))):
        decoded, bad = decode_column(column, array, ())
        assert (decoded.type, bad) == (column.row_type, {})
        np.testing.assert_array_equal(decoded.to_numpy(), rows.to_numpy())
    with_null = pa.array([[values[0]], None], kind(value_type))
    decoded, bad = decode_column(column, with_null, ())
    if missing is None:
        assert list(bad) == [1]
    else:
        assert not bad
        np.testing.assert_array_equal(decoded.to_numpy()[1], missing)


def test_lists_of_another_length_are_bad_rows_where_a_scalar_is_declared():
    column = Column(name="c", role="categorical", type="integer")
    array = pa.array([[5], [], None, [6, 7], [8]], pa.list_(pa.int64()))
    decoded, bad = decode_column(column, array, ())
    assert bad == {3: "must be one value or a list of one, got a list of 2"}
    assert [decoded[i].as_py() for i in (0, 1, 2, 4)] == [5, -1, -1, 8]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64(), 2), pa.list_(pa.list_(pa.int64())), pa.list_(pa.list_(pa.int8()))]
)
def test_lists_that_cannot_be_one_value_are_one_error(kind: pa.DataType):
    column = Column(name="c", role="categorical", type="integer")
    with pytest.raises(
        DatasetError, match=r"must hold one value per row, or lists of one, it holds"
    ):
        decode_column(column, pa.nulls(2, kind), ())


@pytest.mark.parametrize(
    ("role", "array"),
    [
        ("categorical", pa.array(["a", None, "NA", "", "b", "a"])),
        ("categorical", pa.array(["a", "b", "a"]).dictionary_encode()),
        ("categorical", pa.array([b"\xc3\xa9", None], pa.large_binary())),
        ("categorical", pa.array([7, None, -(2**40)])),
        ("categorical", pa.array([["a"], [], None, ["b"]], pa.list_(pa.string()))),
        ("list", pa.array(["a|b | |", None, "NA", '["x|y", 7]', "NA|a", "c"])),
        ("list", pa.array([["a", "NA", ""], None, [], ["b", None]])),
        ("list", pa.array([[1, 2], [3]])),
        ("list", pa.array([11711, None])),
    ],
)
def test_each_text_of_an_id_is_told_with_it(role: str, array: pa.Array):
    told: dict[str, int] = {}
    column = Column(name="c", role=role, type="string", separator="|", on_text=told.__setitem__)
    ids, bad = decode_column(column, array, ("", "NA"))
    assert not bad
    ids = ids.flatten() if pa.types.is_list(ids.type) else ids
    assert {*told.values()} == {*ids.to_pylist()} - {-1}
    assert told == {text: fingerprint(text) for text in told}
    assert told


LOOSE = {
    "binary": (Column(name="c", role="label", type="number", optional=True), math.nan, "1"),
    "rating": (
        Column(name="c", role="label", type="number", optional=True, positive_from=3.0),
        math.nan,
        "4",
    ),
    "soft": (
        Column(name="c", role="label", type="number", optional=True, soft=True),
        math.nan,
        "1",
    ),
    "number": (
        Column(name="c", role="label", type="number", optional=True, task="number"),
        math.nan,
        "1.5",
    ),
    "classes": (
        Column(name="c", role="label", type="number", optional=True, task="classes", classes=3),
        -1,
        "2",
    ),
}
WRONG = {
    "binary": ["2", "-1", "0.5"],
    "soft": ["1.01", "-0.1"],
    "rating": [],
    "number": [],
    "classes": ["3", "-1"],
}


@pytest.mark.parametrize("kind", LOOSE)
def test_an_optional_label_may_be_missing_and_no_other(kind: str):
    column, missing, good = LOOSE[kind]
    texts = pa.array([good, None, "", *WRONG[kind], "nan"])
    values, bad = decode_column(column, texts, ("",))
    np.testing.assert_array_equal(values.to_numpy()[1:3], [missing] * 2)
    assert not np.isnan(values.to_numpy()[0])
    assert set(bad) == set(range(3, len(texts)))
    typed = pa.array([float(good), None, math.nan, *map(float, WRONG[kind]), math.inf])
    values, bad = decode_column(column, typed, ())
    np.testing.assert_array_equal(values.to_numpy()[1:3], [missing] * 2)
    assert set(bad) == set(range(3, len(typed)))


@pytest.mark.parametrize("texts", [["0.25", "0", "1"], [0.25, 0.0, 1.0]])
def test_a_soft_label_is_the_number_and_may_not_be_missing(texts: list[Any]):
    column = Column(name="c", role="label", type="number", soft=True)
    values, bad = decode_column(column, pa.array([*texts, None]), ("",))
    assert values.to_pylist()[:3] == [0.25, 0, 1]
    assert bad == {3: "must not be missing"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1.234,5", 1234.5),
        ("-1.000.000", -1e6),
        ("0,25", 0.25),
        (",5e2", 50.0),
        ("1234", 1234.0),
        (None, math.nan),
        ("1.5", None),  # no group of three digits: not 15
        ("1234.567", None),
        ("0.567", None),
        ("1,2,3", None),
        ("1,234.5", None),
        ("", None),
        ("é", None),
    ],
)
def test_numbers_with_marks_are_read_or_told(text: str | None, wanted: float | None):
    marks: dict[str, Any] = {"decimal": ",", "thousands": "."}
    numeric = Column(name="c", role="numeric", type="float", **marks)
    values, bad = decode_column(numeric, pa.array(["0,5", text], pa.string()), ())
    if wanted is None:
        assert bad == {1: f"must be a number such as 1.234,5, or empty, got {text!r}"}
    else:
        assert not bad
        assert values.to_pylist()[1] == pytest.approx(wanted, nan_ok=True)
    whole = Column(name="c", role="numeric", type="integer", **marks)
    assert decode_column(whole, pa.array(["1.000"]), ())[0].to_pylist() == [1000.0]
    floats = Column(name="c", role="float_list", type="float", separator=";", **marks)
    assert decode_column(floats, pa.array(["1,5;1.000"]), ())[0].to_pylist() == [[1.5, 1000.0]]
    typed, bad = decode_column(numeric, pa.array([1.5, None]), ())
    assert not bad
    assert typed.to_pylist()[0] == 1.5


def test_marks_and_two_texts_are_declared_where_they_have_a_meaning():
    for fields, said in (
        ({"role": "categorical", "type": "string", "decimal": ","}, "belong to numbers"),
        ({"role": "numeric", "type": "float", "thousands": "."}, "must be a character"),
        ({"role": "numeric", "type": "float", "decimal": ",,"}, "must be a character"),
        ({"role": "numeric", "type": "float", "decimal": "e"}, "no letters"),
        ({"role": "label", "type": "number", "classes": ("a", "b", "c")}, "may have two texts"),
        ({"role": "label", "type": "number", "classes": ("a", "b"), "soft": True}, "either"),
    ):
        with pytest.raises(UsageError, match=said):
            Column(name="c", **fields)


def test_label_of_two_texts_is_binary():
    column = Column(name="c", role="label", type="number", classes=("no", "yes"), optional=True)
    values, bad = decode_column(column, pa.array(["yes", "no", None, "Yes"]), ())
    assert values.type == pa.float32()
    assert values.to_pylist()[:2] == [1, 0]
    assert math.isnan(values.to_pylist()[2])
    assert bad == {3: "must be one of 'no' or 'yes', got 'Yes'"}
    with pytest.raises(DatasetError, match="texts"):
        decode_column(column, pa.array([True]), ())
    node = column.to_json()
    assert (node["task"], node["classes"]) == ("binary", ["no", "yes"])
