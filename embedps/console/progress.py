"""The live line of a long run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class ProgressLine:
    """Shows how far a run is. Use as a context manager; call `update` as often as you like."""

    def __init__(self, what: str, total: int, *, log_secs: float, completed: int = 0) -> None:
        """Shows WHAT, of TOTAL units of it; plain lines come no faster than `log_secs`."""
        self._what = what
        self._total = total
        self._log_secs = log_secs
        self._next_line = 0.0
        console = Console(file=sys.stdout)
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TimeRemainingColumn(compact=True),
                TextColumn("{task.fields[detail]}"),
                console=console,
            )
            self._task = self._bar.add_task(what, total=total, completed=completed, detail="")

    def __enter__(self) -> ProgressLine:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def due(self) -> bool:
        """Whether `update` would show anything, so that its text need not be made in vain."""
        return self._bar is not None or time.monotonic() >= self._next_line

    def update(self, completed: int, detail: str, *, force: bool = False) -> None:
        """Shows the state; `force` prints a plain line even if the last one is recent."""
        if self._bar:
            self._bar.update(self._task, completed=completed, detail=detail)
        elif force or time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + self._log_secs
            share = 100 * completed / max(1, self._total)
            print(f"{self._what} {completed}/{self._total} ({share:.0f}%) {detail}", flush=True)

    def say(self, text: str) -> None:
        """Prints a line of its own, above the bar."""
        if self._bar:
            self._bar.console.print(text)
        else:
            print(text, flush=True)
