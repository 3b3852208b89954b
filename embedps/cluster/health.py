"""Monitors the health of servers: probes each one regularly, on its own thread."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping

import tensorflow as tf
from tensorflow.python.eager import context, executor

from embedps import kernels
from embedps.errors import ClusterError, ServerLostError
from embedps.kernels.tasks import TaskId, check_task, device_of

_PROBE_SECS = 1.0
_TICK_SECS = 0.2
# An HTTP/2 client's first bytes: its preface and an empty SETTINGS frame (RFC 9113, 3.4). A running
# server answers with its own SETTINGS. A connection alone proves nothing: the operating system
# accepts connections for a stopped process too.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_own = threading.local()


def wait_until_serving(
    addresses: Mapping[TaskId, str], *, secs: float, check: Callable[[TaskId], None]
) -> None:
    """Waits until every server answers.

    Args:
      addresses: maps each task to its "host:port".
      secs: the longest wait for all of them.
      check: called before each attempt to connect to a server; may raise.

    Raises:
      ServerLostError: a server did not answer in time.
    """
    deadline = time.monotonic() + secs
    for task, address in addresses.items():
        host, _, port = address.rpartition(":")
        while True:
            check(task)
            try:
                with socket.create_connection((host.strip("[]"), int(port)), timeout=1) as link:
                    link.sendall(_HELLO)
                    if link.recv(1):
                        break
                    raise ConnectionError("it closes connections")
            except OSError as error:  # the process or host may not exist yet, or may be stopped
                if time.monotonic() > deadline:
                    raise ServerLostError(
                        f"waited {secs:.0f} s for {task[0]} {task[1]} to serve at {address} "
                        f"({error})"
                    ) from error
                time.sleep(0.05)


def use_own_executor() -> None:
    """Gives this thread its own executor, so that its RPCs and other threads' do not block."""
    if not hasattr(_own, "executor"):
        _own.executor = executor.new_executor(enable_async=False)  # lives as long as the thread
        context.context().executor = _own.executor


class HealthMonitor:
    """Probes servers and keeps their last answers; a stopped or deadlocked one gives none."""

    def __init__(self, tasks: Iterable[TaskId], *, timeout_secs: float) -> None:
        """Starts to probe; a server is unresponsive after `timeout_secs` without an answer.

        While this process does not run (it is stopped, or its machine sleeps), no time passes.
        """
        self._timeout_secs = timeout_secs
        self._ran_secs = 0.0  # time that this process ran, give or take a tick
        self._lock = threading.Lock()  # guards the six below
        self._foreign: ClusterError | None = None
        self._alive: set[TaskId] = set()  # answered the last probe
        self._pending: dict[TaskId, float] = {}  # by `_ran_secs`: when an open probe began
        self._refusals: dict[TaskId, int] = {}  # probes refused in a row
        self._draining: set[TaskId] = set()
        self._may_shut_down: set[TaskId] = set()
        self._closed = threading.Event()
        threading.Thread(target=self._keep_time, name="health clock", daemon=True).start()
        for task in tasks:
            threading.Thread(
                target=self._keep_probing, args=(task,), name=f"probe {task}", daemon=True
            ).start()

    def unresponsive(self) -> set[TaskId]:
        """Returns servers that answered before, but not for too long; not starting ones."""
        before = self._ran_secs - self._timeout_secs
        with self._lock:
            return {t for t, start in self._pending.items() if start < before and t in self._alive}

    def unreachable(self) -> set[TaskId]:
        """Returns servers whose address refused two probes in a row."""
        with self._lock:
            return {task for task, count in self._refusals.items() if count >= 2}

    def draining(self) -> set[TaskId]:
        """Returns servers that got a shutdown notice and wait for `allow_shutdown`."""
        with self._lock:
            return set(self._draining)

    def allow_shutdown(self, task: TaskId) -> None:
        """Lets a draining server shut down."""
        with self._lock:
            self._may_shut_down.add(task)

    def foreign(self) -> ClusterError | None:
        """Returns why a task cannot stay that came back with other versions; None if none did."""
        with self._lock:
            return self._foreign

    def close(self) -> None:
        """Stops probing."""
        self._closed.set()

    def _keep_time(self) -> None:
        last = time.monotonic()
        while not self._closed.wait(_TICK_SECS):
            now = time.monotonic()
            self._ran_secs += min(now - last, 2 * _TICK_SECS)
            last = now

    def _keep_probing(self, task: TaskId) -> None:
        use_own_executor()
        while not self._closed.wait(_PROBE_SECS):
            with self._lock:
                self._pending[task] = self._ran_secs
                may_shut_down = task in self._may_shut_down
                is_new = task not in self._alive
            foreign = None
            try:
                with tf.device(device_of(task)):
                    draining = bool(kernels.load().embedps_probe(release=may_shut_down))
                alive, refused = True, False
                if is_new:
                    check_task(task)
            except ClusterError as error:
                foreign = error
            except tf.errors.OpError as error:
                alive, draining = False, False
                refused = isinstance(error, tf.errors.UnavailableError)
            with self._lock:
                self._foreign = self._foreign or foreign
                del self._pending[task]
                (self._alive.add if alive else self._alive.discard)(task)
                self._refusals[task] = self._refusals.get(task, 0) + 1 if refused else 0
                if draining:
                    self._draining.add(task)
                else:  # perhaps a new process, which got no notice
                    self._draining.discard(task)
                    self._may_shut_down.discard(task)
