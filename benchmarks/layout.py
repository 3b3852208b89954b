"""Lays a result out: the same tables and sentences for the terminal and for a page."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table as TerminalTable
from rich.text import Text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A table of texts.

    Attributes:
      heads: of the columns.
      rows: each as long as `heads`.
      title: above it; empty for none.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.heads):
                raise ValueError(f"a row must have {len(self.heads)} cells but got {list(row)}")


Part = Table | str
"""A table, or a paragraph."""


def figures(what: str, rows: Sequence[Sequence[str]]) -> Table:
    """Makes a table of one figure per row: what, measured, and the limit if any row has one."""
    heads = [what, "measured", "limit"]
    if all(len(row) == 2 for row in rows):
        return Table(heads=heads[:2], rows=rows)
    return Table(heads=heads, rows=[[*row, ""][:3] for row in rows])


def markdown(parts: Sequence[Part]) -> str:
    """Renders parts as Markdown."""
    return "\n\n".join(part if isinstance(part, str) else _markdown(part) for part in parts)


def _markdown(table: Table) -> str:
    lines = ["| " + " | ".join(r) + " |" for r in _lines(table)]
    return "\n".join([f"**{table.title}**", "", *lines] if table.title else lines)


def _lines(table: Table) -> list[Sequence[str]]:
    return [table.heads, ["---"] * len(table.heads), *table.rows]


def show(parts: Sequence[Part]) -> None:
    """Prints parts; a terminal has its width, and a file or a pipe 160 columns."""
    console = Console(width=None if Console().is_terminal else 160)
    for part in parts:
        if isinstance(part, str):
            console.print(Text(part))
            continue
        shown = TerminalTable(title=Text(part.title) if part.title else None, title_justify="left")
        for i, head in enumerate(part.heads):
            shown.add_column(Text(head), justify="right" if i else "left", overflow="fold")
        for row in part.rows:
            shown.add_row(*map(Text, row))
        console.print(shown)


def spread(of: Mapping[str, float], form: str = ".2f") -> str:
    """Formats a spread of `report.spread`: "0.99 (0.94 to 1.01)"."""
    least, most = (format(of[key], form) for key in ("min", "max"))
    return f"{of['median']:{form}} ({least} to {most})"


def means(values: Sequence[float]) -> str:
    """Formats the mean of some values, and from the least to the most: "0.78 (0.77 to 0.79)"."""
    mean = f"{statistics.mean(values):.4f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.4f} to {max(values):.4f})"
