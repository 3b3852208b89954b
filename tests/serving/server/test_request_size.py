"""What a request stands for is counted and refused before arrays are made."""

from __future__ import annotations

import tracemalloc
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from embedps.data.columns import Columns
from embedps.serving.server.grpc_server import _read
from embedps.serving.server.made_columns import EXAMPLES, of_examples
from embedps.serving.server.messages import PredictRequest
from embedps.serving.server.model_api import ModelApi
from embedps.serving.server.request_error import RequestError, short_text
from embedps.serving.server.request_reader import RequestReader, parsed_bytes
from embedps.serving.server.request_size import MAX_LIST_VALUES, MAX_ROWS, Room
from embedps.serving.server.requests import RequestFormat
from embedps.serving.server.tensor_values import fill
from embedps.serving.server.top_k_format import MAX_FOUND, TopKFormat

MIB = 1 << 20


def add_constant(message: Any, name: str, value: Any, *, count: int = MAX_ROWS) -> None:
    """Adds a tensor of one value as TensorFlow abbreviates it."""
    dtype = np.int64 if isinstance(value, int) else object
    fill(message.inputs[name], np.array([value], dtype))
    message.inputs[name].tensor_shape.dim[0].size = count


def refusal(message: Any, form: Any) -> tuple[str, int]:
    """Gives why a message is refused, and the bytes that were held at most meanwhile."""
    sent = len(message.SerializeToString())
    with Room().place() as place:
        tracemalloc.start()
        with pytest.raises(RequestError) as refused:
            _read(message, form, place, sent)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return str(refused.value), peak


def test_one_long_text_for_all_rows_is_refused() -> None:
    """65 kB that stood for 4.3 GB."""
    columns = Columns(ids=("C1",))
    form = of_examples(RequestFormat(columns, missing_id=-1), columns, missing_id=-1)
    message = PredictRequest()
    add_constant(message, EXAMPLES, b"x" * 65_000)
    said, peak = refusal(message, form)
    assert "must stand for at most" in said
    assert peak < MIB


def test_constants_of_many_columns_are_refused() -> None:
    form = RequestFormat(Columns(ids=tuple(f"C{i}" for i in range(1000))), missing_id=-1)
    message = PredictRequest()
    for name in form.specs:
        add_constant(message, name, 7)
    data = message.SerializeToString()
    assert len(data) < 65_000
    said, peak = refusal(message, form)
    assert said.startswith(f"a request of {len(data)} bytes must stand for at most ")
    assert peak < MIB
    # The reader in C++ finds columns of one value beside one of all.
    usual_message = PredictRequest()
    for name in form.specs:
        values = np.zeros(MAX_ROWS if name == "C0" else 1, np.int64)
        fill(usual_message.inputs[name], values)
    usual = RequestReader(form.floats, form.integers).find(usual_message.SerializeToString())
    assert usual is not None
    assert usual.num_bytes == 8 * 1000 * MAX_ROWS


def test_one_list_for_all_rows_counts_for_each() -> None:
    lists = tuple(f"L{i}" for i in range(50))
    form = RequestFormat(Columns(ids=("C1",), id_lists=lists), missing_id=-1)
    message = PredictRequest()
    fill(message.inputs["C1"], np.arange(MAX_ROWS))
    for name in lists:
        fill(message.inputs[name], np.arange(60))
        fill(message.inputs[f"{name}_lengths"], np.array([60]))
    said, peak = refusal(message, form)
    assert "must stand for at most" in said
    assert peak < MIB


def test_columns_of_one_user_and_many_items_are_taken() -> None:
    form = RequestFormat(Columns(ids=tuple(f"C{i}" for i in range(39))), missing_id=-1)
    message = PredictRequest()
    fill(message.inputs["C0"], np.arange(MAX_ROWS))
    for name in list(form.specs)[1:]:
        add_constant(message, name, 7, count=1)
    with Room().place() as place:
        request = _read(message, form, place, len(message.SerializeToString()))
        assert place.num_bytes >= request.integers.nbytes
    assert request.rows == MAX_ROWS
    assert request.integers[1:].tolist() == [[7] * MAX_ROWS] * 38


def test_requests_at_a_time_share_the_room() -> None:
    room = Room(1000)
    with room.place() as first:
        first.admit(600, sent=100)
        with room.place() as second, pytest.raises(RequestError, match="leave 400") as refused:
            second.admit(401, sent=100)
        assert refused.value.code == "RESOURCE_EXHAUSTED"
    with room.place() as third:
        third.admit(1000, sent=100)


def field(number: int, *parts: bytes) -> bytes:
    data, size = b"".join(parts), []
    left = len(data)
    while left >= 128:
        size.append(left & 127 | 128)
        left >>= 7
    return bytes([number << 3 | 2, *size, left]) + data


def tensor(*fields: bytes) -> bytes:
    return field(2, field(1, b"C1"), field(2, *fields))


@pytest.mark.parametrize(
    "data",
    [
        b"\x12\x00" * 70_000,  # inputs
        b"\x0a\x00" * 70_000,  # model_spec
        b"\x1a\x00" * 70_000,  # output_filter
        tensor(field(2, b"\x12\x00" * 70_000)),  # dimensions
        tensor(b"\x72\x00" * 70_000),  # resource_handle_val
        tensor(field(15, b"\x0a\x00" * 35_000)),  # what is in a variant_val
        tensor(b"\x22\x00" * 70_000),  # tensor_content
        tensor(b"\x42\x00" * (1 << 21), b"\x42\x00"),  # string_val
    ],
)
def test_a_message_of_many_parts_is_not_parsed(data: bytes) -> None:
    with pytest.raises(RequestError, match="a PredictRequest must have at most"):
        parsed_bytes(data, [])


NAME = b"x" * ((1 << 19) + 1)


@pytest.mark.parametrize(
    "part",
    [
        field(2, field(1, NAME)),  # an input
        field(2, field(2, field(2, field(2, field(2, NAME))))),  # a dimension
        field(1, field(1, NAME)),  # the model
        field(1, field(4, NAME)),  # its label
        field(3, NAME),  # the filter
    ],
)
def test_a_message_of_long_names_is_not_parsed(part: bytes) -> None:
    parsed_bytes(part, [])
    with pytest.raises(RequestError, match=r"at most 1048576 bytes of names but has 104[89]"):
        parsed_bytes(part + part, [])


def test_a_message_of_more_values_than_a_model_takes_is_not_parsed() -> None:
    ids = RequestFormat(Columns(ids=("C1", "C2")), missing_id=-1)
    lists = RequestFormat(Columns(ids=("C1",), id_lists=("L1",)), missing_id=-1)
    texts = of_examples(ids, Columns(ids=("C1", "C2")), missing_id=-1)

    def numbers(count: int) -> bytes:
        return tensor(field(10, b"\x07" * count))

    for forms, most in (
        ([ids], 2 * MAX_ROWS),
        ([ids, lists], 2 * MAX_ROWS + MAX_LIST_VALUES),  # its lengths too
        ([texts], MAX_ROWS),
    ):
        parsed_bytes(numbers(most), forms)
        with pytest.raises(RequestError, match=f"at most {most} numbers outside of"):
            parsed_bytes(numbers(most + 1), forms)
        some = tensor(b"\x42\x00" * MAX_ROWS)
        parsed_bytes(some, forms)
        with pytest.raises(RequestError, match=f"at most {MAX_ROWS} texts"):
            parsed_bytes(some + tensor(b"\x42\x00"), forms)
    parsed_bytes(numbers(2 * MAX_LIST_VALUES), [])  # no model is loaded


def test_names_are_cut_before_they_are_joined() -> None:
    form = RequestFormat(Columns(ids=("C1",)), missing_id=-1)
    name = "x" * (8 << 20)
    tracemalloc.start()
    with pytest.raises(RequestError, match="must have the tensors C1 but lacks C1 and has xxx"):
        form.check_names({name})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MIB


@pytest.mark.parametrize("data", [b"\x12\x05\x0a", b"\x13\x14", b"\x15\x00", b"\x0d"])
def test_groups_and_cut_messages_are_malformed(data: bytes) -> None:
    with pytest.raises(RequestError, match="bytes must be a PredictRequest"):
        parsed_bytes(data, [])


NUMBERS = {
    "half_val": 0,
    "float_val": 0.5,
    "double_val": 0.5,
    "int_val": -1,
    "scomplex_val": 0.5,
    "int64_val": 1 << 40,
    "bool_val": True,
    "dcomplex_val": 0.5,
    "uint32_val": 300,
    "uint64_val": 1 << 63,
}


@settings(max_examples=50, deadline=None)
@given(
    numbers=st.dictionaries(st.sampled_from(sorted(NUMBERS)), st.integers(0, 9)),
    texts=st.lists(st.binary(max_size=3), max_size=4),
    dims=st.integers(0, 4),
)
def test_parts_are_counted_as_protobuf_holds_them(
    numbers: dict[str, int], texts: list[bytes], dims: int
) -> None:
    message = PredictRequest(output_filter=["a"])
    value = message.inputs["C1"]
    for name, count in numbers.items():
        getattr(value, name).extend([NUMBERS[name]] * count)
    value.string_val.extend(texts)
    for size in range(dims):
        value.tensor_shape.dim.add(size=size)
    objects = 1 + 3 + (dims > 0) + dims  # the filter; the entry, its name and tensor; the shape
    wanted = 256 * objects + 48 * len(texts) + 24 * sum(numbers.values())
    assert parsed_bytes(message.SerializeToString(), []) == wanted


def test_what_nobody_waits_for_is_not_begun() -> None:
    api = ModelApi()
    for timeout in (0.0, -1.0):  # no model is looked for, and nothing is read
        with pytest.raises(RequestError, match="deadline passed") as refused:
            api.predict("none", cast(Any, pytest.fail), version=None, signature="", timeout=timeout)
        assert refused.value.code == "DEADLINE_EXCEEDED"


def test_a_request_asks_for_so_many_items_in_all() -> None:
    form = TopKFormat(Columns(ids=("C1",)), missing_id=-1, has_ids=False, default_k=100, max_k=1000)
    rows = np.zeros(MAX_FOUND // 1000, np.int64)
    assert form.request({"C1": rows, "k": np.array([1000])}).rows == len(rows)
    with pytest.raises(RequestError, match=f"at most {MAX_FOUND} items.* but asks for 8389000"):
        form.request({"C1": np.append(rows, 0), "k": np.array([1000])})


def test_texts_of_answers_are_those_of_tensorflow() -> None:
    texts = np.array([b"a", b"", b"\xff\0"] * 10_000, object).reshape(-1, 2)
    made = PredictRequest().inputs["x"]
    fill(made, texts)
    assert made.SerializeToString() == tf.make_tensor_proto(texts).SerializeToString()


def test_long_texts_keep_both_ends() -> None:
    assert short_text("a b: é") == "a b: é"
    assert short_text("a\n\0\ud800") == "a\\n\\x00\\ud800"
    cut = short_text("must be é" + "ü" * 10_000_000 + "ask later")
    assert cut.startswith("must be éüü")
    assert cut.endswith("üüask later")
    assert 900 < len(cut.encode()) <= 1000
