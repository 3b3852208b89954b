"""Renders the statistics of tables as one HTML page with plots, without scripts or downloads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from embedps.checkpoint.tools.run_statistics import (
    SERVER_HEADINGS,
    TABLE_HEADINGS,
    RunStatistics,
)
from embedps.checkpoint.tools.stats import SHOWN_HOTTEST, CheckpointStatistics, TableStatistics
from embedps.console import html_page
from embedps.errors import printable
from embedps.frequencies import exponent_text

_WIDTH, _HEIGHT, _LEFT = 480.0, 200.0, 60.0


def make_page(
    name: str,
    statistics: CheckpointStatistics,
    of_run: RunStatistics | None,
    texts: Mapping[int, str],
) -> str:
    """Renders a checkpoint's statistics.

    Args:
      name: of its directory.
      statistics: of the checkpoint.
      of_run: what the run last saw.
      texts: of hottest ids.
    """
    parts = [
        f"<h1>{escape(name)}</h1>",
        f"<p>manifest {statistics.number}, step {statistics.step:,}</p>",
        *(_table(each, texts) for each in statistics.tables),
    ]
    if of_run is not None:
        parts += [
            f"<h2>While it trained, until step {of_run.step:,}</h2>",
            _cells(TABLE_HEADINGS, of_run.tables),
            *(f"<p>At the present growth: {escape(x)}</p>" for x in of_run.forecast_lines()),
            "<h2>Parameter servers</h2>",
            _cells(SERVER_HEADINGS, of_run.servers),
        ]
    return html_page.page(name, parts)


def _cells(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return html_page.table(headings, [[escape(cell) for cell in row] for row in rows])


def _table(table: TableStatistics, texts: Mapping[int, str]) -> str:
    shown = table.hottest[:SHOWN_HOTTEST]
    headings, hottest = ["id", "updates"], [[str(i), f"{updates:,}"] for i, updates in shown]
    if any(i in texts for i, _ in shown):
        headings = ["text", *headings]
        of_ids = [escape(printable(texts.get(i, ""))) for i, _ in shown]
        hottest = [[text, *cells] for text, cells in zip(of_ids, hottest, strict=True)]
    shards = [[str(s.shard), f"{s.rows:,}", f"{s.updates:,}"] for s in table.shards]
    return "\n".join(
        [
            f"<h2>{escape(table.name)}</h2>",
            *([f"<p>{escape(table.skew.text())}</p>"] if table.skew is not None else []),
            f"<p>{table.rows:,} rows of {table.row_bytes} bytes, {table.updates:,} updates, "
            f"{table.ids_per_step:,.1f} distinct ids per step; the most frequent 1% of ids have "
            f"{table.hot_share:.1%} of the updates; "
            f"Zipf exponent: {exponent_text(table.zipf_exponent)}</p>",
            "<p>Updates of the ids by rank, both logarithmic.</p>",
            _curve(table.frequencies),
            "<p>Updates of each shard.</p>",
            html_page.bars([s.updates for s in table.shards], step=24, width=20, height=60),
            html_page.table(["shard", "rows", "updates"], shards),
            "<p>The hottest ids.</p>",
            html_page.table(headings, hottest),
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
