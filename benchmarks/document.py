"""Renders the results into docs/performance.md: `python -m benchmarks docs`.

It replaces the text between `<!-- results/NAME.json -->` and `<!-- end -->` by tables of that file,
and keeps all other text. NAME may contain a folder, which holds the results of another machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import harness, layout, model_tables, tables
from benchmarks.hostile import tables as hostile_tables
from benchmarks.report import RESULTS

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
_BLOCK = re.compile(r"<!-- results/([\w/-]+)\.json -->\n.*?<!-- end -->", re.DOTALL)


def update(page: str, results: Path = RESULTS) -> str:
    """Renders every block of a page; a block without results says "Not measured yet."."""

    def block(match: re.Match[str]) -> str:
        name = match.group(1)
        path = results / f"{name}.json"
        text = render(json.loads(path.read_text())) if path.is_file() else "Not measured yet."
        return f"<!-- results/{name}.json -->\n{text}\n<!-- end -->"

    return _BLOCK.sub(block, page)


def render(result: dict[str, Any]) -> str:
    """Renders a result, or each of several runs of one benchmark, as Markdown."""
    if "machine_info" in result:  # pytest-benchmark's own
        return _micro(result)
    if "environment" not in result:
        name = {"benchmark": result["benchmark"]}
        return "\n\n".join(f"{run['about']}:\n\n{render(name | run)}" for run in result["runs"])
    if "comparisons" in result:
        body = _comparisons(result)
    elif result["benchmark"] in _UNDECLARED:
        body = _UNDECLARED[result["benchmark"]](result)
    else:
        body = layout.markdown(harness.load(result["benchmark"]).layout(result))
    note = f"Note: {result['note']}.\n\n" if "note" in result else ""
    return f"{body}\n\n{note}{_origin(result)}"


def _origin(result: dict[str, Any]) -> str:
    e = result["environment"]
    return (
        f"`{result['command']}` at {e['commit']}, {e['time']}: {e['cores']} cores, {e['cpu']}, "
        f"TensorFlow {e['versions']['tensorflow']}."
    )


def _comparisons(result: dict[str, Any]) -> str:
    rounds = result["config"]["rounds"]
    foreign = max(
        case["foreign_cores"]
        for comparison in result["comparisons"]
        for configuration in comparison["configurations"]
        for case in configuration["cases"]
    )
    parts = [tables.markdown(comparison) for comparison in result["comparisons"]]
    parts.append(
        f"Medians of {rounds} rounds of {result['config']['secs']:g} s; ratios are within a round, "
        f"from smallest to largest. Other processes used at most {foreign:.2f} cores."
    )
    return "\n\n".join(parts)


def _hostile(result: dict[str, Any]) -> str:
    rows = hostile_tables.rows(result["results"])
    commits = {case["commit"] for case in result["results"].values()}
    table = model_tables.table(hostile_tables.HEADS, rows)
    return f"{table}\n\nMeasured at {', '.join(sorted(commits))}."


def _byte_limit(result: dict[str, Any]) -> str:
    cases = result["results"]["cases"]
    limits = sorted({case["max_bytes"] for case in cases})
    rows = []
    for key in dict.fromkeys((case["stream"], case["tables"], case["dim"]) for case in cases):
        of = {c["max_bytes"]: c for c in cases if (c["stream"], c["tables"], c["dim"]) == key}
        stream, tables, dim = key
        ratios = (f"{of[limit]['ratio']:.3f} x" if limit in of else "" for limit in limits)
        rows.append([stream.replace("_", " "), str(tables), str(dim), *ratios])
    heads = ["stream", "tables", "dim", *(f"{limit >> 20} MiB" for limit in limits)]
    return model_tables.table(heads, rows)


def _strategies(result: dict[str, Any]) -> str:
    rows = [
        [
            row["data"],
            row["mode"] + (", one slow" if row["slow"] else ""),
            f"{row['workers']} x {row['batch']}",
            f"{row['auc']:.5f} ({row['auc_min']:.5f} to {row['auc_max']:.5f})",
            "{median:,.0f} ({min:,.0f} to {max:,.0f})".format(**speed) if speed else "-",
            str(row["seeds"]),
        ]
        for row in result["results"]
        for speed in [row["examples_per_sec"]]
    ]
    header = ["data", "mode", "workers x batch", "AUC", "examples per second", "seeds"]
    checks = [
        [
            check["data"],
            check["way"],
            check["what"],
            f"{check['value']:.5f}" if "AUC" in check["what"] else f"{check['value']:.2f}",
            f"{check['limit']:g}",
            str(check["seeds"]),
        ]
        for check in result["checks"]
    ]
    of_checks = ["data", "way", "compared", "measured", "limit", "seeds"]
    loads = [run["load_before"] for run in result["runs"]]
    note = (
        f"The load of the machine before a run was {min(loads):.1f} to {max(loads):.1f}. "
        f"{result['absent_runs']} runs of the command are still to be made."
    )
    parts = [model_tables.table(header, rows), model_tables.table(of_checks, checks), note]
    return "\n\n".join(parts)


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
    commit, cpu = result["commit_info"]["id"][:7], result["machine_info"]["cpu"]
    return (
        model_tables.table(["kernel", "median ms", "smallest ms", "rounds"], rows)
        + f"\n\n`make bench-micro` at {commit}, {result['datetime'][:19]}Z: {cpu['count']} cores, "
        f"{cpu['brand_raw']}."
    )


_UNDECLARED: dict[str, Callable[[dict[str, Any]], str]] = {
    "byte_limit": _byte_limit,
    "strategies": _strategies,
    "models": model_tables.models,
    "model_clicks": model_tables.clicks,
    "model_speed": model_tables.model_speed,
    "hostile": _hostile,
}
