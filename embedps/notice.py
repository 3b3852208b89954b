"""SIGTERM and Ctrl-C as a notice: the run ends in good order."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def notices(stop: threading.Event) -> Iterator[None]:
    """Sets an event at SIGTERM and at a first Ctrl-C; a second Ctrl-C ends the process at once.

    Does nothing outside of the main thread, where Python takes no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = False

    def take(number: int, _: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted and number == signal.SIGINT:
            os._exit(130)
        interrupted = number == signal.SIGINT
        stop.set()

    before = {s: signal.signal(s, take) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
