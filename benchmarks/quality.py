"""Measures model quality on generated logs: `python -m benchmarks.quality --run DIR`.

Trains DLRM for one epoch embedded, embedded in bfloat16, and on a local cluster of 2 parameter
servers and 2 workers. Scores the last checkpoint of each, restored onto 1, 2 and 5 shards. DIR is
the folder that `make train` made: it has dataset/ and logs/clicks.tsv.gz.json, whose best_auc is
the AUC of the true probabilities.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import report
from embedps.console import command_line
from embedps.errors import EmbedpsError, UsageError
from embedps.run.summary import read_evaluations

MODES = {
    "embedded": [],
    "embedded, bfloat16": ["--compute-dtype", "bfloat16"],
    "2 PS + 2 workers": ["--num-ps", "2", "--num-workers", "2"],
}
SHARDS = (1, 2, 5)


def _run(module: str, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, *arguments], check=False)
    if done.returncode != 0:
        raise EmbedpsError(f"{module} {' '.join(arguments)} ended with code {done.returncode}")


def train(data: Path, model_dir: Path, *arguments: str) -> dict[str, Any]:
    """Trains one epoch and scores the last checkpoint on each number of shards."""
    began = time.monotonic()
    where = ("--model-dir", str(model_dir), "--data", str(data))
    _run("embedps.train", "--model", "dlrm", *where, *arguments)
    secs = time.monotonic() - began
    summary = json.loads((model_dir / "summary.json").read_text())
    on_shards = {}
    for shards in SHARDS:
        _run("embedps.evaluate", *where, "--once", "--num-shards", str(shards))
        on_shards[shards] = read_evaluations(model_dir)[-1]["auc"]
    return {
        "evaluation": summary["evaluation"],
        "auc_restored_onto_shards": on_shards,
        "examples_per_sec": summary["examples_per_sec"],
        "wall_secs_of_command": round(secs, 1),
        "units": summary["units"],
        "checkpoint": summary["checkpoint"],
        "rows": sum(summary["tables"].values()),
    }


def main(arguments: Sequence[str]) -> int:
    """Runs the command line."""
    parser = command_line.Parser(prog="python -m benchmarks.quality", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="the folder that `make train` made")
    parser.add_argument(
        "--output", type=report.output_file, default=report.RESULTS / "quality.json"
    )
    options = parser.parse_args(arguments)
    logs = options.run / "logs" / "clicks.tsv.gz.json"
    if not logs.is_file():
        raise UsageError(f"{logs} is absent: run `make train`, or embedps.pipelines.generate")
    planted = json.loads(logs.read_text())
    environment = report.environment()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, extra in MODES.items():
            model_dir = Path(folder) / name.replace(" ", "").replace(",", "-")
            results[name] = train(options.run / "dataset", model_dir, *extra)

    best = planted["best_auc"]
    table = Table(title=f"One epoch of {planted['rows']:,} generated rows; best AUC {best:.4f}")
    for column in ("", "AUC", "share of 0.5 to best", "NE", "on 1, 2, 5 shards within"):
        table.add_column(column, justify="right")
    for name, result in results.items():
        scores = result["evaluation"]
        aucs = list(result["auc_restored_onto_shards"].values())
        result["share_of_best"] = (scores["auc"] - 0.5) / (best - 0.5)
        result["restored_auc_range"] = max(aucs) - min(aucs)
        table.add_row(
            name,
            f"{scores['auc']:.5f}",
            f"{result['share_of_best']:.3f}",
            f"{scores['normalized_entropy']:.4f}",
            f"{result['restored_auc_range']:.1e}",
        )
    Console().print(table)
    aucs = [result["evaluation"]["auc"] for result in results.values()]
    report.write(
        options.output,
        {
            "benchmark": "quality",
            "command": f"python -m benchmarks.quality --run {options.run}",
            "environment": environment,
            "planted": planted,
            "results": results,
            "auc_difference_between_modes": max(aucs) - min(aucs),
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
