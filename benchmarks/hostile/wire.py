"""Sends what no client library would send: raw HTTP, and gRPC messages from bytes."""

from __future__ import annotations

import contextlib
import re
import select
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import grpc
import numpy as np

from benchmarks.open_loop import PREDICT
from embedps.serving.server import messages
from embedps.serving.server.tensor_values import fill

NAME = "model"
_QUIET_SECS = 1.0  # without a further answer: there is none
_UNKNOWN_FIELD = b"\x7a"  # of field 15, bytes: a parser skips it
_CODE = re.compile(rb"HTTP/1\.1 (\d{3}) ")  # an answer may follow a body at once


def request(method: str, path: str, *headers: str, token: str = "") -> bytes:
    """Makes the head of an HTTP request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    lines += [f"Authorization: Bearer {token}"] if token else []
    return "\r\n".join([*lines, "", ""]).encode()


def exchange(port: int, head: bytes, body: Iterable[bytes], *, secs: float) -> str:
    """Sends a request, until it is answered or refused; gives the codes of all answers."""
    received = bytearray()
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), secs) as peer:
        with contextlib.suppress(OSError):
            peer.sendall(head)
            for part in body:
                if select.select([peer], [], [], 0)[0]:
                    break
                peer.sendall(part)
        while part := peer.recv(1 << 16):
            received += part
            peer.settimeout(_QUIET_SECS)
    codes = [code.decode() for code in _CODE.findall(received)]
    return _with_size(" and ".join(codes) or "no answer", len(received))


def idle(port: int, head: bytes, count: int, *, secs: float) -> Iterator[socket.socket]:
    """Opens connections that say no more than `head`; yields those that were accepted."""
    for _ in range(count):
        with contextlib.suppress(OSError):
            peer = socket.create_connection(("127.0.0.1", port), secs)
            if head:
                peer.sendall(head)
            yield peer


def predict_message(
    arrays: Mapping[str, np.ndarray[Any, Any]], *, signature: str = "", padding: int = 0
) -> bytes:
    """Makes a PredictRequest, with so many bytes besides that a parser skips."""
    made = messages.PredictRequest()
    made.model_spec.name = NAME
    made.model_spec.signature_name = signature
    for name, array in arrays.items():
        fill(made.inputs[name], array)
    return bytes(made.SerializeToString()) + skipped(padding)


def skipped(size: int) -> bytes:
    """Makes an unknown field of a message."""
    if size == 0:
        return b""
    length, rest = bytearray(), size
    while rest >= 0x80:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    return _UNKNOWN_FIELD + bytes([*length, rest]) + bytes(size)


def call(address: str, data: bytes, *, token: str, secs: float, times: int = 1) -> str:
    """Sends a PredictRequest, several times at once; gives the codes of the answers."""
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    metadata = [("authorization", f"Bearer {token}")] if token else []
    said, size = Counter[str](), 0
    with grpc.insecure_channel(address, options) as channel:
        predict = channel.unary_unary(PREDICT)
        asked = [predict.future(data, timeout=secs, metadata=metadata) for _ in range(times)]
        for each in asked:
            said[each.code().name] += 1
            size = max(size, len(each.details() or ""))
    found = ", ".join(f"{n} {code}" if times > 1 else code for code, n in said.items())
    return _with_size(found, size)


def _with_size(said: str, size: int) -> str:
    """Adds how long an answer is, if it is longer than an error should be."""
    return f"{said} ({size / 1e6:.1f} MB)" if size > 100_000 else said
