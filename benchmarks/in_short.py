"""The figures that the page begins with: each is read from a result."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import rates
from benchmarks.layout import Part, Table

_TRAINING = {
    "W1, Intel Xeon with AMX": "train",
    "W2, Intel Xeon with AMX": "train-w2",
    "W1, AMD EPYC with AVX-512": "avx512/train",
    "W2, AMD EPYC with AVX-512": "avx512/train-w2",
}
_GROUPS = {"SGD": "SGD", "Adagrad of any kind": "Adagrad", "Adagrad": "2 PS + 2 workers"}
_PRECISIONS = ("float32", "bfloat16")

Result = dict[str, Any]

_FIGURES: tuple[tuple[str, str, Callable[[Result], str]], ...] = (
    (
        "bytes of a table of 100M rows over what rows, slots and ids need",
        "growth",
        lambda r: f"{r['results']['memory_ratio']:.2f} x",
    ),
    (
        "peak memory under a byte limit, by the limit: the worst stream",
        "byte_limit",
        lambda r: f"{r['results']['worst_ratio']:.3f} x",
    ),
    (
        "examples per second while bases are saved, by those without",
        "checkpoint_pause",
        lambda r: f"{r['ratio_during_cuts']['base']['median']:.2f} x",
    ),
    (
        "held-out AUC after one epoch of 2M generated rows; the planted best",
        "quality",
        lambda r: (
            f"{r['results']['embedded']['evaluation']['auc']:.4f}; {r['planted']['best_auc']:.4f}"
        ),
    ),
    (
        "an update until a follower of the checkpoints has it, p99",
        "lag",
        lambda r: f"{r['results']['lag_secs']['p99']:.1f} s",
    ),
    (
        "a file in a watched folder until an answer changes, p99",
        "freshness",
        lambda r: f"{r['results']['effect_secs']['p99']:.1f} s",
    ),
    (
        "a killed parameter server until a unit is done again",
        "recovery_time",
        lambda r: f"{_until_done(r['parameter_server']):.1f} s",
    ),
    ("examples lost by 20 kills of a run with --watch", "watch_kills", lambda r: _lost(r)),
    (
        "answers with a wrong bit while a run trains, evicts and is served",
        "serving_proof",
        lambda r: f"{r['results']['wrong_scores']} of {r['results']['requests']:,}",
    ),
    (
        "Criteo TSV to Parquet, by plain pyarrow.csv",
        "pipelines",
        lambda r: f"{r['of_pyarrow']['median']:.2f} x",
    ),
)


def layout(results: Path) -> list[Part]:
    """Lays out how fast training is beside the others, and a figure of some other results."""
    rows = []
    for machine, name in _TRAINING.items():
        content = json.loads((results / f"{name}.json").read_text())
        ratios = dict[tuple[str, str], float]()
        for comparison in content["comparisons"]:
            for group, precision, mine, theirs in rates.fastest(comparison):
                ratios[group, precision] = mine["rate"]["median"] / theirs["rate"]["median"]
        cells = [ratios.get((group, each)) for group in _GROUPS for each in _PRECISIONS]
        rows.append([machine, *(f"{cell:.2f} x" if cell else "" for cell in cells)])
    heads = [f"{name}, {each}" for name in _GROUPS.values() for each in _PRECISIONS]
    figures = [
        [what, figure(json.loads((results / f"{name}.json").read_text())), name]
        for what, name, figure in _FIGURES
    ]
    return [
        "Examples per second of our fastest case, by those of the fastest of the others:",
        Table(heads=["DLRM", *heads], rows=rows),
        Table(heads=["what", "measured", "result"], rows=figures),
    ]


def _until_done(lost: Result) -> float:
    return float(lost["secs_until_noticed"] + lost["secs_until_first_unit"])


def _lost(result: Result) -> str:
    return f"{result['results']['examples_lost']} of {result['results']['examples']:,}"
