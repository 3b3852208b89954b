"""`LocalCluster`, as a user's script has it: two runs on it in turn, and a loss of a server."""

import json
from pathlib import Path

import pytest

from tests import forked
from tests.builders import ROOT

PROGRAM = """
import json
import os
import signal
import sys
from pathlib import Path

import embedps
from embedps import errors
from tests.builders import make_config, make_dlrm, write_dataset

folder = Path(sys.argv[1])
dataset = write_dataset(folder / "data", train=(600, 600))
found = {}
with embedps.LocalCluster(num_ps=2, num_workers=1) as cluster:
    for name in ("a", "b") if sys.argv[2] == "before" else ():
        config = make_config(dataset, folder / name)
        result = embedps.Trainer(make_dlrm(dataset), dataset, config, cluster).fit()
        found[name] = result.examples
    logs = cluster.processes._log_dir
    found["logs"] = sorted(path.name for path in logs.iterdir())
    epochs = 1 if sys.argv[2] == "after units" else 500
    trainer = embedps.Trainer(
        make_dlrm(dataset), dataset, make_config(dataset, folder / "c", epochs=epochs), cluster
    )
    server = cluster.processes.pid("ps", 0)
    if sys.argv[2] == "before":
        os.kill(server, signal.SIGKILL)
    else:
        hold = trainer.collection.hold_sweeps

        def kill_and_hold(held):
            if held is (sys.argv[2] == "after units"):
                os.kill(server, signal.SIGKILL)
            hold(held)

        trainer.collection.hold_sweeps = kill_and_hold
    try:
        trainer.fit()
    except errors.ServerLostError as error:
        found["lost"] = str(error)
    try:
        embedps.Trainer(make_dlrm(dataset), dataset, make_config(dataset, folder / "d"), cluster)
    except errors.ServerLostError as error:
        found["later"] = str(error)
found["left"] = logs.exists()
print(json.dumps(found), flush=True)
"""


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("moment", ["before", "before units", "after units"])
def test_runs_use_a_local_cluster_in_turn_and_are_told_of_its_loss(
    tmp_path: Path, moment: str
) -> None:
    done = forked.run(
        ["-c", PROGRAM, str(tmp_path), moment],
        cwd=ROOT,
        capture_output=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout.splitlines()[-1])
    if moment == "before":
        assert (found["a"], found["b"]) == (1200, 1200)
    assert found["logs"] == ["ps-0.log", "ps-1.log", "worker-0.log"]
    assert found["lost"] == found["later"] == "parameter server 0 ended by SIGKILL"
    assert not found["left"]
