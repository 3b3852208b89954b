"""Measures rows of bfloat16 and float16: `python -m benchmarks.row_dtypes --run DIR PART`.

PART is `auc` (held-out AUC of DLRM with small layers after one epoch, 4 seeds), `step` (processor
time of training steps, interleaved) or `lookups` (the same, of a table of 4M rows of dim 64). Each
adds to the result file, and `auc` goes on where it was interrupted. DIR is the folder that
`make train ROWS=2000000` made.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

import embedps  # noqa: F401  before TensorFlow: it chooses the Keras

# isort: split
import tensorflow as tf

from benchmarks import report
from embedps.console import command_line
from embedps.data.dataset import Dataset
from embedps.engine.dense_optimizer import make_dense_optimizer
from embedps.engine.step_model import StepModel
from embedps.engine.unit_functions import make_train_unit
from embedps.errors import EmbedpsError
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
        command = [sys.executable, "-m", "embedps.train", "--model=dlrm", *flags]
        if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode != 0:
            raise EmbedpsError(f"{' '.join(command[1:])} failed")
        summary = json.loads((Path(folder) / "model" / "summary.json").read_text())
        return float(summary["evaluation"]["auc"])


def measure_auc(run: Path, found: dict[str, Any], save: Callable[[], None]) -> None:
    """Adds each run of each seed that the result does not have."""
    logs = json.loads((run / "logs" / "clicks.tsv.gz.json").read_text())
    part = found.setdefault("auc", {"planted": logs, "flags": list(SMALL), "runs": {}})
    for seed in SEEDS:
        for dtype in DTYPES:
            runs = part["runs"].setdefault(dtype, {})
            if str(seed) not in runs:
                runs[str(seed)] = auc(run / "dataset", dtype, seed)
                save()
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
    model = StepModel(dlrm.make(dlrm.Config(row_dtype=dtype), dataset), dataset)
    tables = EmbeddingCollection(
        model.tables, model.features, devices=["/device:CPU:0"], container=f"row-dtypes-{dtype}"
    )
    train = make_train_unit(
        model,
        make_dense_optimizer("adam", 0.001, model.model),
        tables,
        tf.distribute.get_strategy(),
        model.input(batch_rows=BATCH, shuffle_rows=0),
        overlap=False,
    )
    path = str(dataset.paths("train")[0])
    units = dataset.split("train").files[0].rows // UNIT_ROWS

    def run(number: int) -> None:
        first = number % units * UNIT_ROWS
        numbers = (first, UNIT_ROWS, number, number * UNIT_ROWS // BATCH)
        train(path, *(tf.constant(n, tf.int64) for n in numbers), tf.constant(0.05))

    return run


def lookups_of(dtype: RowDtype) -> Callable[[int], Any]:
    """Fills a table; gives a function that looks random ids up."""
    table = TableSpec(name="t", dim=TABLE_DIM, row_dtype=dtype)
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


def main(arguments: Sequence[str]) -> int:
    """Runs the command line."""
    parser = command_line.Parser(prog="python -m benchmarks.row_dtypes", description=__doc__)
    parser.add_argument("part", choices=("auc", "step", "lookups"))
    parser.add_argument("--run", type=Path, required=True, help="the folder that `make train` made")
    parser.add_argument(
        "--output", type=report.output_file, default=report.RESULTS / "row_dtypes.json"
    )
    options = parser.parse_args(arguments)
    found: dict[str, Any] = (
        json.loads(options.output.read_text()) if options.output.exists() else {}
    )

    def save() -> None:
        found.update(
            benchmark="row_dtypes",
            command="python -m benchmarks.row_dtypes --run DIR PART",
            environment=report.environment(),
        )
        report.write(options.output, found)

    if options.part == "auc":
        measure_auc(options.run, found, save)
    elif options.part == "step":
        dataset = Dataset.open(options.run / "dataset")
        steps = {dtype: unit_of(dataset, dtype) for dtype in DTYPES}
        found["step"] = {"steps": UNIT_ROWS // BATCH, **interleave(steps, ROUNDS)}
    else:
        tables = {dtype: lookups_of(dtype) for dtype in DTYPES}
        found["lookups"] = {
            "rows": TABLE_ROWS,
            "dim": TABLE_DIM,
            "ids": LOOKUP_IDS,
            **interleave(tables, LOOKUP_ROUNDS),
        }
    save()
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
