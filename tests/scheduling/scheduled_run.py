"""A fake cluster that a test controls, and a schedule of units over it."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from embedps.cluster.interface import Cluster, ScheduledCall
from embedps.metrics import Counts
from embedps.scheduling.division import LedgerOptions
from embedps.scheduling.ledger import Ledger, Unit
from embedps.scheduling.scheduler import Scheduler
from embedps.scheduling.unit_deaths import UnitDeaths
from embedps.scheduling.unit_threads import UnitThreads
from tests.builders import make_listed


class Attempt(ScheduledCall):
    """Of a unit, by a worker that does with it what the test says."""

    position: int
    numbers: tuple[int, ...]  # that follow the position in its arguments
    order: int
    on_start: Callable[[], None]
    freed = False  # its worker was told to stop it

    def start(self, worker: int, *, ago: float = 0.0) -> None:
        self.begin(worker, self.free)
        self.started_at = time.monotonic() - ago
        self.on_start()

    def free(self) -> None:
        self.freed = True


class FakeCluster(Cluster):
    """Holds what is scheduled; a test starts and ends it."""

    strategy: Any = None
    shard_devices: Sequence[str] = ("ps",)
    can_lose_workers = True
    worker_restarts = 0
    num_ps = 0
    server_timeout_secs = 0.0

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.silent: set[int] = set()
        self.lost: set[int] = set()
        self.scheduled: list[Attempt] = []
        self._more = threading.Condition()

    def scope(self):
        raise NotImplementedError

    def schedule(self, function, args, *, on_start=lambda: None, on_death=None, order=0):
        attempt = Attempt()
        attempt.position, attempt.on_start, attempt.order = args[0], on_start, order
        attempt.on_death = on_death
        attempt.numbers = tuple(int(n) for n in args[1:])
        with self._more:
            self.scheduled.append(attempt)
            self._more.notify_all()
        return attempt

    def attempts(self, number: int) -> list[Attempt]:
        """Waits until so many were scheduled."""
        with self._more:
            assert self._more.wait_for(lambda: len(self.scheduled) >= number, 30)
            return list(self.scheduled)

    def fetch(self, result):
        return result.result()

    def unresponsive_workers(self):
        return self.silent

    def lost_workers(self):
        return self.silent | self.lost

    def draining(self):
        return frozenset()

    def allow_shutdown(self, task):
        raise NotImplementedError

    def done(self):
        raise NotImplementedError

    def join(self):
        raise NotImplementedError

    def close(self):
        raise NotImplementedError


class ScheduledRun:
    """A schedule of units over a fake cluster, and what it recorded."""

    def __init__(
        self,
        *,
        units: int = 0,
        rows: tuple[int, ...] = (),
        num_workers: int,
        finish_secs: float = 30.0,
        batch_rows: int = 10,
        scheduler: type[UnitThreads] = Scheduler,
        deaths: UnitDeaths | None = None,
        group_size: int | None = None,
    ) -> None:
        """Units of so many rows, at most 10; without them so many units of 10."""
        self.cluster = FakeCluster(num_workers)
        self.ledger = Ledger(
            make_listed([rows or (10,) * units]),
            LedgerOptions(batch_rows=batch_rows, unit_rows=10, shuffle=False),
            epochs=1,
            deaths=deaths,
        )
        self.recorded: list[int] = []
        self.counts: list[Counts] = []
        self.stop = threading.Event()
        self._scheduler, self._finish_secs = scheduler, finish_secs
        self._group_size = group_size
        self.schedule = self.resume()

    def resume(self) -> UnitThreads:
        """Schedules the units that are left."""
        return self._scheduler(
            cast("Cluster", self.cluster),
            self.ledger,
            dict,
            arguments=lambda unit: (unit.position,),
            record=self._record,
            stop=self.stop,
            finish_secs=self._finish_secs,
            group_size=self._group_size,
            on_death=lambda unit: self.ledger.deaths.count_death(self.ledger.name_of(unit)),
        )

    def _record(self, unit: Unit, counts: Counts) -> None:
        self.recorded.append(unit.position)
        self.counts.append(counts)

    @staticmethod
    def wait_until(is_true: Callable[[], bool]) -> None:
        """Waits for something that a thread of the schedule does in its own time."""
        deadline = time.monotonic() + 30
        while not is_true():
            assert time.monotonic() < deadline, "it did not come true"
            time.sleep(0.001)

    def wait(self) -> None:
        for _ in range(300):
            if not self.schedule.wait(0.1):
                return
        pytest.fail("a slot waits for ever")
