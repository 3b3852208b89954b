"""Parameter servers and workers of this machine, for programs of tf.distribute.

TF_CONFIG lists an evaluator too, which never serves: no program may wait for it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embedps.cluster.local_processes import LocalProcesses
from tests import forked
from tests.builders import ROOT
from tests.commands import environment, run_program


class StockCluster:
    """Two servers and two workers, which serve one program after the other."""

    def __init__(self, processes: LocalProcesses) -> None:
        self._processes = processes

    def run(self, *program: str | Path, num_ps: int = 2, num_workers: int = 2) -> str:
        """Runs a program as the chief of the first tasks; returns what it printed."""
        try:
            config = self._config(num_ps, num_workers)
            return run_program(*program, TF_CONFIG=config, timeout_secs=150)
        finally:
            for worker in range(len(self._processes.cluster["worker"])):
                self._processes.unit_ended(worker)  # it may be killed again

    @contextmanager
    def running(self, *program: str | Path, **more: str) -> Iterator[subprocess.Popen[str]]:
        """Runs a program as the chief of all tasks, within the block."""
        env = environment(TF_CONFIG=self._config(2, 2), **more)
        process = forked.start([*map(str, program)], env, cwd=ROOT, stdout=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def _config(self, num_ps: int, num_workers: int) -> str:
        found = self._processes.cluster
        cluster = found | {"ps": found["ps"][:num_ps], "worker": found["worker"][:num_workers]}
        cluster["evaluator"] = ["127.0.0.1:1"]
        return json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})


@contextmanager
def stock_cluster(logs: Path, *, is_kept: bool = True) -> Iterator[StockCluster]:
    """Starts the processes. If it is kept, workers that die are started again.

    Where a server dies, what keeps it ends all. Then workers seem lost, and TensorFlow waits for
    them instead of raising: a program that kills a server needs a cluster that nobody keeps.
    """
    processes = LocalProcesses(num_ps=2, num_workers=2, log_dir=logs, grace_secs=5)
    try:
        processes.wait_until_serving(120)
        if is_kept:
            processes.watch(lambda error: None)
        yield StockCluster(processes)
    finally:
        processes.close()
