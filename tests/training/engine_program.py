"""What a user's script does with a Trainer on a cluster, several runs on one that is started once.

usage: python -m tests.training.engine_program DIRECTORY
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import embedps
from embedps.cluster.local_cluster import LocalCluster
from tests.builders import make_trainer, write_dataset


class KillsOne(embedps.Callback):
    """Kills a worker at the first unit's end, and stops the run once that is at work again."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.told: list[Any] = []

    def on_unit_end(self, run: embedps.RunControl, event: embedps.UnitEnd) -> None:
        if not self.told:
            os.kill(self._cluster.processes.pid("worker", 0), signal.SIGKILL)
            self.told.append("killed")

    def on_lost_worker(self, run: embedps.RunControl, event: embedps.LostWorker) -> None:
        self.told.append(["lost", event.worker])

    def on_recovered(self, run: embedps.RunControl, event: embedps.RecoveryEnd) -> None:
        self.told.append(["recovered", event.why, event.secs > 0, event.steps, event.examples])
        run.stop("seen enough")

    def on_train_end(self, run: embedps.RunControl, result: embedps.FitResult) -> None:
        self.told.append(["end", result.stopped_early])


def lost_worker(folder: Path, cluster: LocalCluster) -> list[Any]:
    dataset = write_dataset(folder / "data", train=(600, 600))
    callback = KillsOne(cluster)
    make_trainer(dataset, folder / "m", cluster=cluster, callbacks=[callback], epochs=5000).fit()
    return callback.told


def main() -> None:
    directory = Path(sys.argv[1])
    found = {}
    with LocalCluster(num_ps=1, num_workers=2, log_dir=directory / "logs") as cluster:
        for run in (lost_worker,):
            found[run.__name__] = run(directory / run.__name__, cluster)
    print("found", json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
