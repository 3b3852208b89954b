"""Renders the results into docs/performance.md: `python -m benchmarks docs`.

It replaces the text between `<!-- results/NAME.json -->` and `<!-- end -->` by tables of that file,
and keeps all other text. NAME may contain a folder, which holds the results of another machine.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks import harness, in_short, layout, rates
from benchmarks.report import RESULTS

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
_BLOCK = re.compile(r"<!-- results/([\w/-]+)\.json -->\n.*?<!-- end -->", re.DOTALL)
_SHORT = re.compile(r"<!-- in short -->\n.*?<!-- end -->", re.DOTALL)


def update(page: str, results: Path = RESULTS) -> str:
    """Renders every block of a page; a block without results says "Not measured yet."."""

    def block(match: re.Match[str]) -> str:
        name = match.group(1)
        path = results / f"{name}.json"
        text = render(json.loads(path.read_text())) if path.is_file() else "Not measured yet."
        return f"<!-- results/{name}.json -->\n{text}\n<!-- end -->"

    return _SHORT.sub(lambda _: _short(results), _BLOCK.sub(block, page))


def _short(results: Path) -> str:
    return f"<!-- in short -->\n{layout.markdown(in_short.layout(results))}\n<!-- end -->"


def render(result: dict[str, Any]) -> str:
    """Renders a result, or the last of several runs of a benchmark, as Markdown."""
    if "machine_info" in result:  # pytest-benchmark's own
        return _micro(result)
    if "environment" not in result:
        *earlier, last = result["runs"]
        told = f"The last of {len(earlier) + 1} runs in the JSON: {last['about']}."
        return f"{told}\n\n{render({'benchmark': result['benchmark']} | last)}"
    is_suite = "comparisons" in result
    laid_out = rates.layout if is_suite else harness.load(result["benchmark"]).layout
    body = layout.markdown(laid_out(result))
    note = f"Note: {result['note']}.\n\n" if "note" in result else ""
    return f"{body}\n\n{note}{_origin(result)}"


def _origin(result: dict[str, Any]) -> str:
    e = result["environment"]
    cpu = e["cpu"].replace("(R)", "").removesuffix(" Processor")
    return f"`{result['command']}` at {e['commit']}, {e['time'][:10]}, {cpu}."


def _micro(result: dict[str, Any]) -> str:
    rows = [
        [
            bench["name"].removeprefix("test_"),
            f"{bench['stats']['median'] * 1e3:.3f}",
            f"{bench['stats']['min'] * 1e3:.3f}",
            str(bench["stats"]["rounds"]),
        ]
        for bench in result["benchmarks"]
    ]
    commit, cpu = result["commit_info"]["id"][:7], result["machine_info"]["cpu"]["brand_raw"]
    heads = ["kernel", "median ms", "smallest ms", "rounds"]
    table = layout.markdown([layout.Table(heads=heads, rows=rows)])
    return f"{table}\n\n`make bench-micro` at {commit}, {result['datetime'][:10]}, {cpu}."
