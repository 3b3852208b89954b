"""A plan's figures are those that a run then shows."""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from embedps.cluster.local_cluster import LocalCluster
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.models import dlrm
from embedps.planning.plan import Plan, WorkersPlan, make_plan
from embedps.planning.plan_config import PlanConfig
from embedps.planning.plan_tables import print_plan
from embedps.planning.speed import Machines, MeasuredStep, predict_speed, unit_arguments
from embedps.planning.step_traffic import place_variables
from embedps.planning.sync_modes import SPEEDS, ModePlan, calls_of, plan_modes, speed_of
from embedps.run.cluster_config import NO_BOUND, ClusterConfig
from embedps.run.config import TrainConfig
from embedps.scheduling.gang_scheduler import GangScheduler
from embedps.tables import SizeLimit, TableSpec
from embedps.tables.byte_limits import limited_bytes, limited_row_bytes
from embedps.training.trainer import Trainer
from embedps.training.training_setup import TrainingSetup, set_up
from tests.builders import MIXED, TABLES, SumModel, write_dataset
from tests.commands import run_program

MODEL = dlrm.Config(embedding_dim=8, bottom_mlp=(64, 32), top_mlp=(64,))
WITHIN = 0.10
TRAFFIC: dict[str, Any] = {
    "bytes_in": 5,
    "bytes_out": 4,
    "examples_per_step": 512.0,
    "unit_steps": 16.0,
}
STEP = MeasuredStep(
    num_ps=1,
    num_workers=2,
    cores=2,
    examples=1,
    secs=0.5,
    steps_per_sec=4.0,
    worker_cpu_secs=0.4,
    server_cpu_secs=1e-6,
    base_bytes=0,
)


def run_config(directory: Path, name: str, **options) -> TrainConfig:
    return TrainConfig.from_options(
        data=str(directory / "data"),
        model_dir=str(directory / name),
        eval="none",
        batch_size=512,
        unit_rows=2048,
        **options,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("plan")
    write_dataset(directory / "data", train=(9000, 9001), row_group_rows=3000)
    return directory


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A folder with the same data, whose lists and row numbers are described too."""
    directory = tmp_path_factory.mktemp("whole")
    write_dataset(directory / "data", train=(9000, 9001), row_group_rows=3000, whole=True)
    return directory


@pytest.fixture(scope="module")
def dataset(folder) -> Dataset:
    return Dataset.open(folder / "data")


@pytest.fixture(scope="module")
def plan(folder, dataset) -> Plan:
    config = run_config(folder, "unused")
    return make_plan(dlrm.make(MODEL, dataset), dataset, config, PlanConfig(measure=False))


def assert_within(predicted, counted, share: float = WITHIN) -> None:
    np.testing.assert_allclose(predicted, counted, rtol=share)


def test_rows_and_bytes_of_tables_are_those_of_a_run(folder, dataset, plan):
    trainer = Trainer(dlrm.make(MODEL, dataset), dataset, run_config(folder, "run"))
    trainer.fit()
    stats = trainer.collection.stats()
    assert {table.name: table.rows for table in plan.tables} == stats.rows
    for table in plan.tables:
        assert_within(table.table_bytes, stats.table_bytes[table.name])
    assert_within(plan.servers[0].table_bytes, [stats.memory_bytes])


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("ss") is None, reason="counts bytes of sockets by ss")
def test_rows_bytes_and_messages_of_each_server_are_those_of_a_run(folder):
    # In a client of its own: TensorFlow never leaves a cluster that it has connected to.
    run_program("-m", "tests.planning.test_plan", folder)


def check_cluster(folder: Path) -> None:
    """Compares a plan with what 2 parameter servers and 2 workers then have and send."""
    dataset = Dataset.open(folder / "data")
    config = run_config(folder, "cluster", num_ps=2, num_workers=2)
    plan = make_plan(dlrm.make(MODEL, dataset), dataset, config, PlanConfig(measure=False))
    planned = next(of for of in plan.servers if of.num_ps == 2)
    with LocalCluster(num_ps=2, num_workers=2) as cluster:
        setup = set_up(dlrm.make(MODEL, dataset), dataset, config, cluster, [], run_id=0)
        units = itertools.cycle(setup.ledger.units_of(0))
        workers: set[int | None] = set()
        while len(workers) < 2:  # each has the function, and its connections
            calls = [schedule(cluster, setup, next(units), config) for _ in range(4)]
            workers |= {call.worker for call in calls if cluster.fetch(call) is not None}
        before, epoch = count(cluster), setup.ledger.units_of(0)
        for call in [schedule(cluster, setup, unit, config) for unit in epoch * 2]:
            cluster.fetch(call)
        counted = (count(cluster) - before) / (2 * setup.ledger.steps_per_epoch)
        shards = setup.collection.shard_stats()
        setup.collection.drop()
        for mode in plan.modes[1:]:
            check_in_step(folder, cluster, mode)
    assert [sum(shard.rows.values()) for shard in shards] == planned.rows
    assert_within(planned.table_bytes, [shard.memory_bytes for shard in shards])
    assert_within([planned.bytes_in, planned.bytes_out], counted.T)
    # The skew: how much more than the mean the fullest server gets and sends.
    skews = [skew(planned.bytes_in), skew(planned.bytes_out)]
    assert_within(skews, skew(counted), 0.05)


def check_in_step(folder: Path, cluster: LocalCluster, plan: ModePlan) -> None:
    """Compares a plan with what each server gets and sends while workers take steps together."""
    dataset = Dataset.open(folder / "data")
    where = {"num_ps": 2, "num_workers": 2, "sync": plan.sync}
    config = run_config(folder, plan.sync, epochs=3, **where)
    setup = set_up(dlrm.make(MODEL, dataset), dataset, config, cluster, [], run_id=0)
    ledger, counts = setup.ledger, []
    for epoch in range(3):
        ledger.pause_at((epoch + 1) * ledger.units_per_epoch)
        with GangScheduler(
            cluster,
            ledger,
            setup.train_unit,
            arguments=lambda unit: unit_arguments(unit, config),
            record=lambda *_: None,
            stop=threading.Event(),
        ) as scheduler:
            while scheduler.wait(60):
                pass
        assert scheduler.error is None
        # From the first on, both workers have the function, and their connections.
        counts.append((count(cluster), time.monotonic()))
    (first, began), (last, ended) = counts[0], counts[-1]
    time.sleep(2)  # what goes by the clock: health checks
    idle = (count(cluster) - last) * (ended - began) / (time.monotonic() - ended)
    setup.collection.drop()
    counted = (last - first - idle) / (2 * ledger.steps_per_epoch)
    assert_within([plan.bytes_in, plan.bytes_out], np.max(counted, axis=0))


def skew(of_servers) -> np.ndarray:
    return np.max(of_servers, axis=0) / np.mean(of_servers, axis=0)


def schedule(cluster: LocalCluster, setup: TrainingSetup, unit, config: TrainConfig):
    return cluster.schedule(setup.train_unit, unit_arguments(unit, config))


def count(cluster: LocalCluster) -> np.ndarray:
    """Bytes that each parameter server received and sent so far, as benchmarks.scaling counts."""
    output = subprocess.run(["ss", "-tinpOH"], capture_output=True, text=True, check=True).stdout
    counts = np.zeros((cluster.num_ps, 2))
    for server in range(cluster.num_ps):
        mine = f"pid={cluster.processes.pid('ps', server)},"
        text = "\n".join(line for line in output.splitlines() if mine in line)
        for at, name in enumerate(("bytes_received", "bytes_sent")):
            counts[server, at] = sum(map(int, re.findall(rf"\b{name}:(\d+)", text)))
    return counts


def shown(plan: Plan, asked: PlanConfig) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    print_plan(plan, asked, console)
    return console.export_text()


@pytest.mark.parametrize("rows", [0, 1500])
def test_rows_and_bytes_follow_the_limit_of_a_server(whole, rows):
    dataset = Dataset.open(whole / "data")
    least = sum(limited_bytes(table, 0) for table in TABLES)
    limit = least + rows * limited_row_bytes(TABLES[-1])
    config = run_config(whole, f"limit-{rows}", max_server_bytes=limit)
    asked = PlanConfig(measure=False)
    plan = make_plan(MIXED, dataset, config, asked)
    trainer = Trainer(MIXED, dataset, config)
    trainer.fit()
    stats, displaced = trainer.collection.stats(), trainer.collection.eviction_stats()
    for each in plan.tables:
        assert_within(each.rows, stats.rows[each.name])
        assert_within(each.table_bytes, stats.table_bytes[each.name])
    of_one = plan.servers[0]
    held = sum(stats.rows.values())
    assert_within(of_one.rows, [held])
    assert_within(of_one.table_bytes, [stats.memory_bytes])
    assert of_one.table_bytes[0] <= limit
    # Each id of `row` comes once, so what was displaced does not return.
    (of_row,) = (each for each in plan.tables if each.name == "row")
    assert_within(of_row.displaced, displaced["row"]["limit"])
    text = shown(plan, asked)
    assert f"1 server holds {of_one.rows[0]:,} rows and displaces {of_one.displaced[0]:,}; " in text
    fits = next(of.num_ps for of in plan.servers if not sum(of.displaced))
    assert f"{fits} servers hold all" in text


def test_a_server_limit_that_is_not_reached_changes_nothing(folder, dataset, plan):
    config = run_config(folder, "unused", max_server_bytes=2**30)
    asked = PlanConfig(measure=False)
    made = make_plan(dlrm.make(MODEL, dataset), dataset, config, asked)
    assert made.tables == plan.tables
    assert made.servers == plan.servers
    assert "max_server_bytes 1.0 GiB: no row is displaced" in shown(made, asked)


def test_a_server_limit_below_the_first_rows_is_refused(whole):
    dataset = Dataset.open(whole / "data")
    config = run_config(whole, "unused", max_server_bytes=1000)
    with pytest.raises(UsageError, match=r"max_server_bytes must be at least .* but got 1000"):
        make_plan(MIXED, dataset, config, PlanConfig(measure=False))


def test_rows_and_bytes_follow_a_tables_own_limits(whole):
    dataset = Dataset.open(whole / "data")
    least = 65536 + 1024 * limited_row_bytes(TableSpec(name="row", embedding_dim=3))
    for size in (SizeLimit(max_rows=2000), SizeLimit(max_bytes=least + 300_000)):
        tables = (*TABLES[:-1], dataclasses.replace(TABLES[-1], eviction=(size,)))
        recommender = Recommender(build=functools.partial(SumModel, tables=tables))
        config = run_config(whole, f"own-{size.max_rows}")
        plan = make_plan(recommender, dataset, config, PlanConfig(measure=False))
        trainer = Trainer(recommender, dataset, config)
        trainer.fit()
        stats = trainer.collection.stats()
        for each in plan.tables:
            assert_within(each.rows, stats.rows[each.name])
            assert_within(each.table_bytes, stats.table_bytes[each.name])


def test_without_a_scan_the_datasets_counts_are_taken(folder, dataset):
    asked = PlanConfig(measure=False, scan=False)
    made = make_plan(dlrm.make(MODEL, dataset), dataset, run_config(folder, "unused"), asked)
    expected = {c.name: c.cardinality + (c.missing > 0) for c in dataset.categorical}
    assert {table.name: table.rows for table in made.tables} == expected


def test_figures_of_clusters_that_were_not_run_are_marked_as_predictions(plan):
    measured = dataclasses.replace(STEP, num_workers=1, examples=512)
    workers = WorkersPlan(
        num_workers=64, num_ps=1, examples_per_sec=1e6, epoch_secs=1.0, limit="workers"
    )
    local = {"1 PS + 1 worker": 51_200.0}
    cluster = ClusterConfig(num_ps=1, num_workers=2)
    modes = plan_modes(cluster, examples_per_sec=51_200.0, **TRAFFIC)
    whole = dataclasses.replace(
        plan, measured=[measured], local=local, workers=[workers], modes=modes
    )
    parts = re.split(r"\n(?=\S.*\n┏)", shown(whole, PlanConfig()))
    titles = {part.splitlines()[0].strip(): part for part in parts}
    (servers,) = (part for title, part in titles.items() if title.startswith("predictions: the fu"))
    assert re.search(r"│ 64 ", servers)
    (own,) = (part for title, part in titles.items() if title.startswith("predictions: each task"))
    assert "1,000,000" in own
    assert "51,200" in titles["measured on this machine, --sync none"]
    (of_modes,) = (part for title, part in titles.items() if title.startswith("modes of the run"))
    assert "51,200 measured" in of_modes
    for sync in ("dense", "full"):
        assert f"{51_200 * SPEEDS[sync]:,.0f} predicted" in of_modes


def test_modes_of_a_cluster_are_planned_by_what_they_update(folder, dataset):
    config = run_config(folder, "unused", num_ps=2, num_workers=4, sync="full")
    made = make_plan(dlrm.make(MODEL, dataset), dataset, config, PlanConfig(measure=False))
    none, dense, full = made.modes
    one = made.examples_per_step
    assert [(m.row_examples / one, m.network_examples / one) for m in made.modes] == [
        (1, 1),
        (1, 4),
        (4, 4),
    ]
    (of,) = (each for each in made.servers if each.num_ps == 2)
    assert (none.bytes_in, none.bytes_out) == (max(of.bytes_in), max(of.bytes_out))
    assert (dense.bytes_in, dense.bytes_out) == (full.bytes_in, full.bytes_out)
    assert full.bytes_in > none.bytes_in
    assert full.bytes_out > none.bytes_out
    # A unit of 4 steps, of which a worker in step has one.
    assert made.calls == full.calls == dense.calls == calls_of("none", 1, 1.0)
    assert none.calls < full.calls
    assert {m.examples_per_sec for m in made.modes} == {0.0}


def test_speeds_of_modes_that_were_not_run_are_predictions():
    cluster = ClusterConfig(num_ps=2, num_workers=4, sync="dense")
    modes = plan_modes(cluster, examples_per_sec=1000.0, **TRAFFIC)
    assert {m.sync: m.examples_per_sec for m in modes} == {k: 1000 * v for k, v in SPEEDS.items()}
    assert [m.sync for m in modes if m.is_measured] == ["none"]
    assert speed_of("full", 1) == 1.0  # one worker waits for nobody


def test_steps_of_groups_are_planned_by_their_workers():
    whole = ClusterConfig(num_ps=2, num_workers=2, sync="full")
    groups = dataclasses.replace(whole, num_workers=4, sync_group_size=2)
    assert plan_modes(groups, examples_per_sec=1.0, **TRAFFIC) == plan_modes(
        whole, examples_per_sec=1.0, **TRAFFIC
    )


def test_each_variable_is_placed_where_the_least_is():
    sizes = [100, 1, 50, 60, 5]
    assert place_variables(sizes, 2) == [[0, 4], [1, 2, 3]]
    assert place_variables(sizes, 3) == [[0], [1, 3], [2, 4]]


if __name__ == "__main__":
    check_cluster(Path(sys.argv[1]))


@pytest.mark.parametrize(("asked", "of_16"), [(None, 4), (NO_BOUND, 16), (7, 8)])
def test_a_bound_of_staleness_limits_the_workers_in_a_step(asked: int | None, of_16: int):
    cluster = ClusterConfig(max_staleness_steps=asked)
    for num_workers, in_step in ((4, 4), (16, of_16)):
        found = predict_speed(
            STEP,
            Machines(cores=2, link_bytes_per_sec=1e12),
            num_workers=num_workers,
            num_ps=1,
            worker_bytes=0.0,
            server_bytes=1.0,
            staleness_bound=cluster.staleness_bound(num_workers),
        )
        assert found.steps_per_sec == in_step / 0.5
        assert found.limit == ("workers" if in_step == num_workers else "staleness")
