"""HTTP/1.1 by aiohttp for an application of threads, with limits on what clients hold."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from aiohttp import web
from aiohttp.http import HttpVersion10, HttpVersion11

from embedps.serving.server.request_error import Code
from embedps.serving.server.request_size import MAX_REQUEST_BYTES

MAX_BODIES_BYTES = 256 << 20  # of all requests whose answers are not made yet
MAX_CONNECTIONS = 512
_MAX_THREADS = 256
_BACKLOG = 128
_PAUSE_SECS = 0.1  # after a connection that could not be accepted

# Of one connection, beside its body: 64 fields of a head, and 32 bodies that came ahead of their
# turn. So it holds less than a MiB.
_MAX_HEADERS = 64
_MAX_LINE_BYTES = 8190  # of a field too
_READ_BYTES = 8 << 10

_quiet = logging.getLogger(
    "embedps.http"
)  # a line per malformed request would be a client's choice
_quiet.addHandler(logging.NullHandler())
_quiet.propagate = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds that a client may take."""

    idle: float = 60.0  # from connection or answer to the end of the next request's head
    handshake: float = 10.0  # of TLS
    body: float = 60.0
    answer: float = 60.0  # to take it
    lingering: float = 2.0  # for the rest of a body that was refused, so that he reads why


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head:
    """A request before its body."""

    method: str
    path: str  # as it was sent, without the query
    headers: Mapping[str, str]  # by any case


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer."""

    status: int
    body: bytes
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Application(Protocol):
    """Answers requests."""

    def begin(self, head: Head) -> Reply | Callable[[bytes], Reply]:
        """Answers at once, by the head alone, or says what makes an answer of the body.

        It runs in the server's one thread, so it must not wait. What it gives runs in another.
        """

    def refuse(self, code: Code, text: str, status: int) -> Reply:
        """Makes the answer to a request that breaks a limit."""


class HttpServer:
    """Serves an application."""

    def __init__(
        self,
        application: Application,
        *,
        host: str,
        port: int,
        context: ssl.SSLContext | None = None,
        max_connections: int = MAX_CONNECTIONS,
        times: Times | None = None,
    ) -> None:
        """Takes the port; answers begin with `start`.

        Args:
          application: answers.
          host: the address to listen on, of IPv4 or IPv6.
          port: 0 takes a free one.
          context: for TLS.
          max_connections: beyond them, a new one takes the place of the oldest that has no request.
          times: that clients may take.

        Raises:
          OSError: the address is not of this machine, or the port is in use.
        """
        self._application, self._context = application, context
        self._max_connections, self._times = max_connections, times or Times()
        self._listener = _listen(host, port)
        self.port = int(self._listener.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_report)
        self._server = web.Server(
            self._handle, handler_cancellation=True, loop=self._loop, access_log=None
        )
        self._pool = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="rest")
        self._bodies = _Budget(MAX_BODIES_BYTES)
        self._busy: set[object] = set()  # connections with a request
        # The connections that are to stay, oldest first, and the tasks that opened them.
        self._places: dict[_Connection, asyncio.Task[None]] = {}
        self._accepting: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="rest", daemon=True)

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()
        self._run(self._begin())

    def stop(self, grace_secs: float) -> None:
        """Takes no further requests, and answers those that it has, within a time."""
        if self._thread.is_alive():
            self._run(self._end(grace_secs))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._listener.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        if not self._loop.is_closed():
            self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _begin(self) -> None:
        self._accepting = self._loop.create_task(self._accept())

    async def _end(self, grace_secs: float) -> None:
        opening = [task for task in self._places.values() if not task.done()]
        tasks = [each for each in (self._accepting, *opening) if each is not None]
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()
        self._server.pre_shutdown()  # those without a request
        await asyncio.sleep(0)
        await self._server.shutdown(grace_secs)
        await asyncio.sleep(0)  # the closed ones are told

    async def _accept(self) -> None:
        """Takes connections. What fails is tried again after a pause, without a spin."""
        while True:
            try:
                connection, _ = await self._loop.sock_accept(self._listener)
            except OSError:  # no descriptor is left: one of ours may go
                self._drop_idle()
                await asyncio.sleep(_PAUSE_SECS)
                continue
            if len(self._places) >= self._max_connections and not self._drop_idle():
                connection.close()
                continue
            protocol = self._connection()
            self._places[protocol] = self._loop.create_task(self._open(connection, protocol))

    async def _open(self, connection: socket.socket, protocol: _Connection) -> None:
        times = self._times
        try:
            with contextlib.suppress(OSError):  # he goes away, or is no client of TLS
                await self._loop.connect_accepted_socket(
                    lambda: protocol,
                    connection,
                    ssl=self._context,
                    ssl_handshake_timeout=times.handshake if self._context else None,
                    ssl_shutdown_timeout=times.lingering if self._context else None,
                )
        except asyncio.CancelledError:
            connection.close()
            raise
        finally:
            if protocol.transport is None:
                self._leave(protocol)

    def _leave(self, protocol: _Connection) -> None:
        self._places.pop(protocol, None)

    def _connection(self) -> _Connection:
        return _Connection(
            self._application,
            self._leave,
            self._server,
            loop=self._loop,
            logger=_quiet,
            access_log=None,
            keepalive_timeout=self._times.idle,
            lingering_time=self._times.lingering,
            max_line_size=_MAX_LINE_BYTES,
            max_field_size=_MAX_LINE_BYTES,
            max_headers=_MAX_HEADERS,
            read_bufsize=_READ_BYTES,
            auto_decompress=False,
        )

    def _drop_idle(self) -> bool:
        """Breaks off the oldest connection that has no request; says whether there was one."""
        idle = next((each for each in self._places if each not in self._busy), None)
        if idle is None:
            return False
        self._places.pop(idle).cancel()  # if it shakes hands
        if idle.transport is not None:
            idle.transport.abort()
            idle.force_close()
        return True

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self._busy.add(request.protocol)
        try:
            try:
                reply = await self._reply(request)
                is_last = _is_last(request)
            except _RefusedError as refused:
                reply, is_last = self._application.refuse(*refused.args), True
            response = _response(reply)
            if is_last:
                response.force_close()
            async with _limit(self._times.answer, request):
                await response.prepare(request)
                await response.write_eof()
            return response
        finally:
            self._busy.discard(request.protocol)

    async def _reply(self, request: web.BaseRequest) -> Reply:
        _check_framing(request)
        head = Head(method=request.method, path=request.rel_url.raw_path, headers=request.headers)
        begun = self._application.begin(head)
        if isinstance(begun, Reply):
            return begun
        if (request.content_length or 0) > MAX_REQUEST_BYTES:
            raise _too_large()
        if request.can_read_body and request.headers.get("Expect", "").lower() == "100-continue":
            await _continue(request)
        return await self._work(request, begun)

    async def _work(self, request: web.BaseRequest, work: Callable[[bytes], Reply]) -> Reply:
        parts: list[bytes] = []
        held = 0
        try:
            async with asyncio.timeout(self._times.body):
                while part := await request.content.readany():
                    if not self._bodies.take(len(part)):
                        raise _RefusedError(
                            "RESOURCE_EXHAUSTED",
                            f"requests of {MAX_BODIES_BYTES} bytes wait already: ask later",
                            429,
                        )
                    held += len(part)
                    parts.append(part)
                    if held > MAX_REQUEST_BYTES:
                        raise _too_large()
        except BaseException as error:
            self._bodies.give(held)
            if isinstance(error, TimeoutError):
                text = f"a body must arrive within {self._times.body:g} seconds"
                raise _RefusedError("DEADLINE_EXCEEDED", text, 408) from None
            if isinstance(error, web.RequestPayloadError):
                raise _RefusedError(
                    "INVALID_ARGUMENT", "the body's chunks are malformed", 400
                ) from None
            raise

        # A request whose client is gone by its turn is not worked for; the bytes are held until
        # then, or until its work is done.
        future = self._pool.submit(_run_on, work, parts)
        future.add_done_callback(lambda _: self._bodies.give(held))
        return await asyncio.wrap_future(future)


class _Connection(web.RequestHandler):
    """A connection that says in JSON what is malformed."""

    def __init__(
        self,
        application: Application,
        on_lost: Callable[[_Connection], None],
        *args: Any,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._application, self._on_lost = application, on_lost

    def connection_lost(self, exc: BaseException | None) -> None:
        self._on_lost(self)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status == 500 or request.writer.output_size > 0:
            raise ConnectionError from exc  # a fault of ours, or amid an answer
        lines = (message or "").splitlines() or [""]
        text = f"a request must be of HTTP/1.1: {lines[0][:200]}"
        reply = self._application.refuse("INVALID_ARGUMENT", text, status)
        response = _response(reply)
        response.force_close()
        return response


class _RefusedError(Exception):
    """A limit is broken; arguments are those of `Application.refuse`."""


class _Budget:
    """Bytes that all requests may hold."""

    def __init__(self, most: int) -> None:
        self._most, self._used = most, 0
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        with self._lock:
            if self._used + size > self._most:
                return False
            self._used += size
            return True

    def give(self, size: int) -> None:
        with self._lock:
            self._used -= size


def _response(reply: Reply) -> web.Response:
    headers = {"Server": "embedps", **reply.headers}
    return web.Response(status=reply.status, body=reply.body, headers=headers)


def _check_framing(request: web.BaseRequest) -> None:
    """Refuses what the parser lets pass, but another program may see otherwise."""
    coding = request.headers.get("Transfer-Encoding")
    wrong = None
    if request.version not in (HttpVersion10, HttpVersion11):
        wrong = "a request must be of HTTP/1.1"
    elif request.method in ("GET", "HEAD") and request.can_read_body:
        wrong = f"a {request.method} must have no body"
    elif coding is not None and (coding.lower() != "chunked" or request.version == HttpVersion10):
        wrong = "the Transfer-Encoding must be `chunked`, of HTTP/1.1"
    if wrong is not None:
        raise _RefusedError("INVALID_ARGUMENT", wrong, 400)


def _is_last(request: web.BaseRequest) -> bool:
    """Says whether what follows may not be a request: a body that nobody read, another protocol."""
    is_usual = request.method in ("GET", "POST") and "Upgrade" not in request.headers
    return not (is_usual and request.content.is_eof())


def _too_large() -> _RefusedError:
    return _RefusedError(
        "INVALID_ARGUMENT", f"a body must have at most {MAX_REQUEST_BYTES} bytes", 413
    )


def _run_on(work: Callable[[bytes], Reply], parts: list[bytes]) -> Reply:
    body = b"".join(parts)
    parts.clear()
    return work(body)


@contextlib.asynccontextmanager
async def _limit(secs: float, request: web.BaseRequest) -> Any:
    try:
        async with asyncio.timeout(secs):
            yield
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()  # what he does not read is thrown away
        raise ConnectionError from None


async def _continue(request: web.BaseRequest) -> None:
    if request.version == HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer is still to come


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), OSError):  # a connection broke off
        loop.default_exception_handler(context)
