"""Whether a cluster's servers are there: each is asked, all the time, on a thread of its own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import tensorflow as tf
from tensorflow.python.eager import context, executor

from embedps import kernels
from embedps.errors import ServerLostError

_ASK_SECS = 1.0
# An HTTP/2 client's first bytes: its preface and an empty SETTINGS frame (RFC 9113, 3.4). A server
# that runs answers by its own SETTINGS. The kernel takes connections for one that is stopped too.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_own = threading.local()

TaskId: TypeAlias = tuple[str, int]
"""A job, "ps" or "worker", and an index."""


def device_of(task: TaskId) -> str:
    """Where a task's ops run."""
    job, index = task
    return f"/job:{job}/replica:0/task:{index}/device:CPU:0"


def wait_until_serving(
    addresses: Mapping[TaskId, str], *, secs: float, check: Callable[[TaskId], None]
) -> None:
    """Waits until every server answers.

    Args:
      addresses: of each, "host:port".
      secs: how long all of them have.
      check: called while a server does not answer; may raise.

    Raises:
      ServerLostError: one did not answer in time.
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
            except OSError as error:  # no process yet, no such host yet, or one that is stopped
                if time.monotonic() > deadline:
                    raise ServerLostError(
                        f"waited {secs:.0f} s for {task[0]} {task[1]} to serve at {address} "
                        f"({error})"
                    ) from error
                time.sleep(0.05)


def use_own_executor() -> None:
    """Has this thread's calls of servers wait for nothing but themselves, nor others for them."""
    if not hasattr(_own, "executor"):
        _own.executor = executor.new_executor(enable_async=False)  # kept as long as the thread
        context.context().executor = _own.executor


class HealthMonitor:
    """What servers answered last. A process that is stopped, or deadlocked, does not answer."""

    def __init__(self, tasks: Iterable[TaskId], *, timeout_secs: float) -> None:
        """Begins to ask; a server silent for longer than `timeout_secs` is `silent`."""
        self._timeout_secs = timeout_secs
        self._lock = threading.Lock()  # guards the five below
        self._there: set[TaskId] = set()  # their last call brought an answer
        self._asked: dict[TaskId, float] = {}  # and not answered yet
        self._unreachable: dict[TaskId, int] = {}  # times in a row
        self._leaving: set[TaskId] = set()
        self._released: set[TaskId] = set()
        self._closed = threading.Event()
        for task in tasks:
            threading.Thread(
                target=self._keep_asking, args=(task,), name=f"ask {task}", daemon=True
            ).start()

    def unresponsive(self) -> set[TaskId]:
        """Those that answered once and have not for too long; one that starts is none of them."""
        before = time.monotonic() - self._timeout_secs
        with self._lock:
            return {t for t, asked in self._asked.items() if asked < before and t in self._there}

    def unreachable(self) -> set[TaskId]:
        """Those whose address refused to be asked, twice in a row."""
        with self._lock:
            return {task for task, times in self._unreachable.items() if times >= 2}

    def draining(self) -> set[TaskId]:
        """Those that were told to end, and wait until they are released."""
        with self._lock:
            return set(self._leaving)

    def allow_shutdown(self, task: TaskId) -> None:
        """Lets a server that is leaving end."""
        with self._lock:
            self._released.add(task)

    def close(self) -> None:
        """Stops asking."""
        self._closed.set()

    def _keep_asking(self, task: TaskId) -> None:
        use_own_executor()
        while not self._closed.wait(_ASK_SECS):
            with self._lock:
                self._asked[task] = time.monotonic()
                release = task in self._released
            try:
                with tf.device(device_of(task)):
                    leaving = bool(kernels.load().embedps_probe(release=release))
                there, refused = True, False
            except tf.errors.OpError as error:
                there, leaving = False, False
                refused = isinstance(error, tf.errors.UnavailableError)
            with self._lock:
                del self._asked[task]
                (self._there.add if there else self._there.discard)(task)
                self._unreachable[task] = self._unreachable.get(task, 0) + 1 if refused else 0
                if leaving:
                    self._leaving.add(task)
                else:  # another process by now, which knows of no notice
                    self._leaving.discard(task)
                    self._released.discard(task)
