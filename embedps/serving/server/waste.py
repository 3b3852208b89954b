"""Bytes of messages that are no columns: a client that sends many of them waits for its answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from embedps.serving.server.request_size import MAX_REQUEST_BYTES

_FREE_BYTES = 1 << 20  # of a message
_BYTES_PER_SEC = MAX_REQUEST_BYTES


class Waste:
    """Holds answers back, so that all clients together waste so many bytes per second.

    gRPC copies a message while no other request is worked on, before anybody can see its size. So
    a client that sends large messages for nothing, as fast as they are refused, would hold up all
    others. A client that abandons its calls is not slowed down.
    """

    def __init__(
        self,
        wait: Callable[[float], object],
        *,
        max_waiting: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts without waste.

        Args:
          wait: waits for so many seconds, or until the server ends.
          max_waiting: answers that may be held back, each with a thread; a further one is not.
          clock: tells the time, in seconds.
        """
        self._wait, self._clock = wait, clock
        self._lock = threading.Lock()
        self._places = max_waiting
        self._until = clock()  # when what was wasted until now is paid

    def pay(self, num_bytes: int, *, timeout: float | None) -> None:
        """Holds an answer back for its bytes, and for those before it.

        Args:
          num_bytes: of its message that were no columns; a few are free.
          timeout: seconds until nobody waits for the answer any more.
        """
        if num_bytes <= _FREE_BYTES:
            return
        with self._lock:
            if self._places == 0:
                return
            self._places -= 1
            now = self._clock()
            self._until = max(self._until, now) + num_bytes / _BYTES_PER_SEC
            secs = self._until - now
        try:
            self._wait(secs if timeout is None else max(0.0, min(secs, timeout)))
        finally:
            with self._lock:
                self._places += 1
