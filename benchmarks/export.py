"""Exports a model of millions of rows and loads it: `python -m benchmarks.export`.

One process makes a DLRM at the Kaggle configuration with --rows rows of 16 floats. The next exports
it. One without embedps loads the export and asks it. The last looks ids up in the same arrays by
the same ops: rows that are there, and --absent ids that are not. The memory of the export is
without mapped pages of files, which the kernel drops when memory is scarce. With
--max-memory-bytes, arrays that do not fit are files beside the model.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import embedps

# isort: split
import dataclasses

import tensorflow as tf

from benchmarks import child, report
from benchmarks.datasets import generate_clicks
from benchmarks.harness import DIR, Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, figures, spread
from benchmarks.retrieval_scale import peak
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.config_fields import option
from embedps.data.dataset import Dataset
from embedps.errors import EmbedpsError
from embedps.run.run_config import read_run
from embedps.serving.export_model import export_model
from embedps.serving.row_arrays import stack_rows
from embedps.serving.stock_lookup import StockTables
from embedps.tables import FeatureSpec, TableSpec
from embedps.tables.tiered import Tiered

DIM, REPEATS, BATCH = 16, 50, 1_000_000
COLUMNS = [f"C{i}" for i in range(1, 27)]
FIRST_ID, FIRST_ABSENT = 10**12, 10**15  # far from the ids of the dataset, and from each other
CLIENT = Path(__file__).with_name("export_client.py")


def make(rows: int, folder: str) -> dict[str, Any]:
    """Makes a checkpoint of a model with so many rows."""
    where = Path(folder)
    generate_clicks(where, 5_000)
    config = embedps.TrainConfig(
        model="dlrm",
        data=str(where / "data"),
        model_dir=str(where / "model"),
    )
    trainer = embedps.Trainer.from_config(config)
    each = -(-rows // len(COLUMNS))
    for first in range(0, each, 50_000):
        ids = tf.range(FIRST_ID + first, FIRST_ID + min(each, first + 50_000), dtype=tf.int64)
        trainer.collection.lookup(dict.fromkeys(COLUMNS, ids), insert=True, partial=True)
    trainer.fit()
    return {}


def export(folder: str, max_memory_bytes: int) -> dict[str, Any]:
    """Exports it."""
    where = Path(folder)
    run, directory = read_run(where / "model"), CheckpointDirectory(where / "model")
    dataset = Dataset.open(where / "data")
    number = max(directory.numbers())
    memory = None
    if max_memory_bytes:
        memory = Tiered(max_memory_bytes=max_memory_bytes, directory=str(where / "disk"))
    done, secs, more = peak(
        lambda: export_model(
            run.recommender(dataset),
            dataset,
            directory,
            where / "exports",
            number,
            top_k=1,
            memory=memory,
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


def look_up(rows: int, folder: str, absent: int) -> dict[str, Any]:
    """Looks ids up, present and absent."""
    directory = CheckpointDirectory(Path(folder) / "model")
    manifest = directory.read(max(directory.numbers()))
    tables = [TableSpec(name=name, embedding_dim=DIM) for name in COLUMNS]
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The model."""

    rows: int = option(20_000_000, "of its 26 tables", least=26)
    absent: int = option(100_000_000, "ids to look up that have no row", least=1)
    max_memory_bytes: int = option(0, "of the export's arrays; 0: all are in memory", least=0)
    folder: str | None = option(None, "a disk with room; else the temporary folder", metavar=DIR)


def measure(config: Config, run: Run) -> Content:
    """Makes, exports, loads and looks up, each in a process of its own."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=config.folder) as folder:
        child.call("benchmarks.export:make", rows=config.rows, folder=folder)
        found |= child.call(
            "benchmarks.export:export", folder=folder, max_memory_bytes=config.max_memory_bytes
        )
        print(found, flush=True)
        (exported,) = (p for p in Path(folder, "exports").iterdir() if p.name.isdigit())
        command = [sys.executable, "-I", "-S", str(CLIENT), str(Path(tf.__file__).parents[1])]
        done = subprocess.run([*command, str(exported)], check=True, stdout=subprocess.PIPE)
        found |= json.loads(done.stdout.splitlines()[-1])
        counts = {"rows": config.rows, "absent": config.absent}
        found |= child.call("benchmarks.export:look_up", folder=folder, **counts)
    return {"dim": DIM, "results": found}


def layout(content: Content) -> list[Part]:
    """Lays out bytes, memory and times, with their limits."""
    r = content["results"]
    asked = ", ".join(f"{ms:.1f} ms for {rows}" for rows, ms in r["request_cpu_ms"].items())
    rows = [
        ["bytes of the export, against rows and ids", f"{r['bytes_by_rows']:.3f} x", "1.1 x"],
        [
            "memory of the exporting process at its peak, against the same",
            f"{r['export_memory_by_rows']:.3f} x",
            "1.3 x",
        ],
        ["the export takes", f"{r['export_secs']:.0f} s"],
        ["loading takes, above TensorFlow's own start", f"{r['load_secs']:.2f} s", "3 s"],
        [
            "memory of the loaded export, against its files",
            f"{r['load_memory_by_files']:.3f} x",
            "1.1 x",
        ],
        [
            "CPU time of a lookup of 1000 x 26 ids, ms",
            spread(r["lookup_1000x26_cpu_ms"], ".1f"),
            "15",
        ],
        ["CPU time of a request, by rows", asked],
        ["absent ids that give zeros", f"{r['absent_ids_that_are_zeros']:,} of as many", "all"],
    ]
    return [figures(f"DLRM, {r['rows']:,} rows x dim {content['dim']}, 26 tables", rows)]


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)
