"""Ends a process: on a signal in good order, and when a wait takes too long."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from embedps.console.lines import say
from embedps.errors import ServerLostError


def end_process(message: str, code: int) -> NoReturn:
    """Prints a line and ends this process at once, even if its threads wait for something."""
    say(f"embedps: {message}", file=sys.stderr)
    sys.stdout.flush()
    os._exit(code)


@contextmanager
def deadline(secs: float, what: str) -> Iterator[None]:
    """Ends the process with a line if the block takes too long; for waits that nothing interrupts.

    Args:
      secs: how long the block may take.
      what: the block waits for; follows "waited 10 s for".
    """
    message = f"waited {secs:.0f} s for {what}; run the same command again to resume"
    timer = threading.Timer(secs, end_process, (message, ServerLostError.exit_code))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def sigterm_exits(secs: float) -> Iterator[None]:
    """Ends the program with code 0 at SIGTERM, for a block that has nothing to save.

    It raises SystemExit in the main thread. If that does not end the process within `secs`, because
    the thread is in a long call, the process is ended.
    """

    def end(number: int, _: FrameType | None) -> None:
        timer = threading.Timer(secs, os._exit, (0,))
        timer.daemon = True
        timer.start()
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))  # `restart` did
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stop_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Calls `stop` at SIGTERM and at a first Ctrl-C; another Ctrl-C ends the process at once.

    Outside of the main thread, where Python handles no signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def take(number: int, _: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        stop()

    before = {s: signal.signal(s, take) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def shutdown_signals(stop: Callable[[], None], *, grace_secs: float) -> Iterator[None]:
    """Calls `stop` at SIGTERM and at a first Ctrl-C; a second Ctrl-C ends the process at once.

    If the block does not end within `grace_secs` after that, the process is ended; its last
    checkpoint stays. It does nothing outside of the main thread, where Python handles no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    told = interrupted = False
    message = (
        f"no checkpoint could be saved within {grace_secs:.0f} s: the last one stands; run the "
        "same command again to resume from it"
    )
    timer = threading.Timer(grace_secs, end_process, (message, ServerLostError.exit_code))
    timer.daemon = True

    def take(number: int, _: FrameType | None) -> None:
        nonlocal told, interrupted
        if interrupted and number == signal.SIGINT:
            os._exit(130)
        interrupted = number == signal.SIGINT
        if not told:
            told = True
            timer.start()
            stop()

    before = {s: signal.signal(s, take) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
