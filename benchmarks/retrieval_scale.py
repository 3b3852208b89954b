"""Exports and ranks millions of items: `python -m benchmarks.retrieval_scale`.

One process has a table of --items rows of 64 floats, and writes them with their ids. Another reads
them and ranks one item for each of 1024 queries among all, exactly. Memory is what a step adds to
the process at its peak, against the bytes of the vectors.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import embedps  # noqa: F401  before TensorFlow: it chooses the Keras

# isort: split
import tensorflow as tf

from benchmarks import report
from embedps.console import command_line
from embedps.engine.corpus_metrics import encoder
from embedps.errors import EmbedpsError
from embedps.evaluation.item_file import read_items, write_items
from embedps.layers.candidates import Candidates
from embedps.layers.embeddings import Embeddings
from embedps.layers.retrieval_metrics import count_ranks
from embedps.tables import FeatureSpec, Initializer, TableSpec
from embedps.tables.collection import EmbeddingCollection

DIM, QUERIES, BATCH = 64, 1024, 65536
T = TypeVar("T")


def peak(
    work: Callable[[], T], memory: Callable[[], int] = report.rss_bytes
) -> tuple[T, float, int]:
    """Runs a step: its result, its seconds, and what it adds to the memory at its peak."""
    before, most, done = memory(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.01):
            most = max(most, memory())

    thread = threading.Thread(target=watch)
    thread.start()
    began = time.monotonic()
    try:
        found = work()
    finally:
        secs = time.monotonic() - began
        done.set()
        thread.join()
    return found, secs, max(most, memory()) - before


def export(items: int, path: Path) -> dict[str, float]:
    """Makes a table of rows and exports it."""
    table = TableSpec(name="item", dim=DIM, initializer=Initializer.normal(1.0))
    features = [FeatureSpec(name="item", table=table)]
    collection = EmbeddingCollection(
        [table], features, devices=["/device:CPU:0"], container="retrieval-scale"
    )
    for first in range(0, items, BATCH):
        ids = tf.range(first, min(first + BATCH, items), dtype=tf.int64)
        collection.lookup({"item": ids}, insert=True)
    layer = Embeddings(features)
    layer.is_served = True
    batches = tf.data.Dataset.range(items).batch(BATCH).map(lambda ids: {"item": ids})
    candidates = Candidates(batches, lambda batch: layer(batch)["item"], identifier="item")
    encode = encoder(candidates, layer, collection)
    rows, secs, more = peak(lambda: write_items(path, "item", candidates.encode_batches(encode)))
    if rows != items:
        raise EmbedpsError(f"{rows} of {items} items were exported")
    return {"export_secs": round(secs, 2), "export_memory": round(more / (items * DIM * 4), 4)}


def rank(path: Path) -> dict[str, float]:
    """Reads exported items and ranks some; checks a few ranks against plain sorting."""
    tf.zeros([1]).numpy()  # starts TensorFlow
    rng = np.random.default_rng(1)
    queries = rng.normal(size=(QUERIES, DIM)).astype(np.float32)
    count_ranks(tf.constant(queries[:1]), tf.constant(queries), tf.ragged.constant([[0]], tf.int64))

    def work() -> tuple[Any, Any, Any, float]:
        _, vectors = read_items(path)
        wanted = rng.integers(0, len(vectors), QUERIES)
        lists = tf.RaggedTensor.from_row_lengths(wanted, np.ones(QUERIES, np.int64))
        began = time.monotonic()
        ranks = count_ranks(tf.constant(queries), vectors, lists)
        return vectors, wanted, ranks.values.numpy(), time.monotonic() - began

    (vectors, wanted, ranks, rank_secs), secs, more = peak(work)
    for i in range(8):
        scores = tf.linalg.matvec(vectors, queries[i]).numpy().astype(np.float64)
        near = np.abs(scores - scores[wanted[i]]) < 1e-4
        if abs(int((scores > scores[wanted[i]]).sum()) - int(ranks[i])) > near.sum():
            raise EmbedpsError(f"query {i} has another rank than among sorted scores")
    return {
        "rank_secs": round(rank_secs, 2),
        "read_and_rank_secs": round(secs, 2),
        "rank_memory": round(more / (len(vectors) * DIM * 4), 4),
    }


def main(arguments: Sequence[str]) -> int:
    """Runs the command line."""
    parser = command_line.Parser(prog="python -m benchmarks.retrieval_scale", description=__doc__)
    parser.add_argument("--items", type=int, default=5_000_000, help="default: %(default)s")
    parser.add_argument(
        "--output", type=report.output_file, default=report.RESULTS / "retrieval_scale.json"
    )
    parser.add_argument("--step", choices=("export", "rank"), help="a process of its own")
    parser.add_argument("--file", type=Path, help="of the items, for --step")
    options = parser.parse_args(arguments)
    if options.step == "export":
        print(json.dumps(export(options.items, options.file)))
        return 0
    if options.step == "rank":
        print(json.dumps(rank(options.file)))
        return 0
    environment, found = report.environment(), dict[str, float]()
    with tempfile.TemporaryDirectory() as folder:
        for step in ("export", "rank"):
            command = [sys.executable, "-m", "benchmarks.retrieval_scale", f"--step={step}"]
            command += [f"--items={options.items}", f"--file={folder}/items.parquet"]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=os.environ)
            found |= json.loads(done.stdout)
    print(found)
    report.write(
        options.output,
        {
            "benchmark": "retrieval_scale",
            "command": f"python -m benchmarks.retrieval_scale --items {options.items}",
            "environment": environment,
            "items": options.items,
            "dim": DIM,
            "queries": QUERIES,
            "results": found,
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
