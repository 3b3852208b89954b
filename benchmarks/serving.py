"""Asks a server while its run commits, at fixed rates: `python -m benchmarks.serving`.

A DLRM of the Kaggle configuration is served by one process; another asks it (benchmarks.open_loop),
on the same cores. Each size of requests is asked twice: first nothing changes, then a commit comes
every --commit-secs seconds. The commits were written before (benchmarks.serving_run): a trainer has
cores of its own. Requests name random rows of the tables. `visible_ms` counts from a manifest's
commit to the end of the first request that it answered. With
--export, the same is then asked of TensorFlow with an export (benchmarks.serving_export), by the
same gRPC server and batches.

With --memory-percent, the same is then asked, while nothing changes, of a server with memory for so
much of the rows and the others on disk. Its requests are all different: their rows are as likely on
disk as any. `misses` are the reads by the ids that were scored.

--steady asks for one candidate at the first rate for so many seconds more, with commits, and
reports the server's memory meanwhile. Its parts of 20 seconds are each a run of the generator.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import child, open_loop, report
from benchmarks.harness import DIR, Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table
from benchmarks.served import Server, running
from benchmarks.serving_run import COLUMNS, FIRST_ID, Commits
from embedps.config_fields import option
from embedps.errors import UsageError
from embedps.serving.server import messages
from embedps.serving.server.tensor_values import fill

NAME = "model"
NUMERICS = [f"I{i}" for i in range(1, 14)]
_PART_SECS = 20.0
_FLOAT_BYTES = 81  # of a row of dim 16 in memory beside a disk, without its head
_KINDS = (("quiet", ""), ("updates", "commits"), ("tier", "a disk"), ("export", "an export"))
_DIFFERENT = 200  # requests, which are sent in turn


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


def make_requests(rows: int, table_rows: int, count: int = _DIFFERENT) -> list[bytes]:
    """Makes requests for random rows of the tables."""
    rng = np.random.default_rng(rows)
    made = []
    for _ in range(count):
        request = messages.PredictRequest()
        request.model_spec.name = NAME
        for name in NUMERICS:
            fill(request.inputs[name], rng.exponential(1.0, rows).astype(np.float32))
        for name in COLUMNS:
            fill(request.inputs[name], FIRST_ID + rng.integers(0, table_rows, rows))
        made.append(request.SerializeToString())
    return made


def _stay(
    server: Server, requests: list[bytes], config: Config, commits: Commits
) -> list[dict[str, Any]]:
    """Asks for minutes while commits come; gives the memory over time."""
    found: list[dict[str, Any]] = []
    began = time.monotonic()
    while time.monotonic() - began < config.steady:
        with Committing(commits, config.commit_secs, server):
            load = open_loop.offer(server.grpc, requests, config.rates[0], _PART_SECS, seed=3)
        secs = round(time.monotonic() - began)
        found.append({"secs": secs, **server.memory(), **load.summary(config.rates[0])})
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


def _ask_tiered(
    where: Sequence[str],
    config: Config,
    found: list[dict[str, Any]],
) -> None:
    """Asks a server that has a part of the rows on disk what the other was asked."""
    on_disk = (100 - config.memory_percent) / 100 * config.rows
    with tempfile.TemporaryDirectory(dir=config.folder) as spill:
        tier = [*where, f"--spill-dir={spill}"]
        with running("embedps.serve", *tier, f"--max-memory-bytes={1 << 40}") as server:
            most = int(server.metric("embedps_row_bytes") - on_disk * _FLOAT_BYTES)
        with running("embedps.serve", *tier, f"--max-memory-bytes={most}") as server:
            for result in found:
                rate, size = result["quiet"]["offered_qps"], result["candidates"]
                count = int(2 * rate * result["secs"])  # a load has a warm-up
                requests = make_requests(size, config.rows // len(COLUMNS), count)
                counts = "embedps_rows_read_from_disk", "embedps_batch_rows_sum"
                before = [server.metric(each) for each in counts]
                load = open_loop.offer(server.grpc, requests, rate, result["secs"], seed=1)
                read, scored = (
                    server.metric(each) - old for each, old in zip(counts, before, strict=True)
                )
                misses = read / (scored * len(COLUMNS))
                result["tier"] = load.summary(rate) | {
                    "misses": round(misses, 3),
                    "rows_on_disk": server.metric("embedps_rows_on_disk"),
                    "max_memory_bytes": most,
                    "row_bytes": server.metric("embedps_row_bytes"),
                }
                print(result["tier"], flush=True)


def _make(folder: Path, config: Config) -> Path:
    # With a generator's start and warm-up, and the steady parts'.
    secs = len(config.sizes) * (config.secs + 6) + 1.3 * config.steady
    given = {"rows": config.rows, "changes": config.changes}
    commits = int(secs / config.commit_secs)
    child.call("benchmarks.serving_run:make", folder=str(folder), commits=commits, **given)
    return folder


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The model, the requests and the commits."""

    sizes: tuple[int, ...] = option((1, 100, 1000), "candidates per request, in turn", least=1)
    rates: tuple[int, ...] = option((300, 100, 20), "requests per second, by size", least=1)
    secs: float = option(20.0, "of each load", above=0, most=86400)
    rows: int = option(1_300_000, "of the tables", least=1, most=10**9)
    changes: int = option(100_000, "rows that a commit changes", least=1, most=10**9)
    commit_secs: float = option(2.0, "between two commits", above=0, most=86400)
    steady: float = option(0.0, "seconds of full load at the end", least=0, most=86400)
    run: str | None = option(None, "what serving_run:make made, to use once", metavar=DIR)
    folder: str | None = option(None, "for the run; else the temporary folder", metavar=DIR)
    memory_percent: int = option(0, "of the rows, of a server with a disk", least=0, most=99)
    export: bool = option(False, "ask the same of TensorFlow with an export")

    def __post_init__(self) -> None:
        """Checks each option, and that each size has a rate."""
        super().__post_init__()
        sizes, rates = len(self.sizes), len(self.rates)
        if sizes != rates:
            told = "--sizes and --rates must have as many values"
            raise UsageError(f"{told} but have {sizes} and {rates}")


def measure(config: Config, run: Run) -> Content:
    """Asks at each size, first while nothing changes and then beside commits."""
    found = []
    with tempfile.TemporaryDirectory(dir=config.folder) as name:
        folder = Path(config.run) if config.run else _make(Path(name), config)
        commits = Commits(folder)
        where = [f"--model-dir={folder / 'model'}", f"--name={NAME}"]
        requests = {size: make_requests(size, config.rows // len(COLUMNS)) for size in config.sizes}
        with running("embedps.serve", *where) as server:
            memory: dict[str, Any] = {
                "start_secs": round(server.start_secs, 1),
                "at_start": server.memory(),
            }
            memory["row_bytes"] = server.metric("embedps_row_bytes")
            memory["rows"] = server.metric("embedps_rows")
            for size, rate in zip(config.sizes, config.rates, strict=True):
                result: dict[str, Any] = {"candidates": size, "secs": config.secs}
                quiet = open_loop.offer(server.grpc, requests[size], rate, config.secs, seed=1)
                result["quiet"] = quiet.summary(rate)
                with Committing(commits, config.commit_secs, server) as committing:
                    load = open_loop.offer(server.grpc, requests[size], rate, config.secs, seed=2)
                result["updates"] = load.summary(rate) | committing.results(load)
                found.append(result)
                print(result, flush=True)
            memory["after"] = server.memory()
            steady = _stay(server, requests[config.sizes[0]], config, commits)
        if config.memory_percent:
            _ask_tiered(where, config, found)
        if config.export:
            _ask_export(folder, Path(name) / "exports", requests, found)
    return {"memory": memory, "steady": steady, "results": found}


def layout(content: Content) -> list[Part]:
    """Lays out the latencies, quiet and beside commits, and the memory."""
    rows, has_tier = [], any("tier" in each for each in content["results"])
    for each in content["results"]:
        for what, name in _KINDS:
            if (load := each.get(what)) is not None:
                visible = load.get("visible_ms")
                rows.append(
                    [
                        f"{each['candidates']}{f', {name}' if name else ''}",
                        f"{load['offered_qps']:g}",
                        *(f"{load[key]:.1f}" for key in ("p50_ms", "p99_ms", "p999_ms")),
                        f"{visible['median']:.0f}" if visible else "",
                        *([f"{load['misses']:.1%}" if "misses" in load else ""] * has_tier),
                    ]
                )
    heads = ["candidates per request", "requests/s", "median, ms", "p99", "p99.9", "visible after"]
    heads += ["misses"] * has_tier
    memory = content["memory"]
    told = f"{memory['rows']:,.0f} rows. Memory: {memory['at_start']['rss_mb']:.0f} MB at start, "
    steady = [each["rss_mb"] for each in content.get("steady", ())]
    told += f"{memory['after']['rss_mb']:.0f} MB after"
    if steady:
        secs = content["steady"][-1]["secs"]
        told += f", {min(steady):.0f} to {max(steady):.0f} MB in {secs} s of full load"
    return [Table(heads=heads, rows=rows), f"{told}."]


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)
