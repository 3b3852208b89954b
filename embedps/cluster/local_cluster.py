"""A local cluster: parameter servers and workers as processes of this machine."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from embedps.cluster.connection import forget
from embedps.cluster.coordinator import CoordinatorCluster
from embedps.cluster.local_processes import LocalProcesses
from embedps.console import tf_logging
from embedps.console.shutdown import deadline
from embedps.errors import ClusterError, UsageError
from embedps.run.cluster_config import MAX_LOCAL_TASKS, ClusterConfig
from embedps.run.config import TrainConfig


class LocalCluster(CoordinatorCluster):
    """Parameter servers and workers as processes of this machine; several runs can use it in turn.

    with LocalCluster(num_ps=2, num_workers=2) as cluster:
        result = Trainer(recommender, dataset, config, cluster).fit()

    The processes listen at the loopback address only. They end when the cluster is closed, and with
    this process, however it ends. A worker that dies is started again. So is a parameter server, if
    a run trains that can go on with that (docs/guides/failures.md). Otherwise its death ends the
    cluster: start another, and train again to resume from the last checkpoint.
    """

    shares_machine = True
    why_fixed = ""

    def __init__(
        self,
        *,
        num_ps: int = 1,
        num_workers: int = 1,
        num_shards: int = 0,
        log_dir: str | os.PathLike[str] | None = None,
        grace_secs: float = TrainConfig.grace_secs,
        server_timeout_secs: float = ClusterConfig.server_timeout_secs,
        wait_secs: float = ClusterConfig.wait_secs,
        on_lost: Callable[[ClusterError], None] | None = None,
        processes: LocalProcesses | None = None,
    ) -> None:
        """Starts the processes and connects to them.

        Args:
          num_ps: parameter servers, at least 1.
          num_workers: workers, at least 1.
          num_shards: shards of each table; 0 makes one per parameter server.
          log_dir: for the output of the processes; by default a temporary directory, which `close`
            removes.
          grace_secs: a server that is told to end has this much time for it.
          server_timeout_secs: a server that does not answer for this long is killed.
          wait_secs: the longest wait for the servers to start; later, the cluster is lost if no
            unit ends for this long.
          on_lost: as `call_on_loss` takes it.
          processes: which were started already, by `prepare`; they say how many tasks there are.

        Raises:
          ClusterError: a process did not start.
        """
        self._loss_lock = threading.Lock()  # guards the two below
        self._lost: ClusterError | None = None
        self._call_on_loss = on_lost
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if log_dir is None and processes is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="embedps-logs-")
            log_dir = self._temporary.name
        self.processes = processes or LocalProcesses(
            num_ps=num_ps,
            num_workers=num_workers,
            log_dir=Path(log_dir or ""),
            grace_secs=grace_secs,
        )
        self._made_with: dict[str, Any] = {
            "num_shards": num_shards,
            "server_timeout_secs": server_timeout_secs,
            "wait_secs": wait_secs,
        }
        try:
            self.processes.wait_until_serving(wait_secs)
            self.processes.watch(self._note_loss)
            resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec(self.processes.cluster),
                task_type="chief",
                task_id=0,
                rpc_layer="grpc",
            )
            with deadline(wait_secs, "the servers of the local cluster to take a client"):
                super().__init__(
                    resolver,
                    num_shards=num_shards,
                    processes=self.processes,
                    first=self.processes.first,
                    server_timeout_secs=server_timeout_secs,
                    wait_secs=wait_secs,
                    on_lost=self._note_loss,
                )
        except BaseException:
            self.processes.close()
            if processes is not None:
                forget(processes.first)
            self._remove_logs()
            raise

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call_on_loss(self, on_lost: Callable[[ClusterError], None] | None) -> None:
        """Sets what is called when the cluster cannot go on; at once if it already cannot.

        Args:
          on_lost: gets the reason, on any thread, while this one may still wait for a server that
            does not answer any more; None calls nothing.
        """
        with self._loss_lock:
            self._call_on_loss = on_lost
            lost = self._lost
        if lost is not None and on_lost is not None:
            on_lost(lost)

    def scale(self, num_workers: int) -> None:
        """Has so many workers from now on: more join soon; the last ones end, after their unit.

        Raises:
          UsageError: there cannot be so many.
        """
        if not 1 <= num_workers <= MAX_LOCAL_TASKS:
            raise UsageError(
                f"a local cluster has 1 to {MAX_LOCAL_TASKS} workers but was to get {num_workers}"
            )
        self.processes.scale(num_workers)

    def prepare(self, *, num_ps: int, num_workers: int) -> LocalProcesses:
        """Starts the processes of a cluster that is to take this one's place, which goes on.

        Raises:
          UsageError: there cannot be so many.
        """
        for what, count in (("parameter servers", num_ps), ("workers", num_workers)):
            if not 1 <= count <= MAX_LOCAL_TASKS:
                raise UsageError(
                    f"a local cluster has 1 to {MAX_LOCAL_TASKS} {what} but was to get {count}"
                )
        return self.processes.successor(num_ps=num_ps, num_workers=num_workers)

    def joined_by(self, processes: LocalProcesses) -> LocalCluster:
        """Connects to the processes that `prepare` started, which must serve; this one goes on.

        Raises:
          ClusterError: a process is lost.
        """
        return LocalCluster(**self._made_with, processes=processes)

    @property
    def why_lost(self) -> ClusterError | None:
        """Why the cluster cannot go on, if it cannot."""
        with self._loss_lock:
            return self._lost

    def replaced_by(self, cluster: LocalCluster) -> None:
        """Ends these processes; a cluster that `joined_by` gave takes this one's place.

        What was made on this cluster is gone. This thread must be the only one that uses it.
        """
        with self._loss_lock:
            on_lost = self._call_on_loss
        self.leave()
        cluster.processes.restarts += self.processes.restarts
        cluster.call_on_loss(on_lost)

    def leave(self) -> None:
        """Ends the processes beside another cluster of this client, which goes on."""
        self._members.close()
        forget(self.processes.first)
        with tf_logging.native_stderr_dropped():  # of those that end
            super().close()

    def close(self) -> None:
        """Ends the processes.

        From then on, this process drops what TensorFlow's C++ threads print: they would complain
        about the servers that are gone, until this process ends.
        """
        tf_logging.silence_native_stderr()
        super().close()
        self._remove_logs()

    def _note_loss(self, error: ClusterError) -> None:
        with self._loss_lock:
            self._lost = self._lost or error
            on_lost = self._call_on_loss
        if on_lost is not None:
            on_lost(error)

    def _remove_logs(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None
