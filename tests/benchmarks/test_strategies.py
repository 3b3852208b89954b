"""The comparison of strategies: its ways to train, its arithmetic, and a short run."""

import itertools
import json
import statistics

import pytest

from benchmarks import report, strategies
from benchmarks.strategy_runs import Cell, Data, groups, speed
from embedps.planning.sync_modes import SPEEDS
from tests.benchmarks.builders import run_benchmark


def test_each_way_has_one_process_of_the_same_total_batch():
    ways = [way for group in groups([2, 4, 8], total=2048, batch=512) for way in group]
    assert len(set(ways)) == len(ways)
    ones = {way.batch for way in ways if way.mode == "one process"}
    assert ones == {way.total for way in ways} == {1024, 2048, 4096}
    for mode in ("none", "dense", "full"):
        sizes = {(way.workers, way.batch) for way in ways if way.mode == mode and not way.slow}
        assert sizes == {(2, 1024), (2, 512), (4, 512), (8, 256), (8, 512)}


def lines(*points: tuple[int, int]) -> str:
    """Writes progress lines: how many examples, and the rate since the line before."""
    return "\n".join(f"{n} examples, {rate}/s, AUC 0.7" for n, rate in points)


def test_the_speed_is_that_of_neither_the_start_nor_the_end():
    text = lines((100, 10), (400, 10), (500, 100), (600, 50), (800, 50), (1000, 1))
    assert speed(text) == pytest.approx(50)
    # At 41, 43 and 63 seconds: least squares by hand.
    text = lines((100, 10), (400, 10), (500, 100), (600, 50), (800, 10), (1000, 1))
    assert speed(text) == pytest.approx(3600 / 296)
    assert speed("done: 9 examples, 5/s; see summary.json") == 0


def test_the_speed_hardly_depends_on_where_bursts_of_units_are_cut():
    # Every 10 seconds 90 examples: a line tells a half of them, and one a second later the rest.
    bursts = [(45 * (i + 1), 45 if i % 2 else 5) for i in range(40)]
    assert speed(lines(*bursts)) == pytest.approx(9, rel=0.01)


def test_ways_are_paced_where_workers_outnumber_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    whole, paced = (Data(name="a", folder=tmp_path, epochs=1, paced=p) for p in (False, True))
    ways = [way for group in groups([2, 4], total=2048, batch=512) for way in group]
    is_paced = [way.slow or way.mode == "backup worker" for way in ways]
    assert [way for way in ways if not whole.has(way)] == list(itertools.compress(ways, is_paced))
    on_paced = [way for way in ways if paced.has(way)]
    assert {(way.workers, way.batch) for way in on_paced} == {(4, 512)}
    for slow in (False, True):
        modes = {way.mode for way in on_paced if way.slow == slow}
        assert modes == {"none", "dense", "full", "backup worker"}


def test_checks_compare_runs_of_the_same_seed():
    one = Cell(mode="one process", workers=1, batch=1024)
    full, none = (Cell(mode=mode, workers=2, batch=512) for mode in ("full", "none"))
    found = {}
    for seed, (of_full, of_one) in enumerate([(0.75, 0.7501), (0.74, 0.7401)]):
        found["generated", full, seed] = {"auc": of_full, "examples_per_sec": 70.0}
        found["generated", one, seed] = {"auc": of_one, "examples_per_sec": 50.0}
    found["generated", none, 1] = {"auc": 0.7, "examples_per_sec": 100.0}
    slow = Cell(mode="backup worker", workers=2, batch=512, slow=True)
    found["generated", slow, 1] = {"auc": 0.7, "examples_per_sec": 65.0}
    equal = Cell(mode="backup worker", workers=2, batch=512)
    found["generated", equal, 1] = {"auc": 0.7, "examples_per_sec": 100.0}
    auc, ratio, by_own, by_full = strategies.compare(found)
    assert (by_own["value"], by_own["holds"]) == (0.65, False)
    assert by_full["value"] == pytest.approx(65 / 70)
    assert (by_full["limit"], by_full["holds"]) == (0.9, True)
    assert auc["value"] == pytest.approx(-1e-4)
    assert (auc["seeds"], auc["holds"]) == (2, True)
    assert (ratio["value"], ratio["seeds"], ratio["holds"]) == (0.7, 1, False)


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_short_run_goes_on_where_it_ended(tmp_path):
    output = tmp_path / "strategies.json"

    def run(*more):
        flags = ["--rows=60000", "--workers=2", "--seeds=1", "--sample-epochs=0"]
        flags += ["--paced-rows=8192", "--total-batch=1024", "--batch-size=512"]
        work = f"--work={tmp_path / 'work'}"
        return run_benchmark("strategies", *flags, work, *more, output=output)

    first = run("--minutes=0.0001")
    assert first["absent_runs"] > 0
    found = run()
    assert found["absent_runs"] == 0
    assert output.with_suffix(".png").stat().st_size > 10_000
    again = run()
    assert again["runs"] == found["runs"]
    assert {row["mode"] for row in found["results"]} >= {"one process", "none", "dense", "full"}
    for row in found["results"]:
        assert 0.55 < row["auc"] < 0.85


@pytest.mark.parametrize("sync", ["dense", "full"])
def test_a_plans_speed_of_a_mode_is_near_what_was_measured(sync):
    """One share for any number of workers: so it may be 0.25 off."""
    result = json.loads((report.RESULTS / "strategies.json").read_text())
    measured = [
        check["value"]
        for check in result["checks"]
        if check["what"] == "speed by none's" and check["way"].startswith(f"{sync},")
    ]
    assert measured
    assert SPEEDS[sync] == pytest.approx(statistics.median(measured), abs=0.25)
