"""Renders a dataset's profile as one HTML page with plots, without scripts or downloads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from pipelines.report.profile import IdProfile, NumericProfile, Profile, ShardProfile

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
.axis { stroke: var(--line); }
.key::before { content: ""; display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em;
  background: var(--bar); } .key.held::before { background: var(--other); }
"""
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
    body = "\n".join(parts)
    title = escape(dataset.directory.absolute().name)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


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


def _bar(share: float, width: int = 120) -> str:
    return (
        f'<svg width="{width}" height="10"><rect class="bar" width="{share * width:.1f}" '
        'height="10"/></svg>'
    )


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def row(tag: str, cells: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{'' if cell.startswith('<svg') or i == 0 else ' class=n'}>{cell}</{tag}>"
            for i, cell in enumerate(cells)
        )

    lines = [f"<tr>{row('th', headings)}</tr>", *(f"<tr>{row('td', cells)}</tr>" for cells in rows)]
    return '<div class="wide"><table>' + "\n".join(lines) + "</table></div>"


def _id_table(columns: Sequence[IdProfile]) -> str:
    most = max(math.log10(max(column.cardinality, 1) + 1) for column in columns)
    rows = []
    for column in columns:
        about = "" if column.cardinality_exact else "~"
        least = "" if column.top.exact else "≥ "
        rows.append(
            [
                escape(column.name) + (" (list)" if column.ragged else ""),
                _bar(math.log10(column.cardinality + 1) / most),
                f"{about}{column.cardinality:,}",
                _bar(column.missing_rate, 60),
                f"{column.missing_rate:.1%}",
                _share_bars([column.top.share(number) for number in _TOPS]),
                *(f"{least}{column.top.share(number):.1%}" for number in _TOPS),
            ]
        )
    tops = [f"top {number}" for number in _TOPS]
    return _table(["column", "", "distinct", "", "missing", "", *tops], rows)


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
        most = max(int(column.bins.max()), 1)
        bars = "".join(
            f'<rect class="bar" x="{i * 6}" y="{36 - 36 * int(count) / most:.1f}" width="5" '
            f'height="{36 * int(count) / most:.1f}"/>'
            for i, count in enumerate(column.bins)
        )
        values = (column.moments.mean, column.moments.std, column.low, column.high)
        rows.append(
            [
                escape(column.name),
                f'<svg width="{6 * len(column.bins)}" height="36">{bars}</svg>',
                escape(column.transform),
                _bar(column.missing_rate, 60),
                f"{column.missing_rate:.1%}",
                *(f"{value:.4g}" for value in values),
            ]
        )
    headings = ["column", "", "transform", "", "missing", "mean", "std", "min", "max"]
    return _table(headings, rows)
