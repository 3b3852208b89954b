"""Fuzz targets of requests: REST's bodies, gRPC's messages, tf.Examples, and HTTP itself.

Each request has a signature, whose format reads it as a server's does.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from typing import Any

import numpy as np

from embedps.serving.server.request_error import RequestError, invalid
from tools.fuzz_inputs import TABLE

K = 3


@functools.cache
def formats() -> Mapping[str, Any]:
    """Makes the formats by signature."""
    from embedps.data.columns import Columns
    from embedps.features.table_schema import Table
    from embedps.features.transforms import Transforms
    from embedps.serving.server.made_columns import of_examples, of_raw
    from embedps.serving.server.requests import RequestFormat
    from embedps.serving.server.top_k_format import TopKFormat

    columns = Columns(numerics=("I1", "I2"), ids=("C1", "C2"))
    usual = RequestFormat(columns, missing_id=-1)
    lists = Columns(
        numerics=("I1",), integers=("time",), ids=("C1",), id_lists=("tags",), float_lists=("x",)
    )
    with_lists = RequestFormat(lists, missing_id=-1)
    made = Columns(numerics=("price",), ids=("site",), id_lists=("pages",), float_lists=("rates",))
    transforms = Transforms(table=Table.parse(tomllib.loads(TABLE)))
    form = RequestFormat(made, missing_id=-1)
    query = Columns(ids=("user",), id_lists=("history",))
    return {
        "": usual,
        "lists": with_lists,
        "examples": of_examples(with_lists, lists, missing_id=-1),
        "raw": of_raw(form, made, transforms, missing_id=-1),
        "top_k": TopKFormat(query, missing_id=-1, has_ids=True, default_k=K, max_k=10),
    }


def rest(data: bytes) -> None:
    """Reads the JSON body of a prediction, by Python and by C++, which must agree."""
    from unittest import mock

    from embedps.serving.server import json_reader

    read = [_refusal_or(lambda: _read_json(data))]
    with mock.patch.object(json_reader, "SMALL_BYTES", -1):  # all bodies are large
        read.append(_refusal_or(lambda: _read_json(data)))
    ours, theirs = read
    if isinstance(ours, RequestError) or isinstance(theirs, RequestError):
        if type(ours) is not type(theirs):
            raise AssertionError(f"Python and C++ must agree: {ours!r:.300} and {theirs!r:.300}")
        raise ours
    _check_equal(ours, theirs)


def _read_json(data: bytes) -> Any:
    from embedps.serving.server.json_reader import JsonRequest
    from embedps.serving.server.request_size import Room

    given = JsonRequest(data)
    form = _format(given.signature)
    with Room().place() as place:
        request = given.read(form, place)
    _check(request, form)
    return request


def grpc(data: bytes) -> None:
    """Reads a PredictRequest, by C++ if it is a usual one and by protobuf, which must agree."""
    from embedps.serving.server import grpc_server
    from embedps.serving.server.request_size import Room

    spec = grpc_server._spec_ahead(data)
    usual = None
    if spec is not None and spec.signature_name == "":
        found = _request_reader().find(data)
        usual = None if found is None else found.read()
    with Room().place() as place:
        request = _refusal_or(lambda: _read_message(data, place))
    if usual is not None and isinstance(request, RequestError):
        raise AssertionError(f"C++ reads what protobuf refuses: {request}") from request
    if isinstance(request, RequestError):
        raise request
    if usual is not None:
        _check_equal(usual, request)


def _read_message(data: bytes, place: Any) -> Any:
    from embedps.serving.server import grpc_server, messages
    from embedps.serving.server.request_reader import parsed_bytes

    place.admit(parsed_bytes(data, []), sent=len(data))
    message = grpc_server._parse(messages.PredictRequest, data)
    grpc_server._version_of(message.model_spec)
    form = _format(message.model_spec.signature_name)
    request = grpc_server._read(message, form, place, len(data))
    _check(request, form)
    return request


def _refusal_or(read: Any) -> Any:
    try:
        return read()
    except RequestError as error:
        if len(str(error).encode()) > 1024:
            raise AssertionError(f"a refusal must have at most 1 kB: {error!r:.300}") from error
        return error


def _check_equal(ours: Any, theirs: Any) -> None:
    for one, other in zip(ours.arguments(), theirs.arguments(), strict=True):
        if one.dtype != other.dtype or one.shape != other.shape:
            raise AssertionError("two readers must give arrays of the same dtypes and shapes")
        same = (
            np.array_equal(one, other) if one.dtype == object else one.tobytes() == other.tobytes()
        )
        if not same:
            raise AssertionError("two readers must give the same values")


def example(data: bytes) -> None:
    """Reads serialized tf.Examples; the first byte tells how many the rest is cut into."""
    parts = data[0] % 3 + 1 if data else 1
    size = -(-len(data[1:]) // parts)
    each = [data[1 + size * i : 1 + size * (i + 1)] for i in range(parts)]
    form = _format("examples")
    request = form.request({"examples": np.array(each, object)})
    if request.rows != parts:
        raise AssertionError(f"{parts} examples must be as many rows, not {request.rows}")
    _check(request, form)


def _format(signature: str) -> Any:
    form = formats().get(signature)
    if form is None:
        raise invalid(f"no signature is {signature!r}")
    return form


@functools.cache
def _request_reader() -> Any:
    from embedps.serving.server.request_reader import RequestReader

    return RequestReader(formats()[""].floats, formats()[""].integers)


def _check(request: Any, form: Any) -> None:
    """Checks the matrices, and searches if items are asked for."""
    from embedps.serving.server.top_k_format import TopKFormat

    if request.floats.shape[1:] != (request.rows,) or request.integers.shape[1:] != (request.rows,):
        raise AssertionError("each column must have all rows")
    for values, lengths in request.lists:
        if len(lengths) != request.rows or lengths.sum() != len(values) or (lengths < 0).any():
            raise AssertionError("each row must have a list, and the lists all values")
    if isinstance(form, TopKFormat) and request.rows:
        parts = form.parts(request)
        index = _item_index()
        queries = np.zeros([request.rows, index.dim], np.float32)
        most = int(parts.k.max())
        scores, ids = index.search(
            queries, k=most, seen=parts.seen, allowed=parts.allowed, is_limited=parts.is_limited
        )
        if scores.shape != (request.rows, most) or ids.shape != (request.rows, most):
            raise AssertionError("each query must have its best items")
        seen = np.split(parts.seen[0], np.cumsum(parts.seen[1])[:-1])
        if any(np.isin(ids[row][ids[row] >= 0], seen[row]).any() for row in range(request.rows)):
            raise AssertionError("an item that was seen must not be found")


@functools.cache
def _item_index() -> Any:
    from embedps.serving.server.item_index import ItemIndex

    ids = np.arange(20, dtype=np.int64)
    vectors = np.outer(ids, np.ones(4)).astype(np.float32)
    return ItemIndex(4).changed(ids, vectors, ids[:0])
