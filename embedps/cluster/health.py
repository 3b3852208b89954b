"""Monitors the health of servers: probes each one regularly, on its own thread."""

from __future__ import annotations

import concurrent.futures
import socket
import threading
import time
from collections.abc import Callable, Mapping
from itertools import compress

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
        while True:
            check(task)
            try:
                _greet(address)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ServerLostError(
                        f"waited {secs:.0f} s for {task[0]} {task[1]} to serve at {address} "
                        f"({error})"
                    ) from error
                time.sleep(0.05)


def wait_for_some(addresses: Mapping[int, str], *, least: int, secs: float) -> set[int]:
    """Waits until so many workers answer; returns all that do.

    Args:
      addresses: by worker its "host:port".
      least: how many must answer.
      secs: the longest wait.

    Raises:
      ServerLostError: fewer answered in time.
    """
    deadline = time.monotonic() + secs
    with concurrent.futures.ThreadPoolExecutor(min(len(addresses), 32), "look") as pool:
        while True:
            found = set(compress(addresses, pool.map(serves, addresses.values())))
            if len(found) >= least:
                return found
            if time.monotonic() > deadline:
                raise ServerLostError(
                    f"waited {secs:.0f} s for {least} workers to serve, and {len(found)} do"
                )
            time.sleep(0.05)


def _greet(address: str) -> None:
    """Checks that a server answers.

    Raises:
      OSError: its process or host may not exist yet, or may be stopped.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=1) as link:
        link.sendall(_HELLO)
        if not link.recv(1):
            raise ConnectionError("it closes connections")


def serves(address: str) -> bool:
    """Tells whether a server answers at an address."""
    try:
        _greet(address)
    except OSError:
        return False
    return True


def use_own_executor() -> None:
    """Gives this thread its own executor, so that its RPCs and other threads' do not block."""
    if not hasattr(_own, "executor"):
        _own.executor = executor.new_executor(enable_async=False)  # lives as long as the thread
        context.context().executor = _own.executor


class HealthMonitor:
    """Probes servers and keeps their last answers; a stopped or deadlocked one gives none."""

    def __init__(
        self,
        tasks: Mapping[TaskId, str],
        *,
        timeout_secs: float,
        first: int = 0,
        is_known: Callable[[TaskId], bool] = lambda task: True,
    ) -> None:
        """Starts to probe; a server is unresponsive after `timeout_secs` without an answer.

        While this process does not run (it is stopped, or its machine sleeps), no time passes.

        Args:
          tasks: maps each task to its "host:port".
          first: as `device_of` takes it.
          is_known: tells whether a task is of TensorFlow's cluster, and has not been lost; of
            others `serving` tells whether they answer.
        """
        self._timeout_secs = timeout_secs
        self._first = first
        self._is_known = is_known
        self._ran_secs = 0.0  # time that this process ran, give or take a tick
        self._lock = threading.Lock()  # guards the nine below
        self._addresses: dict[TaskId, str] = {}
        self._probed: set[TaskId] = set()  # that have a thread
        self._serving: set[TaskId] = set()  # not known, and answered
        self._foreign: ClusterError | None = None
        self._alive: set[TaskId] = set()  # answered the last probe
        self._pending: dict[TaskId, float] = {}  # by `_ran_secs`: when an open probe began
        self._refusals: dict[TaskId, int] = {}  # probes refused in a row
        self._draining: set[TaskId] = set()
        self._may_shut_down: set[TaskId] = set()
        self._closed = threading.Event()
        threading.Thread(target=self._keep_time, name="health clock", daemon=True).start()
        for task, address in tasks.items():
            self.add(task, address)

    def add(self, task: TaskId, address: str) -> None:
        """Probes one more server, or one at another address."""
        with self._lock:
            is_new = task not in self._probed
            self._probed.add(task)
            self._addresses[task] = address
        if is_new:
            threading.Thread(
                target=self._keep_probing, args=(task,), name=f"probe {task}", daemon=True
            ).start()

    def remove(self, task: TaskId) -> None:
        """Probes a server no more."""
        with self._lock:
            self._addresses.pop(task, None)

    def serving(self) -> set[TaskId]:
        """Returns servers that are not known and answered when they were looked for last."""
        with self._lock:
            return set(self._serving)

    def unresponsive(self) -> set[TaskId]:
        """Returns servers that answered before, but not for too long; not starting ones."""
        before = self._ran_secs - self._timeout_secs
        with self._lock:
            return {t for t, start in self._pending.items() if start < before and t in self._alive}

    def unreachable(self) -> set[TaskId]:
        """Returns servers that two probes in a row did not reach; also workers begun anew."""
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

    def answers(self, task: TaskId) -> bool:
        """Tells whether a server knows this client still; it may wait for a silent one."""
        try:
            with tf.device(device_of(task, self._first)):
                kernels.load().embedps_probe(release=False)
        except tf.errors.OpError:
            return False
        return True

    def forgive(self, task: TaskId) -> None:
        """Takes that a server was unreachable and is not any more."""
        with self._lock:
            self._refusals[task] = 0

    def refuse(self, error: ClusterError) -> None:
        """Takes why a task cannot stay."""
        with self._lock:
            self._foreign = self._foreign or error

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
        probed = time.monotonic()
        while not self._closed.wait(_TICK_SECS):
            with self._lock:
                address = self._addresses.get(task)
                if address is None:
                    self._probed.discard(task)
                    break
            if not self._is_known(task):
                self._note(task, alive=False, serves=serves(address))
            elif time.monotonic() - probed >= _PROBE_SECS:
                self._probe(task)
                probed = time.monotonic()
        self._note(task, alive=False)

    def _probe(self, task: TaskId) -> None:
        with self._lock:
            self._pending[task] = self._ran_secs
            may_shut_down = task in self._may_shut_down
            is_new = task not in self._alive
        try:
            with tf.device(device_of(task, self._first)):
                draining = bool(kernels.load().embedps_probe(release=may_shut_down))
            if is_new:
                check_task(task, self._first)
            self._note(task, alive=True, draining=draining)
        except ClusterError as error:
            self.refuse(error)
            self._note(task, alive=False)
        except tf.errors.OpError as error:
            # Another process, which is there since the last probe, knows nothing of this client.
            refused = task[0] == "worker" or isinstance(error, tf.errors.UnavailableError)
            self._note(task, alive=False, refused=refused)

    def _note(
        self,
        task: TaskId,
        *,
        alive: bool,
        draining: bool = False,
        refused: bool = False,
        serves: bool = False,
    ) -> None:
        with self._lock:
            self._pending.pop(task, None)
            (self._alive.add if alive else self._alive.discard)(task)
            (self._serving.add if serves else self._serving.discard)(task)
            self._refusals[task] = self._refusals.get(task, 0) + 1 if refused else 0
            if draining:
                self._draining.add(task)
            else:  # perhaps a new process, which got no notice
                self._draining.discard(task)
                self._may_shut_down.discard(task)
