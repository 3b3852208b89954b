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
.plots { display: flex; flex-wrap: wrap; } figure { margin: 0 1rem 1rem 0; }
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


_PLOT_WIDTH, _PLOT_HEIGHT, _LEFT, _BELOW = 360.0, 160.0, 64.0, 20.0


def line_plot(
    name: str,
    points: Sequence[tuple[float, float]],
    *,
    unit: str,
    bounds: tuple[float, float] | None = None,
    diagonal: bool = False,
) -> str:
    """Draws a line through points, with a dot at each.

    Args:
      name: text, of the y axis.
      points: (x, y), x in order; all are finite.
      unit: text, of the x axis.
      bounds: of both axes; by default those of the points.
      diagonal: draw where y is x too.
    """
    xs, ys = [x for x, _ in points], [y for _, y in points]
    (x0, x1), (y0, y1) = (bounds, bounds) if bounds else ((min(xs), max(xs)), (min(ys), max(ys)))

    def at(x: float, y: float) -> tuple[str, str]:
        across = (x - x0) / (x1 - x0) if x1 > x0 else 0.5
        up = (y - y0) / (y1 - y0) if y1 > y0 else 0.5
        left = _LEFT + (_PLOT_WIDTH - _LEFT - 8) * across
        return f"{left:.1f}", f"{8 + (_PLOT_HEIGHT - 16) * (1 - up):.1f}"

    places = [at(*point) for point in points]
    line = " ".join(",".join(place) for place in places)
    drawn = [f'<polyline class="curve" points="{line}"/>']
    drawn += [
        f'<circle class="bar" r="3" cx="{x}" cy="{y}"><title>{a:,.6g}: {b:.6g}</title></circle>'
        for (x, y), (a, b) in zip(places, points, strict=True)
    ]
    if diagonal:
        (left, low), (right, high) = at(x0, x0), at(x1, x1)
        drawn.append(f'<line class="axis" x1="{left}" y1="{low}" x2="{right}" y2="{high}"/>')
    bottom = _PLOT_HEIGHT + _BELOW - 4
    drawn += [
        f'<line class="axis" x1="{_LEFT}" x2="{_PLOT_WIDTH}" y1="{_PLOT_HEIGHT}" '
        f'y2="{_PLOT_HEIGHT}"/>',
        f'<text x="0" y="16">{y1:.5g}</text><text x="0" y="{_PLOT_HEIGHT - 4}">{y0:.5g}</text>',
        f'<text x="{_LEFT}" y="{bottom}">{escape(unit)} {x0:,.5g}</text>',
        f'<text x="{_PLOT_WIDTH}" y="{bottom}" text-anchor="end">{x1:,.5g}</text>',
    ]
    return (
        f'<figure><figcaption>{escape(name)}</figcaption><svg width="{_PLOT_WIDTH:g}" '
        f'height="{_PLOT_HEIGHT + _BELOW:g}" role="img" aria-label="{escape(name)}">'
        f"{''.join(drawn)}</svg></figure>"
    )
