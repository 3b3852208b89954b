"""Scores two towers beside tuned baselines: `python -m benchmarks.model_retrieval --samples DIR`.

On LightGCN's splits of lastfm, MovieLens 1M and Amazon Beauty (6 items per user), two towers stand
beside ALS, BPR, item-kNN and EASE. On MovieLens 100K the last item of each user is held out. Every
number is a mean over seeds with its spread; item-kNN and EASE have no chance in them.

The same command goes on after an interruption; `--max-secs` interrupts it.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import child
from benchmarks.baselines.linear_retrieval import score_linear
from benchmarks.environments import BASELINES, python_of
from benchmarks.harness import (
    DIR,
    Benchmark,
    Content,
    Options,
    Run,
    main,
    unfinished,
)
from benchmarks.layout import Part, Table, means
from embedps.config_fields import option
from embedps.errors import EmbedpsError
from embedps.pipelines.ingestion import interactions
from embedps.pipelines.ingestion.interactions import make_dataset, read_items
from embedps.run.presets import PRESETS

RETRIEVAL = ("lastfm", "ml-1m", "beauty")
LAST_ITEM = "ml-100k last item"
SAMPLES = (*RETRIEVAL, LAST_ITEM)
SEEDS = (0, 1, 2)
TWO_TOWER = ["--preset=retrieval"]
LAST_ITEM_FLAGS = [
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
    "--embedding-dim=64",
    "--temperature=0.15",
    "--epochs=20",
]


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
    """Scores two towers and the baselines on a split in LightGCN's format.

    It adds to `found` what that lacks, until `ended` is true; it yields after each part.
    """
    paths = {
        part: samples / f"lightgcn_{name}_{part}.txt.gz" for part in ("train", "valid", "test")
    }
    pairs = {
        part: np.array([(user, item) for user, items in read_items(path).items() for item in items])
        for part, path in paths.items()
    }
    if not {"item-kNN", "EASE"} <= found.keys() and not ended():
        found |= score_linear(pairs)
        yield
    if not {"ALS", "BPR"} <= found.keys() and not ended():
        found |= baseline(pairs, folder)
        yield
    made = folder / "set"
    settings = json.loads(json.dumps({"flags": TWO_TOWER, "preset": {**PRESETS["retrieval"]}}))
    train = (str(paths["train"]), str(paths["valid"]))
    make_dataset(interactions.Options(train=train, test=str(paths["test"]), output=str(made)))
    ours = found.get("two_tower", {})
    if ours.get("settings") != settings:
        ours = {"settings": settings, "recall@20": [], "ndcg@20": []}
    while len(ours["recall@20"]) < len(SEEDS) and not ended():
        seed = SEEDS[len(ours["recall@20"])]
        scores = train_two_tower(made, folder / f"model-{seed}", seed, TWO_TOWER)
        for score in ("recall@20", "ndcg@20"):
            ours[score].append(scores[score])
        found["two_tower"] = ours
        yield


def train_two_tower(
    data: Path, model_dir: Path, seed: int, flags: Sequence[str]
) -> dict[str, float]:
    """Trains two towers; gives the scores of the last checkpoint."""
    child.run(
        "embedps.train",
        "--model=two_tower",
        f"--data={data}",
        f"--model-dir={model_dir}",
        f"--seed={seed}",
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
    make_dataset(interactions.Options(**files, output=str(made)))  # type: ignore[arg-type]
    found = {}
    for name, flag in (("with logQ", "--log-q"), ("without", "--no-log-q")):
        flags = [*LAST_ITEM_FLAGS, flag]
        each = [train_two_tower(made, folder / f"{flag}-{s}", s, flags) for s in SEEDS]
        found[name] = {k: [e[k] for e in each] for k in ("recall@10", "recall@100", "ndcg@10")}
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """What is scored."""

    samples: str = option(dataclasses.MISSING, "the folder of the real samples", metavar=DIR)
    only: tuple[str, ...] = option(SAMPLES, "the others keep their results", some_of=SAMPLES)
    max_secs: float = option(0.0, "begin no training later; 0 is no limit", least=0)


def measure(config: Config, run: Run) -> Content:
    """Measures what is absent, on each sample or on some."""
    began, samples = time.monotonic(), Path(config.samples)
    content = {key: run.earlier().get(key, {}) for key in ("retrieval", "measured")}
    content |= {"seeds": len(SEEDS)}
    results = content["retrieval"]

    def ended() -> bool:
        return 0 < config.max_secs < time.monotonic() - began

    def note(name: str) -> None:
        content["measured"][name] = {key: run.environment[key] for key in ("commit", "time")}
        run.save(content)

    for name in config.only:
        if ended():
            break
        with tempfile.TemporaryDirectory() as folder:
            if name == LAST_ITEM:
                results[name] = last_item(samples, Path(folder))
                note(name)
                continue
            for _ in retrieval(name, samples, Path(folder), results.setdefault(name, {}), ended):
                note(name)
    return content | {"is_whole": not ended()}


def layout(content: Content) -> list[Part]:
    """Lays out the scores on each sample."""
    parts: list[Part] = []
    for sample, found in content["retrieval"].items():
        scores = [key for key in next(iter(found.values())) if "@" in key]
        rows = [[name, *(means(of[score]) for score in scores)] for name, of in found.items()]
        at = content["measured"].get(sample, {}).get("commit")
        parts.append(Table(heads=[f"{sample}, at {at}" if at else sample, *scores], rows=rows))
    told = f"Means of {content['seeds']} seeds, from least to most. "
    return [*parts, f"{told}Baselines are tuned on the valid split."]


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout, failure=unfinished)


if __name__ == "__main__":
    main(BENCHMARK)
