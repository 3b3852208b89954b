"""Compares `embedps plan` with the runs that it plans: `python -m benchmarks.plan_check`.

For training in one process, and on 2 parameter servers with 2 workers on this machine: the plan is
made, then the run is made, and each figure of the plan is divided by the run's. The speed of a run
is the median of its progress lines after the first ones, which trace the functions. Rows, bytes,
memory and load are those of the run's statistics.json.
"""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import child
from benchmarks.harness import DIR, Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table
from embedps.checkpoint.tools.run_statistics import STATISTICS_NAME
from embedps.config_fields import option
from embedps.errors import EmbedpsError
from embedps.planning.speed import name_of

_CLUSTERS = ((0, 1), (2, 2))
_LOG_SECS = 2
_FIRST_LINES = 3
_RATE = re.compile(r" ([\d,]+)/s, ")


class PlanCheckError(EmbedpsError):
    """A run was too short to tell its speed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """What the runs train on."""

    data: str = option(dataclasses.MISSING, "a dataset", metavar=DIR)
    epochs: int = option(1, "of each run; more if a run is too short to tell its speed", least=1)
    flags: str | None = option(None, "more flags of the plans and the runs", metavar="'--FLAG …'")


def measure(config: Config, run: Run) -> Content:
    """Plans and runs each cluster."""
    found = {}
    for num_ps, num_workers in _CLUSTERS:
        cluster = [f"--num-ps={num_ps}", f"--num-workers={num_workers}"]
        name = name_of(num_ps, num_workers)
        with tempfile.TemporaryDirectory() as folder:
            shared = [
                f"--data={config.data}",
                "--model=dlrm",
                *cluster,
                *(config.flags or "").split(),
            ]
            plan_file = Path(folder) / "plan.json"
            child.run("embedps.plan", *shared, f"--json={plan_file}")
            plan = json.loads(plan_file.read_text())
            model_dir = Path(folder) / "model"
            output = child.run(
                "embedps.train",
                *shared,
                f"--model-dir={model_dir}",
                f"--epochs={config.epochs}",
                "--eval=none",
                f"--log-secs={_LOG_SECS}",
            )
            seen = json.loads((model_dir / STATISTICS_NAME).read_text())
        found[name] = _compare(name, plan, seen, _rates(output), num_ps)
        print(f"{name}: {json.dumps(found[name])}", flush=True)
    return {"results": found}


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


def layout(content: Content) -> list[Part]:
    """Lays each planned figure out beside the run's, by cluster."""
    clusters = content["results"]
    rows = []
    for what in dict.fromkeys(what for found in clusters.values() for what in found):
        of = [found.get(what) for found in clusters.values()]
        cells = [f"{x['ratio']:.3f} ({x['plan']:,} by {x['run']:,})" if x else "" for x in of]
        rows.append([what.replace("_", " "), *cells])
    return [Table(heads=["plan by run", *clusters], rows=rows)]


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)
