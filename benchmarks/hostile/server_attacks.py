"""The attacks on a server, and for each a harmless request of the same size."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.hostile import ids as hostile_ids
from benchmarks.hostile import wire
from embedps.serving.server import messages

TOKEN = "of-the-benchmark"
_PATH = f"/v1/models/{wire.NAME}:predict"
_CHUNK = bytes(1 << 20)
_SLOW_SECS = 0.5  # between two bytes of a slow client


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large the attacks are."""

    body_bytes: int = 60 << 20
    claimed_bytes: int = 1 << 30
    connections: int = 1100
    rows: int = 1 << 16
    example_bytes: int = 65_000
    messages: int = 24
    inputs: int = 5000
    names: int = 20
    name_bytes: int = 1 << 20


QUICK = Sizes(
    body_bytes=1 << 16,
    claimed_bytes=128 << 20,
    connections=20,
    rows=256,
    example_bytes=1000,
    messages=2,
    inputs=50,
    names=2,
    name_bytes=2000,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A server under attack.

    Attributes:
      rest_port: of REST.
      grpc_address: of gRPC.
      secs: that an answer may take.
      until: when the others' requests end (`time.monotonic`).
    """

    rest_port: int
    grpc_address: str
    secs: float
    until: float

    @property
    def grpc_port(self) -> int:
        return int(self.grpc_address.rsplit(":", 1)[1])


Act = Callable[[Target], str]  # does it once, and tells what came


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack beside its harmless twin.

    Attributes:
      what: is sent, in words.
      sent_bytes: by each.
    """

    what: str
    sent_bytes: int
    hostile: Act
    harmless: Act


def post(body: bytes, *headers: str) -> Act:
    """Posts a body as it should be posted."""
    given = headers or (f"Content-Length: {len(body)}",)
    head = wire.request("POST", _PATH, *given, "Connection: close", token=TOKEN)
    parts = [body[at : at + len(_CHUNK)] for at in range(0, len(body), len(_CHUNK))]
    return lambda target: wire.exchange(target.rest_port, head, parts, secs=target.secs)


def ask(data: bytes, *, token: str = TOKEN, times: int = 1) -> Act:
    """Asks over gRPC."""
    return lambda target: wire.call(
        target.grpc_address, data, token=token, secs=target.secs, times=times
    )


def instances(columns: Sequence[str], rows: int, size: int) -> bytes:
    """Makes a body of rows of random ids, filled up with spaces to a size."""
    ids = [hostile_ids.random(rows, seed=seed).tolist() for seed in range(len(columns))]
    body = json.dumps(
        {"instances": [dict(zip(columns, row, strict=True)) for row in zip(*ids, strict=True)]}
    ).encode()
    return body + b" " * (size - len(body))


def one_row(columns: Sequence[str], *, seed: int = 0) -> dict[str, hostile_ids.Ids]:
    """Draws the ids of one record."""
    ids = hostile_ids.random(len(columns), seed=seed)
    return {name: ids[i : i + 1] for i, name in enumerate(columns)}


def brackets(columns: Sequence[str], sizes: Sizes) -> Attack:
    """Rows that are empty lists."""
    head, tail = b'{"instances": [[]', b"]}"
    body = head + b",[]" * ((sizes.body_bytes - len(head) - len(tail)) // 3) + tail
    row_bytes = 40 * len(columns)
    rows = max(1, min(sizes.rows, len(body) // row_bytes))
    return Attack(
        what="REST: `[],[],...` as instances, beside rows of ids",
        sent_bytes=len(body),
        hostile=post(body),
        harmless=post(instances(columns, rows, len(body))),
    )


def long_length(columns: Sequence[str], sizes: Sizes) -> Attack:
    """A Content-Length of leading zeros, beside the same number without."""

    def send(length: str) -> Act:
        head = wire.request("POST", _PATH, f"Content-Length: {length}", token=TOKEN)

        def body() -> Iterator[bytes]:
            for _ in range(sizes.claimed_bytes // len(_CHUNK)):
                yield _CHUNK

        return lambda target: wire.exchange(target.rest_port, head, body(), secs=target.secs)

    return Attack(
        what="REST: a Content-Length with 18 leading zeros, beside one without",
        sent_bytes=sizes.claimed_bytes,
        hostile=send("0" * 18 + str(sizes.claimed_bytes)),
        harmless=send(str(sizes.claimed_bytes)),
    )


def smuggling(columns: Sequence[str], sizes: Sizes) -> Attack:
    """A POST with both lengths, and a GET with a body: a second request hides in each."""
    body = instances(columns, 1, 0)
    hidden = wire.request("GET", "/healthz")
    post_head = wire.request(
        *("POST", _PATH, f"Content-Length: {len(body)}", "Transfer-Encoding: chunked"), token=TOKEN
    )
    get_head = wire.request("GET", "/healthz", f"Content-Length: {len(hidden)}")
    plain = wire.request("POST", _PATH, f"Content-Length: {len(body)}", token=TOKEN)

    def sent(*requests: tuple[bytes, bytes]) -> Act:
        return lambda target: "; ".join(
            wire.exchange(target.rest_port, head, [rest], secs=target.secs)
            for head, rest in requests
        )

    return Attack(
        what="REST: a request hidden behind two lengths, and in a GET's body",
        sent_bytes=len(post_head + body + hidden),
        hostile=sent((post_head, body + hidden), (get_head, hidden)),
        harmless=sent((plain, body), (wire.request("GET", "/healthz"), b"")),
    )


def slow_clients(columns: Sequence[str], sizes: Sizes) -> Attack:
    """Requests that never end, beside as many that do."""
    whole = wire.request("GET", "/healthz", "Connection: close")

    def slow(target: Target) -> str:
        begun = wire.request("GET", "/healthz", "X-Slow: ")[:-4]
        peers = list(wire.idle(target.rest_port, begun, sizes.connections, secs=1))
        while time.monotonic() + _SLOW_SECS < target.until:
            time.sleep(_SLOW_SECS)
            peers = [peer for peer in peers if _said(peer, b"a")]
        for peer in peers:
            peer.close()
        return f"{len(peers)} open"

    return Attack(
        what="REST: slow requests on idle connections, beside as many whole ones",
        sent_bytes=sizes.connections * len(whole),
        hostile=slow,
        harmless=_in_turn(lambda target: target.rest_port, whole, sizes.connections),
    )


def idle_grpc(columns: Sequence[str], sizes: Sizes) -> Attack:
    """Connections to gRPC that say nothing, beside as many that close."""

    def stay(target: Target) -> str:
        peers = list(wire.idle(target.grpc_port, b"", sizes.connections, secs=1))
        time.sleep(max(0, target.until - time.monotonic()))
        still = [peer for peer in peers if _said(peer, b"P")]
        for peer in peers:
            peer.close()
        return f"{len(still)} open"

    return Attack(
        what="gRPC: idle connections, beside as many that close",
        sent_bytes=0,
        hostile=stay,
        harmless=_in_turn(lambda target: target.grpc_port, b"", sizes.connections),
    )


def constants(columns: Sequence[str], sizes: Sizes) -> Attack:
    """One tf.Example as the constant of many rows, beside as many bytes of examples."""

    def example(junk: int) -> bytes:
        feature = {
            name: tf.train.Feature(int64_list=tf.train.Int64List(value=ids))
            for name, ids in one_row(columns).items()
        }
        values = tf.train.BytesList(value=[bytes(junk)])
        feature["unused"] = tf.train.Feature(bytes_list=values)
        made = tf.train.Example(features=tf.train.Features(feature=feature))
        return bytes(made.SerializeToString())

    large, small = example(sizes.example_bytes), example(1)
    many = np.array([small] * max(2, len(large) // len(small)), object)
    harmless = wire.predict_message({"examples": many}, signature="examples")
    return Attack(
        what="gRPC: a constant tensor of one tf.Example, beside as many bytes of examples",
        sent_bytes=len(harmless),
        hostile=ask(_constant({"examples": large}, sizes.rows, signature="examples")),
        harmless=ask(harmless),
    )


def constant_inputs(columns: Sequence[str], sizes: Sizes) -> Attack:
    """Every input as the constant of many rows, beside as many bytes of rows."""
    hostile = _constant(one_row(columns), sizes.rows)
    rows = max(2, len(hostile) // (8 * len(columns)))
    ids = {n: hostile_ids.random(rows, seed=s) for s, n in enumerate(columns)}
    harmless = wire.predict_message(ids)
    return Attack(
        what="gRPC: each input a constant of many rows, beside a few rows",
        sent_bytes=len(hostile),
        hostile=ask(hostile),
        harmless=ask(harmless),
    )


def no_token(columns: Sequence[str], sizes: Sizes) -> Attack:
    """Large messages at once without a token, beside the same with it."""
    data = wire.predict_message(one_row(columns), padding=sizes.body_bytes)
    return Attack(
        what="gRPC: large messages at once without a token, beside the same with it",
        sent_bytes=len(data) * sizes.messages,
        hostile=ask(data, token="", times=sizes.messages),
        harmless=ask(data, times=sizes.messages),
    )


def many_inputs(columns: Sequence[str], sizes: Sizes) -> Attack:
    """More inputs than there are columns."""
    made = {f"input{i}": np.zeros(1, np.int64) for i in range(sizes.inputs)}
    return _of_names(columns, sizes, made, "gRPC: thousands of inputs, beside rows of ids")


def long_names(columns: Sequence[str], sizes: Sizes) -> Attack:
    """Inputs of long names."""
    names = [f"{i:02}" + "x" * sizes.name_bytes for i in range(sizes.names)]
    made = dict.fromkeys(names, np.zeros(1, np.int64))
    return _of_names(
        columns, sizes, made, "gRPC: names of 1 MiB, beside as many bytes that are skipped"
    )


def router(columns: Sequence[str], sizes: Sizes) -> Attack:
    """Ids that collide in the deduplication, beside random ones."""
    attacked = columns[:4]

    def message(draw: Callable[[str], hostile_ids.Ids]) -> bytes:
        return wire.predict_message(one_row(columns) | {n: draw(n) for n in attacked})

    hostile = message(lambda name: hostile_ids.colliding(name, sizes.rows, shared_bits=40))
    return Attack(
        what="gRPC: ids chosen against the deduplication, beside random ids",
        sent_bytes=len(hostile),
        hostile=ask(hostile),
        harmless=ask(message(lambda name: hostile_ids.random(sizes.rows))),
    )


ATTACKS: dict[str, Callable[[Sequence[str], Sizes], Attack]] = {
    "rest_brackets": brackets,
    "rest_length": long_length,
    "rest_smuggling": smuggling,
    "rest_slow_clients": slow_clients,
    "grpc_idle": idle_grpc,
    "grpc_constants": constants,
    "grpc_constant_inputs": constant_inputs,
    "grpc_no_token": no_token,
    "grpc_inputs": many_inputs,
    "grpc_names": long_names,
    "router_ids": router,
}


def _of_names(columns: Sequence[str], sizes: Sizes, made: dict[str, Any], what: str) -> Attack:
    data = wire.predict_message(made)
    rows = min(sizes.rows, max(1, len(data) // (8 * len(columns) + 1)))
    ids = {n: hostile_ids.random(rows, seed=s) for s, n in enumerate(columns)}
    valid = wire.predict_message(ids)
    valid += wire.skipped(max(0, len(data) - len(valid)))
    return Attack(what=what, sent_bytes=len(data), hostile=ask(data), harmless=ask(valid))


def _constant(values: dict[str, Any], rows: int, *, signature: str = "") -> bytes:
    """Makes a PredictRequest whose tensors say one value for many rows."""
    made = messages.PredictRequest()
    made.model_spec.name = wire.NAME
    made.model_spec.signature_name = signature
    for name, value in values.items():
        tensor = made.inputs[name]
        tensor.tensor_shape.dim.add(size=rows)
        if isinstance(value, bytes):
            tensor.dtype = tf.string.as_datatype_enum
            tensor.string_val.append(value)
        else:
            tensor.dtype = tf.int64.as_datatype_enum
            tensor.int64_val.extend(value.tolist())
    return bytes(made.SerializeToString())


def _in_turn(port: Callable[[Target], int], head: bytes, count: int) -> Act:
    """Opens connections one after the other, and reads the answer of each."""

    def act(target: Target) -> str:
        answered = 0
        for peer in wire.idle(port(target), head, count, secs=target.secs):
            answered += not head or bool(peer.recv(1 << 12))
            peer.close()
        return f"{answered} served"

    return act


def _said(peer: Any, data: bytes) -> bool:
    """Sends a byte more; tells whether the connection still takes it."""
    try:
        peer.send(data)
    except OSError:
        return False
    return True
