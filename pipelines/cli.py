"""What the pipelines' command lines share: one-line errors, exit codes and a progress line."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from embedps.config_fields import check_text
from embedps.errors import EmbedpsError, UsageError

INTERRUPTED_EXIT_CODE = 130
_PLAIN_EVERY_SECS = 5.0


class ArgumentParser(argparse.ArgumentParser):
    """An argparse parser whose errors are UsageError: one line, exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see --help)")


def positive_int(text: str) -> int:
    """Parses a whole number of 1 or more, `_` allowed between digits."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of 1 or more, got {text!r}")
    return value


def nonempty(text: str) -> str:
    """Parses a name, path or pattern: an empty one comes of a shell variable that is not set."""
    try:
        return check_text("it", text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def path(text: str) -> Path:
    """Parses a path; an empty one would be the working directory."""
    return Path(nonempty(text))


def seed_int(text: str) -> int:
    """Parses a seed: a whole number within 0..2**63-1."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1 << 63:
        raise argparse.ArgumentTypeError(f"must be a whole number within 0..2**63-1, got {text!r}")
    return value


def run(main: Callable[[Sequence[str]], None], argv: Sequence[str]) -> int:
    """Runs a command line; an EmbedpsError becomes one line on stderr and its exit code.

    SIGTERM ends it as Ctrl-C does: what was being written under a temporary name is removed.
    """
    interrupted = False

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    previous = {name: signal.signal(name, interrupt) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        main(argv)
    except (EmbedpsError, OSError, KeyboardInterrupt) as error:
        # Beam makes an ordinary error of an interrupt that meets its own code.
        if interrupted or isinstance(error, KeyboardInterrupt):
            print("interrupted: nothing was finished, run the command again", file=sys.stderr)
            return INTERRUPTED_EXIT_CODE
        print(f"error: {_describe(error)}", file=sys.stderr)
        return error.exit_code if isinstance(error, EmbedpsError) else 1
    finally:
        for name, handler in previous.items():
            signal.signal(name, handler)
    return 0


def _describe(error: EmbedpsError | OSError) -> str:
    """Returns an error as one line; an OSError's file comes first."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


class Reporter:
    """Shows how much of a total is done: a bar on a terminal, else a plain line now and then."""

    def __init__(self, what: str, total: int, unit: str, progress: Progress | None) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._progress = progress
        self._task = progress.add_task(what, total=total, rate="") if progress else None
        self._started = self._last = time.monotonic()

    def update(self, done: int, total: int | None = None) -> None:
        """Tells that `done` units are done, and the total where it is known better now."""
        self._total = self._total if total is None else total
        now = time.monotonic()
        rate = f"{done / max(now - self._started, 1e-9):,.0f} {self._unit}/s"
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, total=self._total, rate=rate)
        elif now - self._last >= _PLAIN_EVERY_SECS:
            self._last = now
            print(f"{self._what}: {done:,} of {self._total:,} {self._unit}, {rate}", flush=True)


@contextmanager
def reporter(what: str, total: int, unit: str) -> Iterator[Reporter]:
    """Gives a Reporter on stderr's terminal, or one that prints plain lines."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Reporter(what, total, unit, None)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield Reporter(what, total, unit, progress)
