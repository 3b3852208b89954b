"""The scheduler with slow, hung and lost workers, on a fake cluster that the test controls."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from tests.scheduling.scheduled_run import ScheduledRun


@pytest.mark.parametrize("finish_secs", [30.0, math.inf])
def test_schedule_that_is_abandoned_waits_for_no_unit(finish_secs):
    run = ScheduledRun(units=3, num_workers=1, finish_secs=finish_secs)
    run.cluster.attempts(2)[0].start(0)
    run.schedule.abandon()
    run.wait()
    assert (run.recorded, run.ledger.num_done) == ([], 0)


def test_unit_of_a_worker_that_is_silent_is_done_by_another_and_recorded_once():
    run = ScheduledRun(units=3, num_workers=2)
    with run.schedule:
        hung, well, queued = run.cluster.attempts(3)
        hung.start(0)
        well.start(1)
        run.cluster.silent.add(0)
        again = run.cluster.attempts(4)[3]
        assert again.position == hung.position == 0
        for attempt in (well, queued, again):
            if attempt.worker is None:
                attempt.start(1)
            attempt.end({})
        run.wait()
        hung.end({})  # it wakes up: too late
    assert sorted(run.recorded) == [0, 1, 2]
    assert run.ledger.finished
    assert run.ledger.num_repeated == 1
    assert run.ledger.num_attempts == 4
    assert len(run.cluster.scheduled) == 4


def test_workers_that_an_open_group_waits_for_are_named():
    run = ScheduledRun(units=1, num_workers=3)
    awaited: tuple[int, list[int]] = (4, [])
    logs: Any = SimpleNamespace(groups=SimpleNamespace(awaited=lambda: awaited))

    def told() -> tuple[str, str] | None:
        return next(iter(run.schedule.awaited(logs)), None)

    with run.schedule:
        (attempt,) = run.cluster.attempts(1)
        assert told() is None
        awaited = (4, [2])
        assert told() == ("joint step 4 waits", "worker 2 has not sent its part")
        awaited = (5, [0, 2])
        run.cluster.lost.add(0)
        why = "worker 0 does not answer and worker 2 has not sent its part"
        assert told() == ("joint step 5 waits", why)
        logs.groups = None  # steps are not taken together
        assert told() is None
        attempt.start(0)
        attempt.end({})
        run.wait()


def test_queued_unit_is_left_to_the_queue_though_a_worker_is_silent():
    run = ScheduledRun(units=1, num_workers=2)
    with run.schedule:
        (queued,) = run.cluster.attempts(1)
        run.cluster.silent.add(0)
        assert run.schedule.wait(0.5)
        assert len(run.cluster.scheduled) == 1
        queued.start(1)
        queued.end({})
        run.wait()
    assert run.ledger.num_repeated == 0


def test_stragglers_unit_at_the_end_is_not_waited_for_where_a_worker_is_idle():
    run = ScheduledRun(units=3, num_workers=2)
    with run.schedule:
        first, slow, third = run.cluster.attempts(3)
        slow.start(1, ago=100)  # not at the end: the other worker is busy
        first.start(0)
        assert run.schedule.wait(0.5)
        assert len(run.cluster.scheduled) == 3
        first.end({})
        third.start(0)
        third.end({})
        second = run.cluster.attempts(4)[3]
        assert second.position == slow.position
        second.start(0)
        second.end({})
        run.wait()  # though the straggler has not ended
        assert not slow.done() or slow.cancelled()
    assert sorted(run.recorded) == [0, 1, 2]
    assert run.ledger.num_repeated == 1
    assert len(run.cluster.scheduled) == 4


@pytest.mark.parametrize(("rows", "first_took"), [((10, 10), 50), ((2, 10), 10)])
def test_unit_as_fast_by_its_rows_as_the_others_is_no_stragglers(rows, first_took):
    run = ScheduledRun(rows=rows, num_workers=2)
    with run.schedule:
        first, last = run.cluster.attempts(2)
        first.start(0, ago=first_took)
        first.end({})
        last.start(1, ago=50)
        assert run.schedule.wait(0.6)
        assert len(run.cluster.scheduled) == 2
        last.end({})
        run.wait()
    assert run.ledger.num_repeated == 0


def test_workers_that_come_get_units_and_those_of_workers_that_go_are_handed_out_no_more():
    run = ScheduledRun(units=20, num_workers=1)
    with run.schedule:
        assert len(run.cluster.attempts(2)) == 2
        run.cluster.num_workers = 3
        assert run.schedule.wait(0.01)  # as the loop of a run does
        attempts = run.cluster.attempts(6)
        run.cluster.num_workers = 1
        for attempt in attempts[:5]:
            attempt.start(0)
            attempt.end({})
        attempts = run.cluster.attempts(7)  # one runs, one is queued behind it
        assert run.schedule.wait(0.5)
        assert len(run.cluster.scheduled) == 7
        run.stop.set()
        for attempt in attempts[5:]:
            attempt.start(0)
            attempt.end({})
        run.wait()
    assert sorted(run.recorded) == list(range(7))


def test_unit_is_given_back_where_it_cannot_finish_in_time():
    run = ScheduledRun(units=4, num_workers=2, finish_secs=0.0)
    with run.schedule:
        running, *_ = run.cluster.attempts(4)
        running.start(0)
        run.stop.set()
        run.wait()
    assert run.recorded == []
    assert run.ledger.num_done == 0
    assert run.ledger.state()["doing"] == [0]  # and not those that no worker began
    assert run.ledger.num_repeated == 0
    assert all(attempt.cancelled() for attempt in run.cluster.scheduled)


def test_units_in_progress_have_all_the_time_they_need_to_drain_until_the_run_stops():
    run = ScheduledRun(units=9, num_workers=1, finish_secs=0.0)
    with run.schedule:
        slow, queued = run.cluster.attempts(2)
        slow.start(0)
        run.schedule.drain()
        assert run.schedule.wait(0.5)
        slow.end({})
        queued.start(0)
        run.stop.set()
        run.wait()
    assert run.recorded == [0]
    assert run.ledger.state()["doing"] == [1]
    assert len(run.cluster.scheduled) == 2


def test_unit_in_progress_finishes_before_a_run_stops():
    run = ScheduledRun(units=9, num_workers=1)
    with run.schedule:
        running, queued = run.cluster.attempts(2)
        running.start(0)
        run.stop.set()
        running.end({})
        queued.start(0)
        queued.end({})
        run.wait()
    assert sorted(run.recorded) == [0, 1]
    assert len(run.cluster.scheduled) == 2


def test_error_of_a_unit_ends_the_others_at_once_and_is_kept():
    run = ScheduledRun(units=4, num_workers=2)
    with run.schedule:
        attempts = run.cluster.attempts(4)
        attempts[0].start(0)
        attempts[1].start(1)
        attempts[1].end(error=RuntimeError("lost"))
        run.wait()
    assert str(run.schedule.error) == "lost"
    assert run.ledger.num_done == 0
