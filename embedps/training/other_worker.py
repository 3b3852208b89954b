"""Joins the first worker of TF_CONFIG: does its own part of what that one tells."""

from __future__ import annotations

import os
import signal
import threading
from typing import NoReturn

import tensorflow as tf

from embedps.cluster.worker_channel import OtherWorker
from embedps.cluster.worker_cluster import WorkerCluster
from embedps.console.lines import say
from embedps.console.shutdown import end_process
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.engine.unit_functions import explain
from embedps.errors import EmbedpsError, ServerLostError
from embedps.evaluation.inline import InlineEvaluation
from embedps.run.config import TrainConfig
from embedps.tables.worker_tables import WorkerTables
from embedps.training.recovery import restart
from embedps.training.training_setup import set_up


def join(
    recommender: Recommender, dataset: Dataset, config: TrainConfig, cluster: WorkerCluster
) -> NoReturn:
    """Trains this worker's part of each unit, and keeps its shard; ends the process.

    Raises:
      EmbedpsError: this worker cannot go on. The first worker then ends too.
    """
    other_worker = cluster.other_worker
    if other_worker is None:
        raise ValueError("the first worker leads")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: other_worker.notify())
    setup = set_up(recommender, dataset, config, cluster, (), run_id=0)
    tables = setup.collection
    if not isinstance(tables, WorkerTables):
        raise ValueError("workers in step have tables of their own kind")

    InlineEvaluation.of_run(config, setup.model, tables, dataset, cluster)

    def run(name: str, rate: float, args: list[object]) -> None:
        try:
            found = cluster.run(name, rate, [tf.constant(each) for each in args])
            tf.nest.map_structure(lambda t: t.numpy(), found)
        except tf.errors.OpError as error:
            raise explain(error) from error

    def end(was_told: bool) -> None:
        if was_told:
            say("embedps: the run has ended")
            os._exit(0)
        _go_on("worker 0 is lost", other_worker)

    rank = cluster.step_workers.rank
    say(f"embedps: worker {rank} of {cluster.step_workers.size} trains in step")
    try:
        other_worker.serve(run, tables.answer, on_end=end)
    except ServerLostError as error:
        _go_on(str(error), other_worker)
    except EmbedpsError as error:
        other_worker.fail(str(error))
        raise
    threading.Event().wait()  # until `_end`
    raise AssertionError


def _go_on(why: str, other_worker: OtherWorker) -> NoReturn:
    """Starts again and waits for the others; ends if this worker was told to end."""
    if other_worker.told_to_end:
        end_process(
            f"{why}: run the same command on all workers to resume from the last checkpoint",
            ServerLostError.exit_code,
        )
    say(f"embedps: {why}: waits for all workers, and goes on from the last checkpoint")
    restart()
