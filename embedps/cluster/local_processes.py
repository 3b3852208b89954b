"""Runs parameter servers and workers as processes of this machine, on loopback."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from embedps.cluster.health import wait_until_serving
from embedps.cluster.interface import ScheduledCall
from embedps.console.child_process import ChildProcess, how_it_ended
from embedps.errors import ClusterError, ServerLostError
from embedps.kernels.tasks import MAX_TASKS, TaskId
from embedps.run.tf_config import FIRST_TASK

_TICK_SECS = 0.2
_MAX_DEATHS = 3  # in a row: of one worker, or of workers that run a unit whose deaths nobody counts


class LocalProcesses:
    """The processes of a local cluster's tasks; they end when this process ends, in any way.

    A process also ends with the thread that started it: that is the operating system's rule.
    """

    def __init__(
        self,
        *,
        num_ps: int,
        num_workers: int,
        log_dir: Path,
        grace_secs: float,
        chief: str | None = None,
        first: int = 0,
    ) -> None:
        """Starts the processes; their output goes to LOG_DIR/<job>-<index>.log.

        Args:
          chief: the address of this process, if it has one already.
          first: as `device_of` takes it.
        """
        self.first = first
        log_dir.mkdir(parents=True, exist_ok=True)
        ports = _free_ports(num_ps + num_workers + 1)
        addresses = [f"127.0.0.1:{port}" for port in ports]
        self.cluster = {
            "chief": [chief or addresses[0]],
            "ps": addresses[1 : 1 + num_ps],
            "worker": addresses[1 + num_ps :],
        }
        self._num_threads = {
            # More threads than cores, over all processes, would only compete.
            "ps": max(1, _num_cores() // num_ps),
            "worker": max(1, _num_cores() // num_workers),
        }
        self.restarts = 0  # how often a worker was restarted
        self._log_dir = log_dir
        self._grace_secs = grace_secs
        self._processes: dict[TaskId, ChildProcess] = {}
        self._deaths: dict[TaskId, int] = {}  # since the task last finished a unit
        self._units: dict[int, ScheduledCall] = {}  # by the worker that runs it
        self._killers: dict[TaskId, ScheduledCall] = {}  # who ran when the task died last
        self._closed = threading.Event()
        # Asked when a parameter server ended: whether it is to be started again.
        self.replaces: Callable[[int, str], bool] = lambda index, why: False
        # Told the address of a worker that was not one before, and None for one that left for good.
        self.on_place: Callable[[int, str | None], None] = lambda index, address: None
        self.on_end: Callable[[int], None] = lambda index: None  # told a worker whose process ended
        self._num_workers = num_workers  # that there are to be
        self._leaving: set[int] = set()  # workers that were told to end for good
        for job, count in (("ps", num_ps), ("worker", num_workers)):
            for index in range(count):
                self._start((job, index))

    def successor(self, *, num_ps: int, num_workers: int) -> LocalProcesses:
        """Starts the processes of another cluster of this client, beside these."""
        return LocalProcesses(
            num_ps=num_ps,
            num_workers=num_workers,
            log_dir=self._log_dir,
            grace_secs=self._grace_secs,
            chief=self.cluster["chief"][0],
            first=MAX_TASKS - self.first,
        )

    def pid(self, job: str, index: int) -> int:
        """Returns the process id of a task."""
        return self._processes[job, index].pid

    def runs(self, task: TaskId) -> bool:
        """Tells whether a task's process runs."""
        return self._processes[task].poll() is None

    def kill(self, task: TaskId) -> None:
        """Kills a task's process."""
        if task in self._processes:  # it may have left
            self._processes[task].kill()

    def scale(self, num_workers: int) -> None:
        """Has so many workers soon: starts more, or tells the last ones to end."""
        self._num_workers = num_workers

    def watch(self, on_lost: Callable[[ClusterError], None]) -> None:
        """Starts a thread that restarts dead workers, and calls `on_lost` once if that fails.

        It also starts and ends those that `scale` asks for.
        """

        def supervise() -> None:
            while not self._closed.wait(_TICK_SECS):
                self._scale()
                lost = self._restart_dead()
                if lost is None or self._closed.is_set():
                    continue
                if isinstance(lost, ServerLostError):
                    self.close()  # no cluster may know these processes yet
                    on_lost(lost)
                else:
                    on_lost(lost)  # first, so that no server's end is taken for the cause
                    self.close()

        threading.Thread(target=supervise, name="processes", daemon=True).start()

    def unit_started(self, worker: int, unit: ScheduledCall) -> None:
        """Records that a worker begins a unit."""
        self._units[worker] = unit

    def unit_ended(self, worker: int) -> None:
        """Records that a worker has ended its unit."""
        self._units.pop(worker, None)
        self._deaths["worker", worker] = 0

    def unit_set_aside(self, worker: int) -> None:
        """Records that a worker died by a unit that no worker tries again."""
        self._deaths["worker", worker] = 0

    def _scale(self) -> None:
        """Starts the workers that are to be there more, and tells those to end that are not."""
        workers = self.cluster["worker"]
        while len(workers) < self._num_workers:
            index = len(workers)
            workers.append(f"127.0.0.1:{_free_ports(1)[0]}")
            self._start(("worker", index))
            self.on_place(index, workers[index])
        for index in range(self._num_workers, len(workers)):
            if index not in self._leaving:
                self._leaving.add(index)
                self._processes["worker", index].terminate()

    def _leave(self, worker: int) -> None:
        """Takes that a worker has ended that was told to leave for good."""
        self.on_place(worker, None)
        self._processes.pop(("worker", worker)).close()
        workers = self.cluster["worker"]
        while ("worker", len(workers) - 1) not in self._processes:
            workers.pop()
            self._leaving.discard(len(workers))

    def _restart_dead(self) -> ClusterError | None:
        """Restarts workers that ended; returns an error if the cluster cannot continue."""
        for task, process in list(self._processes.items()):
            job, index = task
            code = process.poll()
            if code is None:
                continue
            if job == "worker":
                self.on_end(index)
            if job == "worker" and index in self._leaving:
                if index >= self._num_workers:
                    self._leave(index)
                    continue
                self._leaving.discard(index)  # it is to stay after all
            if job == "ps":
                why = f"parameter server {index} ended {how_it_ended(code)}"
                if not self.replaces(index, why):
                    return ServerLostError(why)
                process.start()
                continue
            if code != 0 and (cause := self._count_death(task)):
                return ClusterError(
                    f"worker {index} ended {how_it_ended(code)}, {cause}: {process.last_line()}; "
                    f"see {process.log}"
                )
            self.restarts += 1
            process.start()
        return None

    def _count_death(self, task: TaskId) -> str:
        """Counts an unexpected death; returns why not to restart again, or an empty text."""
        unit = self._units.pop(task[1], None) if task[0] == "worker" else None
        if unit is not None and unit.on_death is not None:
            if self._killers.get(task) is unit:
                return ""  # it is the unit's fault, and who counts its deaths will end it
            self._killers[task] = unit
        self._deaths[task] = self._deaths.get(task, 0) + 1
        if unit is not None and unit.on_death is None:
            unit.deaths += 1
            if unit.deaths >= _MAX_DEATHS:  # of workers that tried it one after the other
                return f"as did the {_MAX_DEATHS - 1} that attempted the same unit before"
        if self._deaths[task] >= _MAX_DEATHS:
            return f"{_MAX_DEATHS} times in a row without finishing a unit"
        return ""

    def wait_until_serving(self, secs: float) -> None:
        """Waits until every task answers.

        Args:
          secs: the longest wait.

        Raises:
          ClusterError: a task ended, or did not answer in time.
        """

        def check(task: TaskId) -> None:
            process = self._processes[task]
            code = process.poll()
            if code is None:
                return
            if code > 0 or (code < 0 and self._count_death(task)):
                raise ClusterError(
                    f"{task[0]} {task[1]} ended {how_it_ended(code)} before it served: "
                    f"{process.last_line()}; see {process.log}"
                )
            process.start()  # killed, or shut down: it had no state yet

        wait_until_serving(
            {(job, index): self.cluster[job][index] for job, index in self._processes},
            secs=secs,
            check=check,
        )

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed.is_set()

    def close(self) -> None:
        """Kills the processes and waits for their ends."""
        self._closed.set()
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.close()

    def _start(self, task: TaskId) -> None:
        job, index = task
        config = {"cluster": self.cluster, "task": {"type": job, "index": index}}
        environment = dict(os.environ, TF_CONFIG=json.dumps(config))
        environment[FIRST_TASK] = str(self.first)
        # Puts tensors in huge pages: a step touches more 4 KiB pages than the TLB holds.
        environment.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
        # Limits threads per op. The number of concurrent ops needs no limit: most wait for RPCs.
        environment.setdefault("TF_NUM_INTRAOP_THREADS", str(self._num_threads[job]))
        self._processes[task] = ChildProcess(
            ["-m", "embedps.server", f"--grace-secs={self._grace_secs}"],
            log=self._log_dir / f"{job}-{index}.log",
            environment=environment,
        )


def _num_cores() -> int:
    """Counts the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _free_ports(count: int) -> list[int]:
    """Finds distinct free ports on loopback; all are bound at once so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()
