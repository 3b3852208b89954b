"""Pages of plain HTML with plots, without scripts or downloads."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_STYLE = """
:root { --ink: #1c2733; --soft: #5d6b7a; --line: #d9e0e7; --bar: #3b76c4; --other: #d98032; }
body { font: 14px/1.5 system-ui, sans-serif; color: var(--ink); margin: 2rem auto;
  max-width: 70rem; padding: 0 1rem; background: #fff; }
h1 { font-size: 1.4rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { color: var(--soft); margin: .2rem 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); }
th, td { padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
td.n, th.n { text-align: right; }
svg { display: block; } svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
.bar { fill: var(--bar); } .eval { fill: var(--other); }
.curve { fill: none; stroke: var(--bar); stroke-width: 2; } .axis { stroke: var(--line); }
.key::before { content: ""; display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em;
  background: var(--bar); } .key.held::before { background: var(--other); }
"""


def page(title: str, parts: Sequence[str]) -> str:
    """Makes a page of parts in HTML; the title is text."""
    body = "\n".join(parts)
    made = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n"
        "</body></html>\n"
    )
    return made.encode("utf-8", "backslashreplace").decode()  # a file's name may have any bytes


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Makes a table of cells in HTML; all but the first column and plots are aligned as numbers."""

    def row(tag: str, cells: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{'' if cell.startswith('<svg') or i == 0 else ' class=n'}>{cell}</{tag}>"
            for i, cell in enumerate(cells)
        )

    lines = [f"<tr>{row('th', headings)}</tr>", *(f"<tr>{row('td', cells)}</tr>" for cells in rows)]
    return '<div class="wide"><table>' + "\n".join(lines) + "</table></div>"


def bars(heights: Sequence[float], *, step: float, width: float, height: float) -> str:
    """Draws one bar per number from zero; the highest has the full height."""
    most = max([*heights, 0]) or 1
    drawn = "".join(
        f'<rect class="bar" x="{i * step:g}" y="{height - height * each / most:.1f}" '
        f'width="{width:g}" height="{height * each / most:.1f}"/>'
        for i, each in enumerate(heights)
    )
    return f'<svg width="{step * len(heights):g}" height="{height:g}">{drawn}</svg>'


def share_bar(share: float, width: int = 120) -> str:
    """Draws a share of 1 as a bar from the left."""
    return (
        f'<svg width="{width}" height="10"><rect class="bar" width="{share * width:.1f}" '
        'height="10"/></svg>'
    )
