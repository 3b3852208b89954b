"""Measures from a click to its effect: `python -m benchmarks.freshness`.

A run watches a directory (`embedps train --watch`), and a server follows the run (`embedps serve`).
Files of --rows examples appear each --interval-secs. Each has an id that no file had before. The
server is asked for a record with that id and one with an id that is in no file: once the two scores
differ, the file's examples have changed an answer. Asking costs time too: once in --poll-secs.

The run, the server and the client that asks share this machine. The result has the seconds of CPU
that the run and the server used per second, and the time until the run began to score a file.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import report
from benchmarks.datasets import generate_clicks
from benchmarks.harness import Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, figures
from benchmarks.served import running, training
from embedps.config_fields import option
from embedps.data.dataset import Dataset
from embedps.errors import EmbedpsError
from embedps.run.summary import read_json
from embedps.scheduling.arrivals import Arrivals

_FIRST_NEW, _NEVER = 10**15, 10**16  # ids that no other row has
_COLUMN = "C1"
_WAIT_SECS = 120.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The files, the run and the client that asks."""

    rows: int = option(32_768, "examples of a file", least=1)
    interval_secs: float = option(1.0, "between two files", above=0)
    files: int = option(48, "that appear", least=4)
    delta_secs: float = option(2.0, "between two deltas of the run", above=0)
    poll_secs: float = option(0.1, "between two questions to the server", above=0)
    flags: str = option("--compute-dtype=bfloat16 --batch-size=8192", "of the run")


def measure(config: Config, folder: Path) -> dict[str, Any]:
    """Trains, serves, and asks until all files were seen or time is over."""
    dataset = generate_clicks(folder, 200_000)
    waiting, watched = folder / "waiting", folder / "in"
    for each in (waiting, watched):
        each.mkdir()
    record = write_files(dataset, waiting, files=config.files, rows=config.rows)
    flags = (f"--watch={watched}", f"--delta-secs={config.delta_secs}", *config.flags.split())
    where = (f"--model-dir={folder / 'model'}", "--name=m")
    with training(folder, *flags) as run, running("embedps.serve", *where) as server:
        pids = {"run": run.pid, "server": server.process.pid}
        before = {name: report.cpu_secs(pid) for name, pid in pids.items()}
        began = time.monotonic()
        result = feed(config, record, waiting, watched, server.rest)
        secs = time.monotonic() - began
        result["cores"] = {
            name: round((report.cpu_secs(pid) - before[name]) / secs, 2)
            for name, pid in pids.items()
        }
    summary = read_json(folder / "model" / "summary.json")
    return {
        **result,
        "units_repeated": summary["units"]["repeated"],
        "rows": summary["tables"],
    }


def write_files(
    dataset: Dataset, folder: Path, *, files: int, rows: int
) -> dict[str, float | int | None]:
    """Writes files of rows of the training split, each with an id of its own; gives a record."""
    table = pa.concat_tables(pq.read_table(path) for path in dataset.paths("train"))
    rng = np.random.default_rng(0)
    place = table.column_names.index(_COLUMN)
    label = table.column_names.index(dataset.label)
    for i in range(files):
        part = table.take(rng.integers(0, table.num_rows, rows))
        is_new = np.arange(rows) % 10 == 0
        ids = np.where(is_new, _FIRST_NEW + i, part[_COLUMN].to_numpy())
        labels = np.where(is_new, 1.0, part[dataset.label].to_numpy()).astype(np.float32)
        part = part.set_column(place, part.schema.field(place), pa.array(ids))
        part = part.set_column(label, part.schema.field(label), pa.array(labels))
        pq.write_table(part, folder / f"{i:06d}.parquet", row_group_size=32768)
    features = [*(f.name for f in dataset.numeric), *(f.name for f in dataset.categorical)]
    row = table.slice(0, 1).to_pylist()[0]
    return {name: None if row[name] != row[name] else row[name] for name in features}


def feed(
    config: Config,
    record: dict[str, Any],
    waiting: Path,
    watched: Path,
    address: str,
) -> dict[str, Any]:
    """Commits files and asks the server which of them it has seen."""
    committed: list[float] = []
    seen: list[float] = []
    walls: list[float] = []  # when files were committed, by the clock of arrivals and manifests
    began = time.monotonic()
    while len(seen) < config.files:
        now = time.monotonic()
        if len(committed) < config.files and now >= began + len(committed) * config.interval_secs:
            name = f"{len(committed):06d}.parquet"
            os.replace(waiting / name, watched / name)
            committed.append(time.monotonic())
            walls.append(time.time())
        elif now > began + config.files * config.interval_secs + _WAIT_SECS:
            raise EmbedpsError(f"{len(seen)} of {config.files} files had an effect in time")
        else:
            time.sleep(config.poll_secs)
        while len(seen) < len(committed) and differs(address, record, _FIRST_NEW + len(seen)):
            seen.append(time.monotonic())
    secs = np.array(seen) - np.array(committed)
    arrivals = Arrivals(watched.parent / "model").files
    listed = np.array([each.time for each in arrivals]) - np.array(walls)
    # From a quarter on: the run and the server are warm, and a backlog would show.
    first = config.files // 4
    spent = seen[-1] - committed[first]
    return {
        "effect_secs": percentiles(secs[first:]),
        "until_listed_secs": percentiles(listed[first:]),
        "examples_per_sec": round((config.files - first) * config.rows / spent),
        "offered_per_sec": round(config.rows / config.interval_secs),
    }


def percentiles(secs: npt.NDArray[np.float64]) -> dict[str, float]:
    """Summarizes durations."""
    p50, p99 = np.percentile(secs, [50, 99])
    found = {"p50": p50, "p99": p99, "max": secs.max()}
    return {name: round(float(value), 2) for name, value in found.items()}


def differs(address: str, record: dict[str, Any], new_id: int) -> bool:
    """Tells whether the server scores a record with a new id otherwise than one without a row."""
    records = [{**record, _COLUMN: new_id}, {**record, _COLUMN: _NEVER}]
    request = urllib.request.Request(
        f"{address}/v1/models/m:predict",
        data=json.dumps({"instances": records}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        first, second = json.load(answer)["predictions"]
    return bool(first != second)


def layout(content: Content) -> list[Part]:
    """Lays out the seconds from a file's commit to its effect."""
    r, config = content["results"], content["config"]
    effect, listed = r["effect_secs"], r["until_listed_secs"]
    rows = [
        ["from a file's commit to the first answer that it changed: median", f"{effect['p50']} s"],
        ["p99", f"{effect['p99']} s"],
        ["until the run began to score the file: median", f"{listed['p50']} s"],
        ["examples per second, of those offered", _of(r["examples_per_sec"], r["offered_per_sec"])],
        ["cores that the run used; the server", "{run}; {server}".format(**r["cores"])],
        ["units repeated", f"{r['units_repeated']}"],
    ]
    title = f"{config['files']} files of {config['rows']:,} examples, one per "
    title += f"{config['interval_secs']:g} s, {sum(r['rows'].values()):,} rows, a delta every "
    return [figures(f"{title}{config['delta_secs']:g} s", rows)]


def _of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,}"


def _measure(config: Config, run: Run) -> Content:
    with tempfile.TemporaryDirectory() as folder:
        return {"results": measure(config, Path(folder))}


BENCHMARK = Benchmark(config=Config, measure=_measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)
