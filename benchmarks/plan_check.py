"""Compares `embedps plan` with the runs that it plans: `python -m benchmarks.plan_check`.

For training in one process, and on 2 parameter servers with 2 workers on this machine: the plan is
made, then the run is made, and each figure of the plan is divided by the run's. The speed of a run
is the median of its progress lines after the first ones, which trace the functions. Rows, bytes,
memory and load are those of the run's statistics.json.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import report
from embedps.checkpoint.tools.run_statistics import STATISTICS_NAME
from embedps.console import command_line
from embedps.errors import EmbedpsError
from embedps.planning.speed import name_of

_CLUSTERS = ((0, 1), (2, 2))
_LOG_SECS = 2
_FIRST_LINES = 3
_RATE = re.compile(r" ([\d,]+)/s, ")


class PlanCheckError(EmbedpsError):
    """A plan or a run failed, or a run was too short to tell its speed."""


def measure(data: Path, epochs: int, more: Sequence[str]) -> dict[str, Any]:
    """Plans and runs each cluster."""
    found = {}
    for num_ps, num_workers in _CLUSTERS:
        cluster = [f"--num-ps={num_ps}", f"--num-workers={num_workers}"]
        name = name_of(num_ps, num_workers)
        with tempfile.TemporaryDirectory() as folder:
            shared = [f"--data={data}", "--model=dlrm", *cluster, *more]
            plan_file = Path(folder) / "plan.json"
            _run("embedps.plan", *shared, f"--json={plan_file}")
            plan = json.loads(plan_file.read_text())
            model_dir = Path(folder) / "model"
            output = _run(
                "embedps.train",
                *shared,
                f"--model-dir={model_dir}",
                f"--epochs={epochs}",
                "--eval=none",
                f"--log-secs={_LOG_SECS}",
            )
            seen = json.loads((model_dir / STATISTICS_NAME).read_text())
        found[name] = _compare(name, plan, seen, _rates(output), num_ps)
        print(f"{name}: {json.dumps(found[name])}", flush=True)
    return found


def _compare(
    name: str, plan: Mapping[str, Any], seen: Mapping[str, Any], rates: list[float], num_ps: int
) -> dict[str, Any]:
    """Gives each planned figure, that of the run, and their ratio."""
    tables, servers = seen["tables"], seen["servers"]
    planned = next(each for each in plan["servers"] if each["num_ps"] == max(num_ps, 1))
    pairs = {
        "examples_per_sec": (plan["local"][name], statistics.median(rates)),
        "rows": (sum(t["rows"] for t in plan["tables"]), sum(t["rows"] for t in tables.values())),
        "table_bytes": (sum(planned["table_bytes"]), sum(s["memory_bytes"] for s in servers)),
        "ids_per_step": (
            sum(table["ids_per_step"] for table in plan["tables"]),
            sum(table["ids_per_step"] for table in tables.values()),
        ),
        "fullest_server_rows": (max(planned["rows"]), max(s["rows"] for s in servers)),
    }
    if num_ps:
        pairs["server_process_bytes"] = (
            max(planned["memory_bytes"]),
            max(server["resident_bytes"] for server in servers),
        )
    return {
        what: {"plan": round(told), "run": round(found), "ratio": round(told / found, 3)}
        for what, (told, found) in pairs.items()
    }


def _rates(output: str) -> list[float]:
    """Reads the speeds of a run's progress lines; the last line may cover little time."""
    rates = [float(text.replace(",", "")) for text in _RATE.findall(output)][_FIRST_LINES:-1]
    if not rates:
        raise PlanCheckError("the run ended too early to tell its speed: give more --epochs")
    return rates


def _run(module: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PlanCheckError(f"{module} failed: {done.stdout[-2000:]}")
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    """Runs the command line."""
    parser = command_line.Parser(prog="python -m benchmarks.plan_check", description=__doc__)
    parser.add_argument("--data", type=command_line.path, required=True, help="a dataset")
    parser.add_argument("--epochs", type=int, default=1, help="of each run (default: 1)")
    parser.add_argument(
        "--output", type=report.output_file, default=report.RESULTS / "plan_check.json"
    )
    options, more = parser.parse_known_args(arguments)
    environment = report.environment()
    results = measure(options.data, options.epochs, more)
    table = Table("cluster", "figure", "plan", "run", "ratio")
    for name, of_cluster in results.items():
        for what, each in of_cluster.items():
            numbers = (f"{each['plan']:,}", f"{each['run']:,}", f"{each['ratio']:.3f}")
            table.add_row(name, what, *numbers)
    Console().print(table)
    report.write(
        options.output,
        {
            "benchmark": "plan_check",
            "command": "python -m benchmarks.plan_check "
            + " ".join([f"--data {options.data.name}", f"--epochs {options.epochs}", *more]),
            "environment": environment,
            "results": results,
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
