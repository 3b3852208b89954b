"""Trains a recommender: `embedps train --model dlrm --data DIR --model-dir DIR`.

By default it trains in this process, and an evaluator in a second process scores the checkpoints.
With --num-ps and --num-workers it starts a local cluster of processes. With TF_CONFIG set, it takes
the role of this task in that cluster: the chief trains, workers and parameter servers serve. If
TF_CONFIG has workers only, they train in step, under MultiWorkerMirroredStrategy.

Run the same command again to resume from the last checkpoint. If a local cluster loses a parameter
server, that one goes back to the last checkpoint, or the command restarts itself and resumes. So it
does if workers in step lose one of them. A chief of TF_CONFIG then ends with code 75 and one line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from embedps.cluster.before_tensorflow import begin_cluster
from embedps.console import command_line, flags
from embedps.console.lines import log_as, say, show
from embedps.console.shutdown import sigterm_exits
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.errors import ClusterError, ServerLostError
from embedps.run.config import TrainConfig
from embedps.run.preparation import check_task, open_dataset, prepare_directory
from embedps.run.run_config import RunConfig
from embedps.run.run_flags import RunFlags
from embedps.run.tf_config import is_server, read_tf_config
from embedps.run.weight_scale import far_weights
from embedps.server import ServerConfig, serve
from embedps.storage.object_store import is_local, local_dir

if TYPE_CHECKING:  # it imports TensorFlow
    from embedps.cluster.worker_cluster import WorkerCluster

_OF_MEANS = ("two_tower", "sasrec")
"""Models whose loss is divided by the sum of its weights."""


def main(arguments: Sequence[str], prog: str = "python -m embedps.train") -> NoReturn:
    """Trains, or serves as a task of TF_CONFIG; ends the process."""
    task = read_tf_config()
    if task is not None and is_server(task):
        serve(flags.read_known(ServerConfig, arguments, prog))
    given = RunFlags(arguments, prog, __doc__ or "")
    run = given.read()
    log_as(run.config.monitoring.log_format)
    if given.preset_line:
        say(given.preset_line)
    check_task(run.config)
    dataset = open_dataset(run.config)
    if idle := given.without_effect(dataset):
        say(idle)
    if run.config.model not in _OF_MEANS and (told := far_weights(dataset)):
        say(told)
    cluster = begin_cluster(run.config)
    recommender = run.recommender(dataset)
    model_dir = prepare_directory(run.config)
    if not is_local(model_dir):
        say(f"logs and TensorBoard's events are in {local_dir(model_dir)}")
    scored = _train(recommender, dataset, run.config, cluster)
    sys.stdout.flush()
    # Not the interpreter's end: it would wait for a thread whose unit could not finish in time, or
    # for a server that hangs.
    os._exit(0 if scored else ClusterError.exit_code)


def _train(
    recommender: Recommender,
    dataset: Dataset,
    config: TrainConfig,
    cluster: WorkerCluster | None,
) -> bool:
    """Trains and prints the result; returns whether the evaluator could score it.

    If a server is lost, it restarts or ends the process. Another worker than the first joins that
    one, and ends the process too.
    """
    # Imported late: flags and datasets that are refused are refused at once.
    import tensorflow as tf

    from embedps.engine.unit_functions import explain
    from embedps.run.metrics_port import MetricsPort
    from embedps.training.other_worker import join
    from embedps.training.recovery import Recovery, take_loss
    from embedps.training.trainer import Trainer

    if cluster is not None and not cluster.leads:
        MetricsPort(config.monitoring)
        join(recommender, dataset, config, cluster)
    loss = take_loss()
    recovery = Recovery(loss, again=config.cluster.num_ps > 0 or cluster is not None)
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
            show(str(result))
    except (ServerLostError, tf.errors.OpError) as error:
        lost = explain(error)
        if not isinstance(lost, ServerLostError):
            raise
        recovery.begin(lost)
    if cluster is not None:
        cluster.close()
    return result.evaluator_problem is None


def parse(arguments: Sequence[str], prog: str = "python -m embedps.train") -> RunConfig:
    """Reads the flags of a run and of its model.

    Raises:
      UsageError: a flag is unknown, or its value is not allowed.
    """
    return RunFlags(arguments, prog, __doc__ or "").read()


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
