"""Measures TensorFlow's own programs on rows of embedps: `python -m benchmarks.stock_programs`.

A model trains on 2 parameter servers and 2 workers of this machine: by the engine, by a loop of
scheduled functions, and by `fit`. The loop and `fit` train a model of embedps, rows of embedps
below stock layers, and rows of tf.keras.layers.Embedding, partitioned over the servers, below the
same. All use Adagrad and float32. For the loop and `fit` the examples lie in the workers' memory.
DIR is a dataset of clicks, such as that of `make train`.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from benchmarks import child, report
from benchmarks.harness import DIR, Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, figures, spread
from benchmarks.model_speed import cluster
from benchmarks.plain_models import CLICKS
from embedps.config_fields import option
from embedps.data.dataset import Dataset

PROGRAMS = ("loop", "fit")
ROWS = ("model", "embedps", "partitioned")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """What trains, and how often."""

    data: str = option(dataclasses.MISSING, "a dataset of clicks", metavar=DIR)
    model: str = option("dlrm", "one of clicks", choices=CLICKS)
    rounds: int = option(3, "of all programs in turn", least=1)
    steps_per_call: int = option(16, "of the loop; of fit, steps_per_execution", least=1)


def _measure(config: Config, run: Run) -> Content:
    dataset = Dataset.open(Path(config.data))
    rates: dict[str, list[float]] = {}
    for number in range(config.rounds):
        with tempfile.TemporaryDirectory() as folder:
            found = {"engine": cluster(config.model, dataset, Path(folder) / str(number))}
        for program in PROGRAMS:
            for rows in ROWS:
                told = child.run(
                    "benchmarks.stock_cluster", config.model, str(dataset.directory), rows,
                    program, str(config.steps_per_call),
                )  # fmt: skip
                found[f"{program}, {rows}"] = float(told.splitlines()[-1])
        for name, rate in found.items():
            rates.setdefault(name, []).append(rate)
    ratios = {}
    for program in PROGRAMS:
        for ours, others in (("model", "engine"), ("embedps", f"{program}, partitioned")):
            pairs = zip(rates[f"{program}, {ours}"], rates[others], strict=True)
            ratios[f"{program}, {ours} to {others}"] = report.spread([a / b for a, b in pairs])
    results = {name: report.spread(each) for name, each in rates.items()}
    return {"results": results, "ratios": ratios}


def _layout(content: Content) -> list[Part]:
    return [
        figures(
            "examples/s", [[n, spread(each, ",.0f")] for n, each in content["results"].items()]
        ),
        figures("ratio", [[n, spread(each)] for n, each in content["ratios"].items()]),
    ]


BENCHMARK = Benchmark(
    name="stock_programs", about=__doc__, config=Config, measure=_measure, layout=_layout
)

if __name__ == "__main__":
    main(BENCHMARK)
