"""Scores models on histories with a planted taste: `python -m benchmarks.sequences`.

DIN, MMoE and PLE predict clicks (MMoE and PLE also for how many seconds an item is looked at),
beside logistic regression and Wide & Deep. SASRec and two towers retrieve a user's next item,
beside the most popular items, and those that most often follow the last item. "planted" is the
planted model itself: no model scores better, but by chance. `--models` measures some, and keeps
the results of the others.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tf_keras

from benchmarks import child
from benchmarks.datasets import write_dataset
from benchmarks.harness import Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table, means
from benchmarks.planted_sequences import CLICK, NOISE, SECONDS, Ids, World, places_of
from embedps.config_fields import option

USERS, ITEMS, SEEDS, TOP = 4000, 2000, (0, 1, 2), 20
COMMON = ("--batch-size=256", "--unit-rows=4096", "--schedule=linear", "--eval=inline")
CLICKS = {
    "logistic_regression": ("--epochs=5",),
    "wide_deep": ("--epochs=5", "--deep-mlp=128,64"),
    "din": ("--epochs=5",),
    "mmoe": ("--epochs=5",),
    "ple": ("--epochs=5",),
}
RETRIEVAL = {
    "two_tower": (
        "--epochs=10",
        "--history=history",
        "--normalize",
        "--temperature=0.1",
        "--embedding-dim=32",
        "--sparse-learning-rate=0.3",
    ),
    "sasrec": ("--epochs=10", "--embedding-dim=32", "--sparse-learning-rate=0.1"),
}
MODELS = (*CLICKS, *RETRIEVAL)
LABELS = {"mmoe": (CLICK, SECONDS), "ple": (CLICK, SECONDS)}
SCORES = {
    "clicks": {"auc": "auc", "click_auc": "auc", "seconds_rmse": "rmse of seconds"},
    "retrieval": {f"recall@{TOP}": f"recall@{TOP}", f"ndcg@{TOP}": f"ndcg@{TOP}"},
}

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """Which models."""

    models: tuple[str, ...] = option(MODELS, "the others keep their results", some_of=MODELS)


def _train(model: str, data: Path, folder: Path, seed: int, more: Sequence[str]) -> dict[str, Any]:
    """Trains a model; gives its last held-out scores."""
    flags = (f"--model={model}", f"--data={data}", f"--model-dir={folder}", f"--seed={seed}")
    child.run("embedps.train", *flags, *COMMON, *more)
    return dict(json.loads((folder / "evaluation.jsonl").read_text().splitlines()[-1]))


def clicks(models: Sequence[str], folder: Path) -> dict[str, Any]:
    """Scores the models of clicks."""
    world = World(users=USERS, items=ITEMS)
    made = {split: world.clicks(*places) for split, places in places_of(world).items()}
    tables = {split: table for split, (table, _) in made.items()}
    auc = tf_keras.metrics.AUC(num_thresholds=10_000)
    auc.update_state(tables["eval"]["click"].to_numpy(), made["eval"][1])
    found = {"planted": {"auc": [float(auc.result())], "rmse of seconds": [NOISE]}}
    for model in models:
        data = folder / f"{model}-data"
        labels = LABELS.get(model, (CLICK,))
        unused = [] if SECONDS in labels else [SECONDS.name]
        kept = {split: table.drop_columns(unused) for split, table in tables.items()}
        write_dataset(data, kept, labels=labels)
        found[model] = scores("clicks", model, data, folder, CLICKS[model])
    return found


def retrieval(models: Sequence[str], folder: Path) -> dict[str, Any]:
    """Scores the models of retrieval."""
    world = World(users=USERS, items=ITEMS)
    places = places_of(world)
    tables = {split: world.next_items(*each) for split, each in places.items()}
    write_dataset(folder / "next", tables, labels=(CLICK,))
    found = {
        "planted": _ranked(world, [world.chances(*each) for each in enumerate(before(world))]),
        "most popular": _ranked(world, [popularity(world)] * USERS),
        "item after item": _ranked(world, followers(world)[before(world)]),
    }
    for model in models:
        flags = (*RETRIEVAL[model], f"--at={TOP}")
        found[model] = scores("retrieval", model, folder / "next", folder, flags)
    return found


def before(world: World) -> Ids:
    """Gives each user's item before the last, which is held out."""
    return world.sequences[:, -2]


def popularity(world: World) -> Floats:
    """Counts how often each item is in the training rows' sequences, float64 [items]."""
    return np.bincount(world.sequences[:, :-1].ravel(), minlength=ITEMS).astype(np.float64)


def followers(world: World) -> Floats:
    """Counts how often each item follows another in training, float64 [items, items].

    Among equally many, the more popular item scores more.
    """
    pairs = world.sequences[:, :-2].ravel() * ITEMS + world.sequences[:, 1:-1].ravel()
    counts = np.bincount(pairs, minlength=ITEMS**2).reshape(ITEMS, ITEMS)
    return counts + popularity(world) / world.sequences.size


def _ranked(world: World, scores: Sequence[Floats] | Floats) -> dict[str, list[float]]:
    wanted = world.sequences[:, -1]
    ranks = np.array([(of > of[item]).sum() for of, item in zip(scores, wanted, strict=True)])
    hits = ranks < TOP
    gains = np.where(hits, 1 / np.log2(ranks + 2.0), 0)
    return {f"recall@{TOP}": [float(hits.mean())], f"ndcg@{TOP}": [float(gains.mean())]}


def scores(
    suite: str, model: str, data: Path, folder: Path, flags: Sequence[str]
) -> dict[str, list[float]]:
    """Trains a model by each seed; gives its scores."""
    each = [_train(model, data, folder / f"{model}-{seed}", seed, flags) for seed in SEEDS]
    names = {key: name for key, name in SCORES[suite].items() if key in each[0]}
    found = {name: [float(of[key]) for of in each] for key, name in names.items()}
    print(model, found, flush=True)
    return found


def measure(config: Config, run: Run) -> Content:
    """Measures some models, and keeps the earlier results of the others."""
    results: dict[str, Any] = run.earlier().get("results", {})
    for suite, known, score in (("clicks", CLICKS, clicks), ("retrieval", RETRIEVAL, retrieval)):
        if wanted := [name for name in config.models if name in known]:
            with tempfile.TemporaryDirectory() as folder:
                found = results.get(suite, {}) | score(wanted, Path(folder))
            order = [n for n in found if n not in known] + [n for n in known if n in found]
            results[suite] = {name: found[name] for name in order}
    return {"users": USERS, "items": ITEMS, "seeds": len(SEEDS), "results": results}


def layout(content: Content) -> list[Part]:
    """Lays out the scores on histories of a planted taste."""
    parts: list[Part] = []
    for suite, found in content["results"].items():
        scores = list(dict.fromkeys(score for of in found.values() for score in of))
        rows = [
            [name, *(means(of[score]) if score in of else "" for score in scores)]
            for name, of in found.items()
        ]
        parts.append(Table(heads=[suite, *scores], rows=rows))
    users, items, seeds = (content[key] for key in ("users", "items", "seeds"))
    told = f"{users:,} users, {items:,} items; means of {seeds} seeds, from least to most."
    return [*parts, told]


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)
