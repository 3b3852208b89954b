"""Users who choose items of their taste, as a retrieval dataset."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from embedps.data.dataset import Dataset
from embedps.pipelines.ingestion.interactions import Options, make_dataset

USERS, ITEMS, CHOSEN, HELD_OUT = 200, 120, 14, 4


def write_dataset(directory: Path) -> Dataset:
    """Each user has CHOSEN items, of which the last HELD_OUT are held out; some are popular."""
    rng = np.random.default_rng(4)
    taste, kind = rng.normal(size=(USERS, 3)), rng.normal(size=(ITEMS, 3))
    liking = 2.5 * taste @ kind.T + 1.5 * rng.normal(size=ITEMS) + rng.gumbel(size=(USERS, ITEMS))
    directory.mkdir(parents=True, exist_ok=True)
    train, test = [], []
    for user in range(USERS):
        chosen = rng.permutation(np.argsort(-liking[user])[:CHOSEN])
        train.append([user, *chosen[HELD_OUT:]])
        test.append([user, *chosen[:HELD_OUT]])
    for name, lines in (("train", train), ("test", test)):
        text = "".join(" ".join(map(str, line)) + "\n" for line in lines)
        (directory / f"{name}.txt").write_text(text)
    files = {"train": (str(directory / "train.txt"),), "test": str(directory / "test.txt")}
    dataset, _ = make_dataset(
        Options(**files, output=str(directory / "set"), num_shards=2)  # type: ignore[arg-type]
    )
    return dataset


def popularity_recall(dataset: Dataset, k: int) -> float:
    """Recall@k of the most popular items that a user has not had."""
    import pyarrow.parquet as pq

    counts = np.zeros(ITEMS)
    for path in dataset.paths("train"):
        np.add.at(counts, pq.read_table(path)["item"].to_numpy(), 1)
    found = []
    for row in pq.read_table(dataset.paths("eval")[0]).to_pylist():
        scores = counts.copy()
        scores[row["seen"]] = -1
        best = set(np.argsort(-scores)[:k])
        found.append(len(best & set(row["held_out"])) / len(row["held_out"]))
    return float(np.mean(found))
