"""Compares stores of rows larger than memory: `python -m benchmarks.tier_peers`.

Each has the same rows of 16 floats, the same memory, and the same stream: in each step it reads the
distinct rows of a batch of examples like W1's, and writes them. There is no network. In each round
each store makes the same steps, and the others stand still. What they read must be equal.

Ours is a table with SGD. RocksDB (rocksdict) has a cache of blocks of so much memory, and reads and
writes past the system's cache. The mapped file has a control group of so much memory: the kernel
chooses which pages stay. It has no index, as a row's number is its place. A store that cannot run
here is left out, with the reason.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import embedps  # noqa: F401  before TensorFlow: it chooses the Keras
from benchmarks import report
from benchmarks.disk_speed import reads_per_sec
from benchmarks.disk_stores import DIM, RATE, STORES, remove_groups, why_not
from benchmarks.harness import DIR, Benchmark, Content, LimitError, Options, Run, main
from benchmarks.layout import Part, Table
from benchmarks.paused_process import PausedProcess
from benchmarks.tiers import BATCH, smaller, stream_of
from benchmarks.workload import make_batches
from embedps.config_fields import option

# isort: split
import numpy as np

_ROW_BYTES = 4 * DIM
_READERS = 32


def serve(connection: Connection, store: str, folder: str, rows: int, max_bytes: int) -> None:
    """Fills a store, and makes the steps that it is told."""
    keys, starts = (np.load(f"{folder}/{name}.npy") for name in ("keys", "starts"))
    made = STORES[store](folder, max_bytes)
    began = time.perf_counter()
    made.fill(rows)
    connection.send(time.perf_counter() - began)
    for first, end in iter(connection.recv, None):
        before, sums, taken = disk_bytes(), 0.0, []
        for step in range(first, end):
            began = time.perf_counter()
            found = made.step(keys[starts[step] : starts[step + 1]])
            taken.append(time.perf_counter() - began)
            sums += float(found.sum(dtype=np.float64))
        read, written = (b - a for a, b in zip(before, disk_bytes(), strict=True))
        connection.send({"secs": taken, "sum": sums, "read": read, "written": written})


def disk_bytes() -> tuple[int, int]:
    """Reads what this process read from disks and wrote to them."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"]), int(lines["write_bytes"])


def expected_sums(keys: Any, starts: Any, rows: int, part: int) -> list[float]:
    """Adds up what the steps of each part read, by how often each row was in a step before."""
    counts, sums = np.zeros(rows, np.int64), []
    for first in range(0, len(starts) - 1, part):
        total = 0
        for step in range(first, min(first + part, len(starts) - 1)):
            of_step = keys[starts[step] : starts[step + 1]]
            total += int(counts[of_step].sum())
            counts[of_step] += 1
        sums.append(-RATE * DIM * total)
    return sums


def measure(config: Config, run: Run) -> Content:
    """Makes the steps with each store, in turn."""
    workload = smaller(config.rows)
    rows, part = sum(workload.cardinalities), config.steps
    count = (config.warm_up_rounds + config.rounds) * part
    examples = make_batches(workload, count * BATCH)
    keys, starts, _ = stream_of(examples.ids, workload.cardinalities)
    sums = expected_sums(keys, starts, rows, part)
    max_bytes = int(rows * (config.head_bytes + config.percent / 100 * _ROW_BYTES))
    skipped = {name: why for name in STORES if (why := why_not(name))}
    results: dict[str, list[dict[str, Any]]] = {n: [] for n in STORES if n not in skipped}
    with tempfile.TemporaryDirectory(dir=config.spill_dir) as folder:
        iops = reads_per_sec(Path(folder), _READERS)
        np.save(f"{folder}/keys.npy", keys)
        np.save(f"{folder}/starts.npy", starts)
        processes: dict[str, PausedProcess] = {}
        try:
            for name in results:
                processes[name] = PausedProcess(serve, name, folder, rows, max_bytes)
                processes[name].wait_until_ready()
            for number in range(config.warm_up_rounds + config.rounds):
                for name in [*results][:: 1 if number % 2 else -1]:
                    done = processes[name].ask((number * part, (number + 1) * part))
                    if done["sum"] != sums[number]:
                        told = f"{name} read rows of the sum {done['sum']}"
                        raise LimitError(f"{told}, but it must be {sums[number]}")
                    results[name].append(done)
                print(f"round {number + 1}", flush=True)
        finally:
            for process in processes.values():
                process.kill()
            remove_groups()
    first = int(starts[config.warm_up_rounds * part])
    of_step = (len(keys) - first) / (config.rounds * part)
    cases = [_case(n, each[config.warm_up_rounds :], of_step) for n, each in results.items()]
    for case in cases:
        case["ratio"] = report.spread(
            [a / b for a, b in zip(cases[0]["rounds"], case["rounds"], strict=True)]
        )
    return {
        "config": {"batch_size": BATCH},
        "results": {
            "rows": rows,
            "rows_per_step": round(of_step),
            "max_memory_bytes": max_bytes,
            "iops": round(iops),
            "cases": cases,
            "skipped": skipped,
        },
    }


def _case(name: str, rounds: list[dict[str, Any]], of_step: float) -> dict[str, Any]:
    secs = [each for of_round in rounds for each in of_round["secs"]]
    rows = of_step * len(secs)
    return {
        "store": name,
        "rows_per_sec": round(rows / sum(secs)),
        "step_ms": round(1000 * statistics.median(secs), 1),
        "longest_ms": round(1000 * max(secs), 1),
        "read_bytes_per_row": round(sum(r["read"] for r in rounds) / rows, 1),
        "written_bytes_per_row": round(sum(r["written"] for r in rounds) / rows, 1),
        "rounds": [round(sum(r["secs"]), 4) for r in rounds],
    }


def layout(content: Content) -> list[Part]:
    """Lays out the stores' speeds, and what they read and write."""
    r = content["results"]
    rows = [
        [
            case["store"],
            f"{case['ratio']['median']:.3f}",
            f"{case['rows_per_sec']:,}",
            f"{case['step_ms']:.1f}",
            f"{case['longest_ms']:.1f}",
            f"{case['read_bytes_per_row']:,.0f}",
            f"{case['written_bytes_per_row']:,.0f}",
        ]
        for case in r["cases"]
    ]
    title = (
        f"{r['rows']:,} rows of {_ROW_BYTES} bytes, {r['rows_per_step']:,} read and written per "
        f"step; {r['max_memory_bytes'] / 2**20:.0f} MiB of memory; {r['iops']:,} reads per second"
    )
    heads = ["store", "speed by ours", "rows/s", "step, ms", "longest", "bytes read per row"]
    parts: list[Part] = [Table(title=title, heads=[*heads, "written"], rows=rows)]
    return parts + [f"Without {name}: it {why}." for name, why in r["skipped"].items()]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The rows, and the memory for them."""

    rows: int = option(3_000_000, "of all tables, about", least=100_000)
    percent: int = option(25, "of the rows' floats that fit the memory", least=1, most=99)
    head_bytes: int = option(28, "of memory per row besides: our heads and index", least=0)
    steps: int = option(8, "of a round", least=1)
    warm_up_rounds: int = option(4, "before what is measured", least=1)
    rounds: int = option(8, "that are measured", least=1)
    spill_dir: str = option("/tmp", "on the disk to measure", metavar=DIR)


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)
