import dataclasses

import pytest

from benchmarks import goodput
from benchmarks.goodput_model import Cluster, Failure, Recovery, random_failures, simulate
from benchmarks.layout import Table
from embedps.errors import UsageError

CLUSTER = Cluster(
    workers=4, servers=2, rows_per_server=1000, interval_secs=10, save_secs=2, worker_secs=8
)
RESTART = Recovery(name="restart", fixed_secs=5, rows_per_sec=500, repeats=True)
STANDBY = Recovery(name="standby", fixed_secs=1)
LOGS = Recovery(name="logs", fixed_secs=1, rows_per_sec=500, replay_share=0.5)


def server(*at):
    return [Failure(each, "server") for each in at]


def test_a_calm_run_takes_its_work_and_its_saves():
    assert simulate(CLUSTER, RESTART, [], work_secs=100).secs == 100
    slow = dataclasses.replace(CLUSTER, save_slowdown=0.5)  # a fifth of the time at half the speed
    assert simulate(slow, RESTART, [], work_secs=90).secs == pytest.approx(100)


@pytest.mark.parametrize(
    ("recovery", "at", "secs"),
    [
        (RESTART, 37.0, 100 + 7 + 7),  # the cut of 30 is committed: 7 s are done again
        (RESTART, 31.0, 100 + 11 + 7),  # the cut of 30 is not yet
        (RESTART, 4.0, 100 + 4 + 7),  # none is: from the start
        (STANDBY, 37.0, 100 + 1),
        (LOGS, 37.0, 100 + 1 + 2 + 3.5),
    ],
)
def test_a_lost_server_costs_what_its_way_of_recovery_says(recovery, at, secs):
    found = simulate(CLUSTER, recovery, server(at), work_secs=100)
    assert found.secs == pytest.approx(secs)
    assert found.goodput + found.down + found.repeated == pytest.approx(1)


def test_a_failure_within_a_recovery_begins_it_again():
    found = simulate(CLUSTER, RESTART, server(37, 40), work_secs=100)
    assert found.secs == pytest.approx(100 + 7 + 3 + 7)
    assert found.failures == 2


def test_cuts_count_from_the_recovery():
    # Back at 44 with 30 s of work; the cut of 54 (40 s) is committed at 56.
    found = simulate(CLUSTER, RESTART, server(37, 57), work_secs=100)
    assert found.secs == pytest.approx(57 + 7 + 60)


def test_a_lost_worker_costs_its_share():
    found = simulate(CLUSTER, RESTART, [Failure(20, "worker")], work_secs=100)
    assert found.secs == pytest.approx(100 + 8 / 4)
    assert found.goodput + found.workers == pytest.approx(1)


def test_failures_that_come_too_often_leave_nothing():
    often = dataclasses.replace(CLUSTER, interval_secs=600)
    endless = random_failures(often, worker_mtbf_secs=1e9, server_mtbf_secs=60, seed=0)
    found = simulate(often, RESTART, endless, most_secs=10_000)
    assert found.secs == 10_000
    assert found.goodput < 0.01
    assert found.down + found.repeated > 0.95


def test_rare_failures_cost_half_an_interval_and_the_recovery():
    def failures(seed=0):
        return random_failures(CLUSTER, worker_mtbf_secs=1e12, server_mtbf_secs=20_000, seed=seed)

    found = simulate(CLUSTER, RESTART, failures(), work_secs=1e7)
    cost = (10 / 2 + 2 + 7) / 10_000  # a cut is 5 s old on average, and takes 2 s to be committed
    assert 1 - found.goodput == pytest.approx(cost, rel=0.1)
    assert simulate(CLUSTER, RESTART, failures(), work_secs=1e7) == found
    assert simulate(CLUSTER, RESTART, failures(1), work_secs=1e7) != found


def test_the_page_tells_how_far_the_simulator_is_off():
    run = {"secs": 60.0, "killed_at": [10.0], "noticed": [0.1], "recovered": [4.0]}
    fits = {name: {"fit": run, "check": run} for name in goodput.WAYS}
    content = goodput.evaluate(goodput.Config(), calm_secs=50.0, runs=fits, interval_secs=5.0)
    shown = goodput.layout(content)
    (check, *_) = shown
    assert isinstance(check, Table)
    assert [row[0] for row in check.rows] == list(goodput.WAYS)
    # 10 s of work, the cut of 5 s committed, so 5 s again: 50 + 4.1 + 5.
    assert content["check"]["restart"]["predicted_secs"] == pytest.approx(59.1)
    assert content["check"]["restart"]["off"] == pytest.approx(59.1 / 60 - 1, abs=1e-3)
    large = content["large"]
    assert {each["way"] for each in large} == {"restart", "in place", "standby", "sender logs"}
    assert all(0 <= each["goodput"] < 1 for each in large)


def test_a_wrong_cluster_is_refused():
    with pytest.raises(UsageError, match="mtbf_hours must be above 0"):
        goodput.Config(mtbf_hours=(0.0,))
