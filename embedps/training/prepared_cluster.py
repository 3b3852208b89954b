"""Makes what a run needs on another cluster, while it trains on its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from embedps.cluster.local_cluster import LocalCluster
from embedps.cluster.local_processes import LocalProcesses
from embedps.console.tf_logging import op_error_text
from embedps.data.dataset import Dataset
from embedps.engine.unit_functions import unit_without_rows
from embedps.errors import ClusterError
from embedps.evaluation.inline import InlineEvaluation
from embedps.run.config import TrainConfig
from embedps.training.checkpoint_schedule import CheckpointSchedule
from embedps.training.rows_ahead import fits_twice, load_ahead
from embedps.training.training_setup import TrainingSetup


class PreparedCluster(NamedTuple):
    """What is there for a change.

    Attributes:
      cluster: the other one.
      setup: what is trained, on it, without what a checkpoint has.
      inline: scores on it, if the run asks for that.
    """

    cluster: LocalCluster
    setup: TrainingSetup
    inline: InlineEvaluation | None


def prepare(
    own: LocalCluster,
    processes: LocalProcesses,
    running: TrainingSetup,
    set_up: Callable[..., TrainingSetup],
    config: TrainConfig,
    dataset: Dataset,
    saves: CheckpointSchedule,
    *,
    reads_files: bool,
) -> PreparedCluster:
    """Makes all that is trained on another cluster, traces it, and loads what the run has saved.

    Workers run the function of a unit without rows, so that they have it ready too.

    Args:
      own: the run's cluster, which `processes` are to replace.
      running: what is trained on it.
      set_up: makes the same on another, as `training_setup.set_up` does.
      saves: of the run.
      reads_files: of the dataset; else a `dataset_fn` gives the rows.

    Raises:
      ClusterError: a process is lost, or a worker cannot run the function.
      CheckpointError: a checkpoint cannot be read, or could not be written.
    """
    asked = config.cluster
    processes.wait_until_serving(asked.wait_secs)
    cluster = own.joined_by(processes)
    try:
        setup = set_up(cluster, before=running)
        inline = InlineEvaluation.of_run(config, setup.model, setup.collection, dataset, cluster)
        split = dataset.splits.get("train")
        files = split.files if split is not None and reads_files else ()
        path = str(dataset.absolute_path(files[0])) if files else ""
        ranks = asked.group_size(cluster.num_workers) if asked.is_in_step else None
        unit = unit_without_rows(path, ranks)
        if files and not asked.in_groups:  # to enter a group is not without effect
            cluster.run_everywhere(setup.train_unit, unit)
        else:
            cluster.trace(setup.train_unit, unit)
        if not running.collection.has_disk and fits_twice(running.collection.use()):
            load_ahead(setup, running, saves, is_over=lambda: processes.is_closed)
    except BaseException as error:
        cluster.leave()
        if isinstance(error, tf.errors.OpError):
            raise ClusterError(op_error_text(error.message)) from error
        raise
    return PreparedCluster(cluster, setup, inline)
