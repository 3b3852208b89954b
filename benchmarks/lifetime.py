"""Trains ids that come and go, with and without policies: `python -m benchmarks.lifetime`.

`benchmarks.drifting_stream` makes the stream. A model is trained on it once, in order, in one
process, in runs that differ only in the policies of their tables:

- all: no policy, so each id that was ever seen has a row;
- ttl: the second example of an id admits it, and a row goes 60 of the stream's 180 days after its
  last update; a count goes after as many steps;
- limit: at 30% of the bytes that the table of all ids takes, new rows displace others.

Scores are progressive: each example is scored by its step before it is trained.

The stream is trained in rounds. In each, the runs take turns: each goes on from its last
checkpoint in a new process, up to a unit, and ends by SIGTERM. From the middle on, copies of the
runs with policies go on with two shards. A run must have as many rows after a restart as before;
with a time to live it may have those back that went after the last save, and they go again. All
checkpoints are verified.

The throughput of a round is by the processor time of its process, from the end of its first unit to
that of the last but two; the saves in between are in it. Wall time is in the result too, but other
work may use the machine. A factorization machine takes a microsecond per example, so the tables are
most of its work; with `--model dlrm` they are as small a part as in most models.
"""

from __future__ import annotations

import dataclasses
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import embedps  # noqa: F401  before TensorFlow: it has it start quietly

# isort: split
import tensorflow as tf

from benchmarks import harness, report
from benchmarks.drifting_stream import DAYS, write_stream
from benchmarks.harness import DIR, Benchmark, Content, Options, main
from benchmarks.layout import Part, Table
from benchmarks.lifetime_round import MODELS, Round, in_a_process
from embedps.config_fields import option
from embedps.errors import EmbedpsError
from embedps.models import fm
from embedps.tables import FeatureSpec
from embedps.tables.collection import EmbeddingCollection

TTL_DAYS = 60
LIMIT_SHARE = 0.3
_SHOWN_LOOKS = 80
_FILLED_IDS = 65536
_SAVES = 40  # of each run, besides those at the ends of rounds

Task = Callable[[str, Round], dict[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stream:
    """How the stream is trained; `model` is a key of MODELS."""

    model: str
    events: int
    rounds: int
    batch_size: int
    unit_rows: int

    @property
    def units(self) -> int:
        """Units of the stream."""
        return -(-self.events // self.unit_rows)

    @property
    def steps(self) -> int:
        """Steps of the stream, about."""
        return self.events // self.batch_size

    def last_unit(self, number: int) -> int:
        """Gives the units that are done after a round, counted from 0."""
        return self.units * (number + 1) // self.rounds


class Run:
    """A run of the stream, and what its rounds gave."""

    def __init__(
        self, name: str, stream: Stream, data: Path, model_dir: Path, policies: Mapping[str, Any]
    ) -> None:
        self.name = name
        self.rounds: list[dict[str, Any]] = []
        self.verified_checkpoints = 0
        self._stream = stream
        self._evicted_before = 0
        self.series: list[dict[str, int]] = []
        self._round = Round(
            model=stream.model,
            data=str(data),
            model_dir=str(model_dir),
            policies=dict(policies),
            num_shards=1,
            until_unit=0,
            batch_size=stream.batch_size,
            unit_rows=stream.unit_rows,
            delta_steps=max(1, stream.steps // _SAVES),
        )

    def train(self, task: Task, number: int) -> None:
        """Trains a round, and verifies the checkpoints that it left."""
        asked = dataclasses.replace(self._round, until_unit=self._stream.last_unit(number))
        found = task("train", asked)
        if self.rounds and found["rows_restored"] != self.rounds[-1]["rows"]:
            raise EmbedpsError(
                f"run {self.name}, round {number}: {found['rows_restored']:,} rows were restored, "
                f"but the round before ended with {self.rounds[-1]['rows']:,}"
            )
        for look in found.pop("looks"):
            kept = {k: look[k] for k in ("units", "bytes", "rows", "counters", "resident_bytes")}
            self.series.append({**kept, "evicted": self._evicted_before + look["evicted"]})
        self._evicted_before += sum(found["evicted"].values())
        self.rounds.append(found)
        self._verify()

    def fork(self, name: str, num_shards: int) -> Run:
        """Copies the run; the copy goes on with another number of shards."""
        old = Path(self._round.model_dir)
        new = old.with_name(f"{old.name}-{num_shards}-shards")
        shutil.copytree(old, new)
        made = Run(name, self._stream, Path(self._round.data), new, self._round.policies)
        made._round = dataclasses.replace(made._round, num_shards=num_shards)
        return made

    def digests(self, task: Task, num_shards: Sequence[int]) -> list[dict[str, Any]]:
        """Restores the run onto each number of shards, without a limit; gives its digests.

        At a limit, a shard that gets more than its part displaces rows as it is restored.
        """
        policies = {k: v for k, v in self._round.policies.items() if k != "max_table_bytes"}
        return [
            task("digest", dataclasses.replace(self._round, num_shards=n, policies=policies))
            for n in num_shards
        ]

    def results(self) -> dict[str, Any]:
        """Summarizes the rounds; the AUC is their mean, weighed by examples."""
        examples = [each["examples"] for each in self.rounds]

        def mean(name: str) -> float:
            total = sum(e * r[name] for e, r in zip(examples, self.rounds, strict=True))
            return round(float(total / sum(examples)), 6)

        causes = self.rounds[-1]["evicted"]
        every = max(1, len(self.series) // _SHOWN_LOOKS)
        return {
            "examples": sum(examples),
            "auc": mean("auc"),
            "logloss": mean("logloss"),
            "auc_by_round": [round(each["auc"], 6) for each in self.rounds],
            "rows": self.rounds[-1]["rows"],
            "memory_bytes": self.rounds[-1]["memory_bytes"],
            "most_bytes": max(each["bytes"] for each in self.series),
            "refused": sum(each["refused"] for each in self.rounds),
            "evicted": {c: sum(each["evicted"][c] for each in self.rounds) for c in causes},
            "repeated_units": self.rounds[-1]["repeated_units"],
            "verified_checkpoints": self.verified_checkpoints,
            "cpu_micros_per_example": report.spread(self.micros("cpu_secs")),
            "wall_micros_per_example": report.spread(self.micros("wall_secs")),
            "series": self.series[every - 1 :: every],
        }

    def micros(self, clock: str) -> list[float]:
        """Gives the microseconds per example of each round."""
        return [1e6 * r["timed"][clock] / r["timed"]["examples"] for r in self.rounds]

    def _verify(self) -> None:
        command = [sys.executable, "-m", "embedps.checkpoint", "verify", self._round.model_dir]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EmbedpsError(f"a checkpoint of run {self.name} is damaged: {done.stdout}")
        self.verified_checkpoints += 1


def bytes_of_all(items: int, dim: int) -> int:
    """Measures the bytes of a table of so many ids with `dim` floats each."""
    table = fm.Config().table("item", embedding_dim=dim)
    collection = EmbeddingCollection(
        [table],
        [FeatureSpec(name="item", table=table)],
        devices=["/device:CPU:0"],
        container="benchmark-lifetime",
    )
    try:
        for first in range(0, items, _FILLED_IDS):
            ids = tf.range(first, min(first + _FILLED_IDS, items), dtype=tf.int64)
            collection.lookup({"item": ids}, insert=True)
        collection.mark_clean()
        return collection.stats().table_bytes["item"]
    finally:
        collection.drop()


def measure(
    stream: Stream, folder: Path, *, order: str, task: Task = in_a_process
) -> dict[str, Any]:
    """Makes the stream and trains all runs; returns the JSON's results."""
    data = folder / "stream"
    content = write_stream(data, stream.events)
    print(content, flush=True)
    all_bytes = bytes_of_all(content["items"], MODELS[stream.model][1])
    max_bytes = int(LIMIT_SHARE * all_bytes)
    policies: dict[str, dict[str, Any]] = {
        "all": {},
        "ttl": {
            "min_count": 2,
            "min_count_expire_steps": stream.steps * TTL_DAYS // DAYS,
            "row_ttl_hours": 24 * TTL_DAYS,
        },
        "limit": {"max_table_bytes": max_bytes, "eviction_order": order},
    }
    runs = {
        name: Run(name, stream, data, folder / name, options) for name, options in policies.items()
    }
    forked: dict[str, Run] = {}
    digests: dict[str, Any] = {}
    for number in range(stream.rounds):
        if number == stream.rounds // 2:
            for name in ("ttl", "limit"):
                digests[name] = runs[name].digests(task, (1, 2))
                forked[name] = runs[name].fork(f"{name}, 2 shards", 2)
        for run in (*runs.values(), *forked.values()):
            run.train(task, number)
            last = run.rounds[-1]
            print(
                f"round {number + 1}/{stream.rounds}, {run.name}: AUC {last['auc']:.5f}, "
                f"{run.micros('cpu_secs')[-1]:.3f} us of processor per example, "
                f"{last['rows']:,} rows, {last['memory_bytes']:,} bytes",
                flush=True,
            )
    results = {name: run.results() for name, run in runs.items()}
    return {
        "stream": content,
        "max_bytes": max_bytes,
        "limit_of_all": round(max_bytes / all_bytes, 4),
        "runs": results,
        "against_all": {name: against(runs[name], runs["all"]) for name in ("ttl", "limit")},
        "two_shards": {
            name: {
                "restored": digests[name],
                "same_rows": digests[name][0] == digests[name][1],
                **compare_halves(runs[name], run),
            }
            for name, run in forked.items()
        },
    }


def against(run: Run, base: Run) -> dict[str, Any]:
    """Compares a run's scores and throughput with those of the run of all ids, by round."""
    ratios = {
        clock: [b / a for a, b in zip(run.micros(clock), base.micros(clock), strict=True)]
        for clock in ("cpu_secs", "wall_secs")
    }
    return {
        "auc_difference": round(run.results()["auc"] - base.results()["auc"], 6),
        "throughput": report.spread(ratios["cpu_secs"]),
        "wall_throughput": report.spread(ratios["wall_secs"]),
        "bytes": round(run.rounds[-1]["memory_bytes"] / base.rounds[-1]["memory_bytes"], 4),
    }


def compare_halves(run: Run, forked: Run) -> dict[str, Any]:
    """Compares a run with its copy on two shards, over the copy's rounds."""
    same = run.rounds[-len(forked.rounds) :]
    differences = [b["auc"] - a["auc"] for a, b in zip(same, forked.rounds, strict=True)]
    return {
        "rounds": len(same),
        "rows_restored": [same[0]["rows_restored"], forked.rounds[0]["rows_restored"]],
        "auc_difference": round(statistics.mean(differences), 6),
        "greatest_auc_difference": round(max(map(abs, differences)), 6),
        "rows": [same[-1]["rows"], forked.rounds[-1]["rows"]],
        "verified_checkpoints": forked.verified_checkpoints,
    }


def plot(results: Mapping[str, Any], unit_rows: int, path: Path) -> None:
    """Draws bytes and evicted rows over the stream."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (top, bottom) = plt.subplots(2, 1, figsize=(9, 6), sharex=True, layout="constrained")
    labels = {
        "all": "no policy",
        "ttl": f"2 examples admit an id, {TTL_DAYS} days to live",
        "limit": f"a limit of {results['max_bytes'] / 1e6:,.0f} MB",
    }
    for name, run in results["runs"].items():
        at = [each["units"] * unit_rows / 1e6 for each in run["series"]]
        top.plot(at, [each["bytes"] / 1e6 for each in run["series"]], label=labels[name])
        bottom.plot(at, [each["evicted"] / 1e6 for each in run["series"]], label=labels[name])
    top.axhline(results["max_bytes"] / 1e6, linestyle=":", linewidth=1, color="gray")
    top.set_ylabel("tables, MB")
    top.legend(fontsize=8)
    bottom.set_ylabel("rows evicted, millions")
    bottom.set_xlabel("events, millions")
    for axes in (top, bottom):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The stream, the model, and where to work."""

    model: str = option("fm", "that trains", choices=tuple(MODELS))
    events: int = option(50_000_000, "of the stream", least=1)
    rounds: int = option(4, "in which the runs take turns", least=2)
    batch_size: int = option(4096, "examples per step", least=1)
    unit_rows: int = option(131072, "examples of a unit", least=1)
    eviction_order: Literal["least_recent", "least_frequent"] = option(
        "least_recent", "of rows that the limit displaces"
    )
    folder: str | None = option(None, "for the stream and the runs", metavar=DIR)


def _measure(config: Config, run: harness.Run) -> Content:
    stream = Stream(
        **{field.name: getattr(config, field.name) for field in dataclasses.fields(Stream)}
    )
    with tempfile.TemporaryDirectory(prefix="embedps-lifetime-", dir=config.folder) as folder:
        results = measure(stream, Path(folder), order=config.eviction_order)
    return {"config": {"ttl_days": TTL_DAYS}, "results": results}


def layout(content: Content) -> list[Part]:
    """Lays each run out beside the one without policies."""
    results = content["results"]
    rows = []
    for name, run in results["runs"].items():
        other = results["against_all"].get(name)
        rows.append(
            [
                name,
                f"{run['auc']:.5f}",
                f"{other['auc_difference']:+.5f}" if other else "",
                f"{run['rows']:,}",
                f"{run['memory_bytes'] / 1e6:,.0f}",
                f"{other['bytes']:.3f}" if other else "",
                f"{sum(run['evicted'].values()):,}",
                f"{other['throughput']['median']:.3f}" if other else "",
            ]
        )
    heads = ["run", "AUC", "minus all's", "rows", "MB", "of all's", "evicted", "speed of all's"]
    stream = results["stream"]
    told = f"{stream['events']:,} events over {stream['items']:,} ids in {stream['days']} days. "
    copies = [
        f"{name}, on 2 shards from the middle: rows "
        f"{'equal' if copy['same_rows'] else 'differ'}, AUC {copy['auc_difference']:+.6f}"
        for name, copy in results["two_shards"].items()
    ]
    return [Table(heads=heads, rows=rows), f"{told}{'; '.join(copies)}."]


BENCHMARK = Benchmark(
    config=Config,
    measure=_measure,
    layout=layout,
    plot=lambda content, path: plot(content["results"], content["config"]["unit_rows"], path),
)


if __name__ == "__main__":
    main(BENCHMARK)
