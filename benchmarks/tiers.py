"""Measures tables larger than memory: `python -m benchmarks.tiers`.

DLRM trains on a stream of examples like W1's, with fewer rows in its large tables, unit by unit.
There is one process without a tier, and one for each share of the rows' floats that fits the
memory; heads and index of all rows are in memory in each. In each round each process trains on the
same unit, and the others stand still. All rows are there before: they come in turns of all tables.
Spill files are read past the system's cache, so memory beyond the limit helps nobody.

A hit is a row of a step that was not read from disk, neither by the step nor ahead of it; a row
counts once per step. Belady's optimum and LRU of the same size see the same stream, warm-up
included; so does a map of the row file in pages of 4 KiB by LRU, the best that the kernel's paging
can do, with all of the memory for pages. The optimum is left out where the stream's rows all fit:
it begins with the rows that it wants. The bound is the lower of the speed in memory and of the
disk's reads per second by the reads per example: one read brings several rows that lie together.
Lookups are timed one by one, after training, on examples that are new.

Not here: TorchRec's SSD tables and HugeCTR's need a GPU. benchmarks.tier_peers has RocksDB and a
mapped file.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import embedps  # noqa: F401  before TensorFlow: it chooses the Keras
from benchmarks.harness import DIR, Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table
from embedps.config_fields import option

# isort: split
import numpy as np
import tensorflow as tf

from benchmarks import report
from benchmarks.cache_bounds import Keys, lru_hits, optimum_hits
from benchmarks.disk_speed import reads_per_sec
from benchmarks.example_columns import describe
from benchmarks.paused_process import PausedProcess
from benchmarks.unit_trainer import UnitTrainer
from benchmarks.workload import W1, Workload, files, make_batches
from embedps.models import dlrm
from embedps.tables import ops
from embedps.tables.tiered import Tiered

BATCH, UNIT_ROWS, LOOKUPS = 2048, 16384, 128
_FLOAT_BYTES = 84  # of a row of dim 16 with row-wise Adagrad in memory, without its head
_ROW_BYTES = 84  # in a file of all rows
_FILLS = 40
_READERS = 32
_SMALL = 10_000


def smaller(rows: int) -> Workload:
    """Gives W1 with about so many rows: its large tables have fewer, in proportion."""
    small = sum(c for c in W1.cardinalities if c <= _SMALL)
    share = min(1.0, (rows - small) / (sum(W1.cardinalities) - small))
    sizes = tuple(c if c <= _SMALL else max(_SMALL, int(share * c)) for c in W1.cardinalities)
    return dataclasses.replace(W1, cardinalities=sizes)


def fills(sizes: Sequence[int]) -> Iterator[tuple[int, Keys]]:
    """Yields all ids, a part of each table in turn: the table and its ids."""
    for k in range(_FILLS):
        for i, size in enumerate(sizes):
            ids = np.arange(size * k // _FILLS, size * (k + 1) // _FILLS)
            if len(ids):
                yield i, ids


def serve(
    connection: Connection, folder: str, sizes: Sequence[int], max_bytes: int, spill: str
) -> None:
    """Fills the tables, and does what it is told."""
    columns = describe(W1.num_numerics, len(sizes))
    memory = Tiered(max_memory_bytes=max_bytes, directory=spill) if max_bytes else None
    trainer = UnitTrainer(
        dlrm.make(dlrm.Config(), columns), columns, container="tiers", batch=BATCH, memory=memory
    )
    tables = trainer.tables
    for i, ids in fills(sizes):
        tables.lookup({f"C{i + 1}": tf.constant(ids)}, insert=True, partial=True)
    connection.send(None)
    for what, number in iter(connection.recv, None):
        if what == "train":
            began = time.perf_counter()
            trainer.train(
                f"{folder}/batches.parquet",
                number * UNIT_ROWS,
                UNIT_ROWS,
                seed=number,
                step=number * (UNIT_ROWS // BATCH),
                rate=0.01,
            )
            connection.send(time.perf_counter() - began)
        elif what == "stats":
            (shard,) = tables.use()
            tier = tables.tier_stats()._asdict() if memory else {}
            connection.send({**tier, "memory_bytes": shard.memory_bytes})
        else:
            connection.send(_time_lookups(tables, np.load(f"{folder}/ids.npy")[:, number:]))


def _time_lookups(tables: Any, ids: Keys) -> list[float]:
    """Looks up batch after batch; gives the milliseconds of each."""
    firsts = range(0, ids.shape[1] - BATCH + 1, BATCH)
    return [1000 * time_lookup(tables, ids[:, at : at + BATCH], insert=True)[0] for at in firsts]


def time_lookup(tables: Any, ids: Keys, *, insert: bool) -> tuple[float, int]:
    """Looks up a batch's rows in one shard of a group; gives the seconds, and how many rows."""
    (group,), ((store,),) = tables.groups, tables.stores
    batch = {f"C{i + 1}": tf.constant(c) for i, c in enumerate(ids)}
    asked = tables.route(batch).routed[0].request(0)
    began = time.perf_counter()
    ops.lookup(store, asked.ids, asked.splits, dim=group.dim, insert=insert)
    return time.perf_counter() - began, len(asked.ids)


def stream_of(ids: Keys, sizes: Sequence[int]) -> tuple[Keys, Keys, Keys]:
    """Gives the rows of steps, each once per step, where each step begins, and all rows before."""
    firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    before = np.concatenate([part + firsts[i] for i, part in fills(sizes)])
    steps = [
        np.unique(ids[:, first : first + BATCH] + firsts[:, None])
        for first in range(0, ids.shape[1] - BATCH + 1, BATCH)
    ]
    starts = np.concatenate([[0], np.cumsum([len(s) for s in steps])])
    return np.concatenate(steps), starts, before


def measure(config: Config, run: Run) -> Content:
    """Trains with each share of the rows in memory, in turn."""
    workload = smaller(config.rows)
    sizes = workload.cardinalities
    units = config.warm_up_units + config.units
    examples = make_batches(workload, units * UNIT_ROWS + LOOKUPS * BATCH)
    keys, starts, before_all = stream_of(examples.ids[:, : units * UNIT_ROWS], sizes)
    of_unit = UNIT_ROWS // BATCH
    begin = int(starts[config.warm_up_units * of_unit])
    accesses = len(keys) - begin
    processes: dict[str, PausedProcess] = {}
    limits: dict[str, int] = {}
    with (
        files(workload, examples) as folder,
        tempfile.TemporaryDirectory(dir=config.spill_dir) as spill,
    ):
        iops = reads_per_sec(Path(spill), _READERS)

        def start(name: str, max_bytes: int) -> None:
            limits[name] = max_bytes
            processes[name] = PausedProcess(serve, str(folder), sizes, max_bytes, spill)

        try:
            start("none", 0)
            start("100", 1 << 40)
            for process in processes.values():
                process.wait_until_ready()
            whole = processes["100"].ask(("stats", 0))["memory_bytes"]
            for percent in config.percents:
                gone = (100 - percent) / 100 * sum(sizes) * _FLOAT_BYTES
                start(str(percent), int(whole - gone))
            for percent in config.percents:
                processes[str(percent)].wait_until_ready()
            secs: dict[str, list[float]] = {name: [] for name in processes}
            before: dict[str, Any] = {}
            for number in range(units):
                if number == config.warm_up_units:
                    before = {name: p.ask(("stats", 0)) for name, p in processes.items()}
                for name in [*processes][:: 1 if number % 2 else -1]:
                    secs[name].append(processes[name].ask(("train", number)))
                print(f"unit {number + 1}/{units}", flush=True)
            after = {name: p.ask(("stats", 0)) for name, p in processes.items()}
            lookups = {n: p.ask(("lookups", units * UNIT_ROWS)) for n, p in processes.items()}
        finally:
            for process in processes.values():
                process.kill()
    taken = {name: each[config.warm_up_units :] for name, each in secs.items()}
    cases = []
    for name, times in taken.items():
        pairs = zip(times, taken["none"], strict=True)
        rate = config.units * UNIT_ROWS / sum(times)
        case: dict[str, Any] = {
            "memory": name,
            "max_memory_bytes": limits[name],
            "examples_per_sec": round(rate),
            "ratio": report.spread([theirs / mine for mine, theirs in pairs]),
            "lookup_ms": {
                "p50": round(statistics.median(lookups[name]), 2),
                "p99": round(float(np.percentile(lookups[name], 99)), 2),
                "longest": round(max(lookups[name]), 2),
            },
        }
        cases.append(case)
        if name == "none":
            continue
        grew = {
            key: after[name][key] - before[name][key]
            for key in ("read", "disk_reads", "written", "moved", "late_reads")
        }
        case |= {
            **grew,
            "rows_on_disk": sum(after[name]["rows_on_disk"].values()),
            "disk_bytes": after[name]["disk_bytes"],
            "hit_rate": round(1 - grew["read"] / accesses, 4),
            "reads_per_step": round(grew["disk_reads"] / (config.units * of_unit), 1),
            "share_of_iops": round(grew["disk_reads"] / sum(times) / iops, 3),
            "write_amplification": round(
                grew["written"] / max(grew["written"] - grew["moved"], 1), 3
            ),
        }
        if name == "100":
            continue
        reads = grew["disk_reads"] / (config.units * UNIT_ROWS)
        in_memory = config.units * UNIT_ROWS / sum(taken["none"])
        bound = min(in_memory, iops / reads) if reads else in_memory
        capacity = sum(sizes) - case["rows_on_disk"]
        says_much = len(np.unique(keys)) > capacity  # else the optimum never misses
        pages, in_page = limits[name] // 4096, 4096 // _ROW_BYTES
        case |= {
            "belady": round(optimum_hits(keys, capacity, begin), 4) if says_much else None,
            "lru": round(lru_hits(keys, capacity, begin, before_all), 4),
            "pages_by_lru": round(
                lru_hits(keys // in_page, pages, begin, before_all[::in_page] // in_page), 4
            ),
            "bound": round(bound),
            "share_of_bound": round(rate / bound, 3),
        }
    return {
        "config": {"batch_size": BATCH, "unit_rows": UNIT_ROWS, "readers": _READERS},
        "results": {
            "table_rows": sum(sizes),
            "rows_per_step": round(accesses / (config.units * of_unit)),
            "iops": round(iops),
            "cases": cases,
        },
    }


def layout(content: Content) -> list[Part]:
    """Lays out speed, hits and reads by the share of the rows in memory."""
    r = content["results"]

    def cell(case: Mapping[str, Any], key: str, form: str = ".3f") -> str:
        return "" if case.get(key) is None else format(case[key], form)

    rows = [
        [
            "no tier" if case["memory"] == "none" else f"{case['memory']}%",
            f"{case['ratio']['median']:.3f}",
            cell(case, "share_of_bound", ".2f"),
            cell(case, "hit_rate"),
            cell(case, "belady"),
            cell(case, "lru"),
            cell(case, "pages_by_lru"),
            cell(case, "reads_per_step", ".0f"),
            cell(case, "share_of_iops", ".2f"),
            cell(case, "write_amplification", ".2f"),
            f"{case['lookup_ms']['p99']:.1f}",
            f"{case['lookup_ms']['longest']:.1f}",
        ]
        for case in r["cases"]
    ]
    heads = ["rows in memory", "speed by no tier", "by the bound", "hits", "Belady", "LRU"]
    heads += ["pages by LRU", "reads per step", "of the IOPS", "writes per row"]
    heads += ["lookup p99, ms", "longest"]
    about = f"{r['table_rows']:,} rows, {r['rows_per_step']:,} of them per step of {BATCH}; "
    return [Table(title=f"{about}{r['iops']:,} reads per second", heads=heads, rows=rows)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The tables, and the memory for them."""

    rows: int = option(3_000_000, "of the tables, about; W1 has 33,762,577", least=100_000)
    percents: tuple[int, ...] = option((50, 25, 10), "of the rows in memory", least=1, most=99)
    warm_up_units: int = option(4, "of 16384 examples, before what is measured", least=1)
    units: int = option(8, "that are measured", least=1)
    spill_dir: str = option("/tmp", "on the disk to measure", metavar=DIR)


BENCHMARK = Benchmark(config=Config, measure=measure, layout=layout)


if __name__ == "__main__":
    main(BENCHMARK)
