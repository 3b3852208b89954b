"""The kills of a run that watches a directory, and of its server, in their short form."""

import json
import subprocess
import sys

import pytest

from tests.builders import ROOT


@pytest.mark.multiprocess
@pytest.mark.slow
def test_no_example_is_lost_by_kills_and_the_newest_manifest_is_served(tmp_path):
    output = tmp_path / "kills.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.watch_kills", "--kills=3", "--seed=5"),
            *("--num-ps=1", "--files=8", "--pause-secs=5", f"--output={output}"),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=560,
    )
    assert done.returncode == 0, done.stdout
    found = json.loads(output.read_text())["results"]
    assert sum(found["kills"].values()) == 3
    assert found["examples"] == (2 + 8) * 4096
    assert found["examples_lost"] == 0
    assert found["examples_repeated"] <= found["units_repeated"] * 4096
    assert found["served_manifest"] == found["newest_manifest"]
    assert found["scores_equal"]
    assert found["manifest_ledger_bytes"] < 1000
