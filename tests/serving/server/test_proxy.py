"""REST behind a real proxy that shares a few connections among its clients."""

from __future__ import annotations

import contextlib
import csv
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from embedps.serving.server.model_api import ModelApi
from embedps.serving.server.rest_server import RestServer
from tests.serving.server.test_http_server import answer_of, answers_in, rest_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed"),
]

SETTINGS = """
defaults
  mode http
  timeout connect 10s
  timeout client 60s
  timeout server 60s
  timeout http-request 60s
  option http-keep-alive
  retries 0
global
  stats socket {statistics} level user
frontend clients
  bind fd@{descriptor}
  default_backend servers
backend servers
  http-reuse always
  server rest 127.0.0.1:{port} maxconn 4
"""

BODY = b'{"instances": [{"a": 1}]}'
SMUGGLED = b"GET /v1/models/smuggled HTTP/1.1\r\nHost: a\r\n\r\n"


class Proxy:
    """A proxy, and what it counts."""

    def __init__(self, port: int, statistics: Path) -> None:
        self.port, self._statistics = port, statistics

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def counts(self) -> dict[str, int]:
        """Gives the connections that it opened to the server, and the requests on old ones."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self._statistics))
            connection.sendall(b"show stat\n")
            lines = rest_of(connection).decode().lstrip("# ").splitlines()
        (server,) = (
            each
            for each in csv.DictReader(lines)
            if (each["pxname"], each["svname"]) == ("servers", "rest")
        )
        return {name: int(server[name] or 0) for name in ("connect", "reuse", "hrsp_5xx", "econ")}


@pytest.fixture(name="proxy")
def make_proxy(tmp_path: Path) -> Iterator[Proxy]:
    server = RestServer(ModelApi(), host="127.0.0.1", port=0)
    server.start()
    settings, statistics = tmp_path / "haproxy.cfg", tmp_path / "s"
    # The proxy is given a socket that listens, so nobody else can take its port.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        descriptor = listener.fileno()
        settings.write_text(
            SETTINGS.format(statistics=statistics, descriptor=descriptor, port=server.port)
        )
        process = subprocess.Popen(["haproxy", "-db", "-f", settings], pass_fds=[descriptor])
        port = int(listener.getsockname()[1])
    try:
        yield Proxy(port, statistics)
    finally:
        process.kill()
        process.wait()
        server.stop(5)


def get(mark: str) -> bytes:
    """Asks for a model that is not there: the answer names it."""
    return f"GET /v1/models/{mark} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


def post(body: bytes, framing: bytes | None = None, mark: str = "attack") -> bytes:
    framing = framing or b"Content-Length: %d\r\n" % len(body)
    path = f"/v1/models/{mark}:predict".encode()
    return b"POST %b HTTP/1.1\r\nHost: a\r\n%b\r\n%b" % (path, framing, body)


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def check(connection: Any, mark: str) -> None:
    code, said = answer_of(connection)
    assert (code, f"'{mark}'" in said.decode()) == (404, True), said


def test_good_requests_through_a_proxy(proxy: Proxy) -> None:
    chunks = b"Transfer-Encoding: chunked\r\n"
    with proxy.connect() as connection:
        for i in range(200):
            connection.sendall(get(f"g{i}"))
            check(connection, f"g{i}")
            connection.sendall(post(BODY, mark=f"p{i}"))
            check(connection, f"p{i}")
        connection.sendall(post(chunked(BODY, 3), chunks, "chunks"))
        check(connection, "chunks")
        large = BODY + b" " * (8 << 20)
        connection.sendall(post(large, mark="large"))
        check(connection, "large")
        connection.sendall(post(chunked(large, 10_000), chunks, "large-chunks"))
        check(connection, "large-chunks")
    # Requests that came at once are answered in their order, and by no more answers.
    with proxy.connect() as connection:
        marks = [f"p{i}" for i in range(30)]
        last = b"GET /v1/models/last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        connection.sendall(b"".join(map(get, marks)) + last)
        said = rest_of(connection)
        assert answers_in(said) == [404] * 31
        places = [said.index(f"'{mark}'".encode()) for mark in [*marks, "last"]]
        assert places == sorted(places)
    counts = proxy.counts()
    assert counts["hrsp_5xx"] == counts["econ"] == 0
    assert counts["connect"] + counts["reuse"] == 200 + 200 + 3 + 31
    assert counts["connect"] < 10


# What each sends, and how many requests the proxy may see in it.
ATTACKS = {
    "both framings, short length": (
        post(b"0\r\n\r\n" + SMUGGLED, b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
        2,
    ),
    "both framings, long length": (
        post(
            b"0\r\n\r\n" + SMUGGLED,
            b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n" % (5 + len(SMUGGLED)),
        ),
        2,
    ),
    "a coding that looks like another": (
        post(b"0\r\n\r\n" + SMUGGLED, b"Content-Length: 5\r\nTransfer-Encoding: xchunked\r\n"),
        2,
    ),
    "a coding after a tab": (
        post(b"0\r\n\r\n" + SMUGGLED, b"Content-Length: 5\r\nTransfer-Encoding:\tchunked\r\n"),
        2,
    ),
    "a GET's body": (
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(SMUGGLED)
        + SMUGGLED,
        1,
    ),
    "a GET's body in chunks": (
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        + chunked(SMUGGLED, 1000),
        1,
    ),
    "a chunk that is longer": (
        post(b"1\r\n{}\r\n0\r\n\r\n" + SMUGGLED, b"Transfer-Encoding: chunked\r\n"),
        1,
    ),
    "a chunk's size": (
        post(b"zz\r\n{}\r\n0\r\n\r\n" + SMUGGLED, b"Transfer-Encoding: chunked\r\n"),
        1,
    ),
    "a chunk's LF": (
        post(b"2;\n{}\r\n0\r\n\r\n" + SMUGGLED, b"Transfer-Encoding: chunked\r\n"),
        2,  # the proxy lets it pass, and sees a second request; the server refuses the first
    ),
    "zeros before the length": (
        post(SMUGGLED, b"Content-Length: " + b"0" * 18 + b"%d\r\n" % len(SMUGGLED)),
        1,
    ),
    "zeros before a length beyond the limit": (
        post(SMUGGLED, b"Content-Length: " + b"0" * 18 + b"%d\r\n" % (1 << 30)),
        1,
    ),
    "two lengths": (
        post(b"{}" + SMUGGLED, b"Content-Length: 2\r\nContent-Length: %d\r\n" % len(SMUGGLED)),
        1,
    ),
    "a half body": (post(b'{"instances', b"Content-Length: 500\r\n"), 1),
}


def test_smuggling_through_a_proxy_reaches_no_other_client(proxy: Proxy) -> None:
    """Others' requests go over the connections that the attacks used."""
    are_done = threading.Event()

    def attack(request: bytes, most: int) -> None:
        with proxy.connect() as connection:
            # Without the end of its stream: the proxy would drop what it has not sent on.
            connection.sendall(request)
            connection.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                said = b""
                while part := connection.recv(1 << 16):
                    said += part
            codes = answers_in(said)
            assert len(codes) <= most, (request, codes)

    def ask(client: int) -> int:
        asked = 0
        with proxy.connect() as connection:
            while not are_done.is_set() or asked < 100:
                connection.sendall(get(f"g{client}-{asked}"))
                check(connection, f"g{client}-{asked}")
                connection.sendall(post(BODY, mark=f"p{client}-{asked}"))
                check(connection, f"p{client}-{asked}")
                asked += 1
        return asked

    with ThreadPoolExecutor(6) as pool:
        others = [pool.submit(ask, i) for i in range(4)]
        attacks = [
            pool.submit(attack, request, most)
            for _ in range(10)
            for request, most in ATTACKS.values()
        ]
        try:
            for each in attacks:
                each.result(60)
        finally:
            are_done.set()
        asked = sum(each.result(60) for each in others)
    counts = proxy.counts()
    assert counts["hrsp_5xx"] == counts["econ"] == 0
    assert counts["reuse"] > asked
