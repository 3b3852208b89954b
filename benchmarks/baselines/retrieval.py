"""Scores ALS and BPR of the `implicit` library, tuned, on users and their items.

usage: python retrieval.py INPUT.npz OUTPUT.json

INPUT has pairs of train, valid and test, each int64 [n, 2] of users and items from 0. Settings are
chosen by Recall@20 on valid after training on train; the best are trained on both and scored on
test, for each seed. Items that a user had are left out.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import implicit
import numpy as np
import scipy.sparse as sp

SEEDS = (0, 1, 2)
ALS = [(f, r, a) for f in (64, 128) for r in (0.1, 1.0, 10.0) for a in (1.0, 10.0, 40.0)]
BPR = [(f, lr, r) for f in (64, 128) for lr in (0.02, 0.05) for r in (0.005, 0.02, 0.05)]
K = 20


def matrix(pairs: np.ndarray, shape: tuple[int, int]) -> sp.csr_matrix:
    """A matrix of ones."""
    made = sp.csr_matrix((np.ones(len(pairs), np.float32), (pairs[:, 0], pairs[:, 1])), shape=shape)
    made.data[:] = 1
    return made


def scores(model: Any, train: sp.csr_matrix, test: sp.csr_matrix) -> tuple[float, float]:
    """Recall@20 and NDCG@20 over users with items in test."""
    users = np.flatnonzero(np.diff(test.indptr))
    best, _ = model.recommend(users, train[users], N=K, filter_already_liked_items=True)
    recalls, gains = [], []
    discounts = 1 / np.log2(np.arange(2, K + 2))
    for user, items in zip(users, best, strict=True):
        wanted = set(test.indices[test.indptr[user] : test.indptr[user + 1]])
        hits = np.array([item in wanted for item in items])
        recalls.append(hits.sum() / len(wanted))
        gains.append((hits * discounts).sum() / discounts[: len(wanted)].sum())
    return float(np.mean(recalls)), float(np.mean(gains))


def als(setting: Any, train: sp.csr_matrix, seed: int) -> Any:
    """Trains ALS."""
    factors, regularization, alpha = setting
    model = implicit.als.AlternatingLeastSquares(
        factors=factors,
        regularization=regularization,
        alpha=alpha,
        iterations=15,
        random_state=seed,
        num_threads=1,
    )
    model.fit(train, show_progress=False)
    return model


def bpr(setting: Any, train: sp.csr_matrix, seed: int) -> Any:
    """Trains BPR."""
    factors, rate, regularization = setting
    model = implicit.bpr.BayesianPersonalizedRanking(
        factors=factors,
        learning_rate=rate,
        regularization=regularization,
        iterations=100,
        random_state=seed,
        num_threads=1,
    )
    model.fit(train, show_progress=False)
    return model


def main(source: str, target: str) -> None:
    """Tunes and scores both."""
    data = dict(np.load(source))
    users, items = (int(max(each[:, i].max() for each in data.values())) + 1 for i in (0, 1))
    parts = {name: matrix(pairs, (users, items)) for name, pairs in data.items()}
    both = parts["train"] + parts["valid"]
    both.data[:] = 1
    found: dict[str, Any] = {}
    for name, make, grid in (("ALS", als, ALS), ("BPR", bpr, BPR)):
        tuned = {
            s: scores(make(s, parts["train"], 0), parts["train"], parts["valid"]) for s in grid
        }
        best = max(tuned, key=lambda s: tuned[s][0])
        each = [scores(make(best, both, seed), both, parts["test"]) for seed in SEEDS]
        found[name] = {"settings": best, "recall@20": [r for r, _ in each]}
        found[name]["ndcg@20"] = [n for _, n in each]
        print(name, found[name], flush=True)
    with open(target, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
