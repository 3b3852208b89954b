"""The fuzzers' seeds of requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np


def request_seeds() -> Iterator[tuple[str, str, bytes]]:
    """Gives the target, a name and the bytes of each."""
    for signature, kind, given in _bodies():
        body = json.dumps({"signature_name": signature, kind: given})
        yield "rest", f"{signature or 'usual'}_{kind}.json", body.encode()
    for signature, tensors in _tensors():
        yield "grpc", f"{signature or 'usual'}.bin", _message(signature, tensors)
    yield from (("example", f"{n}_examples.bin", _examples(n)) for n in (1, 2))
    yield from (("http", f"{name}.bin", data) for name, data in _http())


def _bodies() -> Iterator[tuple[str, str, Any]]:
    rows: list[dict[str, Any]] = [
        {"I1": 0.5, "I2": None, "C1": 7, "C2": str(2**63 - 1)},
        {"I1": 1, "I2": -2.5, "C1": -1, "C2": 2**64 - 5},
    ]
    yield "", "instances", rows
    yield "", "inputs", {name: [row[name] for row in rows] for name in rows[0]}
    lists = [{"I1": 1.5, "time": 3, "C1": 2, "tags": [1, 2], "x": [0.5]}]
    yield "lists", "instances", [*lists, {**lists[0], "tags": [], "x": [1, 2, 3]}]
    flat = {"I1": [1.5], "time": [3], "C1": [2], "tags": [1, 2], "x": [0.5]}
    yield "lists", "inputs", {**flat, "tags_lengths": [2], "x_lengths": [1]}
    yield "raw", "instances", [{"price": 3.5, "site": "ab", "pages": ["x", "y"], "rates": [0.5]}]
    query = {"user": 5, "history": [3, 4], "k": 3, "seen": [19, 18], "allowed": [17, 18, 2]}
    yield "top_k", "instances", [query, {**query, "k": 2, "seen": [], "allowed": []}]


def _tensors() -> Iterator[tuple[str, dict[str, Any]]]:
    floats, ids = np.array([0.5, -2], np.float32), np.array([7, -1])
    texts, one, two = np.array([b"ab"], object), np.array([1]), np.array([2])
    yield "", {"I1": floats, "I2": floats, "C1": ids, "C2": ids[:1]}
    lists = {"I1": floats, "time": ids, "C1": ids, "tags": ids, "x": floats}
    yield "lists", {**lists, "tags_lengths": np.array([2, 0]), "x_lengths": np.array([1, 1])}
    query = {"user": ids[:1], "history": ids, "history_lengths": two}
    yield "top_k", {**query, "k": np.array([3]), "seen": np.array([19]), "seen_lengths": one}
    raw = {"price": np.array([3.5]), "site": texts, "pages": texts, "pages_lengths": one}
    yield "raw", {**raw, "rates": floats, "rates_lengths": two}


def _message(signature: str, tensors: dict[str, Any]) -> bytes:
    import tensorflow as tf

    from embedps.serving.server.messages import PredictRequest

    message = PredictRequest()
    message.model_spec.name, message.model_spec.signature_name = "model", signature
    for name, values in tensors.items():
        proto = tf.make_tensor_proto(values).SerializeToString(deterministic=True)
        message.inputs[name].MergeFromString(proto)
    return bytes(message.SerializeToString(deterministic=True))


def _examples(count: int) -> bytes:
    from tensorflow.core.example.example_pb2 import Example

    example = Example()
    for name, floats in {"I1": [0.5], "x": [1, 2]}.items():
        example.features.feature[name].float_list.value.extend(floats)
    for name, ids in {"time": [3], "C1": [7], "tags": [1, 2, 3]}.items():
        example.features.feature[name].int64_list.value.extend(ids)
    serialized: bytes = example.SerializeToString(deterministic=True)
    return bytes([count - 1]) + serialized * count


def _http() -> Iterator[tuple[str, bytes]]:
    body = b'{"instances": [{"I1": 1}]}'
    post = b"POST /v1/models/m:predict HTTP/1.1\r\nHost: x\r\n"
    get = b"GET /v1/models/m HTTP/1.1\r\nHost: x\r\n\r\n"
    chunked = b"Transfer-Encoding: chunked\r\n"
    yield "get", b"GET /v1/models/m/versions/3/metadata HTTP/1.1\r\nHost: x\r\n\r\n"
    yield "pipelined", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + get
    yield "post", post + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    yield "chunked", post + chunked + b"\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    yield "long_length", post + b"Content-Length: %030d\r\n\r\n%b" % (len(body), body)
    # A request in what two readers may take for the body of another.
    yield "two_lengths", post + b"Content-Length: 4\r\nContent-Length: 0\r\n\r\n" + get
    yield "both", post + chunked + b"Content-Length: 4\r\n\r\n0\r\n\r\n" + get
    yield "get_with_body", get[:-2] + b"Content-Length: %d\r\n\r\n%b" % (len(get), get)
