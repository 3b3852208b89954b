"""Measures from a click to its effect: `python -m benchmarks.freshness`.

A run watches a directory (`embedps train --watch`), and a server follows the run (`embedps serve`).
Files of --rows examples appear each --interval-secs. Each has an id that no file had before. The
server is asked for a record with that id and one with an id that is in no file: once the two scores
differ, the file's examples have changed an answer. Asking costs time too: once in --poll-secs.

The run, the server and the client that asks share this machine. The result has the seconds of CPU
that the run and the server used per second, and the time until the run began to score a file.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import report
from embedps.console import command_line
from embedps.data.dataset import Dataset
from embedps.errors import EmbedpsError
from embedps.run.summary import read_json
from embedps.scheduling.arrivals import Arrivals

_FIRST_NEW, _NEVER = 10**15, 10**16  # ids that no other row has
_COLUMN = "C1"
_WAIT_SECS = 120.0


def main(arguments: Sequence[str]) -> int:
    """Runs the command line."""
    parser = command_line.Parser(prog="python -m benchmarks.freshness", description=__doc__)
    parser.add_argument("--rows", type=int, default=32_768, help="default: %(default)s")
    parser.add_argument("--interval-secs", type=float, default=1.0, help="default: %(default)s")
    parser.add_argument("--files", type=int, default=48, help="default: %(default)s")
    parser.add_argument("--delta-secs", type=float, default=2.0, help="default: %(default)s")
    parser.add_argument("--poll-secs", type=float, default=0.1, help="default: %(default)s")
    parser.add_argument(
        "--flags",
        default="--compute-dtype=bfloat16 --batch-size=8192",
        help="of the run (default: %(default)s)",
    )
    parser.add_argument(
        "--output", type=report.output_file, default=report.RESULTS / "freshness.json"
    )
    options = parser.parse_args(arguments)
    environment = report.environment()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    print(found)
    report.write(
        options.output,
        {
            "benchmark": "freshness",
            "command": " ".join(["python -m benchmarks.freshness", *arguments]),
            "environment": environment,
            "config": {k: v for k, v in vars(options).items() if k != "output"},
            "results": found,
        },
    )
    return 0


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Trains, serves, and asks until all files were seen or time is over."""
    for command in (
        ["embedps.pipelines.generate", "--rows", "200000", "--output", folder / "day_0.tsv"],
        ["embedps.pipelines.criteo", "--input", folder / "day_0.tsv", "--output", folder / "data"],
    ):
        subprocess.run([sys.executable, "-m", *map(str, command)], check=True, stdout=sys.stderr)
    dataset = Dataset.open(folder / "data")
    waiting, watched = folder / "waiting", folder / "in"
    for each in (waiting, watched):
        each.mkdir()
    record = write_files(dataset, waiting, files=options.files, rows=options.rows)
    run = start(
        "embedps.train",
        f"--data={folder / 'data'}",
        f"--model-dir={folder / 'model'}",
        f"--watch={watched}",
        "--eval=none",
        f"--delta-secs={options.delta_secs}",
        *options.flags.split(),
    )
    try:
        manifests = folder / "model" / "manifests"
        wait_for(lambda: manifests.exists() and any(manifests.glob("*.json")))
        server = start(
            "embedps.serve",
            f"--model-dir={folder / 'model'}",
            "--name=m",
            "--port=0",
            "--rest-port=0",
        )
        try:
            address = rest_address(server)
            before = [cpu_secs(each.pid) for each in (run, server)]
            began = time.monotonic()
            result = feed(options, record, waiting, watched, address)
            secs = time.monotonic() - began
            after = [cpu_secs(each.pid) for each in (run, server)]
            cores = [round((b - a) / secs, 2) for a, b in zip(before, after, strict=True)]
            result["cores"] = dict(zip(("run", "server"), cores, strict=True))
        finally:
            server.terminate()
            server.wait()
    finally:
        run.send_signal(signal.SIGTERM)
        run.wait()
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
    options: argparse.Namespace,
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
    while len(seen) < options.files:
        now = time.monotonic()
        if len(committed) < options.files and now >= began + len(committed) * options.interval_secs:
            name = f"{len(committed):06d}.parquet"
            os.replace(waiting / name, watched / name)
            committed.append(time.monotonic())
            walls.append(time.time())
        elif now > began + options.files * options.interval_secs + _WAIT_SECS:
            raise EmbedpsError(f"{len(seen)} of {options.files} files had an effect in time")
        else:
            time.sleep(options.poll_secs)
        while len(seen) < len(committed) and differs(address, record, _FIRST_NEW + len(seen)):
            seen.append(time.monotonic())
    secs = np.array(seen) - np.array(committed)
    arrivals = Arrivals(watched.parent / "model").files
    listed = np.array([each.time for each in arrivals]) - np.array(walls)
    # From a quarter on: the run and the server are warm, and a backlog would show.
    first = options.files // 4
    spent = seen[-1] - committed[first]
    return {
        "effect_secs": percentiles(secs[first:]),
        "until_listed_secs": percentiles(listed[first:]),
        "examples_per_sec": round((options.files - first) * options.rows / spent),
        "offered_per_sec": round(options.rows / options.interval_secs),
    }


def percentiles(secs: npt.NDArray[np.float64]) -> dict[str, float]:
    """Summarizes durations."""
    p50, p99 = np.percentile(secs, [50, 99])
    found = {"p50": p50, "p99": p99, "max": secs.max()}
    return {name: round(float(value), 2) for name, value in found.items()}


def cpu_secs(pid: int) -> float:
    """Returns the CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def differs(address: str, record: dict[str, Any], new_id: int) -> bool:
    """Tells whether the server scores a record with a new id otherwise than one without a row."""
    records = [{**record, _COLUMN: new_id}, {**record, _COLUMN: _NEVER}]
    request = urllib.request.Request(
        f"http://{address}/v1/models/m:predict",
        data=json.dumps({"instances": records}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        first, second = json.load(answer)["predictions"]
    return bool(first != second)


def start(module: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts a command."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE if module == "embedps.serve" else sys.stderr,
        text=True,
    )


def rest_address(server: subprocess.Popen[str]) -> str:
    """Reads the server's first line for the address of its REST API."""
    line = server.stdout.readline() if server.stdout is not None else ""
    if not line.startswith("serves "):
        raise EmbedpsError("the server did not start: see above")
    return line.split()[-1].removeprefix("http://").rstrip("/.")


def wait_for(condition: Any) -> None:
    """Waits until a condition holds."""
    deadline = time.monotonic() + _WAIT_SECS
    while not condition():
        if time.monotonic() > deadline:
            raise EmbedpsError("the run committed no checkpoint in time")
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
