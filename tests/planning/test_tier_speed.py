"""A plan of rows on a disk tells the speed by the time that such a row takes here."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest

from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.planning import plan as planning
from embedps.planning.plan_config import PlanConfig
from embedps.planning.speed import Machines, predict_speed
from embedps.planning.tier_hits import TierPlan
from embedps.planning.tier_speed import MissCost, measure_miss, step_secs
from embedps.run.config import TrainConfig
from embedps.tables import FeatureSpec, Initializer, MinCount, TableSpec, Tiered
from embedps.tables.groups import group_tables
from tests.builders import SumModel, write_dataset
from tests.planning.test_plan import STEP, shown

FEATURES = [FeatureSpec(name=name, table=name) for name in ("row", "C3")]


def tables(**of_row: Any) -> list[TableSpec]:
    return [
        TableSpec(name="row", embedding_dim=128, **of_row),
        TableSpec(name="C3", embedding_dim=128),
    ]


@pytest.mark.parametrize(("num_ps", "limit"), [(1, "disks"), (8, "workers")])
def test_disks_limit_workers_that_a_disk_does_not_serve(num_ps: int, limit: str) -> None:
    found = predict_speed(
        STEP,
        Machines(cores=2, link_bytes_per_sec=1e12),
        num_workers=8,
        num_ps=num_ps,
        worker_bytes=0.0,
        server_bytes=1.0,
        disk_secs=0.1 / num_ps,
    )
    assert found.limit == limit
    # A step alone takes half a second.
    expected = 10.0 if limit == "disks" else 8 / (0.5 + 0.1 / 8)
    assert found.steps_per_sec == pytest.approx(expected)


def test_a_row_on_disk_takes_time_and_leaves_no_file(tmp_path: Path) -> None:
    declared = tables(
        admission=MinCount(count=2),
        capacity=5,
        initializer=Initializer(kind="constant"),
        frozen_steps=7,
    )
    groups = group_tables(declared, FEATURES)
    miss = measure_miss(groups, str(tmp_path / "spill"), rows_on_disk=1000, misses=100.0)
    assert 1e-8 < miss.secs < 1.0
    assert 0 <= miss.cpu_secs < 1.0
    assert list((tmp_path / "spill").iterdir()) == []
    with pytest.raises(UsageError, match=r"spill_dir .* must be a directory"):
        measure_miss(groups, __file__, rows_on_disk=1000, misses=100.0)


def tier_of(*, misses: float, ahead: float) -> TierPlan:
    return TierPlan(num_ps=1, rows=1, hits=0.5, misses=misses, ahead=ahead, again=0.0)


def test_rows_read_ahead_cost_a_step_the_cores_that_they_take() -> None:
    # A step of 0.25 s keeps half of two cores busy.
    step = dataclasses.replace(STEP, num_ps=0, cores=2, steps_per_sec=4.0, worker_cpu_secs=0.25)
    miss = MissCost(secs=1e-3, cpu_secs=4e-4)
    found = step_secs(step, tier_of(misses=100.0, ahead=60.0), miss)
    assert found == pytest.approx(40 * 1e-3 + 0.25 + 60 * 4e-4 / 2)
    busier = dataclasses.replace(step, worker_cpu_secs=99.0)
    assert step_secs(busier, tier_of(misses=100.0, ahead=60.0), miss) == pytest.approx(
        40 * 1e-3 + 0.25 + 60 * 4e-4
    )


def test_servers_read_nothing_ahead_and_slow_disks_take_longer_than_steps() -> None:
    tier = tier_of(misses=100.0, ahead=60.0)
    miss = MissCost(secs=1e-2, cpu_secs=1e-5)
    step = dataclasses.replace(STEP, steps_per_sec=4.0)
    servers = step_secs(dataclasses.replace(step, num_ps=1), tier, miss)
    assert servers == pytest.approx(0.25 + 100 * 1e-2)
    alone = step_secs(dataclasses.replace(step, num_ps=0), tier, miss)
    assert alone == pytest.approx((40 + 60) * 1e-2)


@pytest.mark.parametrize("in_memory", [False, True])
def test_speed_is_that_in_memory_and_the_time_of_rows_on_disk(
    in_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = write_dataset(tmp_path / "data", train=(9000,), whole=True)
    build = functools.partial(SumModel, features=FEATURES, tables=tables(in_memory=in_memory))
    config = TrainConfig.from_options(
        data=str(dataset.directory),
        model_dir=str(tmp_path / "unused"),
        eval="none",
        batch_size=500,
        max_memory_bytes=6_000_000,
        spill_dir=str(tmp_path / "spill"),
    )
    asked: dict[str, Any] = {}
    measured = [dataclasses.replace(STEP, num_ps=0, num_workers=1, steps_per_sec=4.0)]
    measured.append(dataclasses.replace(STEP, num_workers=1))
    monkeypatch.setattr(planning, "_measure", lambda *_: measured)
    miss = MissCost(secs=1e-3, cpu_secs=1e-4)
    monkeypatch.setattr(planning, "measure_miss", lambda *_, **given: asked.update(given) or miss)
    plan = planning.make_plan(Recommender(build=build), dataset, config, PlanConfig())
    rows = {table.name: table.rows for table in plan.tables}
    tier = plan.tiers[0]
    if in_memory:  # the other table's rows have room
        assert (tier.hits, tier.misses) == (1.0, 0.0)
        assert tier.rows == rows["C3"]
        assert plan.local_with_disk == {}
        assert plan.servers[0].table_bytes[0] > 6_000_000
        return
    assert 0 < tier.misses < sum(table.ids_per_step for table in plan.tables)
    assert asked == {"rows_on_disk": sum(rows.values()) - tier.rows, "misses": tier.misses}
    for rate, of in zip(plan.local_with_disk.values(), measured, strict=True):
        assert rate == pytest.approx(500 / step_secs(of, tier, miss))
    assert plan.miss == miss
    assert len(plan.local_with_disk) == len(plan.local) == 2
    assert plan.servers[0].table_bytes[0] <= 6_000_000
    text = " ".join(shown(plan, PlanConfig()).split())
    assert "a row on disk takes 1000.0 us" in text
    assert "1 process, rows on disk" in text


def test_a_memory_of_a_table_bounds_its_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = write_dataset(tmp_path / "data", train=(9000,), whole=True)
    options = {"data": str(dataset.directory), "model_dir": str(tmp_path / "unused")}
    config = TrainConfig.from_options(**options, eval="none", batch_size=500)
    own = Tiered(max_memory_bytes=3_000_000, directory=str(tmp_path / "spill"))
    found = []
    for memory in (None, own):
        build = functools.partial(SumModel, features=FEATURES, tables=tables(memory=memory))
        asked = PlanConfig(measure=False)
        plan = planning.make_plan(Recommender(build=build), dataset, config, asked)
        found.append(plan.servers[0].table_bytes[0])
        assert plan.tiers == []
    row, other = (table.table_bytes for table in plan.tables)
    assert found[0] == pytest.approx(row + other, rel=0.1)
    assert found[1] == pytest.approx(3_000_000 + other, rel=0.1)
    told = capsys.readouterr().out
    assert told.count("tables ['row'] have a memory of their own: no wait for its disk") == 1
