"""Fuzz targets of requests: REST's bodies, gRPC's messages, tf.Examples, and HTTP itself.

Each request has a signature, whose format reads it as a server's does.
"""

from __future__ import annotations

import functools
import json
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
    from embedps.serving.server.made_columns import of_examples, of_raw
    from embedps.serving.server.requests import RequestFormat
    from embedps.serving.server.top_k_format import TopKFormat
    from pipelines.ingestion.table_schema import Table
    from pipelines.ingestion.transforms import Transforms

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
    """Reads the JSON body of a prediction as the REST server does."""
    from embedps.serving.server.json_bodies import columns_of, rows_of

    try:
        given = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise invalid("the body must be JSON") from error
    if not isinstance(given, dict) or not isinstance(given.get("signature_name", ""), str):
        raise invalid("the body must be an object")
    form = _format(given.get("signature_name", ""))
    if "instances" in given:
        _check(form.request(rows_of(given["instances"], form)), form)
    elif "inputs" in given:
        _check(form.request(columns_of(given["inputs"], form)), form)


def grpc(data: bytes) -> None:
    """Reads a PredictRequest as the gRPC server does, by C++ if it is a usual one."""
    from embedps.serving.server import grpc_server, messages

    spec = grpc_server._spec_ahead(data)
    usual = None
    if spec is not None and spec.signature_name == "":
        usual = _request_reader().read(data)
    try:
        message = grpc_server._parse(messages.PredictRequest, data)
        grpc_server._version_of(message.model_spec)
        form = _format(message.model_spec.signature_name)
        request = grpc_server._read(message, form)
    except RequestError as error:
        if usual is not None:
            raise AssertionError(f"C++ reads what protobuf refuses: {error}") from error
        raise
    if usual is not None:
        for ours, theirs in zip(usual.arguments(), request.arguments(), strict=True):
            if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
                raise AssertionError("C++ must read what protobuf reads")
            if ours.tobytes() != theirs.tobytes():
                raise AssertionError("C++ must read the values that protobuf reads")
    _check(request, form)


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
