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
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.harness import DIR, Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table, spread
from benchmarks.strategy_runs import BACKUP, ONE, Cell, Data, Runs, generated, groups, sample
from embedps.config_fields import option
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The logs, the ways and the runs."""

    rows: int = option(2_000_000, "of the generated log", least=1)
    paced_rows: int = option(500_000, "of the shorter log", least=1)
    workers: tuple[int, ...] = option((2, 4, 8), "of the ways", least=1)
    seeds: int = option(4, "rounds", least=1)
    total_batch: int = option(2048, "of all workers, for each number of workers", least=1)
    batch_size: int = option(512, "per worker, for each number of workers", least=1)
    sample_epochs: int = option(5, "of the real sample; 0 leaves it out", least=0)
    pace_ms: float = option(100.0, "least time of a paced step, times the workers", above=0)
    minutes: float = option(0.0, "begin no run later; 0 is no limit", least=0)
    ways: str = option("*", "make only runs of such names: 'generated, full, *; …'")
    busy: bool = option(False, "keep no speeds of new runs, as other work runs beside")
    work: str = option("build/strategies", "keeps the runs", metavar=DIR)

    def __post_init__(self) -> None:
        """Checks each option, and that the batch of all workers can be divided."""
        super().__post_init__()
        if self.total_batch % max(self.workers):
            raise UsageError("--total-batch must be a multiple of every number of --workers")


def _measure(config: Config, run: Run) -> Content:
    samples = os.environ.get("EMBEDPS_SAMPLES")
    if config.sample_epochs and not samples:
        raise UsageError(
            "the sample is in the folder EMBEDPS_SAMPLES: set it, or --sample-epochs 0"
        )
    work = Path(config.work).absolute()
    work.mkdir(parents=True, exist_ok=True)
    datasets = [Data(name=GENERATED, folder=generated(work, config.rows), epochs=1)]
    paced = generated(work, config.paced_rows)
    datasets.append(Data(name=PACED, folder=paced, epochs=1, paced=True))
    if samples and config.sample_epochs:
        folder = sample(work, Path(samples))
        datasets.append(Data(name=SAMPLE, folder=folder, epochs=config.sample_epochs))
    ways = groups(config.workers, total=config.total_batch, batch=config.batch_size)
    largest = max(way.total for group in ways for way in group)
    runs = Runs(work, pace_ms=config.pace_ms, largest_batch=largest, busy=config.busy)
    found, absent = measure(
        runs,
        datasets,
        ways,
        config.seeds,
        config.minutes,
        [each.strip() for each in config.ways.split(";")],
    )
    return {
        "seeds": list(range(config.seeds)),
        "absent_runs": absent,
        "results": summarize(found),
        "checks": compare(found),
        "runs": [
            {"data": data, "way": cell.name, "seed": seed, **of}
            for (data, cell, seed), of in found.items()
        ],
    }


def layout(content: Content) -> list[Part]:
    """Lays out the results and the checks."""
    rows = [
        [
            row["data"],
            row["mode"] + (", one slow" if row["slow"] else ""),
            f"{row['workers']} x {row['batch']}",
            f"{row['auc']:.5f} ({row['auc_min']:.5f} to {row['auc_max']:.5f})",
            spread(row["examples_per_sec"], ",.0f") if row["examples_per_sec"] else "-",
            str(row["seeds"]),
        ]
        for row in content["results"]
    ]
    checks = [
        [
            check["data"],
            check["way"],
            check["what"],
            f"{check['value']:.5f}" if "AUC" in check["what"] else f"{check['value']:.2f}",
            f"{check['limit']:g}",
            str(check["seeds"]),
        ]
        for check in content["checks"]
    ]
    heads = ["data", "mode", "workers x batch", "AUC", "examples per second", "seeds"]
    of_checks = ["data", "way", "compared", "measured", "limit", "seeds"]
    loads = [run["load_before"] for run in content["runs"]]
    told = [f"{content['absent_runs']} runs of the command are still to be made."]
    if loads:
        told.insert(
            0, f"The load of the machine before a run was {min(loads):.1f} to {max(loads):.1f}."
        )
    return [
        Table(heads=heads, rows=rows),
        Table(heads=of_checks, rows=checks),
        " ".join(told),
    ]


def _plot(content: Content, path: Path) -> None:
    if content["results"]:
        plot(content["results"], path)


BENCHMARK = Benchmark(config=Config, measure=_measure, layout=layout, plot=_plot)


if __name__ == "__main__":
    main(BENCHMARK)
