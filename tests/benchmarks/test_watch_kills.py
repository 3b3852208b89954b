"""The kills of a run that watches a directory, and of its server, in their short form."""

import pytest

from tests.benchmarks.builders import run_benchmark


@pytest.mark.multiprocess
@pytest.mark.slow
def test_no_example_is_lost_by_kills_and_the_newest_manifest_is_served(tmp_path):
    flags = ("--kills=3", "--seed=5", "--num-ps=1", "--files=8", "--pause-secs=5")
    found = run_benchmark("watch_kills", *flags, output=tmp_path / "kills.json")["results"]
    assert sum(found["kills"].values()) == 3
    assert found["examples"] == (2 + 8) * 4096
    assert found["examples_lost"] == 0
    assert found["examples_repeated"] <= found["units_repeated"] * 4096
    assert found["served_manifest"] == found["newest_manifest"]
    assert found["scores_equal"]
    assert found["manifest_ledger_bytes"] < 1000
