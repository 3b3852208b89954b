"""Measures rows of bfloat16 and float16: `python -m benchmarks.row_dtypes --run DIR`.

--part is `auc` (held-out AUC of DLRM with small layers after one epoch, 4 seeds), `step` (processor
time of training steps, interleaved) or `lookups` (the same, of a table of 4M rows of dim 64). Each
adds to the result file, and `auc` goes on where it was interrupted. DIR is the folder that
`make train ROWS=2000000` made.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

import embedps  # noqa: F401  before TensorFlow: it chooses the Keras

# isort: split
import dataclasses

import tensorflow as tf

from benchmarks import child, report
from benchmarks.harness import DIR, Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table, spread
from benchmarks.unit_trainer import UnitTrainer
from embedps.config_fields import option
from embedps.data.dataset import Dataset
from embedps.models import dlrm
from embedps.tables import FeatureSpec, TableSpec
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.specs import RowDtype

DTYPES: tuple[RowDtype, ...] = get_args(RowDtype)
SEEDS = (1, 2, 3, 4)
SMALL = ("--bottom-mlp=64", "--top-mlp=64,32", "--compute-dtype=bfloat16", "--batch-size=8192")
BATCH, UNIT_ROWS, ROUNDS = 2048, 32768, 12
TABLE_ROWS, TABLE_DIM, LOOKUP_IDS, LOOKUP_ROUNDS = 1 << 22, 64, 1 << 16, 40


def auc(data: Path, dtype: RowDtype, seed: int) -> float:
    """Trains one epoch; gives the AUC of the last checkpoint on the rows held out."""
    with tempfile.TemporaryDirectory() as folder:
        where = (f"--data={data}", f"--model-dir={folder}/model")
        flags = (*where, *SMALL, f"--row-dtype={dtype}", f"--seed={seed}", "--eval=inline")
        child.run("embedps.train", "--model=dlrm", *flags)
        summary = json.loads((Path(folder) / "model" / "summary.json").read_text())
        return float(summary["evaluation"]["auc"])


def measure_auc(made: Path, found: Content, run: Run) -> None:
    """Adds each run of each seed that the result does not have."""
    logs = json.loads((made / "logs" / "clicks.tsv.gz.json").read_text())
    part = found.setdefault("auc", {"planted": logs, "flags": list(SMALL), "runs": {}})
    for seed in SEEDS:
        for dtype in DTYPES:
            runs = part["runs"].setdefault(dtype, {})
            if str(seed) not in runs:
                runs[str(seed)] = auc(made / "dataset", dtype, seed)
                run.save(found)
    means = {dtype: statistics.mean(part["runs"][dtype].values()) for dtype in DTYPES}
    part["means"] = means
    part["differences"] = {dtype: means[dtype] - means["float32"] for dtype in DTYPES}


def interleave(of_dtype: dict[RowDtype, Callable[[int], Any]], rounds: int) -> dict[str, Any]:
    """Takes the processor time of each once per round, in another order each round.

    Ratios are to float32's of the same round. Other processes change the processor time less than
    the wall time.
    """
    secs: dict[RowDtype, list[float]] = {dtype: [] for dtype in of_dtype}
    order = list(of_dtype)
    for number in range(-2, rounds):
        order = [*order[1:], order[0]]
        for dtype in order:
            began = time.process_time()
            of_dtype[dtype](number + 2)
            if number >= 0:
                secs[dtype].append(time.process_time() - began)
    base = secs["float32"]
    return {
        dtype: {
            "cpu_ms": report.spread([1000 * t for t in times]),
            "by_float32": report.spread([t / b for t, b in zip(times, base, strict=True)]),
        }
        for dtype, times in secs.items()
    }


def unit_of(dataset: Dataset, dtype: RowDtype) -> Callable[[int], Any]:
    """Makes a DLRM with the zoo's defaults; gives a function that trains on unit `number`."""
    recommender = dlrm.make(dlrm.Config(row_dtype=dtype), dataset)
    trainer = UnitTrainer(recommender, dataset, container=f"row-dtypes-{dtype}", batch=BATCH)
    path = dataset.paths("train")[0]
    units = dataset.split("train").files[0].rows // UNIT_ROWS

    def run(number: int) -> None:
        first, step = number % units * UNIT_ROWS, number * UNIT_ROWS // BATCH
        trainer.train(path, first, UNIT_ROWS, seed=number, step=step, rate=0.05)

    return run


def lookups_of(dtype: RowDtype) -> Callable[[int], Any]:
    """Fills a table; gives a function that looks random ids up."""
    table = TableSpec(name="t", embedding_dim=TABLE_DIM, row_dtype=dtype)
    tables = EmbeddingCollection(
        [table],
        [FeatureSpec(name="f", table=table)],
        devices=["/device:CPU:0"],
        container=f"row-dtypes-table-{dtype}",
    )
    for first in range(0, TABLE_ROWS, LOOKUP_IDS):
        tables.lookup({"f": tf.range(first, first + LOOKUP_IDS, dtype=tf.int64)}, insert=True)
    tables.mark_clean()

    def run(number: int) -> None:
        ids = np.random.default_rng(number).integers(0, TABLE_ROWS, LOOKUP_IDS)
        tables.lookup({"f": tf.constant(ids)}, insert=False)

    return run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """What is measured now."""

    run: str = option(dataclasses.MISSING, "the folder that `make train` made", metavar=DIR)
    part: Literal["auc", "step", "lookups"] = option("auc", "the others keep their results")


def measure(config: Config, run: Run) -> Content:
    """Measures a part; the others keep their results."""
    earlier, made = run.earlier(), Path(config.run)
    found: Content = {}
    found |= {key: earlier[key] for key in ("auc", "step", "lookups") if key in earlier}
    if config.part == "auc":
        measure_auc(made, found, run)
    elif config.part == "step":
        dataset = Dataset.open(made / "dataset")
        steps = {dtype: unit_of(dataset, dtype) for dtype in DTYPES}
        found["step"] = {"steps": UNIT_ROWS // BATCH, **interleave(steps, ROUNDS)}
    else:
        tables = {dtype: lookups_of(dtype) for dtype in DTYPES}
        sizes = {"rows": TABLE_ROWS, "dim": TABLE_DIM, "ids": LOOKUP_IDS}
        found["lookups"] = {**sizes, **interleave(tables, LOOKUP_ROUNDS)}
    return found


def layout(content: Content) -> list[Part]:
    """Lays out the AUC and the times by the dtype of rows."""
    heads = ["rows of"]
    rows: list[list[str]] = [[dtype] for dtype in DTYPES]
    if "auc" in content:
        heads += ["AUC", "minus float32's"]
        for row, dtype in zip(rows, DTYPES, strict=True):
            of = content["auc"]
            row += [f"{of['means'][dtype]:.5f}", f"{of['differences'][dtype]:+.5f}"]
    for part, name in (("step", "steps"), ("lookups", "lookups")):
        if part in content:
            heads.append(f"CPU time of {name} by float32's")
            for row, dtype in zip(rows, DTYPES, strict=True):
                row.append(spread(content[part][dtype]["by_float32"]))
    return [Table(heads=heads, rows=rows)]


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)
