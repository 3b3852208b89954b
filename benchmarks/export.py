"""Exports a model of millions of rows and loads it: `python -m benchmarks.export`.

One process makes a DLRM at the Kaggle configuration with --rows rows of 16 floats. The next exports
it. One without embedps loads the export and asks it. The last looks ids up in the same arrays by
the same ops: rows that are there, and --absent ids that are not. The memory of the export is
without mapped pages of the checkpoint's files, which the kernel drops when memory is scarce.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import embedps

# isort: split
import tensorflow as tf

from benchmarks import report
from benchmarks.retrieval_scale import peak
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.console import command_line
from embedps.data.dataset import Dataset
from embedps.errors import EmbedpsError
from embedps.run.run_config import read_run
from embedps.serving.export_model import export_model
from embedps.serving.row_arrays import stack_rows
from embedps.serving.stock_lookup import StockTables
from embedps.tables import FeatureSpec, TableSpec

DIM, REPEATS, BATCH = 16, 50, 1_000_000
COLUMNS = [f"C{i}" for i in range(1, 27)]
FIRST_ID, FIRST_ABSENT = 10**12, 10**15  # far from the ids of the dataset, and from each other
CLIENT = Path(__file__).with_name("export_client.py")


def make(rows: int, folder: Path) -> dict[str, Any]:
    """Makes a checkpoint of a model with so many rows."""
    for command in (
        ["embedps.pipelines.generate", "--rows", "5000", "--output", folder / "day_0.tsv"],
        ["embedps.pipelines.criteo", "--input", folder / "day_0.tsv", "--output", folder / "data"],
    ):
        subprocess.run([sys.executable, "-m", *map(str, command)], check=True, stdout=sys.stderr)
    config = embedps.TrainConfig(
        model="dlrm",
        data=str(folder / "data"),
        model_dir=str(folder / "model"),
    )
    trainer = embedps.Trainer.from_config(config)
    each = -(-rows // len(COLUMNS))
    for first in range(0, each, 50_000):
        ids = tf.range(FIRST_ID + first, FIRST_ID + min(each, first + 50_000), dtype=tf.int64)
        trainer.collection.lookup(dict.fromkeys(COLUMNS, ids), insert=True, partial=True)
    trainer.fit()
    return {}


def export(folder: Path) -> dict[str, Any]:
    """Exports it."""
    run = read_run(folder / "model")
    dataset, directory = Dataset.open(folder / "data"), CheckpointDirectory(folder / "model")
    number = max(directory.numbers())
    done, secs, more = peak(
        lambda: export_model(
            run.recommender(dataset), dataset, directory, folder / "exports", number, top_k=1
        ),
        report.anonymous_bytes,
    )
    plain = done.rows * (4 * DIM + 8)
    files = sum(file.stat().st_size for file in done.path.rglob("*") if file.is_file())
    return {
        "rows": done.rows,
        "export_secs": round(secs, 1),
        "export_memory_by_rows": round(more / plain, 3),
        "bytes_by_rows": round(files / plain, 3),
    }


def look_up(rows: int, folder: Path, absent: int) -> dict[str, Any]:
    """Looks ids up, present and absent."""
    directory = CheckpointDirectory(folder / "model")
    manifest = directory.read(max(directory.numbers()))
    tables = [TableSpec(name=name, dim=DIM) for name in COLUMNS]
    features = [FeatureSpec(name=name, table=name) for name in COLUMNS]
    stock = StockTables(stack_rows(directory, manifest, tables), tables)

    @tf.function(autograph=False, reduce_retracing=True)
    def rows_of(ids: dict[str, tf.Tensor]) -> dict[str, Any]:
        return dict(stock.lookup(features, ids))

    rng = np.random.default_rng(2)
    cpu_ms = []
    for _ in range(REPEATS):
        places = rng.integers(0, rows // len(COLUMNS), [len(COLUMNS), 1000])
        some = {n: tf.constant(FIRST_ID + row) for n, row in zip(COLUMNS, places, strict=True)}
        began = time.process_time()
        found = rows_of(some)
        cpu_ms.append((time.process_time() - began) * 1e3)
    if not all(tf.reduce_all(tf.reduce_any(rows != 0, axis=1)) for rows in found.values()):
        raise EmbedpsError("rows that are there were not found")

    @tf.function(autograph=False)
    def are_zeros(ids: tf.Tensor) -> tf.Tensor:
        (rows,) = stock.lookup(features[2:3], {features[2].name: ids}).values()
        return tf.reduce_all(tf.equal(rows, 0))

    done = 0
    while done < absent:
        ids = rng.integers(FIRST_ABSENT, 2**62, min(BATCH, absent - done))
        if not are_zeros(tf.constant(ids)):
            raise EmbedpsError("an id that is not there has a row")
        done += len(ids)
    return {"lookup_1000x26_cpu_ms": report.spread(cpu_ms[5:]), "absent_ids_that_are_zeros": done}


def main(arguments: Sequence[str]) -> int:
    """Runs the command line."""
    parser = command_line.Parser(prog="python -m benchmarks.export", description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000, help="default: %(default)s")
    parser.add_argument("--absent", type=int, default=100_000_000, help="default: %(default)s")
    parser.add_argument("--output", type=report.output_file, default=report.RESULTS / "export.json")
    parser.add_argument("--step", choices=("make", "export", "lookup"), help="a process of its own")
    parser.add_argument("--folder", type=Path, help="of the model, for --step")
    options = parser.parse_args(arguments)
    if options.step is not None:
        steps = {
            "make": lambda: make(options.rows, options.folder),
            "export": lambda: export(options.folder),
            "lookup": lambda: look_up(options.rows, options.folder, options.absent),
        }
        print(json.dumps(steps[options.step]()))
        return 0
    environment, found = report.environment(), dict[str, Any]()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)

        def run(*command: str) -> None:
            done = subprocess.run(
                [sys.executable, *command], check=True, stdout=subprocess.PIPE, text=True
            )
            found.update(json.loads(done.stdout.splitlines()[-1]))
            print(found, flush=True)

        given = [f"--folder={folder}", f"--rows={options.rows}", f"--absent={options.absent}"]
        run("-m", "benchmarks.export", "--step=make", *given)
        run("-m", "benchmarks.export", "--step=export", *given)
        (exported,) = (path for path in (folder / "exports").iterdir() if path.name.isdigit())
        site_packages = str(Path(tf.__file__).parents[1])
        run("-I", "-S", str(CLIENT), site_packages, str(exported))
        run("-m", "benchmarks.export", "--step=lookup", *given)
    report.write(
        options.output,
        {
            "benchmark": "export",
            "command": shlex.join(["python", "-m", "benchmarks.export", *arguments]),
            "environment": environment,
            "dim": DIM,
            "results": found,
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
