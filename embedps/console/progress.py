"""Shows the progress of a long run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from embedps.console.lines import is_json, say
from embedps.errors import printable

if TYPE_CHECKING:  # a command's --help does not wait for it
    from rich.progress import Progress

LOG_SECS = 5.0
_LEAST_SECS = 1.0  # a shorter time says little of a rate


def rate_text(count: float, secs: float, unit: str = "") -> str:
    """Says how much was done per second, as `, 100 rows/s`; nothing before a second has passed."""
    return f", {count / secs:,.0f}{unit and f' {unit}'}/s" if secs >= _LEAST_SECS else ""


class ProgressLine:
    """Shows how much of a total is done. Use it as a context manager."""

    def __init__(
        self,
        what: str,
        total: int,
        *,
        unit: str = "",
        log_secs: float = LOG_SECS,
        completed: int = 0,
    ) -> None:
        """Shows nothing yet.

        Args:
          what: the text in front.
          total: how much there is to do.
          unit: of `total`, such as rows: large numbers, which are shown with their rate and with no
            plain line before the first `log_secs`.
          log_secs: seconds between two plain lines.
          completed: how much was done before.
        """
        from rich.console import Console

        self._what = what
        self._total = total
        self._first = completed
        self._unit = unit
        self._log_secs = log_secs
        self._began = time.monotonic()
        self._next_line = self._began + log_secs if unit else 0.0
        console = Console(file=sys.stdout)
        self._bar: Progress | None = None
        if console.is_terminal and not is_json():
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[amount]}"),
                TimeRemainingColumn(compact=True),
                TextColumn("{task.fields[detail]}", markup=False),
                console=console,
                transient=bool(unit),
            )
            self._task = self._bar.add_task(
                what, total=total, completed=completed, amount=self._amount(completed), detail=""
            )

    def __enter__(self) -> ProgressLine:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def due(self) -> bool:
        """Tells whether `update` would show anything now; a caller can save making its text."""
        return self._bar is not None or time.monotonic() >= self._next_line

    def update(
        self, completed: int, detail: str = "", *, total: int | None = None, force: bool = False
    ) -> None:
        """Shows the state; may be called as often as you like.

        Args:
          completed: how much is done.
          detail: the text behind; the rate where it is empty and there is a unit.
          total: how much there is to do, if that is known better now.
          force: print a plain line even if the last one is recent.
        """
        self._total = self._total if total is None else total
        now = time.monotonic()
        if self._unit and not detail:
            detail = rate_text(completed - self._first, now - self._began, self._unit)[2:]
        if self._bar:
            self._bar.update(
                self._task,
                completed=completed,
                total=self._total,
                amount=self._amount(completed),
                detail=printable(detail),
            )
        elif force or now >= self._next_line:
            self._next_line = now + self._log_secs
            if self._unit:
                behind = f", {detail}" if detail else ""
                say(f"{self._what}: {self._amount(completed)}{behind}")
            else:
                share = 100 * completed / max(1, self._total)
                say(f"{self._what} {self._amount(completed)} ({share:.0f}%) {detail}")

    def say(self, text: str) -> None:
        """Prints a line of its own, above the bar; names in it may have any characters."""
        if self._bar:
            self._bar.console.print(printable(text), markup=False)
        else:
            say(text)

    def _amount(self, completed: int) -> str:
        if self._unit:
            return f"{completed:,} of {self._total:,} {self._unit}"
        return f"{completed}/{self._total}"
