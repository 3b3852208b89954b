"""Renders a dataset's profile as one HTML page with plots, without scripts or downloads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from embedps.console import html_page

from .profile import IdProfile, NumericProfile, Profile, ShardProfile

_TOPS = (1, 10, 100, 1000)


def make_page(profile: Profile) -> str:
    """Renders a profile as an HTML page."""
    dataset = profile.dataset
    splits = ", ".join(f"{name} {split.rows:,} rows" for name, split in dataset.splits.items())
    bad = dataset.input.lines_bad
    parts = [
        f"<h1>{escape(dataset.directory.absolute().name)}</h1>",
        f"<p>{escape(dataset.source)}: {splits}; {dataset.input.lines_read:,} rows read, "
        f"{bad:,} set aside</p>",
        "<h2>Label rate of each shard</h2>",
        '<p><span class="key">train</span><span class="key held">eval</span></p>',
        _label_rates(profile.shards),
    ]
    if profile.ids:
        parts += [
            "<h2>Ids</h2><p>Distinct ids on a logarithmic scale; the share of rows of the most "
            "frequent 1, 10, 100 and 1000 ids.</p>",
            _id_table(profile.ids),
        ]
    if profile.numeric:
        parts += ["<h2>Numbers</h2>", _numeric_table(profile.numeric)]
    return html_page.page(dataset.directory.absolute().name, parts)


def _label_rates(shards: Sequence[ShardProfile]) -> str:
    """Draws one bar per shard, from zero, with a labelled axis."""
    width, height, left = 960.0, 180.0, 44.0
    top = _round_up(max((shard.label_rate for shard in shards), default=0.0))
    step = (width - left) / max(len(shards), 1)
    parts = []
    for i in range(3):
        y = height - height * i / 2
        parts.append(f'<line class="axis" x1="{left}" x2="{width}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="0" y="{max(y, 10):.1f}">{top * i / 2:.3g}</text>')
    for i, shard in enumerate(shards):
        bar = height * shard.label_rate / top
        parts.append(
            f'<rect class="{"eval" if shard.split == "eval" else "bar"}" '
            f'x="{left + i * step + step * 0.1:.2f}" y="{height - bar:.2f}" '
            f'width="{step * 0.8:.2f}" height="{bar:.2f}">'
            f"<title>{escape(shard.path)}: {shard.label_rate:.4f} of {shard.rows:,} rows</title>"
            "</rect>"
        )
    return (
        f'<svg viewBox="0 0 {width:g} {height + 4:g}" role="img" '
        f'aria-label="label rate of each shard">{"".join(parts)}</svg>'
    )


def _round_up(value: float) -> float:
    """Rounds up to 1, 2 or 5 times a power of ten, at most 1."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return min([m * power for m in (1, 2, 5, 10) if m * power >= value] + [1.0])


def _id_table(columns: Sequence[IdProfile]) -> str:
    most = max(math.log10(max(column.cardinality, 1) + 1) for column in columns)
    rows = []
    for column in columns:
        about = "" if column.cardinality_exact else "~"
        least = "" if column.top.exact else "≥ "
        rows.append(
            [
                escape(column.name) + (" (list)" if column.ragged else ""),
                html_page.share_bar(math.log10(column.cardinality + 1) / most),
                f"{about}{column.cardinality:,}",
                html_page.share_bar(column.missing_rate, 60),
                f"{column.missing_rate:.1%}",
                _share_bars([column.top.share(number) for number in _TOPS]),
                *(f"{least}{column.top.share(number):.1%}" for number in _TOPS),
            ]
        )
    tops = [f"top {number}" for number in _TOPS]
    return html_page.table(["column", "", "distinct", "", "missing", "", *tops], rows)


def _share_bars(shares: Sequence[float]) -> str:
    bars = "".join(
        f'<rect class="bar" x="{i * 20}" y="{24 - 24 * share:.1f}" width="18" '
        f'height="{24 * share:.1f}"/>'
        for i, share in enumerate(shares)
    )
    return f'<svg width="80" height="24">{bars}</svg>'


def _numeric_table(columns: Sequence[NumericProfile]) -> str:
    rows = []
    for column in columns:
        values = (column.moments.mean, column.moments.std, column.low, column.high)
        rows.append(
            [
                escape(column.name),
                html_page.bars(column.bins.tolist(), step=6, width=5, height=36),
                escape(column.transform),
                html_page.share_bar(column.missing_rate, 60),
                f"{column.missing_rate:.1%}",
                *(f"{value:.4g}" for value in values),
            ]
        )
    headings = ["column", "", "transform", "", "missing", "mean", "std", "min", "max"]
    return html_page.table(headings, rows)
