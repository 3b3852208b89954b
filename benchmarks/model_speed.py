"""Measures how fast the models train: `python -m benchmarks.model_speed --data DIR`.

Each model trains embedded, by the engine in this process, and beside it in plain tf-keras by `fit`,
with rounds that alternate. Then it trains on 2 parameter servers and 2 workers, and in plain
tf-keras on a stock ParameterServerStrategy of as many processes. For tf-keras the examples lie in
memory, and ids are numbered from 0 already. The engine reads and shuffles Parquet, and its tables
grow. All use Adagrad and float32. DIR is a dataset of clicks, such as that of `make train`; models
of histories train on histories that are made here. What an option leaves out keeps its earlier
results: a model, or with 0 rounds a part.
"""

from __future__ import annotations

import glob
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import embedps  # noqa: F401  before TensorFlow: it chooses the Keras

# isort: split
import dataclasses

import tensorflow as tf

from benchmarks import child, report
from benchmarks.harness import DIR, Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table, spread
from benchmarks.plain_models import (
    BATCHES,
    CLICKS,
    MODELS,
    OPTIONS,
    RATE,
    histories,
    make_plain,
    read_columns,
)
from benchmarks.unit_trainer import UnitTrainer
from embedps.config_fields import option
from embedps.data.dataset import Dataset
from embedps.errors import EmbedpsError, UsageError
from embedps.run.model_module import find_model
from embedps.train import parse
from embedps.training.trainer import Trainer

UNIT_ROWS = 32768
EPOCHS = dict.fromkeys(MODELS, 2) | {"sasrec": 1}
"""On a cluster."""
PARTS = {
    "lookups": ("EmbedpsRoute", "EmbedpsLookup", "EmbedpsUpdate", "EmbedpsCombine", "EmbedpsUnit"),
    "products": ("MatMul", "Einsum", "EmbedpsMlp", "EmbedpsDot"),
}
Epoch = Callable[[], int]
"""Trains on some units; returns how many examples."""


def engine(name: str, dataset: Dataset, units: int) -> Epoch:
    """Trains by the engine's unit function."""
    module = find_model(name)
    options = {"sparse_optimizer": "adagrad", **OPTIONS.get(name, {})}
    batch = BATCHES[name]
    trainer = UnitTrainer(
        module.make(module.Config(**options), dataset),
        dataset,
        container=f"speed-{name}",
        batch=batch,
        shuffle_rows=UNIT_ROWS,
        dense="adagrad",
        dense_rate=RATE,
    )
    path, rows = str(dataset.paths("train")[0]), dataset.split("train").files[0].rows
    step = 0

    def epoch() -> int:
        nonlocal step
        count = 0
        for first in range(0, min(units * UNIT_ROWS, rows), UNIT_ROWS):
            many = min(UNIT_ROWS, rows - first)
            trainer.train(path, first, many, seed=7, step=step, rate=RATE)
            step += -(-many // batch)
            count += many
        return count

    return epoch


def plain(name: str, dataset: Dataset, units: int) -> Epoch:
    """Trains the model in plain tf-keras by `fit`."""
    batch = BATCHES[name]
    columns, sizes = read_columns(dataset, units * UNIT_ROWS)
    model = make_plain(name, dataset, sizes)
    model.compile(tf.keras.optimizers.legacy.Adagrad(RATE), steps_per_execution=16)
    steps = int(columns[dataset.label].shape[0]) // batch
    batches = tf.data.Dataset.range(steps).map(
        lambda i: {key: value[i * batch : (i + 1) * batch] for key, value in columns.items()}
    )
    batches = batches.prefetch(4)

    def epoch() -> int:
        model.fit(batches, epochs=1, verbose=0)
        return steps * batch

    return epoch


def cluster(name: str, dataset: Dataset, folder: Path) -> float:
    """Trains on 2 parameter servers and 2 workers; gives examples per second once it is warm."""
    arguments = {
        "model": name,
        "data": dataset.directory,
        "model-dir": folder,
        "num-ps": 2,
        "num-workers": 2,
        "eval": "none",
        "sparse-optimizer": "adagrad",
        "dense-optimizer": "adagrad",
        "dense-learning-rate": RATE,
        "sparse-learning-rate": RATE,
        "epochs": EPOCHS[name],
        "unit-rows": 8 * BATCHES[name],
        "batch-size": BATCHES[name],
        "log-secs": 1,
        **{key.replace("_", "-"): value for key, value in OPTIONS.get(name, {}).items()},
    }
    flags = [
        f"--{key}" if value is True else f"--{key}={value}" for key, value in arguments.items()
    ]
    run = parse(flags)
    Trainer(run.recommender(dataset), dataset, run.config).fit()
    return warm_rate(folder)


def warm_rate(model_dir: Path) -> float:
    """Gives the examples per second of the last two thirds of a run that logged each second."""
    found = []
    for path in sorted(glob.glob(f"{model_dir}/**/events.out.tfevents.*", recursive=True)):
        for event in tf.compat.v1.train.summary_iterator(path):
            for value in event.summary.value:
                if value.tag == "examples_per_sec":
                    found.append((event.wall_time, value.simple_value))
    found = found[len(found) // 3 :]
    if len(found) < 2:
        raise EmbedpsError(f"the run in {model_dir} was too short to measure")
    secs = [after[0] - before[0] for before, after in itertools.pairwise(found)]
    examples = sum(rate * each for (_, rate), each in zip(found[1:], secs, strict=True))
    return float(examples / sum(secs))


def stock_cluster(name: str, dataset: Dataset) -> float:
    """Trains in plain tf-keras on a stock cluster, in a process of its own."""
    told = child.run("benchmarks.stock_cluster", name, str(dataset.directory))
    return float(told.splitlines()[-1])


def shares(epoch: Epoch) -> dict[str, float]:
    """Gives the share of the time of ops that lookups, products and the rest take."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    sums = dict.fromkeys([*PARTS, "the rest"], 0.0)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        epoch()
        tf.profiler.experimental.stop()
        space = xplane_pb2.XSpace()
        path = glob.glob(f"{folder}/plugins/profile/*/*.xplane.pb")[0]
        space.ParseFromString(Path(path).read_bytes())
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                _, colon, kind = name.rpartition(":")
                if not colon or "::" in name or " " in name or kind in ("While", "FunctionRun"):
                    continue
                part = next((p for p, ks in PARTS.items() if any(k in kind for k in ks)), None)
                sums[part or "the rest"] += event.duration_ps
    total = sum(sums.values()) or 1.0
    return {part: round(value / total, 3) for part, value in sums.items()}


def measure(name: str, dataset: Dataset, units: int, rounds: int) -> dict[str, Any]:
    """Measures a model in this process."""
    programs = {"engine": engine(name, dataset, units), "keras": plain(name, dataset, units)}
    speeds: dict[str, list[float]] = {key: [] for key in programs}
    for epoch in programs.values():
        epoch()
    for number in range(rounds):
        order = list(programs) if number % 2 else list(programs)[::-1]
        for key in order:
            began = time.monotonic()
            count = programs[key]()
            speeds[key].append(count / (time.monotonic() - began))
    ratios = [a / b for a, b in zip(speeds["engine"], speeds["keras"], strict=True)]
    return {
        **{key: report.spread(values) for key, values in speeds.items()},
        "ratio": report.spread(ratios),
        "shares": shares(programs["engine"]),
    }


def measure_clusters(name: str, dataset: Dataset, folder: Path, rounds: int) -> dict[str, Any]:
    """Measures a model on 2 parameter servers and 2 workers, ours and stock in turn."""
    ours, stock = [], []
    for number in range(rounds):
        ours.append(cluster(name, dataset, folder / f"cluster-{number}"))
        stock.append(stock_cluster(name, dataset))
    ratios = [a / b for a, b in zip(ours, stock, strict=True)]
    found = {"engine": ours, "keras": stock, "ratio": ratios}
    return {key: report.spread(values) for key, values in found.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """Which models, and how often."""

    data: str | None = option(None, "a dataset of clicks, for the models of clicks", metavar=DIR)
    models: tuple[str, ...] = option(
        tuple(MODELS), "the others keep their results", some_of=tuple(MODELS)
    )
    rounds: int = option(7, "in one process; 0 keeps the results", least=0)
    units: int = option(3, "of 32768 rows in a round", least=1)
    cluster_rounds: int = option(2, "on clusters; 0 keeps the results", least=0)


def _measure(config: Config, run: Run) -> Content:
    if config.data is None and set(config.models) & set(CLICKS):
        raise UsageError("--data is required to measure models of clicks")
    when = {key: run.environment[key] for key in ("commit", "time")}
    results: dict[str, Any] = run.earlier().get("results", {})

    def note(name: str, found: dict[str, Any]) -> Content:
        results[name] = results.get(name, {}) | found
        return run.save({"results": {key: results[key] for key in MODELS if key in results}})

    for name in config.models:
        with tempfile.TemporaryDirectory() as folder:
            if name in CLICKS and config.data is not None:
                dataset = Dataset.open(Path(config.data))
            else:
                dataset = histories(name, Path(folder) / "histories")
            if config.rounds:
                found = measure(name, dataset, config.units, config.rounds)
                note(name, found | {"measured": when})
            if config.cluster_rounds:
                found = measure_clusters(name, dataset, Path(folder), config.cluster_rounds)
                note(name, {"cluster": found | {"measured": when}})
    return {"results": {key: results[key] for key in MODELS if key in results}}


def layout(content: Content) -> list[Part]:
    """Lays out the speed of each model embedded, then on a cluster."""
    results = content["results"]
    of_embedded = {name: found for name, found in results.items() if "shares" in found}
    parts = list(dict.fromkeys(part for of in of_embedded.values() for part in of["shares"]))
    embedded = [
        [name, *_speeds(found), *(f"{found['shares'][part]:.0%}" for part in parts)]
        for name, found in of_embedded.items()
    ]
    clusters = [
        [name, *_speeds(found["cluster"])] for name, found in results.items() if "cluster" in found
    ]
    columns = ["embedps", "tf-keras", "ratio"]
    return [
        Table(heads=["examples/s, embedded", *columns, *parts], rows=embedded),
        Table(heads=["examples/s, 2 servers + 2 workers", *columns], rows=clusters),
    ]


def _speeds(found: dict[str, Any]) -> list[str]:
    ratio = found["ratio"]
    told = spread(ratio) if ratio["repeats"] > 1 else f"{ratio['median']:.2f}"
    return [*(f"{found[key]['median']:,.0f}" for key in ("engine", "keras")), told]


BENCHMARK = Benchmark(config=Config, measure=_measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)
