"""Scores the zoo beside baselines of the same run: `python -m benchmarks.models --samples DIR`.

Clicks: on each sample with clicks or ratings, in 5 folds, the models with `--preset small`, a tuned
logistic regression over hashed ids, and a tuned LightGBM. Retrieval: on LightGCN's splits of lastfm
and MovieLens 1M two towers beside ALS and BPR, tuned; and on MovieLens 100K with the last item of
each user held out. Every number is a mean over seeds with its spread. Two generated logs of more
rows are scored like the samples, on one fold. Sequences and ratings: `benchmarks.sequences` and
`benchmarks.ratings`.

The same command goes on after an interruption; `--max-secs` interrupts it. With --inner settings of
clicks are compared (`--flags`) on rows that are split off the rows to train on.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import model_clicks, model_tables, ratings, report, sequences
from benchmarks.environments import BASELINES, python_of
from embedps.console import command_line
from embedps.errors import EmbedpsError
from embedps.pipelines.ingestion.interactions import Options, make_dataset, read_items

SEEDS = model_clicks.SEEDS
MODELS = ("logistic_regression", "fm", "wide_deep", "deepfm")
RETRIEVAL = ("lastfm", "ml-1m")
SUITES = ("clicks", "retrieval", "sequences", "ratings", "all")
LAST_ITEM = "ml-100k last item"
TWO_TOWER = {
    "lastfm": [
        "--embedding-dim=128",
        "--temperature=0.16",
        "--num-negatives=1000",
        "--history=history",
        "--history-weight=0.3",
        "--epochs=30",
    ],
    "ml-1m": ["--embedding-dim=128", "--temperature=0.15", "--epochs=20", "--batch-size=2048"],
}


def run(module: str, *arguments: str) -> None:
    """Runs a command of this environment."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], check=False)
    if done.returncode != 0:
        raise EmbedpsError(f"{module} {' '.join(arguments)} ended with code {done.returncode}")


def baseline(data: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Tunes and scores the baselines of retrieval in their environment."""
    source, target = folder / "retrieval.npz", folder / "retrieval.json"
    np.savez(source, **data)
    program = Path(__file__).parent / "baselines" / "retrieval.py"
    command = [str(python_of(BASELINES)), str(program), str(source), str(target)]
    if subprocess.run(command, check=False).returncode != 0:
        raise EmbedpsError("the baselines of retrieval failed")
    return dict(json.loads(target.read_text()))


def retrieval(
    name: str, samples: Path, folder: Path, found: dict[str, Any], ended: Callable[[], bool]
) -> Iterator[None]:
    """Scores two towers, ALS and BPR on a split in LightGCN's format.

    It adds to `found` what that lacks, until `ended` is true; it yields after each part.
    """
    paths = {
        part: samples / f"lightgcn_{name}_{part}.txt.gz" for part in ("train", "valid", "test")
    }
    if not {"ALS", "BPR"} <= found.keys() and not ended():
        pairs = {
            part: np.array(
                [(user, item) for user, items in read_items(path).items() for item in items]
            )
            for part, path in paths.items()
        }
        found |= baseline(pairs, folder)
        yield
    made, settings = folder / "set", TWO_TOWER[name]
    train = (str(paths["train"]), str(paths["valid"]))
    make_dataset(Options(train=train, test=str(paths["test"]), output=str(made)))
    ours = found.get("two_tower", {})
    if ours.get("settings") != settings:
        ours = {"settings": settings, "recall@20": [], "ndcg@20": []}
    while len(ours["recall@20"]) < len(SEEDS) and not ended():
        seed = SEEDS[len(ours["recall@20"])]
        scores = train_two_tower(made, folder / f"model-{seed}", seed, settings)
        for score in ("recall@20", "ndcg@20"):
            ours[score].append(scores[score])
        found["two_tower"] = ours
        yield


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


def show(results: Mapping[str, Any]) -> None:
    """Prints tables of retrieval."""
    for sample, result in results.items():
        table = Table(title=f"{sample}: means of {len(SEEDS)} seeds (least to most)")
        scores = [k for k in next(iter(result.values())) if "@" in k]
        for column in ("", *scores):
            table.add_column(column, justify="right")
        for name, found in result.items():
            means = [found[score] for score in scores]
            shown = (f"{np.mean(c):.4f} ({min(c):.4f} to {max(c):.4f})" for c in means)
            table.add_row(name, *shown)
        Console().print(table)


def measure_retrieval(
    samples: Path, only: Sequence[str], path: Path, command: str, max_secs: float
) -> bool:
    """Measures retrieval on each sample, or on some; tells whether nothing is left to measure."""
    began, environment = time.monotonic(), report.environment()
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    content |= {"benchmark": "models", "command": command, "environment": environment}
    content["seeds"] = len(SEEDS)
    results = content.setdefault("retrieval", {})

    def ended() -> bool:
        return 0 < max_secs < time.monotonic() - began

    def note(name: str) -> None:
        content.setdefault("measured", {})[name] = {k: environment[k] for k in ("commit", "time")}
        report.write(path, content)

    for name in (*RETRIEVAL, LAST_ITEM):
        if (only and name not in only) or ended():
            continue
        with tempfile.TemporaryDirectory() as folder:
            if name == LAST_ITEM:
                results[name] = last_item(samples, Path(folder))
                note(name)
                continue
            found = results.setdefault(name, {})
            for _ in retrieval(name, samples, Path(folder), found, ended):
                note(name)
    show(results)
    return not ended()


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns 1 if --max-secs left something to measure."""
    parser = command_line.Parser(prog="python -m benchmarks.models", description=__doc__)
    parser.add_argument("--samples", type=Path, required=True, help="folder of the real samples")
    parser.add_argument("--suite", choices=SUITES, default="all")
    parser.add_argument("--only", default="", help="names of samples, such as avazu,lastfm")
    parser.add_argument("--models", default=",".join(MODELS), help="of clicks (%(default)s)")
    parser.add_argument("--flags", default="", help="of the models of clicks, after the preset")
    parser.add_argument("--inner", action="store_true", help="hold out rows to choose settings by")
    parser.add_argument("--max-secs", type=float, default=0, help="begin no training later")
    parser.add_argument("--output", type=Path, default=report.RESULTS, help="folder of the results")
    options = parser.parse_args(arguments)
    command = f"python -m benchmarks.models --samples {options.samples.name}"
    only = [name for name in options.only.split(",") if name]
    if options.suite in ("retrieval", "all"):
        path = options.output / "models.json"
        is_whole = measure_retrieval(options.samples, only, path, command, options.max_secs)
        if options.suite == "retrieval" or not is_whole:
            return 0 if is_whole else 1
    if options.suite in ("sequences", "all"):
        sequences.main([f"--output={options.output / 'sequences.json'}"])
    if options.suite in ("ratings", "all"):
        given = [f"--samples={options.samples}", f"--output={options.output / 'ratings.json'}"]
        ratings.main(given)
    if options.suite in ("sequences", "ratings"):
        return 0
    clicks = model_clicks.Options(
        models=tuple(name for name in options.models.split(",") if name),
        flags=tuple(options.flags.split()),
        inner=options.inner,
        max_secs=options.max_secs,
    )
    path = options.output / f"model_clicks{'_inner' if options.inner else ''}.json"
    head = {"benchmark": "model_clicks", "command": command, "environment": report.environment()}
    scores = model_clicks.Scores(path, {**head, "inner": options.inner})
    names = [*model_clicks.SAMPLES, *model_clicks.GENERATED]
    samples = [name for name in names if name in (only or names)]
    is_all = model_clicks.measure(options.samples, samples, clicks, scores, run)
    print(model_tables.clicks(scores.content))
    return 0 if is_all else 1


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
