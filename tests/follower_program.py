"""Follows a chain of deltas and prints its memory as JSON, for test_evaluator.py.

A program of its own: it measures what an evaluator holds, not what writes the deltas beside it.
"""

import dataclasses
import gc
import json
import os
import sys
from pathlib import Path

import embedps  # noqa: F401  chooses Keras 2 before TensorFlow's import
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.evaluation.evaluator import Evaluator
from embedps.tables import FeatureSpec, TableSpec
from tests.builders import SumModel


def rss_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(directory: CheckpointDirectory, dataset: Dataset, measured: set[int]) -> None:
    """Applies the newest manifest's chain, one save after the other."""
    newest = directory.latest()
    if newest is None:
        raise SystemExit("nothing to follow")
    (table,) = newest.tables
    spec = TableSpec(name=table["name"], embedding_dim=table["dim"])
    feature = FeatureSpec(name="C1", table=spec)
    recommender = Recommender(build=lambda: SumModel((feature,), ()))
    evaluator = Evaluator(recommender, dataset, directory, num_shards=3)
    evaluator._model = type("NoModel", (), {"named_variables": {}, "embedding_dim": None})()
    sizes = []
    for length in range(1, len(newest.chain) + 1):
        evaluator.apply(dataclasses.replace(newest, chain=newest.chain[:length]))
        if length in measured:
            sizes.append(rss_bytes())
    print(json.dumps({"rss_bytes": sizes, "rows": evaluator.collection.stats().rows}))


if __name__ == "__main__":
    main(CheckpointDirectory(sys.argv[1]), Dataset.open(sys.argv[2]), set(map(int, sys.argv[3:])))
