"""Exports and ranks millions of items: `python -m benchmarks.retrieval_scale`.

One process has a table of --items rows of 64 floats, and writes them with their ids. Another reads
them and ranks one item for each of 1024 queries among all, exactly. Memory is what a step adds to
the process at its peak, against the bytes of the vectors.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import embedps  # noqa: F401  before TensorFlow: it chooses the Keras

# isort: split
import dataclasses

import tensorflow as tf

from benchmarks import child, report
from benchmarks.harness import Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, figures
from embedps.config_fields import option
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


def export(items: int, path: str) -> dict[str, float]:
    """Makes a table of rows and exports it."""
    table = TableSpec(name="item", embedding_dim=DIM, initializer=Initializer.normal(1.0))
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
    rows, secs, more = peak(
        lambda: write_items(Path(path), "item", candidates.encode_batches(encode))
    )
    if rows != items:
        raise EmbedpsError(f"{rows} of {items} items were exported")
    return {"export_secs": round(secs, 2), "export_memory": round(more / (items * DIM * 4), 4)}


def rank(path: str) -> dict[str, float]:
    """Reads exported items and ranks some; checks a few ranks against plain sorting."""
    tf.zeros([1]).numpy()  # starts TensorFlow
    rng = np.random.default_rng(1)
    queries = rng.normal(size=(QUERIES, DIM)).astype(np.float32)
    count_ranks(tf.constant(queries[:1]), tf.constant(queries), tf.ragged.constant([[0]], tf.int64))

    def work() -> tuple[Any, Any, Any, float]:
        _, vectors = read_items(Path(path))
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The items."""

    items: int = option(5_000_000, "of the table", least=1)


def measure(config: Config, run: Run) -> Content:
    """Exports in one process and ranks in another."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/items.parquet"
        exported = child.call("benchmarks.retrieval_scale:export", items=config.items, path=path)
        ranked = child.call("benchmarks.retrieval_scale:rank", path=path)
    return {"items": config.items, "dim": DIM, "queries": QUERIES, "results": exported | ranked}


def layout(content: Content) -> list[Part]:
    """Lays out seconds and memory."""
    r = content["results"]
    rows = [
        ["the export takes", f"{r['export_secs']:.1f} s"],
        ["memory that it adds, against the vectors", f"{r['export_memory']:.2f} x"],
        ["reading and ranking takes", f"{r['read_and_rank_secs']:.1f} s"],
        ["ranking alone", f"{r['rank_secs']:.1f} s"],
        ["memory that both add, against the vectors", f"{r['rank_memory']:.2f} x"],
    ]
    title = f"{content['items']:,} items of {content['dim']} floats, {content['queries']:,} queries"
    return [figures(title, rows)]


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)
