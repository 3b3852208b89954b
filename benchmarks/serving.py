"""Asks a server while its run commits, at fixed rates: `python -m benchmarks.serving`.

A DLRM of the Kaggle configuration is served by one process; another asks it (benchmarks.open_loop),
on the same cores. Each size of requests is asked twice: first nothing changes, then a commit comes
every --commit-secs seconds. The commits were written before (benchmarks.serving_run): a trainer has
cores of its own. Requests name random rows of the tables. `visible_ms` counts from a manifest's
commit to the end of the first request that it answered. With
--export, the same is then asked of TensorFlow with an export (benchmarks.serving_export), by the
same gRPC server and batches.

--steady asks for one candidate at the first rate for so many seconds more, with commits, and
reports the server's memory meanwhile. Its parts of 20 seconds are each a run of the generator.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import open_loop, report
from benchmarks.serving_run import COLUMNS, FIRST_ID, Commits
from embedps.console import command_line
from embedps.console.command_line import number, path
from embedps.errors import UsageError
from embedps.serving.server import messages
from embedps.serving.server.tensor_values import fill

NAME = "model"
NUMERICS = [f"I{i}" for i in range(1, 14)]
_PART_SECS = 20.0
_DIFFERENT = 200  # requests, which are sent in turn


class Server:
    """A server's process and addresses.

    Attributes:
      said: its lines before it served.
    """

    def __init__(self, module: str, *arguments: str, prefix: Sequence[str] = ()) -> None:
        """Starts it, and waits until it serves.

        Args:
          module: to run.
          arguments: of its command.
          prefix: what the command is an argument of, such as `prlimit`.

        Raises:
          UsageError: it ends before that.
        """
        command = [*prefix, sys.executable, "-m", module, *arguments, "--port=0", "--rest-port=0"]
        began = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.said: list[str] = []
        for line in self.process.stdout or ():
            if found := re.search(r"^serves .* at (\S+) \(gRPC\) and (\S+)", line):
                break
            self.said.append(line.strip())
        else:
            raise UsageError(f"{module} did not start: see above")
        self.start_secs = time.monotonic() - began
        self.grpc, self.rest = found.groups()

    def memory(self) -> dict[str, float]:
        """Gives the resident memory in MB, and how much of it is no page of a file."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return {
            name: round(int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) / 1000, 1)  # type: ignore[index]
            for name, field in (("rss_mb", "VmRSS"), ("anonymous_mb", "RssAnon"))
        }

    def cpu_secs(self) -> float:
        """Gives the seconds of processors that it has used."""
        return report.cpu_secs(self.process.pid)

    def metric(self, name: str) -> float:
        """Reads a metric of Prometheus; 0 if it is absent; the sum over its labels."""
        with urllib.request.urlopen(f"{self.rest}/metrics") as answer:
            text = answer.read().decode()
        return sum(float(v) for v in re.findall(rf"^{name}{{[^}}]*}} (\S+)$", text, re.M))


@contextmanager
def running(module: str, *arguments: str) -> Iterator[Server]:
    """Runs a server."""
    server = Server(module, *arguments)
    try:
        yield server
    finally:
        server.process.terminate()
        server.process.wait()


class Committing:
    """Commits at fixed times on a thread, and reads the gate of each from the metrics."""

    def __init__(self, commits: Commits, every_secs: float, server: Server) -> None:
        self.times: dict[int, float] = {}
        self.gates: list[tuple[float, float]] = []  # ms, rows
        self._commits, self._every, self._server = commits, every_secs, server
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Committing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while len(self._commits) and not self._ended.wait(self._every):
            if self.times:  # of the commit before
                gate = self._server.metric("embedps_apply_seconds") * 1e3
                self.gates.append((gate, self._server.metric("embedps_applied_rows")))
            began = time.monotonic()
            self.times[self._commits.commit()] = began

    def results(self, load: open_loop.Load) -> dict[str, Any]:
        """Gives how soon commits were visible, and how long their gates were."""
        ends = load.due + load.latency
        visible = []
        for committed, at in self.times.items():
            later = ends[load.version >= committed]
            if len(later) and at >= load.due.min():  # warm-up requests are not in `load`
                visible.append(float(later.min() - at) * 1e3)
        per_100k = [ms / rows * 1e5 for ms, rows in self.gates if rows]
        return {
            "commits": len(self.times),
            "visible_ms": _spread(visible),
            "gate_ms_per_100k_rows": report.spread(per_100k) if per_100k else None,
        }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    """Summarizes measurements, with their 99th percentile; None if there are none."""
    if not values:
        return None
    return report.spread(values) | {"p99": round(float(np.percentile(values, 99)), 1)}


def make_requests(rows: int, table_rows: int) -> list[bytes]:
    """Makes requests for random rows of the tables."""
    rng = np.random.default_rng(rows)
    made = []
    for _ in range(_DIFFERENT):
        request = messages.PredictRequest()
        request.model_spec.name = NAME
        for name in NUMERICS:
            fill(request.inputs[name], rng.exponential(1.0, rows).astype(np.float32))
        for name in COLUMNS:
            fill(request.inputs[name], FIRST_ID + rng.integers(0, table_rows, rows))
        made.append(request.SerializeToString())
    return made


def main(arguments: Sequence[str]) -> int:
    """Runs the command line."""
    options = _parser().parse_args(arguments)
    if len(options.sizes) != len(options.rates):
        raise UsageError(
            f"--sizes and --rates must have as many values but have {len(options.sizes)} and "
            f"{len(options.rates)}"
        )
    environment, found = report.environment(), []
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = options.run or _make(Path(name), options)
        commits = Commits(folder)
        where = [f"--model-dir={folder / 'model'}", f"--name={NAME}"]
        requests = {
            size: make_requests(size, options.rows // len(COLUMNS)) for size in options.sizes
        }
        with running("embedps.serve", *where) as server:
            memory = {"start_secs": round(server.start_secs, 1), "at_start": server.memory()}
            memory["row_bytes"] = server.metric("embedps_row_bytes")
            memory["rows"] = server.metric("embedps_rows")
            for size, rate in zip(options.sizes, options.rates, strict=True):
                result: dict[str, Any] = {"candidates": size, "secs": options.secs}
                quiet = open_loop.offer(server.grpc, requests[size], rate, options.secs, seed=1)
                result["quiet"] = quiet.summary(rate)
                with Committing(commits, options.commit_secs, server) as committing:
                    load = open_loop.offer(server.grpc, requests[size], rate, options.secs, seed=2)
                result["updates"] = load.summary(rate) | committing.results(load)
                found.append(result)
                print(result, flush=True)
            memory["after"] = server.memory()
            steady = _stay(server, requests[options.sizes[0]], options, commits)
        if options.export:
            _ask_export(folder, Path(name) / "exports", requests, found)
    report.write(
        options.output,
        {
            "benchmark": "serving",
            "command": shlex.join(["python", "-m", "benchmarks.serving", *arguments]),
            "environment": environment,
            "memory": memory,
            "steady": steady,
            "results": found,
        },
    )
    return 0


def _stay(
    server: Server, requests: list[bytes], options: Any, commits: Commits
) -> list[dict[str, Any]]:
    """Asks for minutes while commits come; gives the memory over time."""
    found: list[dict[str, Any]] = []
    began = time.monotonic()
    while time.monotonic() - began < options.steady:
        with Committing(commits, options.commit_secs, server):
            load = open_loop.offer(server.grpc, requests, options.rates[0], _PART_SECS, seed=3)
        secs = round(time.monotonic() - began)
        found.append({"secs": secs, **server.memory(), **load.summary(options.rates[0])})
        print(found[-1], flush=True)
    return found


def _ask_export(
    folder: Path, exports: Path, requests: dict[int, list[bytes]], found: list[dict[str, Any]]
) -> None:
    """Exports the checkpoint, and asks TensorFlow what the server was asked."""
    command = ["-m", "embedps.export", f"--model-dir={folder / 'model'}", f"--output={exports}"]
    subprocess.run([sys.executable, *command], check=True, stdout=sys.stderr)
    (export,) = (p for p in exports.iterdir() if p.name.isdigit())
    with running("benchmarks.serving_export", str(export)) as server:
        for result in found:
            rate, secs = result["quiet"]["offered_qps"], result["secs"]
            load = open_loop.offer(server.grpc, requests[result["candidates"]], rate, secs, seed=1)
            result["export"] = load.summary(rate)
            print(result["export"], flush=True)


def _make(folder: Path, options: Any) -> Path:
    # With a generator's start and warm-up, and the steady parts'.
    secs = len(options.sizes) * (options.secs + 6) + 1.3 * options.steady
    given = {"folder": folder, "rows": options.rows, "changes": options.changes}
    given["commits"] = int(secs / options.commit_secs)
    command = ["-m", "benchmarks.serving_run", *(f"--{f}={value}" for f, value in given.items())]
    subprocess.run([sys.executable, *command], check=True, stdout=sys.stderr)
    return folder


def counts(given: str) -> list[int]:
    """Reads numbers with commas between them, for argparse."""
    read = number(int, least=1, most=10**9)
    return [read(part) for part in given.split(",")]


def _parser() -> command_line.Parser:
    parser = command_line.Parser(prog="python -m benchmarks.serving", description=__doc__)
    count = number(int, least=1, most=10**9)
    secs = number(float, least=0, most=86400)
    for flag, kind, default, text in (
        ("--sizes", counts, [1, 100, 1000], "candidates per request, one after another"),
        ("--rates", counts, [300, 100, 20], "requests per second, for each of --sizes"),
        ("--secs", secs, 20.0, "how long to ask each time"),
        ("--rows", count, 1_300_000, "rows of the tables"),
        ("--changes", count, 100_000, "rows that a commit changes"),
        ("--commit-secs", secs, 2.0, "between two commits"),
        ("--steady", secs, 0.0, "how long to stay at full load, for the memory"),
        ("--run", path, None, "what benchmarks.serving_run made before, to use once"),
        ("--folder", path, None, "where to make the run, instead of the temporary directory"),
    ):
        shown = ",".join(map(str, default)) if isinstance(default, list) else default
        parser.add_argument(
            flag, type=kind, default=default, metavar="X", help=f"{text} (default: {shown})"
        )
    parser.add_argument(
        "--export", action="store_true", help="ask the same of TensorFlow with an export"
    )
    parser.add_argument(
        "--output", type=report.output_file, default=report.RESULTS / "serving.json", metavar="FILE"
    )
    return parser


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
