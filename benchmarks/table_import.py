"""Imports vectors into a new directory at scale: `python -m benchmarks.table_import`.

One process writes --rows vectors of 16 floats as a Parquet file. The next imports it, one verifies
what that made, and the last begins a run with the rows and trains a step that reads some of them.
Memory is without mapped pages of files, which the kernel drops when memory is scarce.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import embedps

# isort: split
from benchmarks import child, report
from benchmarks.datasets import write_dataset
from benchmarks.harness import DIR, Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, figures
from benchmarks.retrieval_scale import peak
from embedps import table
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.tools.verify import verify
from embedps.config_fields import option
from embedps.data.dataset_metadata import LabelColumn
from embedps.errors import EmbedpsError

DIM, BATCH, EXAMPLES = 16, 65_536, 4096


def ids_of(first: int, count: int) -> np.ndarray:
    """Makes distinct ids that share no pattern: a number times an odd number, modulo 2^64."""
    numbers = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    return (numbers * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)


def make(rows: int, folder: str) -> dict[str, Any]:
    """Writes the vectors; row i has the float i in each place."""
    schema = pa.schema([("id", pa.int64()), ("embedding", pa.list_(pa.float32(), DIM))])
    path = Path(folder) / "vectors.parquet"
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for first in range(0, rows, BATCH):
            count = min(BATCH, rows - first)
            values = np.repeat(np.arange(first, first + count, dtype=np.float32), DIM)
            lists = pa.FixedSizeListArray.from_arrays(pa.array(values), DIM)
            writer.write_batch(pa.record_batch([pa.array(ids_of(first, count)), lists], schema))
    return {}


def take(folder: str) -> dict[str, Any]:
    """Imports them."""
    where = Path(folder)
    command = ["import", str(where / "vectors"), "--table", "item", "--embedding-dim", str(DIM)]
    command += ["--input", str(where / "vectors.parquet")]
    code, secs, more = peak(lambda: table.main(command), report.anonymous_bytes)
    if code:
        raise EmbedpsError(f"the import ended with {code}")
    return {"import_secs": round(secs, 1), "import_memory_mb": round(more / 1e6, 1)}


def check(folder: str) -> dict[str, Any]:
    """Verifies what was made."""
    directory = CheckpointDirectory(Path(folder) / "vectors")
    found, secs, more = peak(
        lambda: verify(directory, directory.numbers()[-1:]), report.anonymous_bytes
    )
    if found.problems:
        raise EmbedpsError(str(found.problems[0]))
    return {"verify_secs": round(secs, 1), "verify_memory_mb": round(more / 1e6, 1)}


def train(rows: int, folder: str) -> dict[str, Any]:
    """Trains steps on ids of the vectors; their rows must be all that the model has."""
    where = Path(folder)
    some = ids_of(0, rows)[:: max(1, rows // EXAMPLES)][:EXAMPLES]
    labels = np.arange(len(some)) % 2
    split = pa.table({"item": some, "label": labels.astype(np.float32)})
    write_dataset(
        where / "data", {"train": split, "eval": split}, labels=[LabelColumn(name="label")]
    )
    config = embedps.TrainConfig.from_options(
        model="dlrm",
        data=str(where / "data"),
        model_dir=str(where / "model"),
        eval="none",
        **{"from": str(where / "vectors")},
    )
    trainer, secs, _ = peak(lambda: embedps.Trainer.from_config(config))
    result = trainer.fit()
    found = trainer.collection.stats().rows
    if found != {"item": rows} or result.summary["examples"] != len(some):
        raise EmbedpsError(f"{rows} rows of the import must be read, but the tables have {found}")
    return {"load_secs": round(secs, 1), "examples_trained": len(some)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The vectors."""

    rows: int = option(50_000_000, "to import", least=EXAMPLES)
    folder: str | None = option(None, "a disk with room; else the temporary folder", metavar=DIR)


def measure(config: Config, run: Run) -> Content:
    """Writes, imports, verifies and trains, each in a process of its own."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=config.folder) as folder:
        sized = {"rows": config.rows, "folder": folder}
        child.call("benchmarks.table_import:make", **sized)
        for step, arguments in (("take", {"folder": folder}), ("check", {"folder": folder})):
            found |= child.call(f"benchmarks.table_import:{step}", **arguments)
            print(found, flush=True)
        found |= child.call("benchmarks.table_import:train", **sized)
    found["rows"] = config.rows
    found["rows_per_sec"] = round(config.rows / found["import_secs"])
    return {"dim": DIM, "results": found}


def layout(content: Content) -> list[Part]:
    """Lays out the rate and the memory."""
    r = content["results"]
    rows = [
        ["rows imported per second", f"{r['rows_per_sec']:,}"],
        ["the import takes", f"{r['import_secs']:.0f} s"],
        ["memory that it adds at its peak", f"{r['import_memory_mb']:.0f} MB"],
        ["verifying takes", f"{r['verify_secs']:.0f} s"],
        ["a run takes the rows (`--from`) in", f"{r['load_secs']:.0f} s"],
        ["examples that its first steps train on these rows alone", f"{r['examples_trained']:,}"],
    ]
    return [figures(f"{r['rows']:,} rows x dim {content['dim']} of a Parquet file", rows)]


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)
