"""Compares the ways to train one model: `python -m benchmarks.strategies`.

DLRM trains in one process, in two replicas of one process (`--replicas 2 --mirrored`), and with
`--sync none`, `full` and `dense` on 2 parameter servers with 2, 4 and 8 workers. The batch of all
workers together is the same for each number of workers, and then the batch per worker is. It trains
one epoch of a generated click log, and some epochs of a real sample: the Criteo Kaggle rows of the
folder EMBEDPS_SAMPLES. The held-out AUC is that of the last epoch. The speed is that of the
examples from a half to 0.85 of all.

Each seed is a round of the ways that are compared, so their speeds are measured near each other.
The seed draws the shuffles and the network's initial values.

Workers that outnumber the cores hold each other up. Their speeds are compared on a shorter log,
where each step takes a set time (benchmarks/paced_dlrm.py) and the cores are mostly idle. On that
log, at the largest number of workers, `--sync full` trains with a backup worker too, and each way
also with a worker that takes twice as long.

Each run is written into --work when it is made. The same command goes on after an interruption.
With --minutes it begins no run after that time; the most telling runs come first. With --ways it
makes some runs now, and the result has all that were made. With --busy it keeps no speeds of the
runs that it makes: the AUC does not depend on what else the machine does.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import report
from benchmarks.strategy_runs import BACKUP, ONE, Cell, Data, Runs, generated, groups, sample
from embedps.console import command_line
from embedps.errors import UsageError

GENERATED, PACED, SAMPLE = "generated", "generated, paced", "criteo kaggle"
AUC_LIMIT, DENSE_LIMIT, FULL_LIMIT, BACKUP_LIMIT = 2e-4, 0.9, 0.75, 0.9

Found = Mapping[tuple[str, Cell, int], Mapping[str, Any]]
"""What came of the runs, by dataset, way to train and seed."""

Pairs = Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
"""What came of two ways, by seed."""


def measure(
    runs: Runs,
    datasets: Sequence[Data],
    ways: Sequence[Sequence[Cell]],
    seeds: int,
    minutes: float,
    wanted: Sequence[str],
) -> tuple[Found, int]:
    """Makes the wanted runs that are absent, group by group and there seed by seed.

    Returns:
      All runs, and how many are absent.
    """
    end = time.monotonic() + 60 * minutes if minutes else float("inf")
    plan = [
        (data, cell, seed)
        for group in ways
        for data in datasets
        for seed in range(seeds)
        for cell in group
        if data.has(cell)
    ]
    found: dict[tuple[str, Cell, int], Mapping[str, Any]] = {}
    for k, (data, cell, seed) in enumerate(plan):
        known = runs.known(data, cell, seed)
        equal = found.get((data.name, cell.equal, seed))
        name = f"{data.name}, {cell.name}"
        is_wanted = any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)
        if known is None and is_wanted and time.monotonic() < end and (equal or not cell.slow):
            known = runs.make(data, cell, seed, equal if cell.slow else None)
            rate = known["examples_per_sec"]
            print(
                f"{k + 1}/{len(plan)} {data.name}, {cell.name}, seed {seed}: AUC "
                f"{known['auc']:.5f}, {_rate(rate)}/s, {known['secs']:.0f} s",
                flush=True,
            )
        if known is not None:
            found[data.name, cell, seed] = known
    return found, len(plan) - len(found)


def summarize(found: Found) -> list[dict[str, Any]]:
    """Summarizes each dataset and way over the seeds."""
    rows = []
    for data, cell in dict.fromkeys((data, cell) for data, cell, _ in found):
        of = [run for (d, c, _), run in found.items() if (d, c) == (data, cell)]
        aucs = [run["auc"] for run in of]
        rates = [run["examples_per_sec"] for run in of if run["examples_per_sec"]]
        rows.append(
            {
                "data": data,
                **dataclasses.asdict(cell),
                "auc": statistics.mean(aucs),
                "auc_min": min(aucs),
                "auc_max": max(aucs),
                "seeds": len(of),
                "examples_per_sec": report.spread(rates) if rates else None,
            }
        )
    return rows


def compare(found: Found) -> list[dict[str, Any]]:
    """Checks what the modes promise, by runs of the same seeds."""
    checks = []
    for data, cell in dict.fromkeys((data, cell) for data, cell, _ in found):
        if cell.mode == BACKUP and cell.slow:
            for other in (dataclasses.replace(cell, slow=False), cell.equal):
                pairs = _pairs(found, data, cell, other)
                what = f"speed by {other.mode}'s, all equal"
                checks += _speeds(data, cell, pairs, what, BACKUP_LIMIT)
        if cell.mode not in ("full", "dense") or cell.slow:
            continue
        one = Cell(mode=ONE, workers=1, batch=cell.total)
        none = dataclasses.replace(cell, mode="none")
        if cell.mode == "full" and data != PACED and (pairs := _pairs(found, data, cell, one)):
            difference = statistics.mean(a["auc"] - b["auc"] for a, b in pairs)
            checks.append(
                {
                    "what": "AUC minus one process's",
                    **_about(data, cell, len(pairs)),
                    "value": difference,
                    "limit": AUC_LIMIT,
                    "holds": abs(difference) <= AUC_LIMIT,
                }
            )
        if data != SAMPLE:
            pairs = _pairs(found, data, cell, none)
            limit = FULL_LIMIT if cell.mode == "full" else DENSE_LIMIT
            checks += _speeds(data, cell, pairs, "speed by none's", limit)
    return checks


def _speeds(data: str, cell: Cell, pairs: Pairs, what: str, limit: float) -> list[dict[str, Any]]:
    """Compares the speeds of pairs; gives no check if none has both."""
    rates = [(a["examples_per_sec"], b["examples_per_sec"]) for a, b in pairs]
    ratios = [a / b for a, b in rates if a and b]
    if not ratios:
        return []
    ratio, about = statistics.median(ratios), _about(data, cell, len(ratios))
    return [{"what": what, **about, "value": ratio, "limit": limit, "holds": ratio >= limit}]


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}"


def _pairs(found: Found, data: str, cell: Cell, other: Cell) -> Pairs:
    return [
        (run, found[data, other, seed])
        for (d, c, seed), run in found.items()
        if (d, c) == (data, cell) and (data, other, seed) in found
    ]


def _about(data: str, cell: Cell, seeds: int) -> dict[str, Any]:
    return {"data": data, "way": cell.name, "seeds": seeds}


def show(rows: Sequence[Mapping[str, Any]], checks: Sequence[Mapping[str, Any]]) -> None:
    """Prints the results and the checks."""
    table = Table("data", "mode", "workers x batch", "AUC", "examples/s")
    for row in rows:
        slow = ", one slow" if row["slow"] else ""
        table.add_row(
            row["data"],
            row["mode"] + slow,
            f"{row['workers']} x {row['batch']}",
            f"{row['auc']:.5f} ({row['auc_min']:.5f} to {row['auc_max']:.5f})",
            _rate((row["examples_per_sec"] or {}).get("median")),
        )
    console = Console(width=120)
    console.print(table)
    table = Table("check", "data", "way", "seeds", "value", "limit", "holds")
    for check in checks:
        values = (f"{check['value']:.5f}", f"{check['limit']:g}", str(check["holds"]))
        table.add_row(check["what"], check["data"], check["way"], str(check["seeds"]), *values)
    console.print(table)


def plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draws AUC and examples per second by number of workers: a row of panels per dataset."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(row["data"] for row in rows))
    figure, axes = plt.subplots(
        len(names), 2, figsize=(10, 4 * len(names)), squeeze=False, layout="constrained"
    )
    for panels, name in zip(axes, names, strict=True):
        for k, mode in enumerate(dict.fromkeys(row["mode"] for row in rows)):
            of = [r for r in rows if (r["data"], r["mode"]) == (name, mode) and not r["slow"]]
            totals = [row["workers"] * row["batch"] for row in of]
            aucs = [row["auc"] for row in of]
            spread = [
                [auc - row["auc_min"] for auc, row in zip(aucs, of, strict=True)],
                [row["auc_max"] - auc for auc, row in zip(aucs, of, strict=True)],
            ]
            style = {"fmt": "osD^v"[k % 5], "markersize": 4, "capsize": 2, "label": mode}
            panels[0].errorbar(totals, aucs, spread, **style)
            timed = [row for row in of if row["examples_per_sec"]]
            speeds = [row["examples_per_sec"] for row in timed]
            panels[1].errorbar(
                [row["workers"] for row in timed],
                [s["median"] for s in speeds],
                [
                    [s["median"] - s["min"] for s in speeds],
                    [s["max"] - s["median"] for s in speeds],
                ],
                **style,
            )
        panels[0].set_title(f"{name}: held-out AUC", fontsize=9)
        panels[0].set_xlabel("batch of all workers")
        panels[0].set_xscale("log", base=2)
        panels[1].set_title(f"{name}: examples per second", fontsize=9)
        panels[1].set_xlabel("workers")
        for panel in panels:
            panel.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    print(f"wrote {path}")


def main(arguments: Sequence[str]) -> int:
    """Runs the command line."""
    parser = command_line.Parser(prog="python -m benchmarks.strategies", description=__doc__)
    count = command_line.number(int, least=1)
    parser.add_argument("--rows", type=count, default=2_000_000, help="generated (default: 2M)")
    parser.add_argument(
        "--paced-rows", type=count, default=500_000, help="of the shorter log (default: 500k)"
    )
    parser.add_argument("--workers", type=count, nargs="+", default=[2, 4, 8])
    parser.add_argument("--seeds", type=count, default=4, help="rounds (default: 4)")
    parser.add_argument("--total-batch", type=count, default=2048, help="default: 2048")
    parser.add_argument("--batch-size", type=count, default=512, help="per worker (default: 512)")
    parser.add_argument("--sample-epochs", type=int, default=5, help="0: no sample (default: 5)")
    parser.add_argument(
        "--pace-ms",
        type=float,
        default=100.0,
        help="least time of a paced step, times the number of workers (default: 100)",
    )
    parser.add_argument("--minutes", type=float, default=0.0, help="0: no limit (default: 0)")
    parser.add_argument(
        "--ways",
        nargs="+",
        default=["*"],
        metavar="PATTERN",
        help='make only the runs with such names, as "generated, full, *" (default: all)',
    )
    parser.add_argument(
        "--busy", action="store_true", help="other work runs beside: keep no speeds of new runs"
    )
    parser.add_argument("--work", type=Path, default=Path("build/strategies"), help="for the runs")
    parser.add_argument(
        "--output", type=report.output_file, default=report.RESULTS / "strategies.json"
    )
    options = parser.parse_args(arguments)
    samples = os.environ.get("EMBEDPS_SAMPLES")
    if options.sample_epochs and not samples:
        raise UsageError(
            "the sample is in the folder EMBEDPS_SAMPLES: set it, or --sample-epochs 0"
        )
    if options.total_batch % max(options.workers):
        raise UsageError("--total-batch must be a multiple of every number of --workers")
    environment = report.environment()
    work: Path = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    datasets = [Data(name=GENERATED, folder=generated(work, options.rows), epochs=1)]
    paced = generated(work, options.paced_rows)
    datasets.append(Data(name=PACED, folder=paced, epochs=1, paced=True))
    if samples and options.sample_epochs:
        folder = sample(work, Path(samples))
        datasets.append(Data(name=SAMPLE, folder=folder, epochs=options.sample_epochs))
    ways = groups(options.workers, total=options.total_batch, batch=options.batch_size)
    largest = max(way.total for group in ways for way in group)
    runs = Runs(work, pace_ms=options.pace_ms, largest_batch=largest, busy=options.busy)
    found, absent = measure(runs, datasets, ways, options.seeds, options.minutes, options.ways)
    rows, checks = summarize(found), compare(found)
    show(rows, checks)
    if absent:
        print(f"{absent} runs are absent: the same command goes on")
    workers = " ".join(map(str, options.workers))
    report.write(
        options.output,
        {
            "benchmark": "strategies",
            "command": f"python -m benchmarks.strategies --rows {options.rows} "
            f"--paced-rows {options.paced_rows} --workers {workers} --seeds {options.seeds} "
            f"--total-batch {options.total_batch} --batch-size {options.batch_size} "
            f"--sample-epochs {options.sample_epochs} --pace-ms {options.pace_ms:g}",
            "environment": environment,
            "seeds": list(range(options.seeds)),
            "absent_runs": absent,
            "results": rows,
            "checks": checks,
            "runs": [
                {"data": data, "way": cell.name, "seed": seed, **run}
                for (data, cell, seed), run in found.items()
            ],
        },
    )
    if rows:
        plot(rows, options.output.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
