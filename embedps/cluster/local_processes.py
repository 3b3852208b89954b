"""A local cluster: parameter servers and workers as processes of this machine, on loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from embedps.cluster.health import TaskId, wait_until_serving
from embedps.cluster.interface import ScheduledCall
from embedps.console.process_logs import how_it_ended, last_line
from embedps.errors import ClusterError, ServerLostError

_TICK_SECS = 0.2
_MAX_DEATHS = 3  # in a row: of a worker, or of those that run the same unit


class LocalProcesses:
    """The tasks' processes; they end with this one, however it ends.

    Each also ends with the thread that started it: the kernel's rule.
    """

    def __init__(self, *, num_ps: int, num_workers: int, log_dir: Path, grace_secs: float) -> None:
        """Starts the processes; their output goes to LOG_DIR/<task>-<index>.log."""
        log_dir.mkdir(parents=True, exist_ok=True)
        ports = _free_ports(num_ps + num_workers + 1)
        addresses = [f"127.0.0.1:{port}" for port in ports]
        self.cluster = {
            "chief": addresses[:1],
            "ps": addresses[1 : 1 + num_ps],
            "worker": addresses[1 + num_ps :],
        }
        self._num_threads = {
            # Several threads of each of several processes only take turns on the cores.
            "ps": max(1, _num_cores() // num_ps),
            "worker": max(1, _num_cores() // num_workers),
        }
        self.restarts = 0  # of workers
        self._log_dir = log_dir
        self._grace_secs = grace_secs
        self._processes: dict[TaskId, subprocess.Popen[bytes]] = {}
        self._deaths: dict[TaskId, int] = {}  # since it finished a unit
        self._units: dict[int, ScheduledCall] = {}  # by the worker that runs it
        self._closed = threading.Event()
        self._lock = threading.Lock()  # that none starts once this is closed
        for job, count in (("ps", num_ps), ("worker", num_workers)):
            for index in range(count):
                self._spawn((job, index))

    def pid(self, job: str, index: int) -> int:
        """A task's process."""
        return self._processes[job, index].pid

    def kill(self, task: TaskId) -> None:
        """Ends a task's process at once."""
        self._processes[task].kill()

    def watch(self, on_lost: Callable[[ClusterError], None]) -> None:
        """Looks after the processes from now on, on a thread; tells once what cannot go on."""

        def keep() -> None:
            while not self._closed.wait(_TICK_SECS):
                lost = self._look_after()
                if lost is None or self._closed.is_set():
                    continue
                if isinstance(lost, ServerLostError):
                    self.close()  # nobody else may know of them yet
                    on_lost(lost)
                else:
                    on_lost(lost)  # before any server's end could be taken for the cause
                    self.close()

        threading.Thread(target=keep, name="processes", daemon=True).start()

    def unit_started(self, worker: int, unit: ScheduledCall) -> None:
        """A worker begins a unit."""
        self._units[worker] = unit

    def unit_ended(self, worker: int) -> None:
        """A worker has ended its unit."""
        self._units.pop(worker, None)
        self._deaths["worker", worker] = 0

    def _look_after(self) -> ClusterError | None:
        """Starts workers that ended again; returns an error for what cannot go on like that."""
        for task, process in self._processes.items():
            job, index = task
            code = process.poll()
            if code is None:
                continue
            if job == "ps":
                return ServerLostError(f"parameter server {index} ended {how_it_ended(code)}")
            if code != 0 and (cause := self._count_death(task)):
                log = self._log(*task)
                return ClusterError(
                    f"worker {index} ended {how_it_ended(code)}, {cause}: {last_line(log)}; "
                    f"see {log}"
                )
            self.restarts += 1
            self._spawn(task)
        return None

    def _count_death(self, task: TaskId) -> str:
        """Counts a process that was not told to end; why it is the last one, if it is."""
        self._deaths[task] = self._deaths.get(task, 0) + 1
        unit = self._units.pop(task[1], None) if task[0] == "worker" else None
        if unit is not None:
            unit.deaths += 1
            if unit.deaths >= _MAX_DEATHS:  # of several workers one after the other
                return f"as did the {_MAX_DEATHS - 1} that attempted the same unit before"
        if self._deaths[task] >= _MAX_DEATHS:
            return f"{_MAX_DEATHS} times in a row without finishing a unit"
        return ""

    def wait_until_serving(self, secs: float) -> None:
        """Waits until every task answers, for so long at most.

        Raises:
          ClusterError: a task ended, or did not answer in time.
        """

        def check(task: TaskId) -> None:
            code = self._processes[task].poll()
            if code is None:
                return
            if code > 0 or (code < 0 and self._count_death(task)):
                raise ClusterError(
                    f"{task[0]} {task[1]} ended {how_it_ended(code)} before it served: "
                    f"{last_line(self._log(*task))}; see {self._log(*task)}"
                )
            self._spawn(task)  # killed, or told to end: it held nothing yet

        wait_until_serving(
            {(job, index): self.cluster[job][index] for job, index in self._processes},
            secs=secs,
            check=check,
        )

    def close(self) -> None:
        """Ends the processes."""
        self._closed.set()
        with self._lock:
            for process in self._processes.values():
                process.kill()
            for process in self._processes.values():
                process.wait()

    def _log(self, job: str, index: int) -> Path:
        return self._log_dir / f"{job}-{index}.log"

    def _spawn(self, task: TaskId) -> None:
        job, index = task
        config = {"cluster": self.cluster, "task": {"type": job, "index": index}}
        environment = dict(
            os.environ,
            TF_CONFIG=json.dumps(config),
            EMBEDPS_PARENT_PID=str(os.getpid()),
            PYTHONUNBUFFERED="1",
        )
        # Tensors in huge pages: a step touches more memory than the TLB has 4 KiB pages for.
        environment.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
        # Of an op. The ops themselves need no such limit: most wait for each other's messages.
        environment.setdefault("TF_NUM_INTRAOP_THREADS", str(self._num_threads[job]))
        with self._lock, open(self._log(job, index), "ab") as log:
            if self._closed.is_set():
                return
            self._processes[task] = subprocess.Popen(
                [sys.executable, "-m", "embedps.server", f"--grace-secs={self._grace_secs}"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )


def _num_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


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
