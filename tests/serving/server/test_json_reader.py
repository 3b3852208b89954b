"""What the reader in C++ reads of JSON, Python's `json` reads as the same, or both refuse it."""

from __future__ import annotations

import base64
import json
import tracemalloc
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from embedps.data.columns import Columns
from embedps.serving.inputs import lengths_name
from embedps.serving.server import json_reader
from embedps.serving.server.json_reader import JsonRequest
from embedps.serving.server.request_error import RequestError
from embedps.serving.server.request_size import MAX_ROWS, Room
from embedps.serving.server.requests import RequestFormat, check_names

MIB = 1 << 20


class Tensors:
    """A form whose request is its tensors."""

    def __init__(
        self, lists: tuple[str, ...] = (), optional: frozenset[str] = frozenset(), **dtypes: Any
    ) -> None:
        self.specs = {name: tf.TensorSpec([None], dtype) for name, dtype in dtypes.items()}
        for name in lists:
            self.specs[lengths_name(name)] = tf.TensorSpec([None], tf.int64)
        self.lists, self.list_values = lists, frozenset(lists)
        self.missing: Mapping[str, int | bytes] = {"I": -1, "L": -7, "T": b"NA", "U": -1, "M": b""}
        self.width = len(dtypes)
        self._optional = optional

    def check_names(self, names: Set[str]) -> None:
        check_names(self.specs, names | self._optional)

    def request(self, given: Mapping[str, Any]) -> Any:
        self.check_names(given.keys())
        return dict(given)


MIXED = Tensors(
    ("L", "M"),
    I=tf.int64,
    K=tf.int64,
    F=tf.float32,
    D=tf.float64,
    T=tf.string,
    U=tf.string,
    X=tf.string,
    L=tf.int64,
    M=tf.string,
    optional=frozenset({"K", "X"}),
)
FORMS = {
    "mixed": MIXED,
    "integers": Tensors(I=tf.int64),
    "texts": Tensors(X=tf.string),
    "named": Tensors(b64=tf.string),
    "accented": Tensors(é=tf.int64, I=tf.int64),
    "two": Tensors(I=tf.int64, F=tf.float32),
}


@contextmanager
def python_reads(most: int) -> Iterator[None]:
    before, json_reader.SMALL_BYTES = json_reader.SMALL_BYTES, most
    try:
        yield
    finally:
        json_reader.SMALL_BYTES = before


def read(data: bytes, form: Any, most: int) -> Any:
    """Gives tensors by name as lists of values' bits, or the refusal's code."""
    with python_reads(most), Room().place() as place:
        try:
            body = JsonRequest(data)
            arrays: Any = body.read(form, place)
        except RequestError as error:
            return error.code
    return body.signature, {
        name: (array.dtype.str, array.tolist() if array.dtype == object else array.tobytes())
        for name, array in arrays.items()
    }


def assert_equal(data: bytes, form: Any) -> Any:
    found = read(data, form, most=-1)
    assert found == read(data, form, most=1 << 30)
    return found


NUMBERS = [
    "0", "-0", "7", "-5", "9007199254740993", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "-9223372036854775809", "18446744073709551615",
    "18446744073709551616", "0.5", "-0.0", "1e400", "-1e400", "1e-400", "5e-324", "1E5", "2.5e+3",
    "1e0", "3.4028236e38", "16777217", "1" + "0" * 30, "1" + "0" * 308, "1" + "0" * 309,
    "0.1000000000000000055511151231257827021181583404541015625", "NaN", "Infinity", "-Infinity",
    "true", "false", "null", "33554433.5",
]  # fmt: skip
WRONG = [
    "01", "1.", ".5", "-", "+1", "1e", "1e+", "nul", "-NaN", "Inf", "--1", "'a'", '"', '"\\x"',
    '"\\u12"', '"\\u12g4"', '"a\nb"', "", "[1,]", "[,1]", "{]", "1 2", "tru", '"\x00"',
]  # fmt: skip
TEXTS = [
    '"a"', '""', '"é"', '"\\u00e9"', '"\\ud83d\\ude00"', '"\\ud83d"', '"\\ude00\\ud83d"', '"12"',
    '"-3"', '"007"', '"\\u0031"', '"18446744073709551615"', '"1.5"', '"\\"\\\\\\/\\b\\f\\n\\r\\t"',
    '{"b64": "QQ=="}', '{"b64": "QQ="}', '{"b64": "QUI="}', '{"b64": "QUJD"}', '{"b64": "QUJD="}',
    '{"b64": "QUJD=="}', '{"b64": "QUJD==="}', '{"b64": "QUJD===="}',
    '{"b64": "===="}', '{"b64": "Q==="}', '{"b64": "Q"}', '{"b64": ""}',
    '{"b64": "=="}', '{"b64": "QR=="}', '{"b64": "Q Q="}', '{"b64": "-_=="}', '{"b64": 1}',
    '{"b64": "?", "b64": "QQ=="}', '{"b64": "QQ==", "a": 1}', '{"\\u006264": "QUJDRA=="}', "{}",
    '"\\u0000"', '"😀"', '"-00000000000000000000"', '"000000000000000000001"', '"\u0661"',
    '{"b64": "\\u0051Q=="}', '{"b64": "é"}', '{"b64": "QQ==QQ=="}',
]  # fmt: skip

scalars = st.sampled_from([*NUMBERS, *TEXTS])
spaces = st.sampled_from(["", "", "", " ", "\n\t\r "])


def listed(items: st.SearchStrategy[str], most: int = 4) -> st.SearchStrategy[str]:
    return st.tuples(st.lists(items, max_size=most), spaces).map(
        lambda made: f"[{made[1]}" + f"{made[1]},".join(made[0]) + f"{made[1]}]"
    )


def members(pairs: list[tuple[str, str]], space: str = "") -> str:
    return "{" + f",{space}".join(f'"{name}"{space}:{value}' for name, value in pairs) + "}"


some_numbers = st.sampled_from(["1", "0.5", "null", "7"])
some_texts = st.sampled_from(['"a"', "null", '"\\ud83d\\ude00"', '{"b64": "QUI="}'])
fitting = {
    "I": st.sampled_from(["1", "null", '"5"', "18446744073709551615", "-0"]),
    "K": st.sampled_from(["1", '"5"', "-9"]),
    "F": st.sampled_from(["1", "0.1", "null", "NaN", "-0", "-0.0", "1e400", "16777217"]),
    "D": st.sampled_from(["1", "0.1", "null", "-Infinity", "5e-324", "9007199254740993"]),
    "T": some_texts,
    "U": some_texts,
    "X": st.sampled_from(['"x"', '{"b64": "QUJDRA=="}']),
    "L": listed(st.sampled_from(["1", "null", '"3"'])),
    "M": listed(some_texts),
    "é": st.sampled_from(["1", "2"]),
    "b64": st.sampled_from(['"x"', '{"b64": "QUI="}', '{"b64": {"b64": "QUI="}}']),
}
junk = st.one_of(scalars, listed(scalars), st.sampled_from(WRONG))


@st.composite
def rows(draw: Any, form: Any) -> str:
    names = [name for name in form.specs if not name.endswith("_lengths")]
    made = []
    for _ in range(draw(st.integers(0, 4))):
        pairs = [(name, draw(fitting[name])) for name in names]
        if draw(st.integers(0, 3)) == 0:
            pairs = draw(st.permutations(pairs))
        if draw(st.integers(0, 5)) == 0:  # something is wrong, or comes twice
            name = draw(st.sampled_from([*names, "other", "I_lengths", "L_lengths"]))
            pairs.insert(draw(st.integers(0, len(pairs))), (name, draw(junk)))
        made.append(members(pairs, draw(spaces)))
    if len(names) == 1 and draw(st.booleans()):
        made = draw(st.lists(st.one_of(fitting[names[0]], junk), max_size=4))
    return f"[{','.join(made)}]"


@st.composite
def inputs(draw: Any, form: Any) -> str:
    values = {}
    for name in form.specs:
        if name.endswith("_lengths"):
            values[name] = draw(listed(st.sampled_from(["0", "1", '"2"'])))
        elif name in form.lists:
            values[name] = draw(fitting[name])
        else:
            values[name] = draw(listed(fitting[name]))
    pairs = list(values.items())
    if draw(st.integers(0, 2)) == 0:
        name = draw(st.sampled_from([*form.specs, "other"]))
        pairs.insert(draw(st.integers(0, len(pairs))), (name, draw(junk)))
    if len(form.specs) == 1 and draw(st.booleans()):
        return pairs[0][1]
    return members(pairs, draw(spaces))


@st.composite
def bodies(draw: Any, form: Any) -> bytes:
    kind = draw(st.sampled_from(["instances", "inputs"]))
    pairs = [(kind, draw(rows(form) if kind == "instances" else inputs(form)))]
    if draw(st.booleans()):
        pairs.append(("signature_name", draw(st.sampled_from(['"raw"', '"\\u0072aw"', "7"]))))
    if draw(st.integers(0, 3)) == 0:
        other = draw(st.sampled_from(["other", kind, "inst\\u0061nces"]))
        pairs.insert(draw(st.integers(0, len(pairs))), (other, draw(junk)))
    made = draw(spaces) + members(pairs, draw(spaces)) + draw(spaces)
    data = made.encode()
    if draw(st.integers(0, 5)) == 0:  # damage
        place = draw(st.integers(0, len(data) - 1))
        data = data[:place] + draw(st.binary(max_size=2)) + data[place + 1 :]
    return draw(st.sampled_from([b"", b"", b"", b"\xef\xbb\xbf"])) + data


@pytest.mark.parametrize("name", FORMS)
def test_bodies_are_read_as_python_reads_them(name: str) -> None:
    taken = 0

    @settings(max_examples=150, deadline=None, database=None)
    @given(bodies(FORMS[name]))
    def check(data: bytes) -> None:
        nonlocal taken
        if data.lstrip(b"\xef\xbb\xbf").startswith((b"\xff\xfe", b"\xfe\xff", b"\0")):
            return  # of UTF-16, which Python guesses
        if b"\0" not in data[:4]:
            taken += isinstance(assert_equal(data, FORMS[name]), tuple)

    check()
    assert taken > 25


@pytest.mark.parametrize("value", [*NUMBERS, *TEXTS, *WRONG])
def test_each_value_is_read_as_python_reads_it(value: str) -> None:
    for form in (Tensors(**{n: d}) for n, d in [("I", tf.int64), ("K", tf.int64)]):
        assert_equal(f'{{"instances": [{value}]}}'.encode(), form)
    for form in (Tensors(F=tf.float32), Tensors(D=tf.float64)):
        assert_equal(f'{{"inputs": [{value}]}}'.encode(), form)
    for name in ("T", "U", "X", "b64"):
        form = Tensors(**{name: tf.string})
        assert_equal(f'{{"instances": [{value}, {{"{name}": {value}}}]}}'.encode(), form)
    assert_equal(f'{{"other": {value}, "instances": [1]}}'.encode(), FORMS["integers"])


@pytest.mark.parametrize(
    "text",
    [
        b'"\xed\xa0\x80"', b'"\xed\x9f\xbf"', b'"\xc0\x80"', b'"\xe0\x80\x80"', b'"\xe2\x82"',
        b'"\xf0\x8f\x80\x80"', b'"\xf5\x80\x80\x80"', b'"\xf4\x90\x80\x80"', b'"\xf4\x8f\xbf\xbf"',
        b'"\xed\xa0\xbd\xed\xb8\x80"', b'"\\ud83d\xed\xb8\x80"', b'"\x7f"', b'"\x80"', b'"\x1f"',
    ],
)  # fmt: skip
def test_bytes_that_are_no_text_are_refused_as_by_python(text: bytes) -> None:
    for before in (b"", b'"a", '):
        assert_equal(b'{"instances": [' + before + text + b"]}", FORMS["texts"])
        assert_equal(b'{"other": ' + text + b', "instances": ["a"]}', FORMS["texts"])


def test_whole_numbers_of_more_digits_than_python_reads_are_refused() -> None:
    for form in (FORMS["integers"], Tensors(F=tf.float32), FORMS["texts"]):
        data = f'{{"instances": [{"1" * 4301}]}}'.encode()
        assert assert_equal(data, form) == "INVALID_ARGUMENT"


def test_members_that_come_twice_count_as_the_last() -> None:
    for data, wanted in (
        (b'{"instances": 7, "instances": [1]}', [1]),
        (b'{"instances": [{"I": "no", "I": 3}, {"I": [], "I": 4}]}', [3, 4]),
        (b'{"inputs": {"I": [1, {}], "I": [5, 6]}}', [5, 6]),
    ):
        found = assert_equal(data, FORMS["integers"])
        assert found == ("", {"I": ("<i8", np.array(wanted, np.int64).tobytes())})


def pieces(item: bytes, size: int, *, before: bytes, after: bytes) -> bytes:
    return before + b",".join([item] * (size // (len(item) + 1))) + after


HOSTILE = [
    pieces(b"[]", 8 * MIB, before=b'{"instances": [', after=b"]}"),
    pieces(b"{}", 8 * MIB, before=b'{"instances": [', after=b"]}"),
    pieces(b"1", 8 * MIB, before=b'{"inputs": {"I": [', after=b"]}}"),
    pieces(b"[[[[]]]]", 8 * MIB, before=b'{"other": [', after=b'], "instances": [1]}'),
    pieces(b'"I":1', 8 * MIB, before=b'{"instances": [{', after=b"}]}"),
    b'{"instances": [{"I": ' + b"1" * (4 * MIB) + b', "F": 1}]}',
    b'{"instances": [{"' + b"n" * (4 * MIB) + b'": 1}]}',
    b'{"instances": [{"I": "' + b"7" * (4 * MIB) + b'"}]}',
    b'{"signature_name": "' + b"s" * (4 * MIB) + b'", "instances": []}',
    b"[" * (4 * MIB),
    b'{"instances": ' + b"[" * (4 * MIB),
    b'{"instances": [1]' + b" " * (4 * MIB) + b"x",
]


@pytest.mark.parametrize("data", HOSTILE, ids=lambda data: data[:24].decode())
def test_a_hostile_body_makes_no_objects(data: bytes) -> None:
    """Python would make 2.8 million lists of the first."""
    with Room().place() as place:
        tracemalloc.start()
        with pytest.raises(RequestError) as refused:
            JsonRequest(data).read(FORMS["two"], place)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert len(str(refused.value).encode()) <= 1000
    assert peak < MIB


def test_a_large_body_is_refused_with_the_line_of_a_small_one() -> None:
    row = {"I": 1, "F": 0.5}
    for wrong in ({"I": "x"}, {"F": "1"}, {"F": True}, {"I": 2**64}, {"I": 1.5}, {"J": 1}, 7):
        bad = {**row, **wrong} if isinstance(wrong, dict) else wrong
        for by_row in (True, False):
            if by_row:
                given: Any = {"instances": [row] * 5000 + [bad]}
            elif isinstance(bad, dict):
                given = {"inputs": {name: [1] * 30000 + [value] for name, value in bad.items()}}
            else:
                given = {"inputs": bad, "other": [1] * 30000}
            data = json.dumps(given).encode()
            assert len(data) > json_reader.SMALL_BYTES
            said = []
            for most in (-1, 1 << 30):
                with python_reads(most), Room().place() as place:
                    with pytest.raises(RequestError) as refused:
                        JsonRequest(data).read(FORMS["two"], place)
                    said.append(str(refused.value))
            assert said[0] == said[1]


def test_large_requests_become_the_columns_of_small_ones() -> None:
    form = RequestFormat(Columns(numerics=("I1",), ids=("C1",), id_lists=("tags",)), missing_id=-1)
    rows = [{"I1": i / 8, "C1": i, "tags": list(range(i % 4))} for i in range(5000)]
    data = json.dumps({"instances": rows, "signature_name": ""}).encode()
    assert len(data) > json_reader.SMALL_BYTES
    with Room().place() as place:
        request = JsonRequest(data).read(form, place)
        assert place.num_bytes > request.integers.nbytes
    assert request.floats.tolist() == [[i / 8 for i in range(5000)]]
    assert request.integers.tolist() == [list(range(5000))]
    assert request.lists[0][1].tolist() == [i % 4 for i in range(5000)]
    texts = [base64.b64encode(bytes([i % 256] * (i % 5))).decode() for i in range(20_000)]
    data = json.dumps({"instances": [{"b64": text} for text in texts]}).encode()
    with Room().place() as place:
        made: Any = JsonRequest(data).read(FORMS["texts"], place)
    assert made["X"].tolist() == [bytes([i % 256] * (i % 5)) for i in range(20_000)]


def test_more_rows_than_may_be_are_counted() -> None:
    data = json.dumps({"inputs": [1] * (MAX_ROWS + 3)}).encode()
    by_row = json.dumps({"instances": [{"I": 1}] * (MAX_ROWS + 2)}).encode()
    for body, count in ((data, MAX_ROWS + 3), (by_row, MAX_ROWS + 2)):
        with Room().place() as place, pytest.raises(RequestError, match=f"but has {count}"):
            JsonRequest(body).read(FORMS["integers"], place)
