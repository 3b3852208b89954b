"""Renders the statistics of tables as one HTML page with plots, without scripts or downloads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from embedps.checkpoint.tools.stats import CheckpointStatistics, TableStatistics
from embedps.frequencies import exponent_text

_STYLE = """
:root { --ink: #1c2733; --soft: #5d6b7a; --line: #d9e0e7; --bar: #3b76c4; }
body { font: 14px/1.5 system-ui, sans-serif; color: var(--ink); margin: 2rem auto;
  max-width: 70rem; padding: 0 1rem; background: #fff; }
h1 { font-size: 1.4rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { color: var(--soft); margin: .2rem 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); text-align: right; }
th { font-weight: 600; color: var(--soft); }
svg { display: block; margin: .5rem 0; } svg text { font: 11px system-ui, sans-serif; }
.curve { fill: none; stroke: var(--bar); stroke-width: 2; } .axis { stroke: var(--line); }
.bar { fill: var(--bar); }
"""
_WIDTH, _HEIGHT, _LEFT = 480.0, 200.0, 60.0
_SHOWN_IDS = 20


def make_page(name: str, statistics: CheckpointStatistics) -> str:
    """Renders a checkpoint's statistics; `name` is of its directory."""
    tables = "\n".join(_table(each) for each in statistics.tables)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(name)}</title><style>{_STYLE}</style></head>\n<body>\n"
        f"<h1>{escape(name)}</h1><p>manifest {statistics.number}, step {statistics.step:,}</p>\n"
        f"{tables}\n</body></html>\n"
    )


def _table(table: TableStatistics) -> str:
    hottest = [[str(i), f"{updates:,}"] for i, updates in table.hottest[:_SHOWN_IDS]]
    shards = [[str(s.shard), f"{s.rows:,}", f"{s.updates:,}"] for s in table.shards]
    return "\n".join(
        [
            f"<h2>{escape(table.name)}</h2>",
            f"<p>{table.rows:,} rows of {table.row_bytes} bytes, {table.updates:,} updates, "
            f"{table.ids_per_step:,.1f} distinct ids per step; the most frequent 1% of ids have "
            f"{table.hot_share:.1%} of the updates; "
            f"Zipf exponent: {exponent_text(table.zipf_exponent)}</p>",
            "<p>Updates of the ids by rank, both logarithmic.</p>",
            _curve(table.frequencies),
            "<p>Updates of each shard.</p>",
            _bars([shard.updates for shard in table.shards]),
            _grid(["shard", "rows", "updates"], shards),
            "<p>The hottest ids.</p>",
            _grid(["id", "updates"], hottest),
        ]
    )


def _curve(points: Sequence[tuple[int, int]]) -> str:
    """Draws updates by rank."""
    known = [(math.log10(rank), math.log10(count)) for rank, count in points if count > 0]
    if not known:
        return "<p>No row has an update.</p>"
    right = max(x for x, _ in known) or 1.0
    top = max(y for _, y in known) or 1.0
    path = " ".join(
        f"{_LEFT + (_WIDTH - _LEFT) * x / right:.1f},{_HEIGHT - _HEIGHT * y / top:.1f}"
        for x, y in known
    )
    return (
        f'<svg width="{_WIDTH:g}" height="{_HEIGHT + 20:g}" role="img" '
        'aria-label="updates by rank">'
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH}" y1="{_HEIGHT}" y2="{_HEIGHT}"/>'
        f'<text x="0" y="11">{10**top:,.0f}</text><text x="0" y="{_HEIGHT}">1</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT + 16}">rank 1</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 16}" text-anchor="end">rank {10**right:,.0f}</text>'
        f'<polyline class="curve" points="{path}"/></svg>'
    )


def _bars(values: Sequence[int]) -> str:
    """Draws one bar per value, from zero."""
    most, step = max([*values, 1]), _WIDTH / max(len(values), 1)
    bars = "".join(
        f'<rect class="bar" x="{i * step:.1f}" y="{60 - 60 * value / most:.1f}" '
        f'width="{step * 0.8:.1f}" height="{60 * value / most:.1f}"/>'
        for i, value in enumerate(values)
    )
    return (
        f'<svg width="{_WIDTH:g}" height="60" role="img" aria-label="updates by shard">{bars}</svg>'
    )


def _grid(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["".join(f"<th>{cell}</th>" for cell in headings)]
    lines += ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
