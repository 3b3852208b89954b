"""Renders the results of `benchmarks.models` and `benchmarks.model_speed` as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Renders a table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def models(result: dict[str, Any]) -> str:
    """Renders the scores of retrieval, then those of clicks."""
    parts = []
    for sample, found in result.get("retrieval", {}).items():
        scores = [key for key in next(iter(found.values())) if "@" in key]
        rows = [[name, *(_seeds(of[score]) for score in scores)] for name, of in found.items()]
        parts.append(table([sample, *scores], rows))
    if clicks := result.get("clicks"):
        names = list(next(iter(clicks.values()))["auc"])
        rows = [
            [
                f"{sample}, {found['rows']:,} rows",
                *(f"{c['mean']:.4f} ({c['standard_error']:.4f})" for c in found["auc"].values()),
            ]
            for sample, found in clicks.items()
        ]
        parts.append(table(["held-out AUC", *names], rows))
    parts.append(
        f"Means of {result['seeds']} seeds, from least to most; AUC: means of {result['folds']} "
        "folds, and the standard error over folds. Baselines are tuned in the same run."
    )
    return "\n\n".join(parts)


def _seeds(values: Sequence[float]) -> str:
    return f"{np.mean(values):.4f} ({min(values):.4f} to {max(values):.4f})"


def model_speed(result: dict[str, Any]) -> str:
    """Renders the speed of each model."""
    rows = []
    for name, found in result["results"].items():
        ratio = found["ratio"]
        rows.append(
            [
                name,
                f"{found['engine']['median']:,.0f}",
                f"{found['keras']['median']:,.0f}",
                f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})",
                f"{found['cluster']:,}",
                *(f"{share:.0%}" for share in found["shares"].values()),
            ]
        )
    shares = list(next(iter(result["results"].values()))["shares"])
    header = ["examples/s", "embedps", "tf-keras", "ratio", "2 servers + 2 workers", *shares]
    return table(header, rows)
