"""Scores the zoo beside baselines of the same run: `python -m benchmarks.models --samples DIR`.

Clicks: on each sample with clicks or ratings, in 5 folds, the models with `--preset small`, a tuned
logistic regression over hashed ids, and a tuned LightGBM. Retrieval: on LightGCN's splits of lastfm
and MovieLens 1M two towers beside ALS and BPR, tuned; and on MovieLens 100K with the last item of
each user held out. Every number is a mean over seeds with its spread.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from benchmarks import report
from benchmarks.environments import BASELINES, python_of
from benchmarks.model_folds import Fold, score_fold, write_fold
from embedps.console import command_line
from embedps.data.dataset import Dataset
from embedps.errors import EmbedpsError
from pipelines.ingestion.interactions import Options, make_dataset, read_items

SEEDS = (0, 1, 2)
FOLDS = 5
CLICKS = {
    "criteo kaggle": ("criteo", "criteo_kaggle_12768.tsv.gz"),
    "criteo terabyte": ("criteo", "criteo_terabyte_10000.tsv.gz"),
    "avazu": ("avazu", "avazu_train.csv.gz"),
    "movielens 100k": ("movielens_100k", "movielens_100k_u.data.gz"),
}
MODELS = ("logistic_regression", "fm", "wide_deep", "deepfm")
RETRIEVAL = ("lastfm", "ml-1m")
TWO_TOWER = {
    "lastfm": ["--embedding-dim=128", "--temperature=0.1", "--epochs=30"],
    "ml-1m": ["--embedding-dim=128", "--temperature=0.15", "--epochs=20", "--batch-size=2048"],
}


def run(module: str, *arguments: str) -> None:
    """Runs a command of this environment."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], check=False)
    if done.returncode != 0:
        raise EmbedpsError(f"{module} {' '.join(arguments)} ended with code {done.returncode}")


def baseline(name: str, data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Runs a baseline in its environment."""
    source, target = folder / f"{name}.npz", folder / f"{name}.json"
    np.savez(source, **data)
    program = Path(__file__).parent / "baselines" / f"{name}.py"
    command = [str(python_of(BASELINES)), str(program), str(source), str(target)]
    if subprocess.run(command, check=False).returncode != 0:
        raise EmbedpsError(f"the baselines of {name} failed")
    return dict(json.loads(target.read_text()))


def summary(by_fold: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The mean over folds and seeds, and the standard error over folds."""
    means = [float(np.mean(fold)) for fold in by_fold]
    spread = float(np.std(means, ddof=1) / np.sqrt(len(means))) if len(means) > 1 else 0.0
    return {"mean": round(float(np.mean(means)), 5), "standard_error": round(spread, 5)}


def clicks(name: str, samples: Path, folder: Path, models: Sequence[str]) -> dict[str, Any]:
    """Scores models and baselines on one sample."""
    schema, file = CLICKS[name]
    made = folder / "set"
    where = ("--input", str(samples / file), "--output", str(made), "--num-shards", "1")
    run("pipelines.ingest", "--schema", schema, *where, "--eval-fraction", "0.01")
    dataset = Dataset.open(made)
    table = pa.concat_tables([pq.read_table(p) for s in dataset.splits for p in dataset.paths(s)])
    folds = np.random.default_rng(0).integers(0, FOLDS, table.num_rows)
    labels = table[dataset.label].to_numpy()
    ids = [table[column.name].to_numpy() for column in dataset.categorical]
    numbers = [table[column.name].to_numpy() for column in dataset.numeric]
    data = {
        "labels": labels,
        "ids": np.stack(ids, 1),
        "numerics": np.stack(numbers, 1) if numbers else np.zeros((len(labels), 0)),
        "folds": folds,
    }
    found = {key: summary(value) for key, value in baseline("clicks", data, folder).items()}
    for model in models:
        aucs = []
        for number in range(FOLDS):
            fold = Fold(dataset=dataset, table=table, folds=folds, number=number)
            split = write_fold(fold, folder / f"fold-{number}")
            aucs.append([score_fold(split, fold, model, seed, folder) for seed in SEEDS])
        found[model] = summary(aucs)
        print(name, model, found[model], flush=True)
    return {"rows": table.num_rows, "positives": int(labels.sum()), "auc": found}


def retrieval(name: str, samples: Path, folder: Path) -> dict[str, Any]:
    """Scores two towers, ALS and BPR on a split in LightGCN's format."""
    paths = {
        part: samples / f"lightgcn_{name}_{part}.txt.gz" for part in ("train", "valid", "test")
    }
    pairs = {
        part: np.array([(user, item) for user, items in read_items(path).items() for item in items])
        for part, path in paths.items()
    }
    found = baseline("retrieval", pairs, folder)
    made = folder / "set"
    train = (str(paths["train"]), str(paths["valid"]))
    make_dataset(Options(train=train, test=str(paths["test"]), output=str(made)))
    ours = [
        train_two_tower(made, folder / f"model-{seed}", seed, TWO_TOWER[name]) for seed in SEEDS
    ]
    found["two_tower"] = {
        "settings": TWO_TOWER[name],
        **{score: [each[score] for each in ours] for score in ("recall@20", "ndcg@20")},
    }
    return found


def train_two_tower(
    data: Path, model_dir: Path, seed: int, flags: Sequence[str]
) -> dict[str, float]:
    """Trains two towers; gives the scores of the last checkpoint."""
    run(
        "embedps.train",
        "--model=two_tower",
        f"--data={data}",
        f"--model-dir={model_dir}",
        f"--seed={seed}",
        "--held-out=held_out",
        "--seen=seen",
        "--at=10,20,100",
        "--normalize",
        "--batch-size=1024",
        "--unit-rows=8192",
        "--sparse-learning-rate=0.5",
        "--schedule=linear",
        "--eval=inline",
        "--metric=recall@20",
        *flags,
    )
    lines = (model_dir / "evaluation.jsonl").read_text().splitlines()
    return dict(json.loads(lines[-1]))


def last_item(samples: Path, folder: Path) -> dict[str, Any]:
    """MovieLens 100K, the last item of each user held out, unseen items only."""
    with gzip.open(samples / "movielens_100k_u.data.gz", "rt") as file:
        ratings = np.loadtxt(file, dtype=np.int64, delimiter="\t")
    ratings = ratings[np.argsort(ratings[:, 3], kind="stable")]
    users: dict[int, list[int]] = {}
    for user, item, *_ in ratings:
        users.setdefault(int(user), []).append(int(item))
    for part, cut in (("train", slice(None, -1)), ("test", slice(-1, None))):
        lines = (" ".join(map(str, [user, *items[cut]])) for user, items in users.items())
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n")
    made = folder / "set"
    files = {"train": (str(folder / "train.txt"),), "test": str(folder / "test.txt")}
    make_dataset(Options(**files, output=str(made)))  # type: ignore[arg-type]
    found = {}
    for name, flag in (("with logQ", "--log-q"), ("without", "--no-log-q")):
        flags = ["--embedding-dim=64", "--temperature=0.15", "--epochs=20", flag]
        each = [train_two_tower(made, folder / f"{flag}-{s}", s, flags) for s in SEEDS]
        found[name] = {k: [e[k] for e in each] for k in ("recall@10", "recall@100", "ndcg@10")}
    return found


def earlier(path: Path) -> dict[str, Any]:
    """Gives what an earlier run measured, which this one replaces sample by sample."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return {suite: found[suite] for suite in ("retrieval", "clicks") if suite in found}


def show(results: Mapping[str, Any]) -> None:
    """Prints tables of what was measured."""
    if "clicks" in results:
        table = Table(title="Held-out AUC, means of 5 folds (standard error)")
        names = list(next(iter(results["clicks"].values()))["auc"])
        for column in ("", *names):
            table.add_column(column, justify="right")
        for sample, result in results["clicks"].items():
            cells = (result["auc"][name] for name in names)
            table.add_row(sample, *(f"{c['mean']:.4f} ({c['standard_error']:.4f})" for c in cells))
        Console().print(table)
    for sample, result in results.get("retrieval", {}).items():
        table = Table(title=f"{sample}: means of {len(SEEDS)} seeds (least to most)")
        scores = [k for k in next(iter(result.values())) if "@" in k]
        for column in ("", *scores):
            table.add_column(column, justify="right")
        for name, found in result.items():
            means = [found[score] for score in scores]
            shown = (f"{np.mean(c):.4f} ({min(c):.4f} to {max(c):.4f})" for c in means)
            table.add_row(name, *shown)
        Console().print(table)


def main(arguments: Sequence[str]) -> int:
    """Runs the command line."""
    parser = command_line.Parser(prog="python -m benchmarks.models", description=__doc__)
    parser.add_argument("--samples", type=Path, required=True, help="folder of the real samples")
    parser.add_argument("--suite", choices=("clicks", "retrieval", "all"), default="all")
    parser.add_argument(
        "--models", default=",".join(MODELS), help="of clicks (default: %(default)s)"
    )
    parser.add_argument("--only", default="", help="one sample's name")
    parser.add_argument("--output", type=report.output_file, default=report.RESULTS / "models.json")
    options = parser.parse_args(arguments)
    results = earlier(options.output)
    environment = report.environment()

    def each(names: Sequence[str]) -> list[str]:
        return [name for name in names if options.only in ("", name)]

    def write() -> None:
        report.write(
            options.output,
            {
                "benchmark": "models",
                "command": f"python -m benchmarks.models --samples {options.samples.name}",
                "environment": environment,
                "seeds": len(SEEDS),
                "folds": FOLDS,
                **results,
            },
        )

    if options.suite in ("retrieval", "all"):
        for name in each([*RETRIEVAL, "ml-100k, last item"]):
            with tempfile.TemporaryDirectory() as folder:
                found = (
                    retrieval(name, options.samples, Path(folder))
                    if name in RETRIEVAL
                    else last_item(options.samples, Path(folder))
                )
            results.setdefault("retrieval", {})[name] = found
            write()
    if options.suite in ("clicks", "all"):
        for name in each(list(CLICKS)):
            with tempfile.TemporaryDirectory() as folder:
                models = [model for model in options.models.split(",") if model]
                results.setdefault("clicks", {})[name] = clicks(
                    name, options.samples, Path(folder), models
                )
            write()
    show(results)
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
