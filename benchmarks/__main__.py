"""`python -m benchmarks run`: compares embedps with its peers on the same examples.

`python -m benchmarks docs` writes the results into docs/performance.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks import harness, page, rates, report, workload
from benchmarks.comparison import Timing, run_comparison
from benchmarks.environments import PEERS, cache
from benchmarks.harness import DIR, Benchmark, Content, Options, Run
from benchmarks.peer_suites import SUITES, Choice, Suite, make_comparisons
from benchmarks.peers.protocol import WARM_UP_SECS
from embedps.config_fields import option
from embedps.console import command_line

_ROWS = 12 * 32768
_PRECISIONS = ("float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Config(Options):
    """What is compared."""

    suite: Literal["lookup", "train", "checkpoint", "input", "all"] = option("all", "what is timed")
    peers: tuple[str, ...] = option((), f"of {', '.join(PEERS)}", some_of=tuple(PEERS))
    workload: Literal["w1", "w2"] = option("w1", "the tables and the network")
    data: str | None = option(
        None, "train on a dataset of embedps.pipelines.criteo, or on a Criteo TSV file", metavar=DIR
    )
    precisions: tuple[str, ...] = option(_PRECISIONS, "of the network", some_of=_PRECISIONS)
    batch_sizes: tuple[int, ...] = option((2048, 8192), "examples per step", least=1)
    rounds: int = option(7, "in which each system runs once", least=1)
    secs: float = option(1.0, "per case and round", above=0)


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
    harness.add_flags(run, Config)
    run.add_argument("--output", type=Path, default=report.RESULTS, help="folder for JSON")
    options = parser.parse_args(arguments)
    if options.command == "docs":
        page.PAGE.write_text(page.update(page.PAGE.read_text()))
        return 0
    config = harness.make_config(Config, options)
    of_run = workload.WORKLOADS[config.workload]
    if config.data is not None:
        of_run, batches = workload.read_batches(Path(config.data), of_run, max_rows=_ROWS)
        batches = workload.repeat(batches, max(len(batches.labels), max(config.batch_sizes)))
    else:
        batches = workload.make_batches(of_run, _ROWS)
    for suite in (suite for suite in SUITES if config.suite in (suite, "all")):
        name = suite if config.workload == "w1" else f"{suite}-{config.workload}"
        _suite(suite, of_run, batches).make(config, options.output / f"{name}.json")
    return 0


def _suite(suite: Suite, of_run: workload.Workload, batches: workload.Batches) -> Benchmark[Config]:
    """Declares a suite on the examples of a workload."""

    def measure(config: Config, run: Run) -> Content:
        choice = Choice(
            peers=config.peers, precisions=config.precisions, batch_sizes=config.batch_sizes
        )
        timing = Timing(rounds=config.rounds, secs=config.secs)
        zipf = None if config.data else workload.ZIPF_EXPONENT
        head = {"warm_up_secs": WARM_UP_SECS, "zipf_exponent": zipf}
        content: Content = {"config": head, "comparisons": []}
        for comparison in make_comparisons(suite, of_run, choice):
            content["comparisons"].append(run_comparison(comparison, batches, timing))
            run.save(content)  # keeps the results if a later part fails
        return content

    return Benchmark(
        name=suite,
        about=__doc__,
        config=Config,
        measure=measure,
        layout=rates.layout,
        plot=lambda content, path: rates.plot(content["comparisons"], path),
        runs_as="benchmarks run",
    )


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
