"""Runs units on the workers of TF_CONFIG, in step, under MultiWorkerMirroredStrategy.

Each worker is a client of its own: it makes the model, reads its batches, has a copy of the
network's variables and one shard of the rows. The first worker also has the ledger, and it writes
manifests and scores.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from embedps import kernels
from embedps.cluster.bind_address import check_listening, listen_at
from embedps.cluster.embedded import EmbeddedCluster
from embedps.cluster.worker_channel import Leader, OtherWorker
from embedps.cluster.worker_gathering import gather
from embedps.console.shutdown import deadline
from embedps.engine.steps.interface import UnitFunction
from embedps.engine.steps.step_workers import StepWorkers
from embedps.engine.steps.ways import Place
from embedps.errors import ClusterError, ServerLostError, UsageError
from embedps.metrics import Counts
from embedps.tables.worker_tables import WorkerTables

_NUMBERS, _SHOWN = 7, 9  # the places of a program that exchange, see StepWorkers


class WorkerCluster(EmbeddedCluster):
    """The workers of TF_CONFIG; TensorFlow must not have started.

    Attributes:
      leader: tells the others what to do; None if this worker is not the first.
      other_worker: does what it is told; None if this worker is the first.
    """

    place: Place = "workers"
    step_workers: StepWorkers

    def __init__(
        self,
        task: dict[str, Any],
        *,
        wait_secs: float,
        on_lost: Callable[[ClusterError], None] = lambda error: None,
    ) -> None:
        """Waits for all workers.

        Args:
          task: TF_CONFIG.
          wait_secs: the longest wait for the others; then the process ends.
          on_lost: called on another thread when another worker is gone.

        Raises:
          UsageError: there is one worker only.
          ClusterError: another worker has other versions than this one.
        """
        addresses, rank = task["cluster"]["worker"], int(task["task"]["index"])
        if len(addresses) < 2:
            raise UsageError(
                "workers in step must be two at least but TF_CONFIG has one: leave TF_CONFIG out"
            )
        kernels.load()  # before the library is loaded for its address alone
        listen_at(addresses[rank])
        gather(addresses, rank, wait_secs=wait_secs)
        with deadline(wait_secs, "the workers of TF_CONFIG to connect"):
            strategy = tf.distribute.MultiWorkerMirroredStrategy()
        check_listening(addresses[rank])
        super().__init__(num_shards=len(addresses))
        # It formed the cluster. Variables are plain: each worker updates its copy by the same sums.
        self.multi_worker = strategy
        self.step_workers = StepWorkers(rank, len(addresses))
        self.leads = rank == 0
        self._on_lost = on_lost
        self._rate = 1.0
        self._functions: dict[str, UnitFunction] = {}
        self.leader: Leader | None = None
        self.other_worker: OtherWorker | None = None
        if rank:
            self.other_worker = OtherWorker(rank, wait_secs=wait_secs)
            return
        host = addresses[0].rsplit(":", 1)[0].strip("[]")
        self.leader = Leader(
            len(addresses),
            host=host,
            wait_secs=wait_secs,
            on_lost=lambda error: self._on_lost(error),
            # All must end: a worker that leaves takes its shard along.
            on_notice=lambda: os.kill(os.getpid(), signal.SIGTERM),
        )

    def call_on_loss(self, on_lost: Callable[[ClusterError], None] | None) -> None:
        """Replaces the function that is called when another worker is gone."""
        self._on_lost = on_lost or (lambda error: None)

    def seed_steps(self, seed: int) -> None:
        """Makes each worker draw other numbers, of dropout."""
        tf.random.set_seed(seed + self.step_workers.rank)

    def make_tables(self, *args: Any, **options: Any) -> WorkerTables:
        """Makes the tables of which this worker fills the shard of its rank."""
        return WorkerTables(
            *args, devices=self.shard_devices, rank=self.step_workers.rank, workers=self, **options
        )

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """Gives all workers' numbers, by rank; all must call it, with as many."""
        # One by one: all calls of a key have one length.
        each = [
            self.step_workers.all_gather(tf.constant(np.array([n], np.int64)), key=_NUMBERS)
            for n in numbers
        ]
        return tf.stack(each, axis=1).numpy().tolist()  # type: ignore[no-any-return]

    def show(self, values: tf.Tensor) -> tf.Tensor:
        """Gives all workers' values, by rank, in a function of `led`.

        Args:
          values: float32 [n], n the same on all workers.
        """
        return self.step_workers.all_to_all(
            tf.tile(values[None], [self.step_workers.size, 1]), key=_SHOWN
        )

    def check_same(self, number: int) -> None:
        """Checks that all workers see the same last checkpoint; all must call it.

        Raises:
          UsageError: they do not.
        """
        found = [of[0] for of in self.gather([number])]
        if len(set(found)) > 1:
            raise UsageError(
                "all workers of TF_CONFIG must share --model-dir, but the last checkpoints that "
                f"they see, by worker, are {found}: use a directory that all can read and write"
            )

    def ask(self, stream: str, what: str, *args: Any, own: Callable[[], Any]) -> list[Any]:
        """Makes all workers do something; see `Leader.ask`. Another worker does its part alone."""
        if self.leader is None:
            return [own()]
        return self.leader.ask(stream, what, *args, own=own)

    def rate_setter(self, set_rate: Callable[[float], None]) -> Callable[[float], None]:
        """Makes a function that sets the network's learning rate from the next unit on."""
        self._set_rate = set_rate

        def set_later(factor: float) -> None:
            self._rate = factor

        return set_later

    def led(self, name: str, function: UnitFunction) -> UnitFunction:
        """Makes a unit's function one that runs on all workers.

        Args:
          name: tells it from the others of the run.
          function: exchanges by collectives.
        """
        self._functions[name] = function
        if self.leader is None:
            return function
        leader = self.leader

        def run_on_all(*args: tf.Tensor) -> Counts:
            rate = self._rate
            leader.tell("units", name, rate, [t.numpy() for t in args])
            return self.run(name, rate, args)

        return run_on_all

    def run(self, name: str, rate: float, args: Sequence[Any]) -> Counts:
        """Runs this worker's part of a function of `led`.

        Raises:
          ServerLostError: another worker was lost meanwhile.
        """
        self._set_rate(rate)
        try:
            return self._functions[name](*args)
        except tf.errors.OpError as error:
            if "ollective" not in error.message:
                raise
            raise ServerLostError("another worker is lost") from error

    def close(self) -> None:
        """Lets the other workers end with this process."""
        super().close()
        if self.leader is not None:
            self.leader.close()
