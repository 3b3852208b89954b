"""Follows a run by the changes that `embedps serve` sends, where no file of it can be read.

The server is asked for everything after a position. Whatever breaks the call, it is asked again
from the last position that was reached, as a reader of files goes on after it was killed.
"""

from __future__ import annotations

import json
import queue
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

from embedps.checkpoint.chain import Position
from embedps.checkpoint.changes import Change, Reached, changes_of
from embedps.errors import CheckpointError, UsageError

SCHEMES = ("grpc://", "grpcs://")
METHOD = "/embedps.Follow/Changes"
MAX_MESSAGE_BYTES = 1 << 26
_POLL_SECS = 0.1
_RETRY_SECS = 1.0
_PASSING = ("UNAVAILABLE", "CANCELLED", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")
_END = object()


def follow_served(
    url: str,
    position: Position | None,
    ref: str | None,
    idle_secs: float,
    stop: threading.Event,
    token: str | None,
) -> Iterator[Change]:
    """Yields changes as `follow` does, from a server.

    Raises:
      UsageError: the address is wrong, or the server refuses.
      CheckpointError: the server cannot be reached at first, or for as long as `idle_secs`.
      CorruptCheckpointError: what it sends is no change.
    """
    import grpc

    address, model, is_secure = _parts(url)
    has_answered = False
    waits_since: float | None = None

    def is_idle() -> bool:
        return waits_since is not None and time.monotonic() - waits_since > idle_secs

    while not stop.is_set():
        request = json.dumps(
            {"model": model, "ref": ref, "position": position and position.to_json()}
        )
        with _Call(address, request.encode(), token, is_secure=is_secure) as call:
            try:
                messages = call.messages(lambda: stop.is_set() or is_idle())
                for change in changes_of(messages, url):
                    has_answered = True
                    if change is None:
                        waits_since = waits_since or time.monotonic()
                        continue
                    waits_since = None
                    if isinstance(change, Reached):
                        position = change.position
                    yield change
                return
            except grpc.RpcError as error:
                code, details = error.code().name, error.details()
                if code not in _PASSING:
                    raise UsageError(f"{url} refuses: {details}") from None
                waits_since = waits_since or time.monotonic()
                if not has_answered or is_idle():
                    raise CheckpointError(f"{url} cannot be followed: {details}") from None
        stop.wait(_RETRY_SECS)


class _Call:
    """One call of a server; a thread takes its messages, so that its reader can stop."""

    def __init__(self, address: str, request: bytes, token: str | None, *, is_secure: bool) -> None:
        import grpc

        options = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES)]
        secret = grpc.ssl_channel_credentials() if is_secure else None
        self._channel = (
            grpc.insecure_channel(address, options)
            if secret is None
            else grpc.secure_channel(address, secret, options)
        )
        headers = [] if token is None else [("authorization", f"Bearer {token}")]
        self._call = self._channel.unary_stream(METHOD)(request, metadata=headers)
        self._taken: queue.Queue[Any] = queue.Queue(2)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._take, name="follow", daemon=True)
        self._thread.start()

    def __enter__(self) -> _Call:
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        self._call.cancel()
        self._thread.join()
        self._channel.close()

    def messages(self, is_over: Callable[[], bool]) -> Iterator[bytes]:
        """Yields messages until the server ends the call, or nobody wants more.

        Raises:
          grpc.RpcError: the call broke.
        """
        while True:
            try:
                message = self._taken.get(timeout=_POLL_SECS)
            except queue.Empty:
                if is_over():
                    return
                continue
            if message is _END:
                return
            if isinstance(message, Exception):
                raise message
            yield message

    def _take(self) -> None:
        last: Any = _END
        try:
            for message in self._call:
                self._put(message)
        except Exception as error:  # of gRPC: its reader gets it
            last = error
        self._put(last)

    def _put(self, message: Any) -> None:
        while not self._closed.is_set():
            try:
                return self._taken.put(message, timeout=_POLL_SECS)
            except queue.Full:
                continue
        return None


def _parts(url: str) -> tuple[str, str, bool]:
    """Gives the address, the model's name, and whether TLS is used."""
    try:
        parts = urllib.parse.urlsplit(url)
        port, model = parts.port, parts.path.strip("/")
    except ValueError:
        port, model = None, ""
    if not port or not model or "/" in model:
        raise UsageError(f"a server's address must be grpc://HOST:PORT/MODEL but is {url!r}")
    return parts.netloc, model, parts.scheme == "grpcs"
