"""Renders the results of the benchmarks of models as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.model_clicks import BASELINES, FOLDS, SEEDS, key, num_folds


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
        parts.append(table([_dated(sample, result), *scores], rows))
    parts.append(
        f"Means of {result['seeds']} seeds, from least to most. "
        "Baselines are tuned in the same run."
    )
    return "\n\n".join(parts)


def _dated(sample: str, result: dict[str, Any]) -> str:
    measured = result.get("measured", {}).get(sample)
    return f"{sample}, at {measured['commit']}" if measured else sample


def clicks(result: dict[str, Any]) -> str:
    """Renders the AUC of click models beside that of the baselines."""
    parts = []
    for sample, found in result["samples"].items():
        aucs = {name: by_fold(of["auc"], num_folds(sample)) for name, of in found["scores"].items()}
        whole = {name: auc for name, auc in aucs.items() if auc is not None}
        others = [name for name in BASELINES if name in whole]
        rows = []
        for name, auc in whole.items():
            folds, seeds = auc.mean(1), auc.mean(0)
            error = f"{standard_error(folds):.4f}" if len(folds) > 1 else ""
            minus = [_difference(folds - whole[other].mean(1)) for other in others if other != name]
            minus = minus if name not in BASELINES else []
            spread = f"{seeds.min():.4f} to {seeds.max():.4f}" if len(seeds) > 1 else ""
            cells = [name, f"{folds.mean():.4f}", error, spread, *minus]
            rows.append(cells + [""] * (4 + len(others) - len(cells)))
        title = f"{sample}: {found['rows']:,} rows, {found['positives']:,} positive"
        header = [title, "AUC", "standard error", "seeds", *(f"minus {name}" for name in others)]
        parts.append(table(header, rows))
    parts.append(
        f"AUC of the rows held out, means of {FOLDS} folds and of {len(SEEDS)} seeds. Standard "
        "errors, in brackets those of differences, are over folds. Baselines are tuned in the same "
        "run, in each fold."
    )
    return "\n\n".join(parts)


def _difference(folds: npt.NDArray[np.float64]) -> str:
    error = f" ({standard_error(folds):.4f})" if len(folds) > 1 else ""
    return f"{folds.mean():+.4f}{error}"


def by_fold(aucs: Mapping[str, float], folds: int) -> npt.NDArray[np.float64] | None:
    """Arranges scores, float64 [folds, seeds]; None if one is absent."""
    seeds = [seed for seed in SEEDS if key(0, seed) in aucs]
    found = [[aucs.get(key(fold, seed)) for seed in seeds] for fold in range(folds)]
    if not seeds or any(auc is None for fold in found for auc in fold):
        return None
    return np.array(found, np.float64)


def standard_error(values: npt.NDArray[np.float64]) -> float:
    """The standard error of the mean of one value per fold."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def _seeds(values: Sequence[float]) -> str:
    mean = f"{np.mean(values):.4f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.4f} to {max(values):.4f})"


def model_speed(result: dict[str, Any]) -> str:
    """Renders the speed of each model embedded, then on a cluster."""
    results = result["results"]
    of_embedded = {name: found for name, found in results.items() if "shares" in found}
    shares = list(dict.fromkeys(part for of in of_embedded.values() for part in of["shares"]))
    embedded = [
        [name, *_speeds(found), *(f"{found['shares'][part]:.0%}" for part in shares)]
        for name, found in of_embedded.items()
    ]
    clusters = [
        [name, *_speeds(found["cluster"])] for name, found in results.items() if "cluster" in found
    ]
    columns = ["embedps", "tf-keras", "ratio"]
    return "\n\n".join(
        [
            table(["examples/s, embedded", *columns, *shares], embedded),
            table(["examples/s, 2 servers + 2 workers", *columns], clusters),
        ]
    )


def _speeds(found: dict[str, Any]) -> list[str]:
    ratio = found["ratio"]
    spread = f" ({ratio['min']:.2f} to {ratio['max']:.2f})" if ratio["repeats"] > 1 else ""
    return [
        f"{found['engine']['median']:,.0f}",
        f"{found['keras']['median']:,.0f}",
        f"{ratio['median']:.2f}{spread}",
    ]
