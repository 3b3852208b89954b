"""Measures the worth of a fresh model on a stream: `python -m benchmarks.refresh_interval`.

A run trains files in the order of their events (`embedps train --watch`). Before a file is given to
it, models that were refreshed each 30 minutes, each hour and so on of event time score the file, as
servers that follow the run at these intervals would. The interval "never" is the model of the
first files alone.

A file has the events of half an hour. Effects of users, items and their groups drift: each is a
stationary random walk (Ornstein-Uhlenbeck) with a time constant of its kind. New items arrive all
the time, and each is shown for a day. So the effects of a file are known, and so is the best AUC.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import embedps
from benchmarks import report
from benchmarks.harness import Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table, spread
from benchmarks.model_folds import auc
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.config_fields import option
from embedps.data.dataset import Dataset, describe_file
from embedps.data.dataset_metadata import CategoricalFeature, Split
from embedps.errors import EmbedpsError

HOURS_PER_FILE = 0.5
INTERVALS = {"0.5 h": 1, "1 h": 2, "2 h": 4, "5 h": 10, "10 h": 20, "24 h": 48}
_NEVER = "never"
_USERS, _GROUPS = 2000, 20
_NEW_ITEMS, _SHOWN_FILES = 10, 48  # a file brings so many; each is shown in so many
_SIZES = {"user": 0.8, "item": 1.0, "pair": 0.8}  # standard deviations of the effects
_HOURS = {"user": 72.0, "item": 12.0, "pair": 24.0}  # until a walk has forgotten most
_WAIT_SECS = 120.0
_FLAGS = (
    *("--model=logistic_regression", "--sparse-optimizer=sgd", "--sparse-learning-rate=24"),
    *("--batch-size=256", "--no-shuffle", "--eval=none", "--delta-secs=0.05", "--log-secs=60"),
)


class Stream:
    """Makes the events of one file after the other."""

    def __init__(self, seed: int, rows: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._rows = rows
        self._file = 0
        self._users = self._rng.normal(0, _SIZES["user"], _USERS)
        self._pairs = self._rng.normal(0, _SIZES["pair"], [_GROUPS, _GROUPS])
        self._items = self._rng.normal(0, _SIZES["item"], _NEW_ITEMS * _SHOWN_FILES)

    def next(self) -> tuple[pa.Table, npt.NDArray[np.float64]]:
        """Gives the next file's events and their true probabilities of a click."""
        rng, rows = self._rng, self._rows
        first_item = self._file * _NEW_ITEMS
        user = np.minimum(rng.zipf(1.2, rows) - 1, _USERS - 1)
        place = rng.integers(0, len(self._items), rows)
        item = first_item + place
        pair = (user % _GROUPS) * _GROUPS + item % _GROUPS
        logits = -1.0 + self._users[user] + self._items[place] + self._pairs.reshape(-1)[pair]
        probability = 1 / (1 + np.exp(-logits))
        columns = {
            "label": (rng.random(rows) < probability).astype(np.float32),
            "user": user,
            "item": item,
            "pair": pair,
        }
        self._drift()
        fields = [pa.field(n, pa.from_numpy_dtype(c.dtype), False) for n, c in columns.items()]
        return pa.table(columns, schema=pa.schema(fields)), probability

    def _drift(self) -> None:
        self._file += 1
        for name, effects in (("user", self._users), ("pair", self._pairs), ("item", self._items)):
            kept = np.exp(-HOURS_PER_FILE / _HOURS[name])
            effects *= kept
            effects += self._rng.normal(0, _SIZES[name] * np.sqrt(1 - kept**2), effects.shape)
        new = self._rng.normal(0, _SIZES["item"], _NEW_ITEMS)
        self._items = np.concatenate([self._items[_NEW_ITEMS:], new])


def write_dataset(directory: Path, table: pa.Table) -> Dataset:
    """Writes the dataset whose columns the files have, with the first events."""
    (directory / "train").mkdir(parents=True)
    path = directory / "train" / "shard-00000-of-00001.parquet"
    pq.write_table(table, path)
    file = describe_file(directory, path)
    positives = int(table["label"].to_numpy().sum())
    Dataset(
        directory=directory,
        numeric=(),
        categorical=tuple(
            CategoricalFeature(name=name, cardinality=10**6) for name in ("user", "item", "pair")
        ),
        schema={field.name: str(field.type) for field in table.schema},
        splits={"train": Split(rows=table.num_rows, positives=positives, files=(file,))},
    ).save()
    return Dataset.open(directory)


def measure(seed: int, *, files: int, warm_up: int, rows: int, folder: Path) -> dict[str, float]:
    """Trains on a stream; gives the mean AUC of the files after the warm-up, by interval."""
    stream = Stream(seed, rows)
    first = pa.concat_tables(stream.next()[0] for _ in range(4))
    write_dataset(folder / "data", first)
    inbox = folder / "in"
    inbox.mkdir()
    where = (f"--data={folder / 'data'}", f"--model-dir={folder / 'model'}", f"--watch={inbox}")
    run = subprocess.Popen(
        [sys.executable, "-m", "embedps.train", *where, f"--seed={seed}", *_FLAGS],
        stdout=subprocess.DEVNULL,
    )
    found: dict[str, list[float]] = {name: [] for name in (*INTERVALS, _NEVER, "best")}
    try:
        newest = wait_for(folder / "model", run, units=1)
        models = {name: embedps.load(folder / "model") for name in (*INTERVALS, _NEVER)}
        for i in range(files):
            for name, every in INTERVALS.items():
                if i % every == 0:
                    models[name].apply(newest)
            table, probability = stream.next()
            labels = table["label"].to_numpy()
            if i >= warm_up:
                for name, model in models.items():
                    found[name].append(auc(labels, model.predict(table)["score"]))
                found["best"].append(auc(labels, probability))
            pq.write_table(table, inbox / f".{i:06d}")
            os.replace(inbox / f".{i:06d}", inbox / f"{i:06d}.parquet")
            newest = wait_for(folder / "model", run, units=2 + i)
    finally:
        run.terminate()
        run.wait()
    return {name: round(float(np.mean(values)), 5) for name, values in found.items()}


def wait_for(model_dir: Path, run: subprocess.Popen[bytes], *, units: int) -> Manifest:
    """Waits for the checkpoint of so many units.

    Raises:
      EmbedpsError: the run ended, or the checkpoint does not come.
    """
    directory = CheckpointDirectory(model_dir)
    deadline = time.monotonic() + _WAIT_SECS
    while True:
        newest = directory.latest() if model_dir.exists() else None
        if newest is not None and newest.ledger["prefix"] == units:
            return newest
        if run.poll() is not None or time.monotonic() > deadline:
            raise EmbedpsError(f"no checkpoint of {units} units: the run gave {run.returncode}")
        time.sleep(0.02)


def plot(aucs: Sequence[dict[str, float]], path: Path) -> None:
    """Draws the AUC by the interval: a line per seed, and the best that is possible."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
    hours = [HOURS_PER_FILE * every for every in INTERVALS.values()]
    for i, each in enumerate(aucs):
        axis.plot(hours, [each[name] for name in INTERVALS], "o-", label=f"stream {i + 1}")
    axis.axhline(float(np.mean([each["best"] for each in aucs])), color="gray", ls=":")
    axis.set_xscale("log")
    axis.set_xticks(hours, [name.removesuffix(" h") for name in INTERVALS])
    axis.set_xlabel("hours of events from one refresh to the next")
    axis.set_ylabel("AUC of the next file; dotted: best")
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The streams."""

    seeds: int = option(3, "of as many streams", least=1)
    files: int = option(112, "of a stream", least=1)
    warm_up: int = option(40, "files that are not scored", least=0)
    rows: int = option(4000, "of a file", least=1)


def _measure(config: Config, run: Run) -> Content:
    sizes = {"files": config.files, "warm_up": config.warm_up, "rows": config.rows}
    aucs = []
    for seed in range(1, config.seeds + 1):
        with tempfile.TemporaryDirectory() as folder:
            aucs.append(measure(seed, folder=Path(folder), **sizes))
        print(f"stream {seed}: {aucs[-1]}", flush=True)
    return {
        "config": {"flags": list(_FLAGS), "hours": _HOURS, "sizes": _SIZES},
        "results": {
            "streams": aucs,
            "auc": {name: report.spread([each[name] for each in aucs]) for name in aucs[0]},
            "gain_from_5_h_to_0.5_h": report.spread([e["0.5 h"] - e["5 h"] for e in aucs]),
        },
    }


def layout(content: Content) -> list[Part]:
    """Lays out the AUC by how often the model is refreshed."""
    r = content["results"]
    rows = [[name, spread(of, ".3f")] for name, of in r["auc"].items()]
    gain = spread(r["gain_from_5_h_to_0.5_h"], ".3f")
    return [
        Table(heads=["refreshed each", "AUC"], rows=rows),
        f"Medians of {len(r['streams'])} streams, from least to most. From 5 h to 0.5 h: {gain}.",
    ]


BENCHMARK = Benchmark(
    config=Config,
    measure=_measure,
    layout=layout,
    plot=lambda content, path: plot(content["results"]["streams"], path),
)


if __name__ == "__main__":
    main(BENCHMARK)
