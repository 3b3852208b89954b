"""Follows many deltas and prints its memory before and after as JSON, for test_evaluator.py.

A program of its own, so that the heap that other tests left, and malloc's arenas that their
threads share, are not measured too.
"""

import gc
import json
import os
import sys
from pathlib import Path

import numpy as np

import embedps  # noqa: F401  chooses Keras 2 before TensorFlow's import
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.dataset import Dataset
from embedps.evaluator import Evaluator
from embedps.recommender import Recommender
from embedps.saver import Saver
from embedps.tables import FeatureSpec, TableSpec
from tests.builders import SumNetwork
from tests.tables.builders import ids, make_collection, train

NUM_IDS, DIM = 4000, 32


def rss_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(directory: Path, dataset: Dataset) -> None:
    """The same rows change again and again, some go and come back."""
    table = TableSpec(name="t", dim=DIM)
    trainable = make_collection([table], num_shards=2)
    saver = Saver(CheckpointDirectory(directory), trainable, [], keep_chains=1)
    recommender = Recommender(
        tables=(table,), features=(FeatureSpec(name="t", table="t"),), build=SumNetwork
    )
    evaluator = Evaluator(recommender, dataset, CheckpointDirectory(directory), num_shards=3)
    evaluator._network = type("NoNetwork", (), {"variables": []})()
    sizes = []
    for step in range(1, 261):
        batch = ids(*np.arange(step % 7, NUM_IDS, 2))
        train(trainable, {"t": batch}, {"t": np.ones([len(batch), DIM], np.float32)}, step=step)
        trainable.evict("t", before_step=step, max_frequency=2 if step % 5 == 0 else 0)
        manifest = saver.save(step=step, ledger={}, in_doubt=list, progress={}, final=False)
        evaluator.apply(manifest)
        if step in (100, 260):
            sizes.append(rss_bytes())
    same = evaluator.collection.stats().rows == trainable.stats().rows
    print(json.dumps({"rss_bytes": sizes, "same_rows": same}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Dataset.open(sys.argv[2]))
