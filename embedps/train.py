"""Trains a recommender: `embedps train --model dlrm --data DIR --model-dir DIR`.

By default it trains in this process, and an evaluator in a second process scores the checkpoints.
With --num-ps and --num-workers it starts a local cluster of processes. With TF_CONFIG set, it takes
the role of this task in that cluster: the chief trains, workers and parameter servers serve. If
TF_CONFIG has workers only, they train in step, under MultiWorkerMirroredStrategy.

Run the same command again to resume from the last checkpoint. If a local cluster loses a parameter
server, the command restarts itself and resumes. With TF_CONFIG the chief then ends with code 75 and
one line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from embedps.console import command_line, flags
from embedps.console.lines import say
from embedps.console.shutdown import sigterm_exits
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.errors import ClusterError, ServerLostError
from embedps.run.config import TrainConfig
from embedps.run.preparation import (
    check_workers,
    chief_task,
    open_dataset,
    prepare_directory,
)
from embedps.run.run_config import RunConfig
from embedps.run.run_flags import RunFlags
from embedps.run.tf_config import is_of_workers, read_tf_config
from embedps.server import ServerConfig, serve
from embedps.storage.object_store import is_local, local_dir

if TYPE_CHECKING:  # it imports TensorFlow
    from embedps.cluster.worker_cluster import WorkerCluster


def main(arguments: Sequence[str], prog: str = "python -m embedps.train") -> NoReturn:
    """Trains, or serves as a task of TF_CONFIG; ends the process."""
    task = read_tf_config()
    workers = task if task is not None and is_of_workers(task) else None
    if task is not None and workers is None and task["task"]["type"] in ("worker", "ps"):
        serve(flags.read_known(ServerConfig, arguments, prog))
    run = parse(arguments, prog)
    if workers is None:
        chief_task(run.config)
    else:
        check_workers(run.config)
    dataset = open_dataset(run.config)
    if workers is not None:
        train_in_step(workers, run, dataset)
    if run.config.cluster.mirrored:
        # Imported late, and called before the model's module can start TensorFlow.
        from embedps.cluster.replica_devices import make_replica_devices

        make_replica_devices(run.config.cluster.replicas)
    recommender = run.recommender(dataset)
    model_dir = prepare_directory(run.config)
    if not is_local(model_dir):
        say(f"logs and TensorBoard's events are in {local_dir(model_dir)}")
    scored = _train(recommender, dataset, run.config)
    sys.stdout.flush()
    # Not the interpreter's end: it would wait for a thread whose unit could not finish in time, or
    # for a server that hangs.
    os._exit(0 if scored else ClusterError.exit_code)


def train_in_step(task: dict[str, Any], run: RunConfig, dataset: Dataset) -> NoReturn:
    """Trains as a worker of a TF_CONFIG that has workers only; ends the process."""
    # Imported late, as in `_train`; and called before the model's module can start TensorFlow.
    from embedps.cluster.worker_cluster import WorkerCluster
    from embedps.training.other_worker import join

    with sigterm_exits(run.config.grace_secs / 2):
        cluster = WorkerCluster(task, wait_secs=run.config.cluster.wait_secs)
    recommender = run.recommender(dataset)
    prepare_directory(run.config)
    if cluster.other_worker is not None:
        join(recommender, dataset, run.config, cluster)
    scored = _train(recommender, dataset, run.config, cluster)
    cluster.close()
    sys.stdout.flush()
    os._exit(0 if scored else ClusterError.exit_code)


def _train(
    recommender: Recommender,
    dataset: Dataset,
    config: TrainConfig,
    cluster: WorkerCluster | None = None,
) -> bool:
    """Trains and prints the result; returns whether the evaluator could score it.

    If a server is lost, it restarts or ends the process.
    """
    # Imported late: flags and datasets that are refused are refused at once.
    import tensorflow as tf

    from embedps.engine.unit_functions import explain
    from embedps.training.recovery import Recovery, take_loss
    from embedps.training.trainer import Trainer

    loss = take_loss()
    recovery = Recovery(loss, again=config.cluster.num_ps > 0)
    try:
        # Before and after training there is nothing to save.
        with sigterm_exits(config.grace_secs / 2):
            trainer = Trainer(
                recommender,
                dataset,
                config,
                cluster,
                recovered_from=loss,
                on_lost=recovery.begin,
            )
            recovery.follow(trainer)
            result = trainer.fit()
            print(result, flush=True)
    except (ServerLostError, tf.errors.OpError) as error:
        lost = explain(error)
        if not isinstance(lost, ServerLostError):
            raise
        recovery.begin(lost)
    return result.evaluator_problem is None


def parse(arguments: Sequence[str], prog: str = "python -m embedps.train") -> RunConfig:
    """Reads the flags of a run and of its model.

    Raises:
      UsageError: a flag is unknown, or its value is not allowed.
    """
    return RunFlags(arguments, prog, __doc__ or "").read()


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
