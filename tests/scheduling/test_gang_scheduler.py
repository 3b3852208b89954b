"""The scheduler of gangs with lost, silent and hung workers, on a fake cluster.

A unit of 10 rows has 5 batches of 2; with 2 workers its last step is the third, number 4.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from embedps.cluster.call_queue import CallQueue
from embedps.scheduling import gang_scheduler
from embedps.scheduling.gang_scheduler import GangScheduler
from tests.scheduling.scheduled_run import Attempt, ScheduledRun


def make_run(*, num_workers: int = 2, **options: Any) -> ScheduledRun:
    return ScheduledRun(num_workers=num_workers, batch_rows=2, scheduler=GangScheduler, **options)


def end(*attempts: Attempt) -> None:
    for worker, attempt in enumerate(attempts):
        if attempt.worker is None:
            attempt.start(worker)
        attempt.end({"examples": 1})


def test_unit_has_a_part_for_each_worker_and_the_next_unit_is_queued_behind_it():
    run = make_run(units=3)
    with run.schedule:
        attempts = run.cluster.attempts(4)
        assert [(a.position, a.order, a.numbers) for a in attempts] == [
            (0, 0, (0, 2, -1)),
            (0, 0, (1, 2, -1)),
            (1, 1, (0, 2, 4)),  # after the last step of the unit before
            (1, 1, (1, 2, 4)),
        ]
        end(*attempts[:2])
        third = run.cluster.attempts(6)[4:]
        assert [a.numbers for a in third] == [(0, 2, 5 + 4), (1, 2, 5 + 4)]
        end(*attempts[2:])
        end(*third)
        run.wait()
    assert sorted(run.recorded) == [0, 1, 2]
    assert run.counts == [{"examples": 2}] * 3
    assert run.ledger.finished
    assert (run.ledger.num_attempts, run.ledger.num_repeated) == (3, 0)


def test_first_unit_of_a_schedule_waits_for_no_other():
    run = make_run(units=3)
    with run.schedule:
        attempts = run.cluster.attempts(4)
        run.stop.set()
        end(*attempts)
        run.wait()
    run.stop.clear()
    with run.resume() as schedule:
        attempts = run.cluster.attempts(6)[4:]
        assert [a.numbers for a in attempts] == [(0, 2, -1), (1, 2, -1)]
        end(*attempts)
        while schedule.wait(0.1):
            pass
    assert run.ledger.finished


def test_unit_of_fewer_batches_than_workers_has_as_many_parts():
    run = make_run(rows=(5, 9), num_workers=4)
    with run.schedule:
        attempts = run.cluster.attempts(7)
        assert [(a.position, a.numbers) for a in attempts] == [
            *((0, (rank, 4, -1)) for rank in range(3)),
            *((1, (rank, 4, 0)) for rank in range(4)),
        ]
        end(*attempts)
        run.wait()
    assert run.ledger.finished


def test_unit_is_done_only_when_all_its_parts_are():
    run = make_run(units=1)
    with run.schedule:
        first, second = run.cluster.attempts(2)
        end(first)
        assert run.schedule.wait(0.3)
        assert run.ledger.num_done == 0
        end(second)
        run.wait()
    assert run.ledger.num_done == 1


def test_part_whose_worker_begins_it_again_counts_as_repeated():
    run = make_run(units=1)
    with run.schedule:
        first, second = run.cluster.attempts(2)
        first.start(0)
        second.start(1)
        second.worker = None  # lost; the cluster gives the part to the next worker
        second.start(1)
        end(first, second)
        run.wait()
    assert (run.ledger.num_attempts, run.ledger.num_repeated) == (2, 1)


def test_part_of_a_silent_worker_is_attempted_again_and_the_worker_freed():
    run = make_run(units=1)
    with run.schedule:
        first, silent = run.cluster.attempts(2)
        first.start(0)
        silent.start(1, ago=10)
        run.cluster.silent.add(1)
        again = run.cluster.attempts(3)[2]
        assert again.numbers == silent.numbers == (1, 2, -1)
        end(first)
        again.start(1)
        again.end({"examples": 1})
        run.wait()
        assert silent.freed
        assert not first.freed
    assert run.ledger.finished
    assert len(run.cluster.scheduled) == 3


def test_parts_that_wait_for_a_peer_are_not_taken_for_stuck_while_it_has_no_worker():
    run = make_run(units=2)
    with run.schedule:
        run.cluster.attempts(4)[0].start(0, ago=1e6)
        assert run.schedule.wait(0.5)
        assert len(run.cluster.scheduled) == 4
        run.schedule.abandon()


def test_all_parts_of_a_stuck_unit_are_attempted_again():
    run = make_run(units=2)
    with run.schedule:
        attempts = run.cluster.attempts(4)
        limit = gang_scheduler._STUCK_SECS
        attempts[0].start(0, ago=2 * limit)
        attempts[2].start(1, ago=2 * limit)  # of the next unit: it waits for the first
        assert run.schedule.wait(0.5)
        attempts[1].start(2, ago=1.1 * limit)
        again = run.cluster.attempts(6)[4:]
        assert [a.numbers for a in again] == [(0, 2, -1), (1, 2, -1)]
        end(*again, attempts[2], attempts[3])
        run.wait()
    assert [a.freed for a in attempts] == [True, True, False, False]
    assert run.ledger.finished
    assert sorted(run.recorded) == [0, 1]


def test_rank_that_all_wait_for_is_named():
    run = make_run(units=1)
    parts: dict[int, list[int | None]] = {}
    logs: Any = SimpleNamespace(open_steps=lambda: parts)

    def told() -> tuple[str, str] | None:
        return next(iter(run.schedule.awaited(logs)), None)

    with run.schedule:
        first, second = run.cluster.attempts(2)
        assert told() is None  # no worker has begun
        first.start(1)
        run.wait_until(lambda: told() is not None)  # parts are queued before the unit is listed
        where = "the unit from step 0 on waits for rank 1"
        assert told() == (where, "it needs a worker, and none is free")
        run.cluster.lost.add(0)
        assert told() == (where, "it needs a worker, and worker 0 cannot be reached")
        second.start(0)
        assert told() == (where, "worker 0 does not answer")
        parts[2] = [1, None]
        assert told() == ("step 2 waits for rank 1", "worker 0 does not answer")
        run.cluster.lost.clear()
        assert told() == ("step 2 waits for rank 1", "worker 0 has not sent its part")
        parts.clear()
        assert told() is None
        end(first, second)
        run.wait()


def test_worker_that_ends_its_part_of_the_unit_before_late_is_named():
    run = make_run(units=2)
    logs: Any = SimpleNamespace(open_steps=lambda: {5: [0, None]})
    with run.schedule:
        first, second, third, fourth = run.cluster.attempts(4)
        first.start(1)
        second.start(0)
        second.end({"examples": 1})
        third.start(0)
        why = "it needs a worker, and worker 1 did not yet end the unit before"
        run.wait_until(lambda: run.schedule.awaited(logs) == [("step 5 waits for rank 1", why)])
        first.end({"examples": 1})
        fourth.start(1)
        why = "worker 1 has not sent its part"
        run.wait_until(lambda: run.schedule.awaited(logs) == [("step 5 waits for rank 1", why)])
        end(third, fourth)
        run.wait()


def test_part_that_fails_ends_the_unit_and_frees_the_other_workers():
    run = make_run(units=3)
    with run.schedule:
        attempts = run.cluster.attempts(4)
        for worker, attempt in enumerate(attempts[:3]):
            attempt.start(worker)
        attempts[1].end(error=RuntimeError("no such file"))
        run.wait()
        assert attempts[0].freed
        assert attempts[2].freed
    assert str(run.schedule.error) == "no such file"
    assert run.ledger.num_done == 0
    assert run.recorded == []


@pytest.mark.parametrize("finish_secs", [30.0, 0.0])
def test_units_in_progress_end_before_a_run_stops_if_there_is_time(finish_secs):
    run = make_run(units=5, finish_secs=finish_secs)
    with run.schedule:
        attempts = run.cluster.attempts(4)
        attempts[0].start(0)
        run.stop.set()
        if finish_secs:
            end(*attempts)
        run.wait()
    assert len(run.cluster.scheduled) == 4
    assert run.ledger.num_done == (2 if finish_secs else 0)
    assert attempts[0].freed == (not finish_secs)


def test_group_trains_on_while_another_waits_and_both_waits_are_told():
    run = make_run(units=4, num_workers=4, group_size=2)
    parts: dict[int, list[int | None]] = {2: [0, None], 17: [None, 3]}
    logs: Any = SimpleNamespace(open_steps=lambda: parts)
    with run.schedule:
        for unit in (1, 2, 3):
            attempts = run.cluster.attempts(2 * unit + 2)
            assert [(a.position, a.numbers) for a in attempts[-2:]] == [
                (unit, (rank, 2, -1)) for rank in range(2)
            ]
            if unit < 3:
                end(*attempts[2 * unit :])
        slow, fast = attempts[:2], attempts[-2:]
        for worker, attempt in enumerate([*slow, *fast]):
            attempt.start(worker)
        run.cluster.lost.add(1)
        run.wait_until(lambda: len(run.schedule.awaited(logs)) == 2)
        assert run.schedule.awaited(logs) == [
            ("step 2 waits for rank 1", "worker 1 does not answer"),
            ("step 17 waits for rank 0", "worker 2 has not sent its part"),
        ]
        assert sorted(run.recorded) == [1, 2]
        end(slow[0], *fast)
        parts.clear()
        run.cluster.lost.clear()
        run.wait_until(lambda: run.ledger.num_done == 3)
        where = "the unit from step 0 on waits for rank 1"
        assert run.schedule.awaited(logs) == [(where, "worker 1 has not ended its part")]
        end(slow[1])
        run.wait()
    assert run.ledger.finished
    assert (run.ledger.num_attempts, run.ledger.num_repeated) == (4, 0)


def test_group_is_stuck_though_another_trains_on():
    run = make_run(units=3, num_workers=4, group_size=2)
    with run.schedule:
        attempts = run.cluster.attempts(4)
        for worker, attempt in enumerate(attempts[:2]):
            attempt.start(worker, ago=1.1 * gang_scheduler._STUCK_SECS)
        end(*attempts[2:])
        later = run.cluster.attempts(8)[4:]
        assert sorted((a.position, a.numbers) for a in later) == [
            (position, (rank, 2, -1)) for position in (0, 2) for rank in range(2)
        ]
        end(*later)
        run.wait()
    assert [a.freed for a in attempts] == [True, True, False, False]
    assert run.ledger.finished


def test_workers_begin_parts_of_the_lowest_unit_first():
    queue = CallQueue()
    begun: list[tuple[str, int]] = []

    def put(order: int, name: str) -> None:
        queue.put(lambda worker, _: begun.append((name, worker)), order=order)

    for order, name in ((1, "b0"), (1, "b1"), (0, "a0"), (0, "a1")):
        put(order, name)
    for worker in range(4):
        taken = queue.take(lambda: True)
        assert taken is not None
        order, attempt = taken
        assert order == worker // 2
        attempt(worker, 0)
    assert begun == [("a0", 0), ("a1", 1), ("b0", 2), ("b1", 3)]
