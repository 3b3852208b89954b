"""HTTP over raw sockets: framing, limits, slow and many clients, TLS, and the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedps.errors import UsageError
from embedps.serving.server import http_server
from embedps.serving.server.http_server import Head, HttpServer, Reply, Times
from embedps.serving.server.model_api import ModelApi
from embedps.serving.server.request_error import Code
from embedps.serving.server.request_size import MAX_REQUEST_BYTES
from embedps.serving.server.rest_server import RestServer
from tests.serving.server.builders import until

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /echo HTTP/1.1\r\nHost: a\r\n"
BRIEF = Times(lingering=0.2)


class Echo:
    """Gives a POST's body back; `/now` answers at once, and `/wait` once `may_go` is set."""

    def __init__(self) -> None:
        self.may_go, self.bodies = threading.Event(), list[bytes]()
        self.begun = 0

    def begin(self, head: Head) -> Reply | Callable[[bytes], Reply]:
        self.begun += 1
        if head.path == "/token":
            return Reply(status=401, body=b"no token")
        if head.method == "GET":
            return Reply(status=200, body=head.path.encode())
        return lambda body: self._echo(head.path, body)

    def refuse(self, code: Code, text: str, status: int) -> Reply:
        return Reply(status=status, body=json.dumps({"error": text}).encode())

    def _echo(self, path: str, body: bytes) -> Reply:
        if path == "/wait":
            assert self.may_go.wait(60)
        self.bodies.append(body)
        return Reply(status=200, body=body)


@contextlib.contextmanager
def serving(**options: Any) -> Iterator[tuple[Echo, HttpServer]]:
    echo = Echo()
    server = HttpServer(echo, host="127.0.0.1", port=0, **options)
    server.start()
    try:
        yield echo, server
    finally:
        echo.may_go.set()
        server.stop(5)


@pytest.fixture(name="server", scope="module")
def make_server() -> Iterator[HttpServer]:
    with serving(times=BRIEF) as (_, server):
        yield server


def connect(server: Any) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def rest_of(connection: Any) -> bytes:
    """Reads until the server closes."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            data += part
    return data


def answer_of(connection: Any) -> tuple[int, bytes]:
    """Reads an answer, and nothing of the next one, which may come with it."""
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
    reader.send(h11.EndOfMessage())
    code, left, body = 0, 1, bytearray()  # of a head, one byte at a time
    while True:
        event = reader.next_event()
        if event is h11.NEED_DATA:
            reader.receive_data(connection.recv(left))
        elif isinstance(event, h11.Response):
            code, left = event.status_code, int(dict(event.headers).get(b"content-length", 1))
        elif isinstance(event, h11.Data):
            body += event.data
            left = max(1, left - len(event.data))
        elif isinstance(event, h11.EndOfMessage):
            return code, bytes(body)
        else:
            assert not isinstance(event, h11.ConnectionClosed), "closed before its answer ended"


def exchange(server: Any, data: bytes) -> bytes:
    """Sends bytes over a connection of their own; reads until the server closes it."""
    with connect(server) as connection:
        connection.sendall(data)
        return rest_of(connection)


def ask(server: Any, data: bytes) -> tuple[int, bytes]:
    """Sends a request over a connection of its own; reads its answer."""
    with connect(server) as connection:
        connection.sendall(data)
        return answer_of(connection)


def answers_in(data: bytes) -> list[int]:
    """Gives the codes of all whole answers, without those that only ask for a body."""
    codes = []
    while data:
        head, end, rest = data.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        sizes = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")]
        size = sizes[0] if sizes else 0
        if not end or len(rest) < size:
            break
        codes.append(int(lines[0].split()[1]))
        data = rest[size:]
    return [code for code in codes if code != 100]


REFUSED = {
    "both framings": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both framings, turned": b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "two equal lengths": b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "two lengths": b"Content-Length: 2\r\nContent-Length: 38\r\n\r\n{}",
    "a list of lengths": b"Content-Length: 2, 2\r\n\r\n{}",
    "a plus sign": b"Content-Length: +2\r\n\r\n{}",
    "a minus sign": b"Content-Length: -2\r\n\r\n{}",
    "digits of another base": b"Content-Length: 0x2\r\n\r\n{}",
    "a folded field": b"X: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
    "a folded length": b"Content-Length:\r\n 2\r\n\r\n{}",
    "a bare LF": b"X: a\nContent-Length: 2\r\n\r\n{}",
    "a bare CR": b"X: a\rContent-Length: 2\r\n\r\n{}",
    "a NUL": b"X: \0\r\nContent-Length: 2\r\n\r\n{}",
    "a blank before the colon": b"Content-Length : 2\r\n\r\n{}",
    "chunked twice": b"Transfer-Encoding: chunked, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "chunked, not last": b"Transfer-Encoding: chunked, identity\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "another coding": b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "an unknown coding": b"Transfer-Encoding: xchunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "a chunk's size": b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "a chunk's LF": b"Transfer-Encoding: chunked\r\n\r\n2;\n{}\r\n0\r\n\r\n",
    "a chunk that is longer": b"Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n",
    "a second Host": b"Host: b\r\nContent-Length: 2\r\n\r\n{}",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_framing_that_two_programs_may_read_otherwise_is_refused(
    server: HttpServer, name: str
) -> None:
    assert answers_in(exchange(server, POST + REFUSED[name] + HEALTH)) == [400]


@pytest.mark.parametrize(
    "kind", ["Content-Length: %d\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"]
)
def test_a_gets_body_is_no_request(server: HttpServer, kind: str) -> None:
    framing = (kind % len(HEALTH) if "%" in kind else kind).encode()
    head = b"GET /healthz HTTP/1.1\r\nHost: a\r\n"
    assert answers_in(exchange(server, head + framing + HEALTH)) == [400]


@pytest.mark.parametrize(
    "head",
    [
        b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"GET /healthz\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_another_protocol_ends_the_connection(server: HttpServer, head: bytes) -> None:
    assert len(answers_in(exchange(server, head + HEALTH))) == 1


def test_heads_are_bounded(server: HttpServer) -> None:
    fields = [b"a%d: b\r\n" % i for i in range(200)]
    for head in (
        b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 9000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(fields) + b"\r\n",
    ):
        data = exchange(server, head + HEALTH)
        assert answers_in(data) == [400]
        assert len(data) < 1000
    # An endless field needs no end to be refused.
    endless = b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 100_000
    assert answers_in(exchange(server, endless)) == [400]


def test_requests_share_a_connection_in_their_order(server: HttpServer) -> None:
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n1;a=b\r\nx\r\n2\r\nyz\r\n0\r\nT: u\r\n\r\n"
    with connect(server) as connection:
        for _ in range(3):
            connection.sendall(HEALTH)
            assert answer_of(connection) == (200, b"/healthz")
        connection.sendall(POST + b"Content-Length: 2\r\n\r\n{}" + chunked)
        connection.sendall(b"GET http://b/last HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n")
        said = rest_of(connection)
        assert answers_in(said) == [200, 200, 200]
        places = [said.index(b"\r\n\r\n" + body) for body in (b"{}", b"xyz", b"/last")]
        assert places == sorted(places)


def test_a_body_is_asked_for_if_the_client_waits(server: HttpServer) -> None:
    with connect(server) as connection:
        connection.sendall(POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert connection.recv(25, socket.MSG_WAITALL) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"{}")
        assert answer_of(connection) == (200, b"{}")


@pytest.mark.parametrize("zeros", [0, 18])
def test_a_large_body_is_refused_before_it_is_sent(zeros: int) -> None:
    with serving(times=BRIEF) as (echo, server), connect(server) as connection:
        length = b"0" * zeros + b"%d" % (MAX_REQUEST_BYTES + 1)
        connection.sendall(POST + b"Content-Length: " + length + b"\r\n\r\n")
        code, body = answer_of(connection)
        assert code == 413
        assert json.loads(body) == {"error": "a body must have at most 67108864 bytes"}
        connection.sendall(HEALTH)
        assert rest_of(connection) == b""
        assert echo.bodies == []


def test_a_chunked_body_is_refused_once_it_is_too_large(monkeypatch: Any) -> None:
    monkeypatch.setattr(http_server, "MAX_REQUEST_BYTES", 1 << 20)
    chunk = b"10000\r\n" + b"x" * (1 << 16) + b"\r\n"
    with serving() as (echo, server), connect(server) as connection:
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 17)
        assert answer_of(connection)[0] == 413
        assert echo.bodies == []
        assert server._bodies._used == 0
    with serving() as (echo, server), connect(server) as connection:
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 16)
        connection.sendall(b"0\r\n\r\n" + HEALTH)
        assert answer_of(connection)[0] == 200
        assert echo.bodies == [b"x" * (1 << 20)]


def test_all_bodies_together_are_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr(http_server, "MAX_BODIES_BYTES", 3000)
    head = b"POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 2000\r\n\r\n"
    with serving() as (echo, server), connect(server) as first, connect(server) as second:
        first.sendall(head + b"x" * 2000)
        until(lambda: server._bodies._used == 2000)
        second.sendall(head + b"x" * 2000)
        code, body = answer_of(second)
        assert (code, "wait already: ask later" in json.loads(body)["error"]) == (429, True)
        echo.may_go.set()
        assert answer_of(first) == (200, b"x" * 2000)
        assert server._bodies._used == 0


def test_a_refusal_by_the_head_needs_no_body() -> None:
    with serving(times=BRIEF) as (echo, server), connect(server) as connection:
        connection.sendall(b"POST /token HTTP/1.1\r\nHost: a\r\nContent-Length: 50000000\r\n\r\n")
        assert answer_of(connection) == (401, b"no token")
        assert rest_of(connection) == b""
        assert (echo.begun, server._bodies._used) == (1, 0)


def test_slow_clients_are_dropped() -> None:
    times = Times(idle=0.2, body=0.2, lingering=0.1)
    with serving(times=times) as (echo, server):
        for begun in (b"", b"GET / HTT", b"GET / HTTP/1.1\r\nHost: a\r\n"):
            assert exchange(server, begun) == b""
        assert answers_in(exchange(server, HEALTH)) == [200]  # between two requests
        assert answers_in(exchange(server, POST + b"Content-Length: 10\r\n\r\n12345")) == [408]
        assert echo.bodies == []
        until(lambda: not server._server.connections)


def test_a_client_that_reads_no_answer_is_dropped() -> None:
    with serving(times=Times(answer=0.2)) as (_, server), connect(server) as connection:
        body = b"x" * (32 << 20)
        connection.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        until(lambda: not server._server.connections)
        assert len(rest_of(connection)) < len(body)


def test_a_new_connection_takes_the_place_of_an_idle_one() -> None:
    with serving(max_connections=4) as (echo, server), contextlib.ExitStack() as stack:
        busy = stack.enter_context(connect(server))
        busy.sendall(b"POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
        until(lambda: len(server._busy) == 1)
        idle = [stack.enter_context(connect(server)) for _ in range(40)]
        assert ask(server, HEALTH) == (200, b"/healthz")
        until(lambda: len(server._server.connections) <= 4)  # one that goes is there for a while
        assert rest_of(idle[0]) == b""
        echo.may_go.set()
        assert answer_of(busy) == (200, b"x")


def test_connections_that_come_at_once_pass_no_limit_and_the_oldest_goes() -> None:
    with serving(max_connections=4) as (_, server), contextlib.ExitStack() as stack:
        for pauses in range(12):  # of the loop, between two of them
            many = [stack.enter_context(connect(server)) for _ in range(3)]

            async def rush(pauses: int = pauses, many: list[socket.socket] = many) -> list[int]:
                found = []
                for each in range(9):
                    many.append(stack.enter_context(connect(server)))
                    for _ in range(pauses if each % 3 == 0 else 0):
                        await asyncio.sleep(0)
                    found.append(len(server._places))
                return found

            counts = asyncio.run_coroutine_threadsafe(rush(), server._loop).result(60)
            assert max(counts) <= 4
            assert ask(server, HEALTH) == (200, b"/healthz")
            until(lambda: len(server._server.connections) <= 4)
            assert [rest_of(each) for each in many[:9]] == [b""] * 9
            for each in many[9:]:
                each.setblocking(False)
                with pytest.raises(BlockingIOError):  # it is open
                    each.recv(1)


def test_all_connections_with_requests_are_kept() -> None:
    with serving(max_connections=2) as (echo, server), contextlib.ExitStack() as stack:
        busy = [stack.enter_context(connect(server)) for _ in range(2)]
        for each in busy:
            each.sendall(b"POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
        until(lambda: len(server._busy) == 2)
        with connect(server) as one_more:
            assert rest_of(one_more) == b""
        echo.may_go.set()
        assert [answer_of(each) for each in busy] == [(200, b"x")] * 2


def test_no_descriptor_left_drops_an_idle_connection_without_a_spin(monkeypatch: Any) -> None:
    with serving() as (_, server), connect(server) as idle:
        until(lambda: len(server._server.connections) == 1)
        accept, calls = server._loop.sock_accept, []

        async def fail(listener: socket.socket) -> Any:
            calls.append(len(server._server.connections))
            if len(calls) < 3:
                raise OSError(24, "Too many open files")
            return await accept(listener)

        monkeypatch.setattr(server._loop, "sock_accept", fail)
        with connect(server) as first:  # this one, the accept that waits already takes
            until(lambda: len(calls) == 3)
            assert rest_of(idle) == b""
            assert rest_of(first) == b""
        assert ask(server, HEALTH) == (200, b"/healthz")
        assert len(calls) == 4


def test_who_goes_away_is_not_worked_for(monkeypatch: Any) -> None:
    monkeypatch.setattr(http_server, "_MAX_THREADS", 1)
    wait = b"POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n"
    with serving() as (echo, server), connect(server) as first:
        first.sendall(wait + b"a")
        until(lambda: len(server._busy) == 1)
        with connect(server) as second:
            second.sendall(wait + b"b")
            until(lambda: len(server._busy) == 2)
        until(lambda: len(server._busy) == 1)
        first.sendall(wait + b"c")
        echo.may_go.set()
        assert answer_of(first) == (200, b"a")
        assert answer_of(first) == (200, b"c")
        assert echo.bodies == [b"a", b"c"]
        assert server._bodies._used == 0


def test_the_end_answers_what_there_is() -> None:
    echo = Echo()
    server = HttpServer(echo, host="127.0.0.1", port=0)
    server.start()
    with connect(server) as busy, connect(server) as idle:
        busy.sendall(b"POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx" + HEALTH)
        until(lambda: len(server._busy) == 1)
        ends = threading.Thread(target=server.stop, args=(60,))
        ends.start()
        assert rest_of(idle) == b""
        with pytest.raises(ConnectionRefusedError):
            connect(server)
        echo.may_go.set()
        assert b"\r\n\r\nx" in rest_of(busy)
        ends.join()


PIECES = [HEALTH, POST, b"\r\n", b"\n", b"\r", b" ", b":", b";", b"\0", b"hello", b"GET "]
PIECES += [b"0\r\n\r\n", b"5\r\nhello\r\n", b"Host: a\r\n", b"HTTP/1.0", b"Connection: close\r\n"]
PIECES += [b"Content-Length: 5\r\n\r\nhello", b"Content-Length: 005\r\n\r\nhello"]
PIECES += [b"Content-Length: 34\r\n", b"Transfer-Encoding: chunked\r\n\r\n", b"X: y\r\n"]
PIECES += [b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n"]


def test_hostile_bytes_get_no_more_answers_than_requests() -> None:
    """h11 says how many requests there are; the server is as strict, or stricter."""
    stream = st.lists(st.sampled_from(PIECES) | st.binary(max_size=8), max_size=12).map(b"".join)
    cuts = st.lists(st.integers(0, 400), max_size=4).map(sorted)
    times = Times(idle=1.0, body=1.0, lingering=0.1)

    @settings(max_examples=60, deadline=None, database=None)
    @given(stream=stream, cuts=cuts)
    def check(stream: bytes, cuts: list[int]) -> None:
        wanted, data = _requests_in(stream), b""
        with connect(server) as connection, contextlib.suppress(OSError):
            for first, last in zip([0, *cuts], [*cuts, len(stream)], strict=True):
                connection.sendall(stream[first:last])
            while len(_good(data)) < wanted and (part := connection.recv(1 << 16)):
                data += part
            connection.shutdown(socket.SHUT_WR)
            data += rest_of(connection)
        codes = answers_in(data)
        assert len(_good(data)) <= wanted, (stream, data)
        assert 400 not in codes[:-1]  # it is a connection's last
        assert ask(server, HEALTH) == (200, b"/healthz")

    with serving(times=times) as (_, server):
        check()


def _good(data: bytes) -> list[int]:
    return [code for code in answers_in(data) if code == 200]


def _requests_in(stream: bytes) -> int:
    """Counts whole requests as h11 reads them; blank lines may stand before one (RFC 9112, 2.2)."""
    count, is_last = 0, False
    while not is_last and (stream := stream.lstrip(b"\r\n")):
        reader = h11.Connection(h11.SERVER)
        reader.receive_data(stream)
        event = None
        while not isinstance(event, h11.EndOfMessage):
            try:
                event = reader.next_event()
            except h11.RemoteProtocolError:
                return count
            if event is h11.NEED_DATA:
                return count
        count += 1
        is_last = reader.our_state is h11.MUST_CLOSE
        stream = reader.trailing_data[0]
    return count


@pytest.fixture(name="certificate", scope="module")
def make_certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("tls")
    chain, key = place / "chain.pem", place / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
    ]
    command += ["-nodes", "-keyout", str(key), "-out", str(chain), "-subj", "/CN=localhost"]
    subprocess.run(command, check=True, capture_output=True)
    return chain, key


def test_tls_waits_for_no_slow_handshake(certificate: tuple[Path, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    client = ssl.create_default_context(cafile=str(certificate[0]))
    times = Times(handshake=0.3)
    with (
        serving(context=context, times=times, max_connections=8) as (_, server),
        contextlib.ExitStack() as stack,
    ):
        silent = [stack.enter_context(connect(server)) for _ in range(20)]
        assert b"200 OK" not in exchange(server, HEALTH)  # no client of TLS
        with client.wrap_socket(connect(server), server_hostname="localhost") as connection:
            connection.sendall(HEALTH + HEALTH)
            assert answer_of(connection)[0] == 200
        assert [rest_of(each) for each in silent] == [b""] * 20
        until(lambda: not server._places)


def test_a_door_that_cannot_open_is_one_line(certificate: tuple[Path, Path]) -> None:
    api = ModelApi()
    taken = RestServer(api, host="127.0.0.1", port=0)
    with pytest.raises(UsageError, match=r"free port \(Address already in use\): give another"):
        RestServer(api, host="127.0.0.1", port=taken.port)
    with pytest.raises(UsageError, match="must be a certificate and its key"):
        RestServer(api, host="127.0.0.1", port=0, certificate=(certificate[0], certificate[0]))
    with pytest.raises(UsageError, match="must be an address of this machine"):
        RestServer(api, host="no.such.host.invalid", port=0)
    taken.stop(1)


def test_ipv6() -> None:
    api = ModelApi()
    server = RestServer(api, host="::1", port=0)
    server.start()
    with socket.create_connection(("::1", server.port), timeout=60) as connection:
        connection.sendall(HEALTH)
        assert answer_of(connection)[0] == 503
    server.stop(1)


def test_a_token_is_asked_for_before_the_body_and_not_for_health() -> None:
    api = ModelApi(token="secret")
    api.health.set(True)
    server = RestServer(api, host="127.0.0.1", port=0)
    server.start()
    head = b"POST /v1/models/clicks:predict HTTP/1.1\r\nHost: a\r\nContent-Length: 60000000\r\n"
    for token in (b"", b"Authorization: Bearer \xff\r\n", b"Authorization: Bearer secre\r\n"):
        assert ask(server, head + token + b"\r\n")[0] == 401
    assert ask(server, HEALTH) == (200, b'{"status": "SERVING"}')
    assert 'embedps_requests_total{api="rest",code="UNAUTHENTICATED"} 3' in api.metrics.text()
    server.stop(1)


def test_health_is_answered_while_all_threads_are_busy(monkeypatch: Any) -> None:
    monkeypatch.setattr(http_server, "_MAX_THREADS", 2)
    api = ModelApi()
    api.health.set(True)
    server = RestServer(api, host="127.0.0.1", port=0)
    server.start()
    may_go, begun = threading.Event(), threading.Semaphore(0)

    def hold() -> bool:
        begun.release()
        return may_go.wait(60)

    pool = server._server._pool
    held = [pool.submit(hold) for _ in range(2)]
    for _ in held:
        assert begun.acquire(timeout=60)
    with connect(server) as waiting, connect(server) as probe:
        waiting.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        until(lambda: pool._work_queue.qsize() == 1)
        for _ in range(3):
            probe.sendall(HEALTH)
            assert answer_of(probe) == (200, b'{"status": "SERVING"}')
        assert pool._work_queue.qsize() == 1
        may_go.set()
        assert all(each.result(60) for each in held)
        assert answer_of(waiting)[0] == 200
    server.stop(5)
