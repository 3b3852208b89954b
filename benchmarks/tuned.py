"""Scores what `embedps tune` finds beside presets, defaults and baselines.

usage: `python -m benchmarks.tuned --samples DIR`. Each dataset has a fifth of its rows in the eval
split. A logistic regression is tuned on shares of the training rows; LightGBM is scored where it is
installed. The same command goes on after an interruption.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import child
from benchmarks.baselines import plain_logistic
from benchmarks.generated_ads import write_ads
from benchmarks.generated_shapes import SHAPES, write_shape
from benchmarks.harness import DIR, Benchmark, Content, Options, Run, main, unfinished
from benchmarks.layout import Part, Table
from benchmarks.model_clicks import SAMPLES
from benchmarks.model_folds import auc
from embedps import tune
from embedps.config_fields import option
from embedps.data.dataset import Dataset
from embedps.run.summary import read_json
from embedps.training import tuning

ADS, ADS_ROWS = "generated ads", 40_000
NAMES = (*SAMPLES, ADS, *SHAPES)
PRESETS = ("wide_deep", "deepfm", "dcn_v2", "dlrm", "logistic_regression")
LR, TREES, DEFAULTS, TUNED = "logistic regression", "LightGBM", "dlrm, defaults", "embedps tune"
METHODS = (LR, TREES, DEFAULTS, *(f"{name}, --preset small" for name in PRESETS), TUNED)
Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """What is scored."""

    samples: str = option(dataclasses.MISSING, "the folder of the real samples", metavar=DIR)
    only: tuple[str, ...] = option(NAMES, "the others keep their results", some_of=NAMES)
    methods: tuple[str, ...] = option(
        METHODS, "the others keep their results", some_of=METHODS, several=True
    )
    minutes: float = option(2.0, "of the CPU, of each search: other load has no say", above=0)
    max_secs: float = option(0.0, "begin no measurement later; 0 is no limit", least=0)


def measure(config: Config, run: Run) -> Content:
    """Scores what is absent from the result."""
    began, content = time.monotonic(), {"datasets": run.earlier().get("datasets", {})}
    for name in config.only:
        scores = content["datasets"].setdefault(name, {"scores": {}})["scores"]
        todo = [method for method in config.methods if method not in scores and _is_there(method)]
        if not todo:
            continue
        with tempfile.TemporaryDirectory() as folder:
            dataset = make(name, Path(config.samples), Path(folder))
            train, held = dataset.split("train"), dataset.split("eval")
            about = {"rows": train.rows, "eval_rows": held.rows, "positives": train.positives}
            content["datasets"][name] |= about
            for method in todo:
                if 0 < config.max_secs < time.monotonic() - began:
                    return content | {"is_whole": False}
                scores[method] = _score(method, dataset, Path(folder) / "model", config)
                run.save(content)
                print(f"{name}, {method}: {scores[method]}", flush=True)
    return content | {"is_whole": True}


def _is_there(method: str) -> bool:
    return method != TREES or importlib.util.find_spec("lightgbm") is not None


def make(name: str, samples: Path, folder: Path) -> Dataset:
    """Makes a dataset by name."""
    if name in SHAPES:
        return write_shape(name, folder / "set")
    if name == ADS:
        schema, log = write_ads(folder, ADS_ROWS, seed=7)
    else:
        schema, log = SAMPLES[name][0], str(samples / SAMPLES[name][1])
    where = ("--input", log, "--output", str(folder / "set"), "--num-shards", "1")
    child.run("embedps.pipelines.ingest", "--schema", schema, *where, "--eval-fraction", "0.2")
    return Dataset.open(folder / "set")


def _score(method: str, dataset: Dataset, model_dir: Path, config: Config) -> dict[str, Any]:
    """Gives a method's AUC and log loss on the eval split, and its seconds."""
    began = time.monotonic()
    found: dict[str, Any]
    if method == LR:
        found = _of_arrays(dataset, _logistic)
    elif method == TREES:
        found = _of_arrays(dataset, _trees)
    else:
        where = ("--data", str(dataset.directory), "--model-dir", str(model_dir))
        if method == TUNED:
            places = {"data": str(dataset.directory), "model_dir": str(model_dir)}
            child.call("benchmarks.tuned:search", **places, minutes=config.minutes)
        else:
            flags = ["--preset", "small"] if method != DEFAULTS else []
            model = method.partition(",")[0]
            child.run("embedps.train", *where, "--model", model, "--eval", "inline", *flags)
        scored = read_json(model_dir / "summary.json")["evaluation"]
        found = {name: scored[name] for name in ("auc", "logloss")}
        if method == TUNED:
            found["chosen"] = read_json(model_dir / "tuning.json")["chosen"]
        shutil.rmtree(model_dir)
    return {**found, "secs": round(time.monotonic() - began, 1)}


def search(data: str, model_dir: str, minutes: float) -> None:
    """Runs `embedps tune` by the CPU's clock."""
    tuning.clock = time.process_time
    with contextlib.redirect_stdout(sys.stderr):
        tune.tune(tune.TuneConfig(data=data, model_dir=model_dir, minutes=minutes))


def _of_arrays(
    dataset: Dataset, predict: Callable[[Array, Array, Array, int], Array]
) -> dict[str, float]:
    """Scores a function of numbers, ids, labels and how many rows to train on."""
    parts = [
        pa.concat_tables([pq.read_table(path) for path in dataset.paths(split)])
        for split in ("train", "eval")
    ]
    table = pa.concat_tables(parts)
    numbers = [table[column.name].to_numpy() for column in dataset.numeric]
    ids = np.stack([table[column.name].to_numpy() for column in dataset.categorical], 1)
    labels = table[dataset.label].to_numpy().astype(np.float64)
    numerics = np.stack(numbers, 1).astype(np.float64) if numbers else np.zeros((len(labels), 0))
    chances = predict(numerics, ids, labels, parts[0].num_rows)
    y, p = labels[parts[0].num_rows :], np.clip(chances, 1e-7, 1 - 1e-7)
    loss = -np.mean(y * np.log(p) + (1 - y) * np.log(1 - p))
    return {"auc": auc(y, p), "logloss": float(loss)}


def _logistic(numerics: Array, ids: Array, labels: Array, num_train: int) -> Array:
    return plain_logistic.predict(numerics, ids, labels, num_train)[0]


def _trees(numerics: Array, ids: Array, labels: Array, num_train: int) -> Array:
    from benchmarks.baselines.clicks import boosted

    data = {"numerics": numerics, "ids": ids, "labels": labels}
    train = np.arange(num_train)
    inner = np.random.default_rng(0).random(num_train) < 0.2
    with contextlib.redirect_stdout(io.StringIO()):
        found: Array = boosted(data, train, inner, 0)(np.arange(num_train, len(labels)))
    return found


def layout(content: Content) -> list[Part]:
    """Lays out AUC and log loss by dataset."""
    parts: list[Part] = []
    for name, found in content["datasets"].items():
        best = {
            "auc": max(of["auc"] for of in found["scores"].values()),
            "logloss": min(of["logloss"] for of in found["scores"].values()),
        }
        rows = []
        for method in METHODS:
            if (of := found["scores"].get(method)) is None:
                rows += [[method, "not installed", "", ""]] if method == TREES else []
                continue
            cells = [
                f"**{of[score]:.4f}**" if of[score] == best[score] else f"{of[score]:.4f}"
                for score in ("auc", "logloss")
            ]
            rows.append([method, *cells, f"{of['secs']:.0f}"])
        title = f"{name}: {found['rows']:,} rows, {found['positives']:,} positive"
        parts.append(Table(heads=[title, "AUC", "log loss", "seconds"], rows=rows))
    return parts


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout, failure=unfinished)


if __name__ == "__main__":
    main(BENCHMARK)
