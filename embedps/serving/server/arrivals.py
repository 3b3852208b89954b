"""Messages of gRPC calls that are on their way: how many may be, from whom, and for how long."""

from __future__ import annotations

import dataclasses
import functools
import ipaddress
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Iterator
from typing import Any

from embedps.serving.server.request_error import RequestError, invalid

_MAX_CLIENTS = 4096  # whose addresses are kept as read


@dataclasses.dataclass(frozen=True, eq=False)
class _Call:
    context: Any
    client: str
    connection: str
    deadline: float  # by `time.monotonic`


class ArrivingCalls:
    """Places of calls whose message has not come whole. Each such call holds a thread.

    A call that finds no place takes the oldest one's of the client that has most, and there of the
    connection that has most. So who sends half messages takes places from himself.
    """

    def __init__(self, places: int, secs: float) -> None:
        """Has room for some calls, each for so many seconds."""
        self._places = places
        self._secs = secs
        self._lock = threading.Lock()
        self._calls: dict[_Call, None] = {}  # the oldest first

    def take(self, requests: Iterator[bytes], context: Any) -> bytes:
        """Waits for a call's one message.

        Raises:
          RequestError: the client sent none, or the call was ended for want of it.
          grpc.RpcError: the client does not wait any more.
        """
        peer = context.peer()
        call = _Call(context, _client_of(peer), peer, time.monotonic() + self._secs)
        with self._lock:
            self._calls[call] = None
            surplus = [self._surplus()] if len(self._calls) > self._places else []
            self._forget(surplus)
        _cancel(surplus)
        try:
            data = next(requests, None)
        finally:
            with self._lock:
                is_kept = self._calls.pop(call, call) is None
            if not is_kept:  # whatever the iterator says of it
                raise RequestError(
                    "CANCELLED", f"the message must come whole within {self._secs:g} s"
                ) from None
        if data is None:
            raise invalid("a call must have one message but has none")
        return data

    def end_late(self) -> None:
        """Ends the calls whose time is over."""
        now = time.monotonic()
        with self._lock:
            late = [call for call in self._calls if call.deadline <= now]
            self._forget(late)
        _cancel(late)

    def _forget(self, calls: list[_Call]) -> None:
        for call in calls:
            del self._calls[call]

    def _surplus(self) -> _Call:
        clients = Counter(call.client for call in self._calls)
        connections = Counter(call.connection for call in self._calls)
        return max(  # of equals the first
            self._calls, key=lambda call: (clients[call.client], connections[call.connection])
        )


def _cancel(calls: list[_Call]) -> None:
    for call in calls:
        call.context.cancel()


@functools.lru_cache(_MAX_CLIENTS)
def _client_of(peer: str) -> str:
    """Reads the address of gRPC's `ipv4:ADDRESS:PORT`; one client has a whole /64 of IPv6."""
    kind, _, rest = peer.partition(":")
    host = urllib.parse.unquote(rest.rpartition(":")[0]).strip("[]").partition("%")[0]
    return str(ipaddress.IPv6Network((host, 64), strict=False)) if kind == "ipv6" else host
