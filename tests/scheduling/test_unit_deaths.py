"""Units that kill who trains them are set aside, and no others, whatever dies when."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedps.checkpoint.format.ledger_state import check_ledger
from embedps.errors import CorruptCheckpointError
from embedps.scheduling.arrivals import Arrival, Arrivals
from embedps.scheduling.division import LedgerOptions
from embedps.scheduling.gang_scheduler import GangScheduler
from embedps.scheduling.ledger import Ledger, Unit
from embedps.scheduling.scheduler import Scheduler
from embedps.scheduling.unit_deaths import (
    FILE_NAME,
    DeadlyUnitsError,
    SetAsideError,
    UnitDeaths,
    describe,
)
from embedps.scheduling.watch_ledger import WatchLedger
from tests.builders import make_listed
from tests.scheduling.scheduled_run import ScheduledRun

OPTIONS = LedgerOptions(batch_rows=10, unit_rows=100, shuffle=False)
DATASET = make_listed([[100] * 4])


def started(model_dir: Path, *, limit: int = 2, num_units: int = 10) -> UnitDeaths:
    """Of a process that begins."""
    deaths = UnitDeaths(model_dir, limit=limit)
    deaths.begin_run(num_units=num_units)
    return deaths


def die(model_dir: Path, *names: str, **options: int) -> UnitDeaths:
    """A process trains these at once, and dies."""
    deaths = started(model_dir, **options)
    for name in names:
        assert deaths.enter(name, name)
        deaths.begin(name)
    return deaths


def stored(model_dir: Path) -> dict[str, Any]:
    return dict(json.loads((model_dir / FILE_NAME).read_text()))


def test_the_second_death_alone_is_known_to_be_the_units_own(tmp_path: Path) -> None:
    die(tmp_path, "a", "b", "c")
    deaths = started(tmp_path)
    assert deaths.news() == ["the run died while it trained a, b, c: each is tried alone now"]
    assert deaths.enter("a", "a")
    deaths.begin("a")
    assert not deaths.enter("b", "b")
    assert not deaths.enter("x", "x")  # nor any other
    deaths.end("a", num_done=1)
    assert deaths.enter("x", "x")
    assert deaths.enter("y", "y")
    assert not deaths.enter("b", "b")
    for token in ("x", "y"):
        deaths.end(token, num_done=1)
    assert deaths.enter("b", "b")
    deaths.begin("b")  # and dies
    deaths = started(tmp_path)
    assert deaths.news() == [
        f"b is set aside: who trained it died 2 times in a row. Remove {tmp_path / FILE_NAME} and "
        "run again to try it again"
    ]
    assert [deaths.is_aside(name) for name in "abcx"] == [False, True, False, False]
    assert stored(tmp_path)["deaths"] == {"c": 1}
    assert deaths.enter("c", "c")
    assert not deaths.enter("a", "a")
    deaths.end("c", num_done=2)
    assert stored(tmp_path) == {
        "in_progress": [],
        "deaths": {},
        "set_aside": {"b": 2},
        "in_a_row": [],
        "most_done": 2,
    }


def test_deaths_of_one_unit_among_others_prove_nothing(tmp_path: Path) -> None:
    for _ in range(3):
        deaths = started(tmp_path, limit=1)
        deaths._suspects.clear()  # as if they were not tried alone
        for name in "ab":
            assert deaths.enter(name, name)
            deaths.begin(name)
    assert started(tmp_path, limit=1).set_aside == []
    die(tmp_path / "", "a", limit=1)
    assert started(tmp_path, limit=1).set_aside == ["a"]


def test_what_was_in_progress_when_a_server_died_is_tried_alone(tmp_path: Path) -> None:
    deaths = UnitDeaths(tmp_path, limit=2)
    for token, name in enumerate(("a:0", "b:0")):
        assert deaths.enter(token, name)
        deaths.begin(token)
    deaths.server_died()
    (both,) = deaths.news()
    assert both.startswith("a server died while it trained the unit from row 0 of a, the unit from")
    assert deaths.enter(0, "a:0")
    deaths.begin(0)
    assert not deaths.enter(1, "b:0")
    deaths.server_died()
    (alone,) = deaths.news()
    assert "a is set aside: who trained it died 2 times in a row" in alone
    assert deaths.set_aside == ["the unit from row 0 of a"]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_limit_is_what_is_asked_for(tmp_path: Path, limit: int) -> None:
    for number in range(limit):
        deaths = die(tmp_path, "a", limit=limit)
        assert deaths.set_aside == [], number
    deaths = started(tmp_path, limit=limit)
    assert deaths.set_aside == ["a"]
    assert started(tmp_path, limit=limit + 1).set_aside == []  # a higher one tries it again
    (tmp_path / FILE_NAME).unlink()
    assert started(tmp_path, limit=limit).set_aside == []


def test_deaths_count_in_a_row_and_a_good_end_blames_nobody(tmp_path: Path) -> None:
    die(tmp_path, "a")
    deaths = die(tmp_path, "a")
    deaths.end("a", num_done=1)
    die(tmp_path, "a")
    assert started(tmp_path).set_aside == []
    for _ in range(5):
        deaths = die(tmp_path, "b")
        deaths.forgive()  # by SIGTERM
        assert deaths.enter("c", "c")
        deaths.begin("c")
    deaths = started(tmp_path)
    assert deaths.news() == []
    assert stored(tmp_path)["in_progress"] == []
    deaths = die(tmp_path, "d")
    deaths.leave("d")  # given back: what it did may yet end the process
    assert "while it trained d: it is tried alone" in started(tmp_path).news()[0]


def test_a_suspect_file_is_scored_alone(tmp_path: Path) -> None:
    die(tmp_path, "a", "f")
    deaths = started(tmp_path)
    assert deaths.enter(0, "x")
    stop, entered = threading.Event(), []
    thread = threading.Thread(
        target=lambda: entered.append(deaths.wait_to_enter(("file", "f"), "f", stop))
    )
    thread.start()
    while not deaths._wanted:
        assert thread.is_alive()
    assert not deaths.enter(1, "y")  # so that the file's turn comes
    deaths.end(0, num_done=1)
    thread.join()
    assert entered == [True]
    assert not deaths.enter(1, "y")
    deaths.end(("file", "f"))
    assert deaths.enter(1, "y")
    stop.set()
    assert not deaths.wait_to_enter(("file", "f"), "f", stop)
    assert deaths.enter(2, "z")


def test_units_that_all_kill_end_the_run_and_are_not_set_aside(tmp_path: Path) -> None:
    for name in "ab":
        for _ in range(2):
            die(tmp_path, name)
    die(tmp_path, "c")
    assert started(tmp_path).set_aside == ["a", "b"]
    die(tmp_path, "c")
    with pytest.raises(DeadlyUnitsError, match=r"who trained a, b, c died, 2 times each, and no"):
        started(tmp_path)
    deaths = started(tmp_path)
    assert deaths.set_aside == []
    assert stored(tmp_path)["deaths"] == {}
    for number, name in enumerate("abcd"):
        assert deaths.count_death(name) is None
        if number % 2:
            deaths.enter("good", "good")
            deaths.end("good", num_done=number)
        assert isinstance(deaths.count_death(name), SetAsideError)
    assert deaths.set_aside == ["a", "b", "c", "d"]


def test_units_that_are_done_again_after_each_death_are_no_progress(tmp_path: Path) -> None:
    for name in "abc":
        for _ in range(2):
            assert "a" not in started(tmp_path).set_aside or name != "a"
            deaths = die(tmp_path, name)
            for number in (1, 2):
                deaths.leave(name)
                assert deaths.enter(number, "first")
                deaths.end(number, num_done=number)
    with pytest.raises(DeadlyUnitsError):
        started(tmp_path)


def test_a_dataset_is_not_set_aside_as_a_whole(tmp_path: Path) -> None:
    deaths = started(tmp_path, num_units=2)
    found = [deaths.count_death(name) for name in "aabb"]
    assert [type(each) for each in found] == [
        type(None),
        SetAsideError,
        type(None),
        DeadlyUnitsError,
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        "{",
        '{"deaths": {"a": "x"}, "in_progress": {"a": 1}, "set_aside": [3]}',
        "[" * 10**5,
    ],
)
def test_a_damaged_record_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    deaths = started(tmp_path)
    assert (deaths.set_aside, deaths.news()) == ([], [])


def test_names_of_any_bytes_are_kept(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff \n.parquet")
    for _ in range(2):
        die(tmp_path, name)
    assert started(tmp_path).is_aside(name)
    assert describe("x/a.parquet:4096") == "the unit from row 4,096 of x/a.parquet"
    assert describe("a:b.parquet") == "a:b.parquet"


def test_a_record_that_cannot_be_written_ends_no_run(tmp_path: Path) -> None:
    deaths = started(tmp_path / "absent")
    assert deaths.enter("a", "a")
    deaths.begin("a")
    (tmp_path / "absent").mkdir()
    deaths.end("a", num_done=1)
    assert stored(tmp_path / "absent")["in_progress"] == []


def a_ledger(model_dir: Path, state: dict[str, Any] | None, *, epochs: int = 1) -> WatchLedger:
    """Of a process that begins; two files arrived."""
    arrivals = Arrivals(model_dir)
    if not arrivals.files:
        arrivals.append(
            [Arrival(path="f", row_groups=(100, 100)), Arrival(path="g", row_groups=(50,))]
        )
    deaths = started(model_dir)
    ledger = WatchLedger(
        DATASET, OPTIONS, arrivals, epochs=epochs, directory=Path("/in"), deaths=deaths
    )
    if state is not None:
        check_ledger(state, Path("m"))
        ledger.restore(json.loads(json.dumps(state)))
    return ledger


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_those_that_kill_are_set_aside_and_no_others(data: st.DataObject) -> None:
    """Processes with several workers die at any moment after one began a deadly unit."""
    names = [f"train/0.parquet:{row}" for row in range(0, 400, 100)]
    deadly = set(data.draw(st.lists(st.sampled_from([*names, "f", "g"]), max_size=2)))
    workers = data.draw(st.integers(1, 4))
    with tempfile.TemporaryDirectory() as folder:
        state: dict[str, Any] | None = None
        for _ in range(2 * len(deadly) + 1):
            ledger = a_ledger(Path(folder), state, epochs=2)
            died, state = live(ledger, deadly, workers, data, state)
            if not died:
                break
        assert not died
        assert ledger.num_done == ledger.num_units
        num_units = {"f": 2, "g": 1}
        assert ledger.num_aside == sum(num_units.get(name, 2) for name in deadly)
        assert set(stored(Path(folder))["set_aside"]) == deadly
        rows = {"f": 200, "g": 50}
        left = sum(rows.get(name, 2 * 100) for name in deadly)
        assert ledger.rows_done() == 2 * 400 + 250 - left
        assert ledger.steps_done() == 2 * 40 + 25
        # Once taken back, they alone are done.
        (Path(folder) / FILE_NAME).unlink()
        again = a_ledger(Path(folder), ledger.state(), epochs=2)
        assert again.num_done == again.num_units - ledger.num_aside
        done = []
        while (unit := again.take()) is not None:
            again.begin(unit)
            again.done(unit)
            done.append(again.name_of(unit))
        assert set(done) == deadly
        assert len(done) == ledger.num_aside
        assert again.num_aside == 0
        assert again.rows_done() == 2 * 400 + 250
        assert "set_aside" not in again.state()


def live(
    ledger: WatchLedger,
    deadly: Collection[str],
    workers: int,
    data: st.DataObject,
    state: dict[str, Any] | None,
) -> tuple[bool, dict[str, Any] | None]:
    """Trains until all is done, or the process dies; gives whether it died, and what it saved."""
    busy: list[Unit] = []
    while True:
        while len(busy) < workers and (unit := ledger.take()) is not None:
            ledger.begin(unit)
            busy.append(unit)
        if not busy:
            ledger.deaths.forgive()
            return False, ledger.state()
        harmless = [unit for unit in busy if ledger.name_of(unit) not in deadly]
        if len(harmless) < len(busy) and (not harmless or data.draw(st.booleans())):
            return True, state
        unit = data.draw(st.sampled_from(harmless))
        busy.remove(unit)
        ledger.done(unit)
        if data.draw(st.booleans()):
            state = ledger.state()


def test_a_unit_that_is_set_aside_is_left_out_in_all_epochs(tmp_path: Path) -> None:
    for _ in range(2):
        die(tmp_path, "train/0.parquet:200")
    ledger = Ledger(DATASET, OPTIONS, epochs=3, deaths=started(tmp_path))
    done = []
    while (unit := ledger.take()) is not None:
        ledger.done(unit)
        done.append(unit.first_row)
    assert done == [0, 100, 300] * 3
    assert ledger.finished
    assert ledger.num_aside == 3
    assert ledger.state()["set_aside"] == [2, 6, 10]
    assert ledger.rows_done() == 900
    with pytest.raises(CorruptCheckpointError, match=r"set_aside.*integers from 0 on, found \[-1"):
        check_ledger({**ledger.state(), "set_aside": [-1]}, Path("m"))


def run_of(
    tmp_path: Path, *, scheduler: Any = Scheduler, workers: int = 2, **options: Any
) -> ScheduledRun:
    deaths = started(tmp_path)
    options = {"scheduler": scheduler, "deaths": deaths, "batch_rows": 5, **options}
    return ScheduledRun(rows=(10, 10, 10, 10), num_workers=workers, **options)


def test_a_unit_whose_workers_die_is_left_out_and_the_others_are_done(tmp_path: Path) -> None:
    run = run_of(tmp_path, workers=1)
    first = run.cluster.attempts(1)[0]
    for worker in range(2):
        first.start(worker)
        assert first.on_death is not None
        cause = first.on_death()
    assert isinstance(cause, SetAsideError)
    first.end(error=cause)
    for i in range(1, 4):
        attempt = run.cluster.attempts(i + 1)[i]
        attempt.start(0)
        attempt.end({"loss": 0.0})
    run.wait()
    assert run.schedule.error is None
    assert run.recorded == [1, 2, 3]
    assert run.ledger.finished
    assert run.ledger.num_aside == 1
    assert run.ledger.deaths.set_aside == ["the unit from row 0 of train/0.parquet"]


def wait_for_one(run: ScheduledRun) -> None:
    run.wait_until(lambda: run.ledger.num_done == 1)


def test_an_error_is_a_death_once_a_unit_was_done(tmp_path: Path) -> None:
    def end(run: ScheduledRun, index: int, error: Exception | None = None) -> None:
        attempt = run.cluster.attempts(index + 1)[index]
        attempt.start(0)
        attempt.end({"loss": 0.0}, error)

    wrong = ValueError("3 is no id")
    run = run_of(tmp_path, workers=1)
    end(run, 0, wrong)  # the model may be wrong
    run.wait()
    assert run.schedule.error is wrong
    assert stored(tmp_path)["deaths"] == {}
    for is_second in (False, True):
        run = run_of(tmp_path, workers=1)
        end(run, 0)
        wait_for_one(run)
        end(run, 1, wrong)
        if is_second:
            end(run, 2)
            end(run, 3)
        run.wait()
        assert run.schedule.error is (None if is_second else wrong)
        assert run.ledger.num_aside == is_second
    assert run.recorded == [0, 2, 3]


def test_suspects_run_alone_and_then_all_go_on(tmp_path: Path) -> None:
    die(tmp_path, "train/0.parquet:0", "train/0.parquet:10")
    run = run_of(tmp_path, workers=2)
    for i in range(2):
        attempt = run.cluster.attempts(i + 1)[i]
        assert len(run.cluster.scheduled) == i + 1
        attempt.start(0)
        attempt.end({"loss": 0.0})
    for attempt in run.cluster.attempts(4)[2:]:
        attempt.start(0)
        attempt.end({"loss": 0.0})
    run.wait()
    assert sorted(run.recorded) == [0, 1, 2, 3]


def test_a_gang_leaves_a_unit_out_and_begins_the_one_behind_it_anew(tmp_path: Path) -> None:
    run = run_of(tmp_path, scheduler=GangScheduler)
    attempts = run.cluster.attempts(4)  # two ranks of two units
    for _ in range(2):
        causes = []
        for attempt in attempts[:2]:  # both workers are lost at once
            attempt.start(0)
            assert attempt.on_death is not None
            causes.append(attempt.on_death())
    assert isinstance(causes[0], SetAsideError)
    assert causes[1] is None  # a death of the unit, which was counted
    attempts[0].end(error=causes[0])
    run.wait()
    assert run.schedule.error is None
    assert all(attempt.cancelled() for attempt in attempts[1:])
    assert run.ledger.num_done == run.ledger.num_aside == 1
    run.schedule = run.resume()
    for i in range(3):
        for attempt in run.cluster.attempts(4 + 2 * (i + 1))[4 + 2 * i :][:2]:
            attempt.start(0)
            attempt.end({"loss": 0.0})
    run.wait()
    assert run.recorded == [1, 2, 3]


def test_a_group_that_leaves_a_unit_out_goes_on_and_so_do_the_others(tmp_path: Path) -> None:
    run = run_of(tmp_path, scheduler=GangScheduler, workers=4, group_size=2)
    attempts = run.cluster.attempts(4)  # two ranks of a unit of each group
    for _ in range(2):
        attempts[0].start(0)
        assert attempts[0].on_death is not None
        cause = attempts[0].on_death()
    assert isinstance(cause, SetAsideError)
    attempts[0].end(error=cause)
    for number in (6, 8):
        run.cluster.attempts(number)
        if number == 6:
            assert [attempt.cancelled() for attempt in attempts] == [False, True, False, False]
        for attempt in run.cluster.attempts(number)[number - 2 :]:
            attempt.start(0)
            attempt.end({"loss": 0.0})
    for attempt in attempts[2:]:
        attempt.start(2)
        attempt.end({"loss": 0.0})
    run.wait()
    assert run.schedule.error is None
    assert run.recorded == [2, 3, 1]
    assert run.ledger.num_aside == 1
