"""A local cluster: parameter servers and workers as processes of this machine, on loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import tensorflow as tf

from embedps.cluster import CoordinatorCluster
from embedps.errors import ClusterError

_START_SECS = 120.0


class LocalProcesses:
    """The tasks' processes; they end with this one, however it ends."""

    def __init__(self, *, num_ps: int, num_workers: int, log_dir: Path) -> None:
        """Starts the processes; their output goes to LOG_DIR/<task>-<index>.log."""
        log_dir.mkdir(parents=True, exist_ok=True)
        ports = _free_ports(num_ps + num_workers + 1)
        addresses = [f"127.0.0.1:{port}" for port in ports]
        self.cluster = {
            "chief": addresses[:1],
            "ps": addresses[1 : 1 + num_ps],
            "worker": addresses[1 + num_ps :],
        }
        self._log_dir = log_dir
        self._processes: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        for job, count in (("ps", num_ps), ("worker", num_workers)):
            for index in range(count):
                self._processes[job, index] = self._spawn(job, index)

    def pid(self, job: str, index: int) -> int:
        """A task's process."""
        return self._processes[job, index].pid

    def wait_until_serving(self) -> None:
        """Waits until every task's port answers.

        Raises:
          ClusterError: a task ended, or did not answer in time.
        """
        deadline = time.monotonic() + _START_SECS
        for (job, index), process in self._processes.items():
            host, port = self.cluster[job][index].split(":")
            while True:
                if process.poll() is not None:
                    raise ClusterError(
                        f"{job} {index} ended with code {process.returncode} before it served: "
                        f"see {self._log(job, index)}"
                    )
                try:
                    socket.create_connection((host, int(port)), timeout=1).close()
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise ClusterError(
                            f"{job} {index} did not serve at {host}:{port} within "
                            f"{_START_SECS:.0f} s: see {self._log(job, index)}"
                        ) from None
                    time.sleep(0.05)

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()

    def _log(self, job: str, index: int) -> Path:
        return self._log_dir / f"{job}-{index}.log"

    def _spawn(self, job: str, index: int) -> subprocess.Popen[bytes]:
        config = {"cluster": self.cluster, "task": {"type": job, "index": index}}
        environment = dict(
            os.environ,
            TF_CONFIG=json.dumps(config),
            EMBEDPS_PARENT_PID=str(os.getpid()),
            PYTHONUNBUFFERED="1",
        )
        with open(self._log(job, index), "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "embedps.server"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )


def start(
    *, num_ps: int, num_workers: int, num_shards: int, log_dir: Path
) -> tuple[CoordinatorCluster, LocalProcesses]:
    """Starts a local cluster and connects to it.

    Args:
      num_ps: parameter servers, at least 1.
      num_workers: workers, at least 1.
      num_shards: of the tables; 0 is one a parameter server.
      log_dir: for the processes' output.

    Raises:
      ClusterError: a process did not come up.
    """
    processes = LocalProcesses(num_ps=num_ps, num_workers=num_workers, log_dir=log_dir)
    try:
        processes.wait_until_serving()
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(processes.cluster), task_type="chief", task_id=0, rpc_layer="grpc"
        )
        cluster = CoordinatorCluster(resolver, num_shards=num_shards, on_close=processes.close)
    except BaseException:
        processes.close()
        raise
    return cluster, processes


def _free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on, all at once so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()
