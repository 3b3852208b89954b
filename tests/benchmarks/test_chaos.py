"""The chaos run in its short form."""

import pytest

from tests.benchmarks.builders import run_benchmark


@pytest.mark.multiprocess
@pytest.mark.slow
def test_rows_are_visited_and_the_auc_stays_while_processes_are_killed(tmp_path):
    flags = ("--minutes=0.4", "--seed=4", "--rows=40000", "--epochs=6", "--pause-secs=4")
    found = run_benchmark("chaos", *flags, output=tmp_path / "chaos.json")
    assert len(found["results"]["chaos"]["done_to_it"]) >= 2
    assert found["results"]["calm"]["repeated_visits"] == 0
    assert found["results"]["calm"]["worker_restarts"] == 0
    assert found["results"]["calm"]["steps_by_worker"].keys() == {"0", "1"}
    assert found["results"]["chaos"]["fewest_visits_of_a_row"] >= 6
    for result in found["results"].values():
        assert sum(result["exit_codes"].values()) == result["starts"]
    assert abs(found["auc_difference"]) <= 0.005


@pytest.mark.multiprocess
@pytest.mark.slow
def test_rows_on_the_disks_of_killed_servers_are_not_lost(tmp_path):
    flags = ("--kill-servers", "--minutes=0.3", "--rows=60000", "--epochs=3", "--pause-secs=2")
    found = run_benchmark(
        "chaos", *flags, "--max-memory-bytes=4500000", output=tmp_path / "chaos.json"
    )
    told = found["results"]["chaos"]
    assert all("kill ps-" in line for line in told["done_to_it"])
    assert told["recoveries"]
    assert told["fewest_visits_of_a_row"] >= 3
    assert told["tier"]["rows_on_disk"]["row"] > 0
