"""A plan of a run: what its tables, servers and workers will need, and how fast it will be."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from embedps.console.lines import say
from embedps.console.progress import ProgressLine
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.engine.step_model import StepModel
from embedps.engine.steps.ways import SyncMode
from embedps.planning import dataset_ids, speed
from embedps.planning.dataset_ids import StepIds, TableRows
from embedps.planning.memory import MemoryCurve, spare_bytes
from embedps.planning.plan_config import PlanConfig
from embedps.planning.row_limits import HeldRows, hold_rows
from embedps.planning.speed import Machines, MeasuredStep
from embedps.planning.step_sample import StepSample
from embedps.planning.step_traffic import Network, ServerStep, predict
from embedps.planning.sync_modes import ModePlan, calls_of, plan_modes, speed_of
from embedps.planning.tier_hits import TierPlan, plan_tier
from embedps.planning.tier_speed import MissCost, measure_miss, step_secs
from embedps.run.cluster_config import ClusterConfig
from embedps.run.config import TrainConfig
from embedps.tables.byte_limits import ServerLimit, evicted_bytes
from embedps.tables.groups import TableGroup, group_tables
from embedps.tables.specs import TableSpec
from embedps.tables.tiered import Tiered

WORKERS = (1, 2, 4, 8, 16, 32, 64)
SERVERS = (1, 2, 4, 8, 16, 32, 64)
_MEASURED_SECS = 16.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TablePlan:
    """A table, on one shard.

    Attributes:
      name: of the table.
      dim: floats per embedding.
      rows: at the end of an epoch, within the limits of the table and of the server.
      exact: whether rows were counted; otherwise they are estimated, or limits or policies lower
        them.
      displaced: rows beyond the limits, which others displaced or the capacity refused.
      table_bytes: memory of its rows and its index.
      ids_per_step: distinct ids that a step looks up.
    """

    name: str
    dim: int
    rows: int
    exact: bool
    displaced: int
    table_bytes: int
    ids_per_step: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServersPlan:
    """A number of parameter servers; each figure has one number per server.

    Attributes:
      num_ps: how many.
      rows: of all tables.
      displaced: rows beyond the limits.
      table_bytes: memory of all tables, and of pages that are ready for more rows.
      memory_bytes: of the server's process; 0 if it was not measured what it needs besides tables.
      bytes_in, bytes_out: per step of one worker.
    """

    num_ps: int
    rows: list[int]
    displaced: list[int]
    table_bytes: list[int]
    memory_bytes: list[int]
    bytes_in: list[int]
    bytes_out: list[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkersPlan:
    """A number of workers.

    Attributes:
      num_workers: how many.
      num_ps: parameter servers that hold the tables, and that do not limit the workers if possible.
      examples_per_sec: of all workers.
      epoch_secs: the time of one pass over the training split.
      limit: what limits the speed.
    """

    num_workers: int
    num_ps: int
    examples_per_sec: float
    epoch_secs: float
    limit: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A plan; see its parts. `local` and `measured` are empty if nothing was measured.

    Attributes:
      examples: of the training split.
      examples_per_step: mean.
      sync: what the workers of a step update together.
      calls: gRPC calls per step of a worker, at each server.
      max_server_bytes: the limit that all tables of a server share; 0 is no limit.
      max_memory_bytes: the memory that they share, if other rows are on disk; 0 is all.
      tiers: with that memory, for several numbers of servers.
      miss: the cost of a row on disk, measured in spill_dir; None if it was not.
      tables: of the model.
      servers: for several numbers of servers.
      needed_ps: the fewest servers whose memory holds the tables.
      workers: on machines of their own: all predictions.
      local: examples per second on this machine, as they were measured, with all rows in memory.
      local_with_disk: the same with `max_memory_bytes`, predicted for epochs after the first.
      measured: the steps that were measured.
      modes: what each mode costs on the run's own cluster; empty if the run has no servers.
    """

    examples: int
    examples_per_step: float
    sync: SyncMode
    calls: float
    max_server_bytes: int
    max_memory_bytes: int
    tiers: list[TierPlan]
    miss: MissCost | None
    tables: list[TablePlan]
    servers: list[ServersPlan]
    needed_ps: int | None
    workers: list[WorkersPlan]
    local: dict[str, float]
    local_with_disk: dict[str, float]
    measured: list[MeasuredStep]
    modes: list[ModePlan]


def make_plan(
    recommender: Recommender, dataset: Dataset, config: TrainConfig, asked: PlanConfig
) -> Plan:
    """Plans a run.

    Args:
      asked: what to plan for.

    Raises:
      DatasetError: a file of the dataset cannot be read.
      UsageError: the model cannot be trained on the dataset, or not under the limit of a server.
    """
    sizes: list[int] = []

    def created(next_creator: Any, **arguments: Any) -> tf.Variable:
        variable = next_creator(**arguments)
        sizes.append(int(variable.shape.num_elements() or 0))
        variables.append(variable)
        return variable

    variables: list[tf.Variable] = []
    with tf.variable_creator_scope(created):
        model = StepModel(recommender, dataset)
    limit_bytes = config.eviction.max_server_bytes
    keeps_evicted = config.eviction.evicted_rows is not None
    groups = group_tables(model.tables, model.features)
    if limit_bytes:
        ServerLimit(max_bytes=limit_bytes).check(groups, ["server"], keeps_evicted=keeps_evicted)
    memory_bytes = config.eviction.max_memory_bytes
    limits = _Limits(limit_bytes, memory_bytes, evicted_bytes(groups, keeps_evicted=keeps_evicted))
    if own := [table.name for group in groups if group.memory for table in group.tables]:
        say(f"tables {own} have a memory of their own: no wait for its disk is predicted")
    spilled = [g for g in groups if memory_bytes and not (g.in_memory or g.memory)]
    rows, steps, sample = _read_ids(model, groups, dataset, config, asked, spilled)
    measured = _measure(recommender, dataset, config, asked)
    network = Network(model, variables, sizes)
    curves = [
        MemoryCurve(group, max(rows[table.name].rows for table in group.tables)) for group in groups
    ]
    tables = _plan_tables(groups, curves, rows, steps, limits)
    base = next((step.base_bytes for step in measured if step.num_ps), 0)
    servers = [
        _plan_servers(n, groups, curves, rows, steps, network, base, limits)
        for n in sorted({*SERVERS, *([config.cluster.num_ps] if config.cluster.num_ps else [])})
    ]
    limit = asked.server_memory_gib * 2**30
    fits = [s.num_ps for s in servers if max(s.memory_bytes or s.table_bytes) <= limit]
    examples = dataset.split("train").rows
    per_step = steps.num_rows / max(steps.num_steps, 1)
    cluster = config.cluster
    tiers = [
        plan_tier(
            spilled,
            rows,
            steps,
            num_ps=of.num_ps,
            max_memory_bytes=memory_bytes,
            examples=examples,
            sample=sample,
            shuffles=config.shuffle,
            lanes=1 if cluster.num_ps else cluster.num_workers,
        )
        for of in servers
        if spilled
    ]
    miss: MissCost | None = None
    if measured and tiers and tiers[0].misses:
        say("measuring the disk: 2 s")
        miss = measure_miss(
            spilled,
            config.eviction.spill_dir or "",
            rows_on_disk=sum(rows[t.name].rows for g in spilled for t in g.tables) - tiers[0].rows,
            misses=tiers[0].misses - tiers[0].again,
        )
    of_tier = {each.num_ps: each for each in tiers}
    disk_secs = {each.num_ps: each.misses * (miss.secs if miss else 0.0) for each in tiers}
    workers, local = _plan_workers(
        servers, fits, measured, asked, examples, per_step, disk_secs, cluster=cluster
    )
    return Plan(
        examples=examples,
        examples_per_step=per_step,
        sync=cluster.sync,
        calls=calls_of(cluster.sync, cluster.group_size(cluster.num_workers), steps.unit_steps),
        max_server_bytes=limit_bytes,
        max_memory_bytes=memory_bytes,
        tiers=tiers,
        miss=miss,
        tables=tables,
        servers=servers,
        needed_ps=fits[0] if fits else None,
        workers=workers,
        local=local,
        local_with_disk={
            speed.name_of(each.num_ps, each.num_workers): per_step
            / step_secs(each, of_tier[max(each.num_ps, 1)], miss)
            for each in measured
            if miss
        },
        measured=measured,
        modes=[
            mode
            for of in servers
            if of.num_ps == cluster.num_ps
            for mode in plan_modes(
                cluster,
                bytes_in=max(of.bytes_in),
                bytes_out=max(of.bytes_out),
                examples_per_step=per_step,
                unit_steps=steps.unit_steps,
                examples_per_sec=local.get(speed.name_of(of.num_ps, cluster.num_workers), 0.0),
            )
        ],
    )


def _read_ids(
    model: StepModel,
    groups: Sequence[TableGroup],
    dataset: Dataset,
    config: TrainConfig,
    asked: PlanConfig,
    spilled: Sequence[TableGroup],
) -> tuple[dict[str, TableRows], StepIds, StepSample | None]:
    total = dataset.split("train").rows
    with ProgressLine("reading steps", total, unit="rows") as line:
        steps = dataset_ids.sample_steps(model, groups, dataset, config, _adding(line))
    if not asked.scan:
        return dataset_ids.known_rows(groups, dataset), steps, None
    sample: StepSample | None = None
    batches: dict[str, Any] = {}
    if spilled:
        names = [table.name for group in spilled for table in group.tables]
        sample = StepSample(names, unit_steps=math.ceil(steps.unit_steps))
        batches = {"batch_rows": config.batch_size, "sample": sample}
    with ProgressLine("counting ids", total, unit="rows") as line:
        rows = dataset_ids.count_rows(model, groups, dataset, _adding(line), **batches)
    return rows, steps, sample


def _adding(line: ProgressLine) -> dataset_ids.Progress:
    done = 0

    def add(rows: int) -> None:
        nonlocal done
        done += rows
        line.update(done)

    return add


def _measure(
    recommender: Recommender, dataset: Dataset, config: TrainConfig, asked: PlanConfig
) -> list[MeasuredStep]:
    if not asked.measure:
        return []
    # Its rows are few: the time of those on disk is added.
    eviction = dataclasses.replace(config.eviction, max_memory_bytes=0, spill_dir=None)
    config = dataclasses.replace(config, eviction=eviction)
    of_run = (config.cluster.num_ps, config.cluster.num_workers)
    clusters = [(0, 1), of_run] if of_run[0] else [(0, of_run[1]), (1, 1)]
    return [
        speed.measure_step(
            recommender,
            dataset,
            config,
            num_ps=num_ps,
            num_workers=num_workers,
            secs=_MEASURED_SECS,
            say=say,
        )
        for num_ps, num_workers in clusters
    ]


class _Limits(NamedTuple):
    """What decides which rows have a place.

    Attributes:
      server_bytes: that all tables of a server share; 0 is no limit.
      memory_bytes: that they share, if other rows are on disk; 0 is all.
      evicted_bytes: of each table's files of evicted rows, per shard.
    """

    server_bytes: int
    memory_bytes: int
    evicted_bytes: Mapping[str, int]


def _hold_rows(
    num_ps: int, groups: Sequence[TableGroup], rows: Mapping[str, TableRows], limits: _Limits
) -> dict[str, HeldRows]:
    tables = [table for group in groups for table in group.tables]
    counted = [rows[table.name] for table in tables]
    held = hold_rows(
        tables,
        counted,
        num_ps=num_ps,
        max_server_bytes=limits.server_bytes,
        evicted_bytes=limits.evicted_bytes,
    )
    return {table.name: of_table for table, of_table in zip(tables, held, strict=True)}


def _plan_tables(
    groups: Sequence[TableGroup],
    curves: Sequence[MemoryCurve],
    rows: Mapping[str, TableRows],
    steps: StepIds,
    limits: _Limits,
) -> list[TablePlan]:
    held = _hold_rows(1, groups, rows, limits)

    def plan(table: TableSpec, curve: MemoryCurve) -> TablePlan:
        of_table = held[table.name]
        displaced = round(of_table.displaced[0])
        counted = rows[table.name].exact and table.admission is None and not table.eviction
        return TablePlan(
            name=table.name,
            dim=table.embedding_dim,
            rows=int(of_table.rows[0]),
            exact=counted and not displaced,
            displaced=displaced,
            table_bytes=round(curve.bytes_of(of_table.sized)[0]),
            ids_per_step=steps.by_table[table.name],
        )

    return [
        plan(table, curve)
        for group, curve in zip(groups, curves, strict=True)
        for table in group.tables
    ]


def _plan_servers(
    num_ps: int,
    groups: Sequence[TableGroup],
    curves: Sequence[MemoryCurve],
    rows: Mapping[str, TableRows],
    steps: StepIds,
    network: Network,
    base_bytes: int,
    limits: _Limits,
) -> ServersPlan:
    held = _hold_rows(num_ps, groups, rows, limits)
    table_bytes: NDArray[np.float64] = np.zeros(num_ps)
    in_memory: NDArray[np.float64] = np.zeros(num_ps)  # of tables that the disk's limit omits
    own: dict[Tiered, NDArray[np.float64]] = {}  # of tables with a memory of their own
    ids: NDArray[np.float64] = np.zeros(num_ps)
    floats: NDArray[np.float64] = np.zeros(num_ps)
    for g, (group, curve) in enumerate(zip(groups, curves, strict=True)):
        used = sum((curve.bytes_of(held[t.name].sized) for t in group.tables), np.zeros(num_ps))
        used += np.array([spare_bytes(each) for each in used])
        if group.memory is not None:
            own[group.memory] = own.get(group.memory, 0) + used
        else:
            table_bytes += used
            in_memory += used if group.in_memory and limits.memory_bytes else 0
        ids += steps.by_shard(g, num_ps)
        floats += steps.by_shard(g, num_ps) * group.dim * network.wire_share
    table_bytes += sum(limits.evicted_bytes.values())
    # The stores of a server share what they have ready, and it counts.
    for most in (limits.server_bytes, limits.memory_bytes):
        table_bytes = np.minimum(table_bytes, most + in_memory if most else np.inf)
    for memory, used in own.items():
        table_bytes += np.minimum(used, memory.max_memory_bytes)
    exchanged = [
        ServerStep(
            ids=ids[i], row_floats=floats[i], network_floats=held, unit_steps=steps.unit_steps
        )
        for i, held in enumerate(network.floats_by_server(num_ps))
    ]
    return ServersPlan(
        num_ps=num_ps,
        rows=[round(x) for x in sum((each.rows for each in held.values()), np.zeros(num_ps))],
        displaced=[
            round(x) for x in sum((each.displaced for each in held.values()), np.zeros(num_ps))
        ],
        table_bytes=[round(x) for x in table_bytes],
        memory_bytes=[round(x) + base_bytes for x in table_bytes] if base_bytes else [],
        bytes_in=[round(predict("bytes_in", step)) for step in exchanged],
        bytes_out=[round(predict("bytes_out", step)) for step in exchanged],
    )


def _plan_workers(
    servers: Sequence[ServersPlan],
    fits: Sequence[int],
    measured: Sequence[MeasuredStep],
    asked: PlanConfig,
    examples: int,
    per_step: float,
    disk_secs: Mapping[int, float],
    *,
    cluster: ClusterConfig,
) -> tuple[list[WorkersPlan], dict[str, float]]:
    """Predicts speeds on machines of their own, and on this one."""
    if not measured:
        return [], {}
    step = measured[-1]
    machines = Machines(
        cores=asked.cores or step.cores, link_bytes_per_sec=asked.link_gbits / 8 * 1e9
    )
    plans = []
    for num_workers in WORKERS:
        best: WorkersPlan | None = None
        for of in servers:
            if of.num_ps not in fits:
                continue
            found = speed.predict_speed(
                step,
                machines,
                num_workers=num_workers,
                num_ps=of.num_ps,
                worker_bytes=max(sum(of.bytes_in), sum(of.bytes_out)),
                server_bytes=max(*of.bytes_in, *of.bytes_out),
                staleness_bound=cluster.staleness_bound(num_workers),
                disk_secs=disk_secs.get(of.num_ps, 0.0) / of.num_ps,
            )
            rate = found.steps_per_sec * per_step * speed_of(cluster.sync, num_workers)
            if best is None or rate > best.examples_per_sec * 1.001:
                best = WorkersPlan(
                    num_workers=num_workers,
                    num_ps=of.num_ps,
                    examples_per_sec=rate,
                    epoch_secs=examples / rate,
                    limit=found.limit,
                )
            if found.limit in ("workers", "staleness"):
                break
        plans += [best] if best is not None else []
    local = {
        speed.name_of(each.num_ps, each.num_workers): each.steps_per_sec * per_step
        for each in measured
    }
    return plans, local


def epoch_text(secs: float) -> str:
    """Formats a time in seconds, minutes or hours."""
    for unit, size in (("h", 3600), ("min", 60)):
        if secs >= 2 * size:
            return f"{secs / size:.1f} {unit}"
    return f"{math.ceil(secs)} s"
