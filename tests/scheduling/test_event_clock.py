"""The event clock: what a unit's time is, how the clock advances, and which steps are too old."""

import dataclasses

import pyarrow.parquet as pq
import pytest

from embedps import TrainConfig, Trainer
from embedps.errors import DatasetError, UsageError
from embedps.models import dlrm
from embedps.models._columns import click_recommender
from embedps.scheduling.division import LedgerOptions
from embedps.scheduling.event_clock import EventAges, EventClock
from embedps.scheduling.ledger import Ledger
from embedps.tables import FeatureSpec, TimeToLive
from embedps.tables.specs import event_secs_of
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


def test_a_file_of_a_wrong_time_does_not_move_it_however_large_it_is():
    clock = EventClock(range(5), [0] * 5)
    for i in range(1, 40):
        wrong = i in (8, 20, 21, 30)
        clock.append(range(5 + 50 * (i - 1), 5 + 50 * i), FAR if wrong else 1000 * i)
        done = 5 + 50 * i
        assert clock.first_step_within(100_000, units_done=done) == 0
        within = clock.first_step_within(10_000, units_done=done)
        # The clock is that of the file four before, or of two more or less for the wrong ones.
        assert 5 + 50 * (i - 1 - 14) <= within <= max(0, 5 + 50 * (i - 1 - 6))
    clock.append([2000], None)  # of no time
    assert clock.first_step_within(10_000, units_done=done + 1) == within


def test_what_no_time_to_live_asks_for_is_forgotten():
    whole, short = EventClock([], []), EventClock([], [])
    for i in range(500):
        for clock in (whole, short):
            clock.append([3 * i, 3 * i + 1], 1000 * i)
        for ttl_ms in (0, 2000, 10_000):
            found = [c.first_step_within(ttl_ms, units_done=2 * i + 1) for c in (whole, short)]
            assert found[0] == found[1]
        short.forget(10_000, units_done=2 * i + 1)
        assert len(short._clock) < 60


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
        eval="none",
    )
    trainer = Trainer(recommender, stream, config)
    trainer.fit()
    trainer.collection.sweep()
    rows = rows_of(trainer.collection, tmp_path / "rows")
    assert min(row.last_step for row in rows.values()) >= 5 * 18
    evicted = trainer.collection.eviction_stats()
    assert all(evicted[name]["age"] > 0 for name in ("C2", "C3"))
