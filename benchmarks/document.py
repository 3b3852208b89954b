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

from benchmarks import model_tables, tables
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
    """Renders a result as Markdown."""
    if "machine_info" in result:  # pytest-benchmark's own
        return _micro(result)
    kinds: dict[str, Callable[[dict[str, Any]], str]] = {
        "export": _export,
        "growth": _growth,
        "byte_limit": _byte_limit,
        "scaling": _scaling,
        "collectives": _collectives,
        "strategies": _strategies,
        "checkpoint_pause": _pause,
        "checkpoint_cost": _cost,
        "checkpoint_encodings": _encodings,
        "models": model_tables.models,
        "model_clicks": model_tables.clicks,
        "model_speed": model_tables.model_speed,
        "sequences": model_tables.sequences,
        "ratings": model_tables.ratings,
        "hostile": _hostile,
    }
    body = kinds.get(result["benchmark"], _comparisons)(result)
    return f"{body}\n\n{_origin(result)}"


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


def _export(result: dict[str, Any]) -> str:
    r = result["results"]
    lookup, asked = r["lookup_1000x26_cpu_ms"], r["request_cpu_ms"]
    cpu = ", ".join(f"{ms:.1f} ms for {rows}" for rows, ms in asked.items())
    rows = [
        ["bytes of the export, against rows and ids", f"{r['bytes_by_rows']:.3f} x", "1.1 x"],
        [
            "memory of the exporting process at its peak, against the same",
            f"{r['export_memory_by_rows']:.3f} x",
            "1.3 x",
        ],
        ["the export takes", f"{r['export_secs']:.0f} s", ""],
        ["loading takes, above TensorFlow's own start", f"{r['load_secs']:.2f} s", "3 s"],
        [
            "memory of the loaded export, against its files",
            f"{r['load_memory_by_files']:.3f} x",
            "1.1 x",
        ],
        [
            "CPU time of a lookup of 1000 x 26 ids",
            f"{lookup['median']:.1f} ms ({lookup['min']:.1f} to {lookup['max']:.1f})",
            "15 ms",
        ],
        ["CPU time of a request, by rows", cpu, ""],
        ["absent ids that give zeros", f"{r['absent_ids_that_are_zeros']:,} of as many", "all"],
    ]
    title = f"DLRM, {r['rows']:,} rows x dim {result['dim']}, 26 tables"
    return model_tables.table([title, "measured", "limit"], rows)


def _growth(result: dict[str, Any]) -> str:
    r = result["results"]
    rows = [
        [
            "bytes, against those of rows, optimizer slots and ids",
            f"{r['memory_ratio']:.3f} x",
            "1.25 x",
        ],
        ["resident memory, against the same", f"{r['resident_ratio']:.3f} x", ""],
    ]
    cold = r["cold_micros_per_id"]
    for kind, name, limit in (
        ("equal_misses", "cold lookup at equal misses, against the table of 1M rows", "1.3 x"),
        ("stretch", "cold lookup of 1M rows inserted in sequence, against the same", ""),
        ("anywhere", "cold lookup of rows anywhere, against the same", ""),
    ):
        ratio = r[f"cold_ratio_{kind}"]
        text = f"{ratio['median']:.2f} x ({ratio['min']:.2f} to {ratio['max']:.2f}): "
        text += f"{cold[kind]['median']:.3f} and {cold['small']['median']:.3f} us per id"
        rows.append([name, text, limit])
    for key, name, limit in (
        ("insert_lookups", "a training lookup of 8192 new ids", "50 ms"),
        ("lookups_while_growing", "a lookup of 256 ids while it grows", "50 ms"),
        ("lookups_of_the_other_table", "the same of the other table, which does not grow", ""),
        ("first_touches_of_pages", "the first touch of a page of memory, for comparison", ""),
    ):
        ms = r[key]
        text = f"p99.9 {ms['p999_ms']:.1f} ms, longest {ms['max_ms']:.1f} ms of {ms['count']:,}"
        rows.append([name, text, limit])
    return model_tables.table(
        [f"{r['rows']:,} rows x dim 16, row-wise Adagrad", "measured", "limit"], rows
    )


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


def _pause(result: dict[str, Any]) -> str:
    names = {
        "base": "bases",
        "delta": "deltas since the cut before the window",
        "small_delta": "deltas since the last cut",
    }
    rows = []
    for kind, name in names.items():
        ratio, cut = result["ratio_during_cuts"][kind], result["cuts"][kind]
        rows.append(
            [
                name,
                f"{ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})",
                f"{cut['median_secs']:.2f} s",
                f"{cut['median_rows']:,} rows, {cut['median_mb']:,.1f} MB",
                f"{result['peak_memory_over_training_mb'][kind]:.0f} MB",
            ]
        )
    header = ["saves back to back", "examples per second, against those without saves"]
    header += ["one save takes", "one save holds", "memory above training"]
    return model_tables.table(header, rows)


def _cost(result: dict[str, Any]) -> str:
    rows = []
    for size in result["results"]:
        saves = [("all", size["base"])]
        saves += [(f"{delta['touched_rows']:,}", delta) for delta in size["deltas"]]
        rows += [
            [
                f"{size['rows']:,}",
                touched,
                f"{save['bytes'] / 1e6:,.2f}",
                f"{save['write_secs'] * 1e3:,.1f}",
                f"{save['write_ratio']:.2f}",
                f"{save['load_secs'] * 1e3:,.1f}",
                f"{save['load_ratio']:.2f}",
            ]
            for touched, save in saves
        ]
    header = ["rows", "rows written", "MB", "write, ms", "rate against a copy"]
    return model_tables.table([*header, "load, ms", "rate against the disk"], rows)


def _encodings(result: dict[str, Any]) -> str:
    rows = [
        [
            name,
            f"{found['bytes'] / 1e6:.2f}" if "bytes" in found else "",
            f"{found['bytes_of_float32']:.3f}" if "bytes" in found else "",
            f"{found['auc']:.5f}",
            f"{found['auc_difference']:+.5f}",
        ]
        for name, found in result["results"].items()
    ]
    header = ["rows and optimizer slots", "MB", "of float32", "AUC", "minus AUC of never restored"]
    return model_tables.table(header, rows)


def _collectives(result: dict[str, Any]) -> str:
    rows = [
        [
            name,
            f"{of['median']:,.0f}",
            f"{of['min']:,.0f} to {of['max']:,.0f}",
            f"{result['step_ms'][name]:.0f} ms",
        ]
        for name, of in result["examples_per_sec"].items()
    ]
    alone = ", ".join(f"{name} {ms:.1f} ms" for name, ms in result["collective_ms"].items())
    config = result["config"]
    header = ["exchange", "examples/s", "rounds", "a batch of each worker"]
    return (
        f"{model_tables.table(header, rows)}\n\nDLRM (W1) on {config['workers']} workers, batches "
        f"of {config['batch']}. Each collective of a step alone: {alone}."
    )


def _scaling(result: dict[str, Any]) -> str:
    names = {"bytes_in": "bytes in", "bytes_out": "bytes out", "calls": "calls"}
    rows = []
    for point in result["points"]:
        numbers = ("num_ps", "num_workers", "sync", "tables", "dim", "batch", "unit_steps")
        cells = [str(point[k]) for k in numbers]
        for what in names:
            of, digits = point[what], int(what == "calls")
            text = f"{of['counted']:,.{digits}f}"
            if not point["fitted"]:
                text += f" (predicted {of['predicted']:,.{digits}f}, {of['error']:+.1%})"
            cells.append(text)
        rows.append(cells)
    header = ["PS", "workers", "--sync", "tables", "dim", "batch", "steps", *names.values()]
    parts = [model_tables.table(header, rows)]
    parts.append(
        "Steps are per unit; counts are per step of one worker. Predictions are within "
        f"{result['largest_error']:.1%} ({result['largest_shard_error']:.1%} for the worst single "
        "shard). The model, fitted on 1 and 2 parameter servers and `--sync none`:"
    )
    rows = [
        [names[what], " + ".join(f"{value:,.2f} {term}" for term, value in terms.items())]
        for what, terms in result["model"].items()
    ]
    parts.append(model_tables.table(["per step, worker and shard", "is"], rows))
    large = result["large"]
    first = large[0]
    parts.append(
        f"{first['workers']} workers and {first['num_ps']} parameter servers on {first['gbits']:g} "
        "Gb/s links; for the server with the largest part of the network:"
    )
    uses = list(first["link_use_at"])
    rows = [
        [
            f"{x['tables']} x {x['dim']}, batch {x['batch']}",
            f"{x['bytes_in_per_step_and_worker']:,} / {x['bytes_out_per_step_and_worker']:,}",
            f"{x['examples_per_sec_and_worker_when_full']:,}",
            f"{x['examples_per_sec_in_all_when_full'] / 1e6:.1f}M",
            *(f"{x['link_use_at'][u]:.0%}" for u in uses),
        ]
        for x in large
    ]
    header = [
        "tables x dim",
        "bytes in / out per step",
        "examples/s per worker when full",
        "all workers when full",
    ]
    header += [f"link use at {int(u):,} per worker" for u in uses]
    parts.append(model_tables.table(header, rows))
    return "\n\n".join(parts)


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
