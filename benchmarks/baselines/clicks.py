"""Scores logistic regression or LightGBM, tuned, on a fold of rows.

usage: python clicks.py INPUT.npz OUTPUT.json {logistic regression,LightGBM} FOLD SEED

INPUT has labels float [n], numerics float [n, a] (NaN is missing), ids int64 [n, b], folds int [n].
The rows of the other folds are split once more to choose the settings by AUC; the model with the
best ones is then fitted on all of them. It uses neither TensorFlow nor embedps.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import lightgbm
import numpy as np
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
LEAVES, MIN_ROWS = (4, 15, 63), (20, 100)
HASHED = 2**18


def one_hot(numerics: np.ndarray, ids: np.ndarray, known: np.ndarray) -> sp.csr_matrix:
    """Standardized numbers, whether each is missing, and hashed ids."""
    mean, std = np.nanmean(numerics[known], 0), np.nanstd(numerics[known], 0) + 1e-9
    missing = np.isnan(numerics)
    dense = np.concatenate([np.where(missing, 0, (numerics - mean) / std), missing], axis=1)
    columns = []
    for j in range(ids.shape[1]):
        apart = ids[:, j].astype(np.uint64) ^ np.uint64((j + 1) * 0x9E3779B97F4A7C15 % 2**64)
        mixed = (apart ^ (apart >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
        columns.append((mixed >> np.uint64(46)).astype(np.int64) % HASHED)
    hot = np.stack(columns, 1)
    rows = np.repeat(np.arange(len(ids)), ids.shape[1])
    shape = (len(ids), HASHED)
    hashed = sp.csr_matrix((np.ones(hot.size), (rows, hot.ravel())), shape=shape)
    return sp.hstack([sp.csr_matrix(dense), hashed]).tocsr()


def logistic(data: dict[str, np.ndarray], train: np.ndarray, inner: np.ndarray) -> Any:
    """Chooses the strength of L2 on the inner rows; returns a function of the test rows."""
    x, y = one_hot(data["numerics"], data["ids"], train), data["labels"]
    fit_rows, check = train[~inner], train[inner]

    def fit(rows: np.ndarray, strength: float) -> LogisticRegression:
        return LogisticRegression(C=strength, max_iter=300).fit(x[rows], y[rows])

    scores = {
        c: roc_auc_score(y[check], fit(fit_rows, c).decision_function(x[check])) for c in STRENGTHS
    }
    best = fit(train, max(scores, key=scores.__getitem__))
    return lambda rows: best.decision_function(x[rows])


def boosted(data: dict[str, np.ndarray], train: np.ndarray, inner: np.ndarray, seed: int) -> Any:
    """Chooses leaves, rows per leaf and rounds on the inner rows."""
    codes = [np.unique(column, return_inverse=True)[1] for column in data["ids"].T]
    x = np.concatenate([data["numerics"], np.stack(codes, 1)], axis=1)
    categorical = list(range(data["numerics"].shape[1], x.shape[1]))
    y, fit_rows, check = data["labels"], train[~inner], train[inner]
    best: tuple[float, Any, int] = (-1.0, None, 0)
    for leaves in LEAVES:
        for min_rows in MIN_ROWS:
            settings = {
                "objective": "binary",
                "metric": "auc",
                "learning_rate": 0.05,
                "num_leaves": leaves,
                "min_data_in_leaf": min_rows,
                "feature_fraction": 0.7,
                "bagging_fraction": 0.8,
                "bagging_freq": 1,
                "cat_smooth": 20,
                "seed": seed,
                "verbose": -1,
                "num_threads": 1,
            }
            made = lightgbm.Dataset(x[fit_rows], y[fit_rows], categorical_feature=categorical)
            checked = lightgbm.Dataset(x[check], y[check], reference=made)
            found = lightgbm.train(
                settings,
                made,
                600,
                valid_sets=[checked],
                callbacks=[lightgbm.early_stopping(40, verbose=False)],
            )
            score = found.best_score["valid_0"]["auc"]
            if score > best[0]:
                best = (score, settings, found.best_iteration)
    _, settings, rounds = best
    whole = lightgbm.Dataset(x[train], y[train], categorical_feature=categorical)
    model = lightgbm.train(settings, whole, rounds)
    return lambda rows: model.predict(x[rows])


def main(source: str, target: str, name: str, fold: str, seed: str) -> None:
    """Scores a baseline on a fold."""
    warnings.filterwarnings("ignore")
    data = dict(np.load(source))
    test = np.flatnonzero(data["folds"] == int(fold))
    train = np.flatnonzero(data["folds"] != int(fold))
    inner = np.random.default_rng(int(fold)).random(len(train)) < 0.15
    if name == "LightGBM":
        predict = boosted(data, train, inner, int(seed))
    else:
        predict = logistic(data, train, inner)
    with open(target, "w") as file:
        json.dump(float(roc_auc_score(data["labels"][test], predict(test))), file)


if __name__ == "__main__":
    main(*sys.argv[1:])
