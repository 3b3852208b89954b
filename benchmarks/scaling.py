"""Counts bytes and RPCs per training step and shard: `python -m benchmarks.scaling`.

One worker trains DLRM over 1, 2, 4 and 8 parameter-server processes of this machine, with various
numbers of tables, dims, batch sizes and steps per unit; 2 workers train it in the modes of
`--sync`. At each parameter server the kernel counts the bytes of its TCP connections (`ss -ti`),
and gRPC counts the calls that the server serves and makes (GRPC_TRACE=http). All counts are per
step of one worker. The linear model of embedps/planning, fitted here on one worker and 1 and 2
parameter servers only, must predict 4 and 8, and each mode of `--sync`. The model then tells at
which rate the network limits a large cluster.

Health checks go by the clock, so none is made while it counts. So counts do not depend on the speed
or load of the machine.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import multiprocessing
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import workload
from benchmarks.harness import Benchmark, Content, Options, Run, main
from benchmarks.layout import Part, Table
from benchmarks.peers import protocol
from benchmarks.peers.embedps_dlrm import Embedps
from embedps.cluster import local_processes
from embedps.cluster.coordinator import CoordinatorCluster
from embedps.cluster.local_cluster import LocalCluster
from embedps.config_fields import option
from embedps.console import tf_logging
from embedps.engine.steps.ways import OnLostWorker, SyncMode
from embedps.planning.step_traffic import TERMS, ServerStep, place_variables, predict

_UNITS = 4  # the first is not counted
_FITTED = (1, 2)
_TOLERANCE = 0.10

LARGE_WORKERS, LARGE_PS, LARGE_GBITS = 64, 16, 25.0
_GRPC_TRACE = {"GRPC_VERBOSITY": "DEBUG", "GRPC_TRACE": "http", "TF_CPP_MIN_LOG_LEVEL": "0"}
_CALL = re.compile(rb"HDR:SVR::status: 200|HDR:CLI::path:")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """A model to train, and how.

    Attributes:
      num_ps: parameter servers.
      tables: of the model.
      dim: of each.
      batch: examples of a worker's step.
      sync: what the workers of a step update together.
      on_lost_worker: "continue" lets them take steps in groups.
      num_workers: that train.
      unit_steps: of each worker, per unit that it has a part of.
    """

    num_ps: int
    tables: int = 26
    dim: int = 16
    batch: int = 2048
    sync: SyncMode = "none"
    on_lost_worker: OnLostWorker = "repeat"
    num_workers: int = 1
    unit_steps: int = 16

    def workload(self) -> workload.Workload:
        """Returns W1 with the point's tables and dim."""
        return dataclasses.replace(
            workload.W1,
            cardinalities=workload.W1.cardinalities[: self.tables],
            dim=self.dim,
            bottom_mlp=(512, 256, 64, self.dim),
        )


_MODES: tuple[SyncMode, ...] = ("dense", "full")
POINTS = (
    *(Point(num_ps=n) for n in (1, 2, 4, 8)),
    *(Point(num_ps=n, batch=512) for n in (1, 2, 4, 8)),
    *(Point(num_ps=n, dim=64) for n in (1, 2, 8)),
    *(Point(num_ps=n, tables=8) for n in (1, 2, 4)),
    Point(num_ps=4, tables=8, dim=64, batch=512),
    *(Point(num_ps=1, batch=512, unit_steps=steps) for steps in (4, 64)),
    *(Point(num_ps=2, num_workers=2, sync=mode) for mode in _MODES),
    *(Point(num_ps=2, num_workers=2, sync=mode, batch=512, unit_steps=4) for mode in _MODES),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """The work of a shard per step, and the traffic counted there per step.

    Attributes:
      ids: distinct ids.
      dim: floats per id.
      floats: floats of the network's variables on the shard's server.
      bytes_in, bytes_out: TCP payload.
      calls: gRPC calls, served and made.
      unit_steps: of a worker, per unit.
    """

    ids: float
    dim: int
    floats: int
    bytes_in: float
    bytes_out: float
    calls: float
    unit_steps: int = 16

    @property
    def step(self) -> ServerStep:
        """What the scaling model counts by."""
        return ServerStep(
            ids=self.ids,
            row_floats=self.ids * self.dim,
            network_floats=float(self.floats),
            unit_steps=self.unit_steps,
        )


def distinct_ids(ids: npt.NDArray[np.int64], batch: int) -> float:
    """Counts distinct (feature, id) pairs per batch, on average over whole batches."""
    batches = range(0, ids.shape[1] - batch + 1, batch)
    return float(np.mean([sum(len(np.unique(f[k : k + batch])) for f in ids) for k in batches]))


def read_known(path: Path) -> dict[Point, dict[str, Any]]:
    """Reads the points that were counted before, each with the commit at which it was."""
    if not path.is_file():
        return {}
    file = json.loads(path.read_text())
    before = {"commit": file["environment"]["commit"]}
    found = {Point(**result["point"]): before | result for result in file["counts"]}
    return {point: result | {"point": dataclasses.asdict(point)} for point, result in found.items()}


def measure(points: Sequence[Point], commit: str) -> list[dict[str, Any]]:
    """Measures the shards of each point."""
    clusters: dict[tuple[int, int], list[Point]] = {}
    for point in points:
        clusters.setdefault((point.num_ps, point.num_workers), []).append(point)
    spawn = multiprocessing.get_context("spawn")
    # A process per cluster: TensorFlow never leaves one that it has connected to.
    with ProcessPoolExecutor(1, spawn, max_tasks_per_child=1) as pool:
        counted = pool.map(_measure_cluster, clusters.values())
        shards = itertools.chain.from_iterable(counted)
        return [
            {
                "point": dataclasses.asdict(point),
                "commit": commit,
                "shards": [dataclasses.asdict(shard) for shard in of_point],
            }
            for point, of_point in zip(itertools.chain(*clusters.values()), shards, strict=True)
        ]


def _measure_cluster(points: Sequence[Point]) -> list[list[Shard]]:
    """Measures the shards of each point of one cluster."""
    os.environ.update(_GRPC_TRACE)  # the started processes log every call
    tf_logging.silence_native_stderr()  # hides the calls of this process
    first, found = points[0], []
    with tempfile.TemporaryDirectory() as logs:
        cluster = LocalCluster(
            num_ps=first.num_ps, num_workers=first.num_workers, log_dir=Path(logs)
        )
        cluster._health.close()  # no checks by the clock: a loaded machine's would not cancel out
        try:
            for point in points:
                found.append(_measure(point, cluster, cluster.processes, Path(logs)))
                print(f"counted {point}", flush=True)
        finally:
            cluster.close()
    return found


def _measure(
    point: Point, cluster: CoordinatorCluster, processes: local_processes.LocalProcesses, logs: Path
) -> list[Shard]:
    rows = point.unit_steps * point.batch * point.num_workers
    work = point.workload()
    batches = workload.make_batches(work, rows)
    with workload.files(work, batches) as folder:
        settings = {
            "shuffle": False,
            "sync": point.sync,
            "on_lost_worker": point.on_lost_worker,
            "steps_per_unit": point.unit_steps,
        }
        program = Embedps(protocol.read_work(folder, settings), cluster)
        variant = protocol.Variant(task="train", kind="rowwise_adagrad", batch=point.batch)
        run = program.prepare(variant)
        run(0.0)
        before = _count(point.num_ps, processes, logs)
        for _ in range(_UNITS - 1):
            run(0.0)
        after = _count(point.num_ps, processes, logs)
    steps = (_UNITS - 1) * point.unit_steps * point.num_workers
    ids = distinct_ids(batches.ids, point.batch) / point.num_ps
    shards = []
    for shard, counts in enumerate((after - before) / steps):
        own = [v for v in program.network.trainable_variables if f"task:{shard}/" in v.device]
        shards.append(
            Shard(
                ids=ids,
                dim=point.dim,
                floats=sum(int(np.prod(v.shape)) for v in own),
                unit_steps=point.unit_steps,
                bytes_in=counts[0],
                bytes_out=counts[1],
                calls=counts[2],
            )
        )
    return shards


def _count(
    num_ps: int, processes: local_processes.LocalProcesses, logs: Path
) -> npt.NDArray[np.float64]:
    """Reads each parameter server's bytes in, bytes out and calls so far."""
    time.sleep(0.5)  # late log lines and acknowledgements belong to the earlier steps
    output = subprocess.run(["ss", "-tinpOH"], capture_output=True, text=True, check=True).stdout
    counts = np.zeros((num_ps, 3))
    for shard in range(num_ps):
        mine = [
            line for line in output.splitlines() if f"pid={processes.pid('ps', shard)}," in line
        ]
        for column, name in enumerate(("bytes_received", "bytes_sent")):
            found = (re.search(rf"\b{name}:(\d+)", line) for line in mine)
            counts[shard, column] = sum(int(m.group(1)) for m in found if m)
        counts[shard, 2] = len(_CALL.findall((logs / f"ps-{shard}.log").read_bytes()))
    return counts


def fit(results: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Fits the coefficients of each count on the shards of the points to fit."""
    fitted = [
        Shard(**shard)
        for result in results
        if _is_fitted(Point(**result["point"]))
        for shard in result["shards"]
    ]
    model = {}
    for what in TERMS:
        terms = np.array([s.step.terms(what) for s in fitted])
        counted = np.array([getattr(s, what) for s in fitted])
        weights = 1 / counted  # minimizes the relative error
        model[what] = _least_squares(terms * weights[:, None], counted * weights)
    return model


def _least_squares(terms: npt.NDArray[np.float64], wanted: npt.NDArray[np.float64]) -> list[float]:
    """Fits costs, of which none is negative: a term that would be is left out."""
    kept = list(range(terms.shape[1]))
    while (found := np.linalg.lstsq(terms[:, kept], wanted)[0]).min() < 0:
        kept.pop(int(found.argmin()))
    costs = np.zeros(terms.shape[1])
    costs[kept] = found
    return [float(cost) for cost in costs]


def _is_fitted(point: Point) -> bool:
    """Tells whether the model is fitted on a point; it must predict all others."""
    return point.num_ps in _FITTED and point.sync == "none"


def errors(
    results: Sequence[dict[str, Any]], model: Mapping[str, Sequence[float]]
) -> list[dict[str, Any]]:
    """Compares each point's counts, averaged over its shards, with the prediction."""
    rows = []
    for result in results:
        shards = [Shard(**shard) for shard in result["shards"]]
        point = Point(**result["point"])
        row: dict[str, Any] = {**dataclasses.asdict(point), "fitted": _is_fitted(point)}
        for what in TERMS:
            counted = float(np.mean([getattr(s, what) for s in shards]))
            predicted = float(np.mean([predict(what, s.step, model) for s in shards]))
            worst = max(abs(predict(what, s.step, model) / getattr(s, what) - 1) for s in shards)
            row[what] = {
                "counted": round(counted, 1),
                "predicted": round(predicted, 1),
                "error": round(predicted / counted - 1, 4),
                "worst_shard_error": round(worst, 4),
            }
        rows.append(row)
    return rows


def network_sizes(work: workload.Workload) -> list[int]:
    """Counts the floats of each of the network's variables, in the order of their creation."""
    interactions = protocol.num_interactions(len(work.cardinalities), work.dim)
    widths = [(work.num_numerics, *work.bottom_mlp), (interactions, *work.top_mlp)]
    return [n for w in widths for a, b in itertools.pairwise(w) for n in (a * b, b)]


def project(
    model: Mapping[str, Sequence[float]], point: Point, rates: Sequence[float]
) -> dict[str, Any]:
    """Projects a large cluster: the load of the fullest server's link, and the rate that fills it.

    Args:
      rates: examples per second and worker.
    """
    work = point.workload()
    batches = workload.make_batches(work, 4 * point.batch)
    sizes = network_sizes(work)
    fullest = max(sum(sizes[i] for i in of) for of in place_variables(sizes, LARGE_PS))
    shard = Shard(
        ids=distinct_ids(batches.ids, point.batch) / LARGE_PS,
        dim=point.dim,
        floats=fullest,
        unit_steps=point.unit_steps,
        bytes_in=0,
        bytes_out=0,
        calls=0,
    )
    bytes_in, bytes_out = (predict(what, shard.step, model) for what in ("bytes_in", "bytes_out"))
    link = LARGE_GBITS / 8 * 1e9
    most = link / (LARGE_WORKERS * max(bytes_in, bytes_out)) * point.batch
    return {
        "workers": LARGE_WORKERS,
        "num_ps": LARGE_PS,
        "gbits": LARGE_GBITS,
        **{k: v for k, v in dataclasses.asdict(point).items() if k != "num_ps"},
        "bytes_in_per_step_and_worker": round(bytes_in),
        "bytes_out_per_step_and_worker": round(bytes_out),
        "calls_per_step_and_worker": round(predict("calls", shard.step, model), 1),
        "examples_per_sec_and_worker_when_full": round(most),
        "examples_per_sec_in_all_when_full": round(most * LARGE_WORKERS),
        "link_use_at": {str(round(r)): round(r / most, 3) for r in rates},
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Options):
    """Which points."""

    keep_known: bool = option(
        False, "count only points that --output lacks; the machine's speed does not matter"
    )


def count_and_fit(config: Config, run: Run) -> Content:
    """Counts at each point, and fits the model."""
    known = read_known(run.path) if config.keep_known else {}
    new = measure([point for point in POINTS if point not in known], run.environment["commit"])
    counted = known | {Point(**result["point"]): result for result in new}
    results = [counted[point] for point in POINTS]
    model = fit(results)
    rows = errors(results, model)
    predicted = [row[what] for row in rows if not row["fitted"] for what in TERMS]
    return {
        "config": {"units_per_point": _UNITS - 1, "fitted_on_ps": _FITTED},
        "model": {w: dict(zip(TERMS[w], model[w], strict=True)) for w in TERMS},
        "points": rows,
        "largest_error": max(abs(of["error"]) for of in predicted),
        "largest_shard_error": max(of["worst_shard_error"] for of in predicted),
        "large": [
            project(model, Point(num_ps=LARGE_PS, batch=batch, dim=dim), (50e3, 100e3, 200e3))
            for dim in (16, 64)
            for batch in (2048, 8192)
        ],
        "counts": results,
    }


def layout(content: Content) -> list[Part]:
    """Lays out counts and predictions, the model, and what it says of a large cluster."""
    names = {"bytes_in": "bytes in", "bytes_out": "bytes out", "calls": "calls"}
    rows = []
    for point in content["points"]:
        numbers = ("num_ps", "num_workers", "sync", "tables", "dim", "batch", "unit_steps")
        cells = [str(point[k]) for k in numbers]
        for what in names:
            of, digits = point[what], int(what == "calls")
            text = f"{of['counted']:,.{digits}f}"
            if not point["fitted"]:
                text += f" (predicted {of['predicted']:,.{digits}f}, {of['error']:+.1%})"
            cells.append(text)
        rows.append(cells)
    heads = ["PS", "workers", "--sync", "tables", "dim", "batch", "steps", *names.values()]
    model = [
        [names[what], " + ".join(f"{value:,.2f} {term}" for term, value in terms.items())]
        for what, terms in content["model"].items()
    ]
    first = content["large"][0]
    uses = list(first["link_use_at"])
    large = [
        [
            f"{x['tables']} x {x['dim']}, batch {x['batch']}",
            f"{x['bytes_in_per_step_and_worker']:,} / {x['bytes_out_per_step_and_worker']:,}",
            f"{x['examples_per_sec_and_worker_when_full']:,}",
            f"{x['examples_per_sec_in_all_when_full'] / 1e6:.1f}M",
            *(f"{x['link_use_at'][use]:.0%}" for use in uses),
        ]
        for x in content["large"]
    ]
    of_large = ["tables x dim", "bytes in / out per step", "examples/s per worker when full"]
    of_large += ["all workers when full", *(f"link use at {int(u):,} per worker" for u in uses)]
    return [
        Table(heads=heads, rows=rows),
        "Steps are per unit; counts are per step of one worker. Predictions are within "
        f"{content['largest_error']:.1%} ({content['largest_shard_error']:.1%} for the worst "
        "single shard). The model, fitted on 1 and 2 parameter servers and `--sync none`:",
        Table(heads=["per step, worker and shard", "is"], rows=model),
        f"{first['workers']} workers and {first['num_ps']} parameter servers on {first['gbits']:g} "
        "Gb/s links; for the server with the largest part of the network:",
        Table(heads=of_large, rows=large),
    ]


def _failure(content: Content) -> str | None:
    off = content["largest_error"]
    return None if off <= _TOLERANCE else f"a prediction is off by {off:.1%}: {_TOLERANCE:.0%}"


BENCHMARK = Benchmark(config=Config, measure=count_and_fit, layout=layout, failure=_failure)


if __name__ == "__main__":
    main(BENCHMARK)
