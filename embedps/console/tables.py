"""Makes tables as text that never cut what a cell says."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from embedps.errors import printable

FINGERPRINTS = "the id of a text is its fingerprint: embedps.features.text_values.fingerprint(text)"
"""What to say below a table of ids."""
_UNBOUNDED = 10_000


def make_console() -> Console:
    """Makes a console for stdout: a terminal has its width, and a pipe or a file as much as needed.

    Others read the lines of a pipe, so none is wrapped there.
    """
    console = Console()
    return console if console.is_terminal else Console(width=_UNBOUNDED)


class _Table(Table):
    """A table whose cells show a stranger's names as they are: as no markup, and in one line."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Adds a row of texts."""
        super().add_row(*(Text(printable(cell)) for cell in cells), **options)


def make_table(title: str, *headings: str, left: int = 1) -> Table:
    """Makes a table whose long cells go on in the next line where a terminal is narrow.

    Args:
      title: above it.
      left: how many columns are text, on the left; numbers are on the right.
    """
    table = _Table(title=Text(printable(title)), title_justify="left")
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="left" if i < left else "right", overflow="fold")
    return table
