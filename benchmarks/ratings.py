"""Scores MMoE and PLE on MovieLens 100K's ratings: `python -m benchmarks.ratings --samples DIR`.

Both predict how many stars a user gives a movie, and whether these are 4 or more. Three folds of
five hold out a fifth of the ratings each, at random. Beside them, on the same folds: each user's
and movie's bias, by a ridge regression that is tuned on a part of the training rows. PUBLISHED are
means of five random folds in the README of Surprise (github.com/NicolasHug/Surprise, "Benchmarks").
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks import child
from benchmarks.datasets import write_dataset
from benchmarks.harness import DIR, Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table, means
from embedps.config_fields import option
from embedps.data.dataset_metadata import LabelColumn

FOLDS, TOTAL_FOLDS = 3, 5
LABELS = (LabelColumn(name="stars", kind="number"), LabelColumn(name="likes"))
# Chosen on an eighth of the training rows of a fold that is not among the three.
COMMON = (
    "--epochs=12",
    "--batch-size=256",
    "--unit-rows=4096",
    "--schedule=linear",
    "--eval=inline",
    "--embedding-dim=32",
    "--sparse-optimizer=sgd",
    "--sparse-learning-rate=2",
    "--row-weight-decay=0.003",
    "--dropout=0.3",
)
MODELS = {"mmoe": ("--expert-mlp=64,32",), "ple": ("--expert-mlp=64,32",)}
PUBLISHED = {"biases": 0.944, "SVD": 0.934, "SVD++": 0.919}
RIDGES = (1.0, 3.0, 5.0, 10.0, 20.0)
Rows = npt.NDArray[np.int64]


def biases(train: Rows, test: Rows) -> float:
    """Gives the RMSE on `test` of users' and movies' biases learned from `train`."""
    inner = np.random.default_rng(0).random(len(train)) < 0.1
    tuned = {r: _biases_rmse(train[~inner], train[inner], r) for r in RIDGES}
    return _biases_rmse(train, test, min(tuned, key=tuned.__getitem__))


def _biases_rmse(train: Rows, test: Rows, ridge: float) -> float:
    mean = train[:, 2].mean()
    sizes = [1000, 2000]
    bias = [np.zeros(n) for n in sizes]
    for _ in range(20):
        for side in (0, 1):
            other = bias[1 - side][train[:, 1 - side]]
            sums = np.bincount(train[:, side], train[:, 2] - mean - other, sizes[side])
            bias[side] = sums / (np.bincount(train[:, side], minlength=sizes[side]) + ridge)
    predicted = mean + bias[0][test[:, 0]] + bias[1][test[:, 1]]
    return float(np.sqrt(np.mean((np.clip(predicted, 1, 5) - test[:, 2]) ** 2)))


def table_of(rows: Rows) -> pa.Table:
    """Makes the columns of users, movies and ratings."""
    stars = rows[:, 2].astype(np.float32)
    columns = {
        "stars": pa.array(stars),
        "likes": pa.array((stars >= 4).astype(np.float32)),
        "user": pa.array(rows[:, 0]),
        "item": pa.array(rows[:, 1]),
    }
    fields = [pa.field(name, array.type, nullable=False) for name, array in columns.items()]
    return pa.table(list(columns.values()), pa.schema(fields))


def rmse(model: str, data: Path, folder: Path, seed: int) -> dict[str, float]:
    """Trains a model; gives its last held-out scores."""
    flags = [f"--model={model}", f"--data={data}"]
    flags += [f"--model-dir={folder}", f"--seed={seed}", *COMMON, *MODELS[model]]
    child.run("embedps.train", *flags)
    return dict(json.loads((folder / "evaluation.jsonl").read_text().splitlines()[-1]))


def measure(samples: Path, folder: Path) -> dict[str, dict[str, list[float]]]:
    """Scores the models and the biases on each fold."""
    with gzip.open(samples / "movielens_100k_u.data.gz", "rt") as file:
        rows = np.loadtxt(file, dtype=np.int64, delimiter="\t")[:, :3]
    rows = np.random.default_rng(0).permutation(rows)
    found: dict[str, dict[str, list[float]]] = {"biases": {"rmse": []}}
    found |= {model: {"rmse": [], "auc of 4 or more": []} for model in MODELS}
    for fold in range(FOLDS):
        is_test = np.arange(len(rows)) % TOTAL_FOLDS == fold
        found["biases"]["rmse"].append(biases(rows[~is_test], rows[is_test]))
        data = folder / f"fold-{fold}"
        parts = {"train": table_of(rows[~is_test]), "eval": table_of(rows[is_test])}
        write_dataset(data, parts, labels=LABELS)
        for model in MODELS:
            scores = rmse(model, data, folder / f"{model}-{fold}", fold)
            found[model]["rmse"].append(scores["stars_rmse"])
            found[model]["auc of 4 or more"].append(scores["likes_auc"])
        print({name: {k: v[-1] for k, v in of.items()} for name, of in found.items()}, flush=True)
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """Where the ratings are."""

    samples: str = option(dataclasses.MISSING, "the folder of the real samples", metavar=DIR)


def _measure(config: Config, run: Run) -> Content:
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(config.samples), Path(folder))
    return {"folds": FOLDS, "published": PUBLISHED, "results": found}


def layout(content: Content) -> list[Part]:
    """Lays out the scores beside the published ones."""
    scores = list(dict.fromkeys(score for of in content["results"].values() for score in of))
    rows = [
        [name, *(means(of[score]) if score in of else "" for score in scores)]
        for name, of in content["results"].items()
    ]
    rows += [
        [f"Surprise, {name}", f"{value:.3f}", *[""] * (len(scores) - 1)]
        for name, value in content["published"].items()
    ]
    return [
        Table(heads=["movielens 100k", *scores], rows=rows),
        f"Means of {content['folds']} folds of five, from least to most. Surprise's README gives "
        "means of five random folds.",
    ]


BENCHMARK = Benchmark(config=Config, measure=_measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)
