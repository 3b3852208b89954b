"""A plan's hits of a tier are those that a run then has."""

import dataclasses
import functools
from collections import OrderedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from embedps.data.dataset import Dataset, describe_file
from embedps.engine.recommender import Recommender
from embedps.engine.steps.in_process import LocalExchange
from embedps.planning.dataset_ids import StepIds, TableRows
from embedps.planning.plan import Plan, make_plan
from embedps.planning.plan_config import PlanConfig
from embedps.planning.plan_tables import print_plan
from embedps.planning.tier_hits import plan_tier
from embedps.run.config import TrainConfig
from embedps.tables import FeatureSpec, TableSpec
from embedps.tables.groups import group_tables
from embedps.training.trainer import Trainer
from tests.builders import SumModel, write_dataset

BATCH, EXAMPLES = 128, 65536
NAMES = ("row", "C3")
TABLES = [TableSpec(name=name, embedding_dim=128) for name in NAMES]
FEATURES = [FeatureSpec(name=name, table=name) for name in NAMES]
MODEL = Recommender(build=functools.partial(SumModel, features=FEATURES, tables=TABLES))


def draw_ids(num: int, most: int) -> np.ndarray:
    """Ids that come again, some often."""
    return (most * np.random.default_rng(3).random(num) ** 3).astype(np.int64)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Dataset:
    """A dataset with these ids for the numbers of rows."""
    directory = tmp_path_factory.mktemp("tier") / "data"
    made = write_dataset(directory, train=(EXAMPLES,), row_group_rows=8192, whole=True)
    (path,) = made.paths("train")
    table = pq.read_table(path)
    at = table.column_names.index("row")
    table = table.set_column(at, table.schema.field(at), pa.array(draw_ids(EXAMPLES, 30_000)))
    pq.write_table(table, path, row_group_size=8192)
    train = dataclasses.replace(made.splits["train"], files=(describe_file(directory, path),))
    dataclasses.replace(made, splits={**made.splits, "train": train}).save()
    return Dataset.open(directory)


def config_of(dataset: Dataset, directory, memory_bytes: int) -> TrainConfig:
    return TrainConfig.from_options(
        data=str(dataset.directory),
        model_dir=str(directory / "model"),
        eval="none",
        batch_size=BATCH,
        unit_rows=8192,
        delta_secs=3600.0,
        max_memory_bytes=memory_bytes,
        spill_dir=str(directory / "spill"),
    )


def shown(plan: Plan) -> str:
    console = Console(width=200, record=True)
    print_plan(plan, PlanConfig(measure=False), console)
    return console.export_text()


@pytest.mark.slow
@pytest.mark.parametrize("reads_ahead", [False, True])
@pytest.mark.parametrize("memory_mib", [9, 11])
def test_hits_of_a_plan_are_those_of_a_run(dataset, memory_mib, reads_ahead, tmp_path, monkeypatch):
    if not reads_ahead:
        monkeypatch.setattr(LocalExchange, "read_ahead", lambda *_: None)
    config = config_of(dataset, tmp_path, memory_mib << 20)
    plan = make_plan(MODEL, dataset, config, PlanConfig(measure=False))
    read = []
    for epochs in (1, 2):  # both save once, which reads rows too
        of_run = dataclasses.replace(config, epochs=epochs, model_dir=tmp_path / str(epochs))
        trainer = Trainer(MODEL, dataset, of_run)
        trainer.fit()
        stats = trainer.collection.tier_stats()
        read.append(stats.read)
    asked = EXAMPLES / BATCH * sum(table.ids_per_step for table in plan.tables)
    in_memory = sum(table.rows for table in plan.tables) - sum(stats.rows_on_disk.values())
    of_one = plan.tiers[0]
    np.testing.assert_allclose(of_one.hits, 1 - (read[1] - read[0]) / asked, rtol=0.15)
    np.testing.assert_allclose(of_one.rows, in_memory, rtol=0.1)
    assert plan.servers[0].table_bytes[0] <= memory_mib << 20
    assert f"1 server has {of_one.rows:,} rows in memory, {of_one.hits:.0%} of" in shown(plan)


@pytest.mark.parametrize("unit_steps", [8, 10, 3])
@pytest.mark.parametrize(("memory_mib", "room"), [(11, False), (40, True)])
def test_rows_come_ahead_while_few_in_memory_are_awaited(unit_steps, memory_mib, room):
    table = TABLES[0]
    groups = group_tables([table], FEATURES[:1])
    growth = ([0.0, 0.5, 1.0], [0.0, 0.6, 1.0])
    plans = [
        plan_tier(
            groups,
            {"row": TableRows(rows=100_000, exact=True, hashes=None, growth=growth)},
            StepIds(
                num_steps=unit_steps,
                num_units=1,
                num_rows=unit_steps * 2048,
                hashes=(),
                by_table={"row": 1800.0},
            ),
            num_ps=num_ps,
            max_memory_bytes=(memory_mib << 20) // num_ps,
            examples=1 << 18,
        )
        for num_ps in (1, 2)
    ]
    of_one, of_two = plans
    assert of_two.ahead == 0.0  # servers read nothing ahead
    assert (of_one.rows > 8 * 1800) == room
    # Three of four steps, but the last ones of a unit, whose rows their own lookups read.
    later = min(3 * of_one.misses, max(of_one.rows / 8 - 1800, 0.0))
    expected = later / 4 * (unit_steps // 4 * 4) / unit_steps
    assert of_one.misses > 0
    np.testing.assert_allclose(of_one.ahead, expected, rtol=1e-3, atol=1e-9)


def test_memory_for_all_rows_is_said(dataset, tmp_path):
    config = config_of(dataset, tmp_path, 1 << 30)
    plan = make_plan(MODEL, dataset, config, PlanConfig(measure=False))
    assert {each.hits for each in plan.tiers} == {1.0}
    assert "max_memory_bytes 1.0 GiB: 1 server has all rows in memory" in shown(plan)


def lru_hits(ids: np.ndarray, room: int, first: int) -> float:
    """Counts, from a step on, the ids of steps that are among the last used."""
    kept: OrderedDict[int, None] = OrderedDict()
    found = asked = 0
    for at in range(0, len(ids), BATCH):
        for each in np.unique(ids[at : at + BATCH]).tolist():
            asked += at >= first
            found += at >= first and each in kept
            kept[each] = None
            kept.move_to_end(each)
            if len(kept) > room:
                kept.popitem(last=False)
    return found / asked


def test_a_cache_smaller_than_a_step_has_no_hits():
    table = TABLES[0]
    plan = plan_tier(
        group_tables([table], FEATURES[:1]),
        {"row": TableRows(rows=50_000, exact=True, hashes=None)},
        StepIds(num_steps=1, num_units=1, num_rows=9, hashes=(), by_table={"row": 50_000.0}),
        num_ps=1,
        max_memory_bytes=8 << 20,
        examples=9,
    )
    assert plan.hits == 0.0
    assert 1024 <= plan.rows <= (8 << 20) / 512


@pytest.mark.parametrize("num_ps", [1, 4])
@pytest.mark.parametrize("memory_mib", [16, 24, 48])
def test_hits_are_those_of_a_cache_of_the_rows_used_last(num_ps, memory_mib):
    ids = draw_ids(1 << 18, 400_000)
    ends = np.array([2**i for i in range(12, 19)])
    counts = [len(np.unique(ids[:end])) for end in ends]
    table = TABLES[0]
    groups = group_tables([table], FEATURES[:1])
    per_step = float(
        np.mean([len(set(step)) for step in ids[: 64 * BATCH].reshape(64, BATCH).tolist()])
    )
    growth = ([0.0, *(ends / len(ids))], [0.0, *(np.array(counts) / counts[-1])])
    plan = plan_tier(
        groups,
        {"row": TableRows(rows=counts[-1], exact=True, hashes=None, growth=growth)},
        StepIds(
            num_steps=64, num_units=1, num_rows=64 * BATCH, hashes=(), by_table={"row": per_step}
        ),
        num_ps=num_ps,
        max_memory_bytes=(memory_mib << 20) // num_ps + (2 << 20),
        examples=len(ids),
    )
    assert 0 < plan.rows < counts[-1]
    expected = lru_hits(ids, plan.rows, first=len(ids) // 2)
    np.testing.assert_allclose(plan.hits, expected, rtol=0.1)
