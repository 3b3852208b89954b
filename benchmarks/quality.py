"""Measures model quality on generated logs: `python -m benchmarks.quality --run DIR`.

Trains DLRM for one epoch embedded, embedded in bfloat16, and on a local cluster of 2 parameter
servers and 2 workers. Scores the last checkpoint of each, restored onto 1, 2 and 5 shards. DIR is
the folder that `make train` made: it has dataset/ and logs/clicks.tsv.gz.json, whose best_auc is
the AUC of the true probabilities.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import child
from benchmarks.harness import DIR, Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table
from embedps.config_fields import option
from embedps.errors import UsageError
from embedps.run.summary import read_evaluations

MODES = {
    "embedded": [],
    "embedded, bfloat16": ["--compute-dtype", "bfloat16"],
    "2 PS + 2 workers": ["--num-ps", "2", "--num-workers", "2"],
}
SHARDS = (1, 2, 5)


def train(data: Path, model_dir: Path, *arguments: str) -> dict[str, Any]:
    """Trains one epoch and scores the last checkpoint on each number of shards."""
    began = time.monotonic()
    where = ("--model-dir", str(model_dir), "--data", str(data))
    child.run("embedps.train", "--model", "dlrm", *where, *arguments)
    secs = time.monotonic() - began
    summary = json.loads((model_dir / "summary.json").read_text())
    on_shards = {}
    for shards in SHARDS:
        child.run("embedps.evaluate", *where, "--once", "--num-shards", str(shards))
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """Where the logs and the dataset are."""

    run: str = option(dataclasses.MISSING, "the folder that `make train` made", metavar=DIR)


def measure(config: Config, run: Run) -> Content:
    """Trains and scores each mode.

    Raises:
      UsageError: the folder has no generated logs.
    """
    made = Path(config.run)
    logs = made / "logs" / "clicks.tsv.gz.json"
    if not logs.is_file():
        raise UsageError(f"{logs} is absent: run `make train`, or embedps.pipelines.generate")
    planted = json.loads(logs.read_text())
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, extra in MODES.items():
            model_dir = Path(folder) / name.replace(" ", "").replace(",", "-")
            result = results[name] = train(made / "dataset", model_dir, *extra)
            restored = result["auc_restored_onto_shards"].values()
            result["share_of_best"] = (result["evaluation"]["auc"] - 0.5) / (
                planted["best_auc"] - 0.5
            )
            result["restored_auc_range"] = max(restored) - min(restored)
    aucs = [result["evaluation"]["auc"] for result in results.values()]
    return {
        "planted": planted,
        "results": results,
        "auc_difference_between_modes": max(aucs) - min(aucs),
    }


def layout(content: Content) -> list[Part]:
    """Lays out the scores of each mode beside the planted best."""
    planted = content["planted"]
    rows = [
        [
            name,
            f"{of['evaluation']['auc']:.5f}",
            f"{of['share_of_best']:.3f}",
            f"{of['evaluation']['normalized_entropy']:.4f}",
            f"{of['restored_auc_range']:.1e}",
        ]
        for name, of in content["results"].items()
    ]
    title = f"one epoch of {planted['rows']:,} rows; the planted AUC is {planted['best_auc']:.4f}"
    shards = ", ".join(map(str, SHARDS))
    heads = [
        title,
        "AUC",
        "share of 0.5 to best",
        "NE",
        f"AUC restored onto {shards} shards: range",
    ]
    return [Table(heads=heads, rows=rows)]


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)
