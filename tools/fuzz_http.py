"""A fuzz target of the REST server: any bytes on a connection of their own."""

from __future__ import annotations

import functools
import socket

_WAIT_SECS = 20.0
_GOOD = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def http(data: bytes) -> None:
    """Sends bytes; the server never answers more than was asked, and a good request afterwards."""
    answers = _answers(_exchange(data))
    most = _most_answers(data)
    if answers > most:
        raise AssertionError(f"{answers} answers to at most {most} requests")
    if not _exchange(_GOOD, ends=False).startswith(b"HTTP/1.1 200 "):
        raise AssertionError("a good request must be answered after any other")


@functools.cache
def _port() -> int:
    """Starts a server without a model: bodies are read, and refused after that."""
    from embedps.serving.server.model_api import ModelApi
    from embedps.serving.server.rest_server import RestServer

    api = ModelApi()
    api.health.set(True)
    server = RestServer(api, host="127.0.0.1", port=0)
    server.start()
    return server.port


def _exchange(data: bytes, *, ends: bool = True) -> bytes:
    """Sends bytes, and the end of them if told so; gives all that comes back."""
    got = b""
    with socket.create_connection(("127.0.0.1", _port()), timeout=_WAIT_SECS) as connection:
        try:
            connection.sendall(data)
            if ends:
                connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(1 << 16):
                got += more
        except TimeoutError:
            raise AssertionError("a connection whose client has ended must end") from None
        except OSError:  # the server broke off
            pass
    return got


def _answers(got: bytes) -> int:
    """Counts answers; those that only tell a client to go on are none."""
    count = 0
    while got.startswith(b"HTTP/1."):
        head, _, rest = got.partition(b"\r\n\r\n")
        status, *lines = head.split(b"\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in lines if b": " in line)
        if status.split(b" ")[1][:1] != b"1":
            count += 1
        size = int(fields.get(b"content-length", b"0"))
        got = rest if rest.startswith(b"HTTP/1.") else rest[size:]  # none after HEAD
    return count


def _most_answers(data: bytes) -> int:
    """Counts the requests by h11, and one more if it cannot read the rest."""
    import h11

    twin, count = h11.Connection(h11.SERVER), 0
    try:
        twin.receive_data(data)
        twin.receive_data(b"")
        while twin.our_state is not h11.MUST_CLOSE:
            event = twin.next_event()
            if isinstance(event, h11.EndOfMessage):
                count += 1
                twin.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
                twin.send(h11.EndOfMessage())
                if twin.our_state is h11.DONE:
                    twin.start_next_cycle()
            elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                break
        return count
    except h11.RemoteProtocolError:
        return count + 1
