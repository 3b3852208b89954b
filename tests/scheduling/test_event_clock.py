"""The event clock: what a unit's time is, how the clock advances, and which steps are too old."""

import dataclasses

import pyarrow.parquet as pq
import pytest

from embedps import TrainConfig, Trainer
from embedps.errors import DatasetError, UsageError
from embedps.scheduling.event_clock import EventAges, EventClock
from embedps.scheduling.ledger import Ledger, LedgerOptions
from embedps.tables import FeatureSpec, TimeToLive
from embedps.tables.specs import event_secs_of
from models import dlrm
from models._columns import click_recommender
from tests.builders import TINY_DLRM, make_rows, write_dataset
from tests.tables.builders import make_table, rows_of

FAR = 4 * 10**15


def first_steps(clock: EventClock, ttl_ms: int, num_units: int) -> list[int]:
    return [clock.first_step_within(ttl_ms, units_done=n) for n in range(num_units + 1)]


def test_rows_age_as_the_clock_advances():
    times = [1000 * i for i in range(20)]
    clock = EventClock(range(0, 200, 10), times)
    # The clock at unit i is the median of units i - 8 to i: from the 9th on, the time of i - 4.
    found = first_steps(clock, 3000, 20)
    assert found[:9] == [0] * 9
    assert found == sorted(found)
    assert found[20] == 10 * (12 + 4)  # now 15,000 ms: the first unit of 12,000 ms is the 16th


def test_few_units_of_a_wrong_time_do_not_move_it():
    times = [1000 * i for i in range(40)]
    wrong = list(times)
    for i in (5, 6, 7, 20):
        wrong[i] = FAR
    wrong[30] = 0
    right, found = (EventClock(range(40), each)._clock for each in (times, wrong))
    assert all(abs(a - b) <= 4000 for a, b in zip(right, found, strict=True))


def test_it_stands_still_when_times_repeat():
    clock = EventClock(range(20), [1000 * i for i in range(10)] * 2)
    found = first_steps(clock, 2000, 20)
    assert found == sorted(found)
    assert len(set(found[14:])) == 1
    assert clock.first_step_within(2000, units_done=500) == found[-1]  # a later epoch


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    """6,000 examples, one per millisecond, in row groups of 500."""
    made = write_dataset(tmp_path_factory.mktemp("stream") / "data", train=(3000, 3000))
    return dataclasses.replace(made, timestamp="row")


def make_ledger(dataset) -> Ledger:
    options = LedgerOptions(batch_rows=50, unit_rows=250, shuffle=False)
    return Ledger(dataset, options, epochs=1)


def test_ages_come_from_the_files(stream):
    ledger = make_ledger(stream)
    ages = EventAges(stream, ledger, {"C1": 1, "C2": 100}, shuffle=False)
    assert ages.changes(8) == {}
    # Units have times 0, 0, 500, 500 and so on. The last has the median 4500; the first of which
    # the median is 3500 is the 18th, and a unit has 5 steps.
    assert ages.changes(24) == {"C1": 5 * 18}
    assert ages.changes(24) == {}


def test_what_has_no_event_time_is_one_line(stream, tmp_path):
    ledger = make_ledger(stream)
    untimed = dataclasses.replace(stream, timestamp="")
    with pytest.raises(UsageError, match="event time needs a timestamp column, but"):
        EventAges(untimed, ledger, {"C1": 1}, shuffle=False)
    with pytest.raises(UsageError, match=r"table 'C1' has a TimeToLive in event .*--no-shuffle"):
        EventAges(stream, ledger, {"C1": 1}, shuffle=True)
    path = tmp_path / "plain.parquet"
    pq.write_table(make_rows(100, seed=0), path, write_statistics=False)
    unit = dataclasses.replace(ledger.units_of(0)[0], path=str(path), num_rows=100)
    with pytest.raises(DatasetError, match="must have statistics of column 'row'"):
        EventClock.of(stream, [unit])
    assert EventAges(untimed, ledger, {}, shuffle=True).changes(5) == {}
    assert event_secs_of(
        [make_table("a"), make_table("b", eviction=(TimeToLive(event_secs=3),))]
    ) == {"b": 3}


def test_a_run_evicts_by_event_time(stream, tmp_path):
    age = (TimeToLive(event_secs=1),)
    features = [
        FeatureSpec(name=c.name, table=make_table(c.name, 4, eviction=age))
        for c in stream.categorical
    ]
    recommender = click_recommender(
        "dlrm",
        TINY_DLRM,
        stream,
        lambda: dlrm.build(TINY_DLRM, features, label=stream.label),
    )
    config = TrainConfig.from_options(
        data=str(stream.directory),
        model_dir=str(tmp_path / "m"),
        batch_size=50,
        unit_rows=250,
        shuffle=False,
    )
    trainer = Trainer(recommender, stream, config)
    trainer.fit()
    trainer.collection.sweep()
    rows = rows_of(trainer.collection, tmp_path / "rows")
    assert min(row.last_step for row in rows.values()) >= 5 * 18
    evicted = trainer.collection.eviction_stats()
    assert all(evicted[name]["age"] > 0 for name in ("C2", "C3"))
