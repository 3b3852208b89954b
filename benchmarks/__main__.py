"""`python -m benchmarks run`: compares embedps with its peers on the same examples.

`python -m benchmarks docs` writes the results into docs/performance.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import document, report, tables, workload
from benchmarks.comparison import Timing, run_comparison
from benchmarks.environments import PEERS, cache
from benchmarks.peer_suites import SUITES, Choice, make_comparisons
from benchmarks.peers.protocol import WARM_UP_SECS
from embedps.console import command_line
from embedps.errors import UsageError

_ROWS = 12 * 32768
_PRECISIONS = ("float32", "bfloat16")


def main(arguments: Sequence[str]) -> int:
    """Runs the command line."""
    parser = command_line.Parser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="run|docs", dest="command")
    commands.add_parser("docs", help="write the results into docs/performance.md")
    run = commands.add_parser(
        "run",
        help="measure, print ratios, write JSON and a plot per suite",
        description=f"Each peer is installed in its own environment in {cache()}.",
    )
    run.add_argument("--suite", default="all", choices=(*SUITES, "all"))
    run.add_argument(
        "--peers", type=_names, default=(), help=f"some of {','.join(PEERS)} (default: none)"
    )
    run.add_argument(
        "--workload", default="w1", choices=tuple(workload.WORKLOADS), help="default: w1"
    )
    run.add_argument(
        "--data",
        type=Path,
        help="train on this instead: a dataset of embedps.pipelines.criteo, or a Criteo TSV file",
    )
    run.add_argument("--precisions", type=_names, default=_PRECISIONS)
    run.add_argument(
        "--batch-sizes", type=_numbers, default=(2048, 8192), help="default: 2048,8192"
    )
    run.add_argument("--rounds", type=int, default=7, help="default: 7")
    run.add_argument(
        "--secs", type=float, default=1.0, help="seconds per case and round (default: 1)"
    )
    run.add_argument("--output", type=Path, default=report.RESULTS, help="folder for JSON")
    options = parser.parse_args(arguments)
    if options.command == "docs":
        document.PAGE.write_text(document.update(document.PAGE.read_text()))
        return 0
    _check(options)

    wanted = SUITES if options.suite == "all" else (options.suite,)
    of_run = workload.WORKLOADS[options.workload]
    if options.data is not None:
        of_run, batches = workload.read_batches(options.data, of_run, max_rows=_ROWS)
        batches = workload.repeat(batches, max(len(batches.labels), max(options.batch_sizes)))
    else:
        batches = workload.make_batches(of_run, _ROWS)
    choice = Choice(
        peers=options.peers, precisions=options.precisions, batch_sizes=options.batch_sizes
    )
    timing = Timing(rounds=options.rounds, secs=options.secs)
    for suite in wanted:
        result: dict[str, Any] = {
            "benchmark": suite,
            "command": report.command("benchmarks", arguments),
            "environment": report.environment(),
            "config": {
                "rounds": options.rounds,
                "secs": options.secs,
                "warm_up_secs": WARM_UP_SECS,
                "zipf_exponent": None if options.data else workload.ZIPF_EXPONENT,
            },
            "comparisons": [],
        }
        measured = result["comparisons"]
        name = suite if options.workload == "w1" else f"{suite}-{options.workload}"
        for comparison in make_comparisons(suite, of_run, choice):
            measured.append(run_comparison(comparison, batches, timing))
            tables.show(measured[-1])
            report.write(
                options.output / f"{name}.json", result
            )  # keeps the results if a later part fails
        tables.plot(measured, options.output / f"{name}.png")
    return 0


def _check(options: argparse.Namespace) -> None:
    for name, allowed in (("peers", tuple(PEERS)), ("precisions", _PRECISIONS)):
        unknown = [x for x in getattr(options, name) if x not in allowed]
        if unknown:
            raise UsageError(f"--{name} must be of {','.join(allowed)} but has {','.join(unknown)}")
    if options.rounds < 1 or options.secs <= 0 or min(options.batch_sizes, default=0) < 1:
        raise UsageError("--rounds, --secs and --batch-sizes must be above 0")


def _names(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in _names(text))


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
