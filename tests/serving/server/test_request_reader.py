"""What the reader in C++ reads, protobuf reads as the same; the rest is left to protobuf."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from embedps.data.columns import Columns
from embedps.serving.server.messages import PredictRequest
from embedps.serving.server.request_error import RequestError
from embedps.serving.server.request_reader import RequestReader
from embedps.serving.server.request_size import MAX_ROWS
from embedps.serving.server.requests import Request, RequestFormat
from embedps.serving.server.tensor_values import fill, read_vector

FORMAT = RequestFormat(Columns(numerics=("I1", "I2"), ids=("C1", "C2", "a.b")), missing_id=-1)
READER = RequestReader(FORMAT.floats, FORMAT.integers)


def make_message(rows: int, *, ones: tuple[str, ...] = ()) -> Any:
    rng, message = np.random.default_rng(rows), PredictRequest()
    message.model_spec.name = "clicks"
    for name, spec in FORMAT.specs.items():
        count = 1 if name in ones else rows
        values = rng.integers(-(2**62), 2**62, count).astype(spec.dtype.as_numpy_dtype)
        fill(message.inputs[name], values)
    return message


def read(data: bytes) -> Request | None:
    found = READER.find(data)
    return None if found is None else found.read()


def by_protobuf(data: bytes) -> Request:
    message = PredictRequest.FromString(data)
    return FORMAT.request(
        {
            name: read_vector(name, tensor, FORMAT.specs[name].dtype, most=MAX_ROWS)
            for name, tensor in message.inputs.items()
            if name in FORMAT.specs
        }
    )


def assert_equal(found: Request, wanted: Request) -> None:
    assert found.rows == wanted.rows
    for ours, theirs in zip(found.arguments(), wanted.arguments(), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert ours.tobytes() == theirs.tobytes()  # NaN has bits of its own


@pytest.mark.parametrize("rows", [1, 2, 17, 1000])
@pytest.mark.parametrize("ones", [(), ("C1", "I2"), ("C1", "C2", "a_b", "I1", "I2")])
def test_requests_are_read_as_protobuf_reads_them(rows: int, ones: tuple[str, ...]) -> None:
    data = make_message(rows, ones=ones).SerializeToString()
    found = read(data)
    assert found is not None
    assert_equal(found, by_protobuf(data))


def test_what_is_read_of_damaged_bytes_is_what_protobuf_reads() -> None:
    rng, num_read = np.random.default_rng(0), 0
    wholes = [make_message(rows).SerializeToString() for rows in (1, 2, 3)]
    for turn in range(3000):
        damaged = bytearray(wholes[turn % 3])
        for place in rng.integers(0, len(damaged), 1 + turn % 2):
            damaged[place] ^= 1 << rng.integers(8)
        found = read(bytes(damaged))
        if found is None:
            continue
        num_read += 1
        try:
            assert_equal(found, by_protobuf(bytes(damaged)))
        except DecodeError:  # the server reads the model_spec by protobuf before
            with pytest.raises(DecodeError):
                PredictRequest.FromString(bytes(damaged[: 2 + damaged[1]]))
    assert num_read > 300  # values were damaged, not what is around them


def test_unknown_fields_are_skipped() -> None:
    plain = make_message(3).SerializeToString()
    skipped = b"\x7a\x05other\x20\x07\x2d...."  # of fields 15, 4 and 5
    data = skipped + plain + skipped
    found = read(data)
    assert found is not None
    assert_equal(found, by_protobuf(data))


def test_other_forms_are_declined() -> None:
    filtered, named, empty, wide = (make_message(2) for _ in range(4))
    filtered.output_filter.append("score")
    named.inputs["C1"].tensor_shape.dim[0].name = "rows"
    empty.inputs["C2"].Clear()
    wide.inputs["C1"].tensor_shape.dim.add(size=1)
    for message in (filtered, named, empty, wide, make_message(MAX_ROWS + 1)):
        assert READER.find(message.SerializeToString()) is None
    with pytest.raises(RequestError, match="must be int64"):
        by_protobuf(empty.SerializeToString())
