"""The trainer: it makes the parts of a run, trains, and gives the result."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from embedps.checkpoint.retention import KeepPolicy
from embedps.cluster.factory import check_cluster, make_cluster
from embedps.cluster.interface import Cluster
from embedps.cluster.local_cluster import LocalCluster
from embedps.cluster.local_processes import LocalProcesses
from embedps.console import tf_logging
from embedps.console.lines import log_as, say
from embedps.console.shutdown import end_process, shutdown_signals
from embedps.data.dataset import Dataset
from embedps.data.dataset_function import DatasetSource, as_dataset_function
from embedps.engine.recommender import Recommender
from embedps.engine.unit_functions import explain
from embedps.errors import ClusterError, ServerLostError, TrainingError, UsageError
from embedps.evaluation.inline import InlineEvaluation
from embedps.run.config import DEFAULT_MODEL, TrainConfig
from embedps.run.metrics_port import MetricsPort
from embedps.run.model_module import find_model
from embedps.run.preparation import (
    check_dataset,
    check_watch,
    open_dataset,
    prepare_directory,
)
from embedps.run.run_config import RunConfig, run_of
from embedps.run.run_lock import RunLock
from embedps.run.summary import SUMMARY_NAME, complete, read_evaluations, read_json, write_json
from embedps.scheduling.ledger import Ledger
from embedps.tables.collection import EmbeddingCollection
from embedps.training.arrivals_watch import watch_arrivals
from embedps.training.best_ending import end_with_best
from embedps.training.callback_effects import CallbackEffects
from embedps.training.callbacks import Callback, Callbacks, stock
from embedps.training.checkpoint_writer import CheckpointWriter
from embedps.training.fit_result import FitResult
from embedps.training.lost_progress import LostProgress
from embedps.training.prepared_cluster import PreparedCluster, prepare
from embedps.training.recovery_record import RecoveryRecord
from embedps.training.run_events import SavedCheckpoint
from embedps.training.run_measures import measure
from embedps.training.run_metrics import METRICS
from embedps.training.run_scoring import RunScoring
from embedps.training.scale_requests import ClusterChange, ScaleRequests
from embedps.training.scaling_record import ScalingRecord
from embedps.training.server_recovery import ServerRecovery
from embedps.training.stop_notices import StopNotices
from embedps.training.trainer_arguments import check_config, check_kinds
from embedps.training.training_loop import LoopParts, TrainingLoop
from embedps.training.training_setup import resume, set_up

__all__ = ["Trainer", "TrainingError"]

_CAUSE_SECS = 5.0  # a server's end is noticed later than the calls that it makes fail


class Trainer:
    """Trains a recommender on a dataset's training split, on any kind of cluster.

    A run resumes from the last checkpoint of its model directory. At SIGTERM or Ctrl-C, the units
    in progress finish, a checkpoint is saved and the run ends. A second Ctrl-C ends it at once.

    `embedps train` uses this class: each option of the config does here what its flag does there.
    """

    @classmethod
    def from_config(
        cls, config: TrainConfig, model_config: Any = None, **arguments: Any
    ) -> Trainer:
        """Makes a trainer of the model and the dataset that a config names.

        Args:
          config: `config.model` is a built-in model or a module of yours; dlrm if it is None.
          model_config: an instance of that module's class `Config`; by default one of its defaults.
          arguments: of the constructor, by name.

        Raises:
          UsageError: there is no such model, or it has another Config.
          DatasetError: the dataset cannot be read.
        """
        check_config(config)
        made = find_model(config.model or DEFAULT_MODEL).Config
        if model_config is None:
            model_config = made()
        if not isinstance(model_config, made):
            raise UsageError(
                f"model_config must be a {made.__module__}.{made.__qualname__} but got a "
                f"{type(model_config).__module__}.{type(model_config).__qualname__}"
            )
        dataset = open_dataset(config)
        recommender = RunConfig(config=config, model_config=model_config).recommender(dataset)
        return cls(recommender, dataset, config, **arguments)

    def __init__(
        self,
        recommender: Recommender,
        dataset: Dataset,
        config: TrainConfig,
        cluster: Cluster | None = None,
        *,
        recovered_from: LostProgress | None = None,
        callbacks: Sequence[Callback] = (),
        keep: Sequence[KeepPolicy] = (),
        on_lost: Callable[[ClusterError], None] | None = None,
        dataset_fn: DatasetSource | None = None,
    ) -> None:
        """Makes the cluster, the tables and the network, and restores the last checkpoint.

        Args:
          dataset: the dataset of `config.data`. The run reads its split "train"; the workers must
            see its files.
          cluster: where to train. By default it is the one that `config` or TF_CONFIG asks for, and
            `fit` closes it; a cluster that is given stays open.
          recovered_from: the progress that an earlier process lost; this run resumes after it.
          callbacks: act on what happens, besides what the config asks for.
          keep: which checkpoints stay, besides those that the config asks for.
          on_lost: called on another thread when the cluster cannot go on; by default `fit` raises
            that error.
          dataset_fn: gives what the run trains on, instead of the dataset's split: a function of a
            tf.distribute.InputContext that makes a tf.data.Dataset, or a DatasetFunction. `dataset`
            declares the columns then (`embedps.describe_dataset`), and has what is scored.

        Raises:
          DirectoryInUseError: another run trains in the model directory.
          UsageError: the model directory is of another dataset or another division into units; the
            config contradicts another argument or cannot end well; the network cannot be trained;
            the port of metrics cannot be had.
          DimMismatchError: the model directory is of another model, or of another optimizer of its
            network.
          CheckpointError: its last checkpoint cannot be read.
          ClusterError: a server did not start, or was lost.
        """
        check_kinds(recommender, dataset, config)
        check_dataset(dataset, config)
        if check_watch(config) is not None and dataset_fn is not None:
            raise UsageError("dataset_fn must not go with --watch, which reads files that arrive")
        self._run = run_of(recommender, config)
        self._run_lock = RunLock(prepare_directory(config))
        self._config = config
        self._lost: ClusterError | None = None
        self._lost_noted = threading.Event()
        self._hears_of_loss = on_lost is None
        self._lost_timer: threading.Timer | None = None
        self._scoring: RunScoring | None = None
        self._scaling: ScaleRequests | None = None
        self._own_cluster: Cluster | None = None
        self._metrics: MetricsPort | None = None
        self._watched: Cluster | None = None
        try:
            log_as(config.monitoring.log_format)
            self._metrics = MetricsPort(config.monitoring, is_needed=recovered_from is None)
            self._cluster = self._choose_cluster(
                cluster,
                on_lost or self._note_loss,
                recovered_from,
            )
            self._reads_files = dataset_fn is None
            self._set_up = partial(
                set_up,
                recommender,
                dataset,
                config,
                keep=keep,
                run_id=id(self),
                dataset_fn=as_dataset_function(dataset_fn),
            )
            self._setup = self._set_up(self._cluster)
            self._make_loop(recommender, dataset, recovered_from, callbacks)
            self._metrics.show(METRICS, self._loop.numbers)
        except BaseException as error:
            cause = self._cause(error)
            self.close()
            if cause is not error:
                raise cause from error
            raise

    def _choose_cluster(
        self,
        cluster: Cluster | None,
        on_lost: Callable[[ClusterError], None],
        recovered_from: LostProgress | None,
    ) -> Cluster:
        if cluster is None:
            self._own_cluster = make_cluster(
                self._config,
                on_lost=on_lost,
                num_ps=recovered_from.servers if recovered_from else None,
                num_workers=recovered_from.workers if recovered_from else None,
            )
            return self._own_cluster
        check_cluster(cluster, self._config)
        self._watched = cluster
        cluster.call_on_loss(on_lost)
        self._check_cluster()
        return cluster

    def _make_loop(
        self,
        recommender: Recommender,
        dataset: Dataset,
        recovered_from: LostProgress | None,
        callbacks: Sequence[Callback],
    ) -> None:
        """Makes the parts that the loop polls, and the loop."""
        setup, asked = self._setup, self._config.evaluation
        self._dataset = dataset
        self._recoveries = RecoveryRecord(recovered_from, setup.writer.last)
        self._scalings = ScalingRecord(recovered_from, setup.writer.last)
        self._effects = CallbackEffects(
            Callbacks(
                setup.directory.path,
                [*stock(asked), *callbacks],
                after_step=self._first_step,
            ),
            setup.set_dense_rate,
        )
        self._scoring = RunScoring(self._run, recommender, setup.directory)
        self._notices = StopNotices(self._cluster)
        self._scaling = ScaleRequests(
            setup.directory.path,
            self._config.cluster,
            self._cluster,
            own=self._own_cluster if isinstance(self._own_cluster, LocalCluster) else None,
            prepare=self._prepare_change,
        )
        self._scoring.inline = InlineEvaluation.of_run(
            self._config, setup.model, setup.collection, dataset, self._cluster
        )
        self._loop = TrainingLoop(
            self._config,
            self._make_parts(),
            notices=self._notices,
            effects=self._effects,
            recoveries=self._recoveries,
            scalings=self._scalings,
            scaling=self._scaling,
            scoring=self._scoring,
            check_cluster=self._check_cluster,
        )

    def _make_parts(self) -> LoopParts:
        """Makes what depends on the cluster, besides what is trained."""
        cluster, setup = self._cluster, self._setup
        servers = ServerRecovery(self._config, cluster, setup, self._effects)
        watch = watch_arrivals(self._config, setup, self._dataset, cluster)
        return LoopParts(cluster, setup, watch, servers)

    def _own_local(self) -> LocalCluster:
        cluster = self._own_cluster
        if not isinstance(cluster, LocalCluster):
            raise TypeError(f"only a local cluster can be replaced but this is a {type(cluster)}")
        return cluster

    def _prepare_change(self, processes: LocalProcesses) -> PreparedCluster:
        """Makes on another cluster, while this one trains, what it needs to go on."""
        return prepare(
            self._own_local(),
            processes,
            self._setup,
            self._set_up,
            self._config,
            self._dataset,
            self._loop.saves,
            reads_files=self._reads_files,
        )

    def _change_cluster(self, change: ClusterChange) -> None:
        """Goes on with another cluster; all that was trained is saved."""
        self._scalings.begin(change, self.ledger, last_unit_at=self._loop.last_unit_at)
        cluster, setup, inline = change.prepared.result()
        self._own_local().replaced_by(cluster)
        self._own_cluster = self._cluster = cluster
        self._setup, self._loop.scoring.inline = setup, inline
        self._scalings.restored(*resume(setup, self._config.seed))
        self._effects.follow(setup.set_dense_rate)
        self._notices.follow(cluster)
        if self._scaling is not None:
            self._scaling.follow(cluster)
        self._loop.take(self._make_parts())

    @property
    def _first_step(self) -> int:
        """The step up to which scores are of other data."""
        return self._setup.ledger.first_step_of_rows or -1

    @property
    def ledger(self) -> Ledger:
        """Which units are done."""
        return self._setup.ledger

    @property
    def collection(self) -> EmbeddingCollection:
        """The tables."""
        return self._setup.collection

    @property
    def model(self) -> tf.keras.Model:
        """The model that the recommender made."""
        return self._setup.model.model

    @property
    def saver(self) -> CheckpointWriter:
        """The writer of the checkpoints."""
        return self._setup.writer

    @property
    def told_to_end(self) -> bool:
        """Whether a signal asked for the end of the run."""
        return self._notices.told_to_end

    @property
    def finished(self) -> bool:
        """Whether nothing is left to train: all units are done, or a callback stopped the run."""
        return self._loop.finished

    def unsaved(self) -> dict[str, Any]:
        """Gives the progress since the last checkpoint, as a LostProgress takes it."""
        last, ledger = self._setup.writer.last, self._setup.ledger
        done, step, repeated = 0, ledger.first_step, 0
        workers, servers = self._cluster.num_workers, self._cluster.num_ps
        if change := self._scalings.under_way:  # it goes on as it was
            workers, servers = change.workers[0], change.servers[0]
        if last is not None and ledger.is_of(last.ledger):
            done, step = last.ledger["prefix"] + len(last.ledger["beyond"]), last.step
            repeated = len(last.ledger["doing"])
        return {
            "earlier": self._recoveries.all(),
            "checkpoint": None if last is None else last.number,
            "set_aside": len(ledger.deaths.set_aside),
            "workers": None if self._cluster.why_fixed else workers,
            "servers": None if self._cluster.why_fixed else servers,
            "scalings": self._scalings.completed,
            "units": ledger.num_done - done,
            "repeated": repeated,
            "steps": ledger.steps_done() - step,
            "examples": ledger.rows_done()
            - (0 if last is None else int(last.progress["examples"])),
        }

    def fit(self) -> FitResult:
        """Trains until all units are done, or until a signal, a callback or an error stops it.

        With `mode="sidecar"`, an evaluator in another process scores the checkpoints meanwhile. On
        a cluster of TF_CONFIG that is a task of its own. A run that finishes waits for its last
        scores.

        Returns:
          The scores, the speed, the last checkpoint, and the content of MODEL_DIR/summary.json.

        Raises:
          ServerLostError: a parameter server was lost or told to end; run again to resume.
          DatasetError: a file of the dataset cannot be read.
          TrainingError: the loss or the network is not a number.
          CheckpointsStalledError: no checkpoint could be written for too long.
          DirectoryTakenError: another run commits to the model directory.
          CheckpointError: the last checkpoint could not be written when a signal ended the run.
        """
        scoring = self._loop.scoring
        try:
            with shutdown_signals(self._notices.end, grace_secs=self._config.grace_secs):
                self._run.save()  # the directory's checkpoint has proved to be of this model
                scoring.start(self._setup.writer.last, finished=self.finished)
                began = time.monotonic()
                while (change := self._loop.run()) is not None:
                    self._change_cluster(change)
                secs = time.monotonic() - began
                measured = {
                    **self._loop.beside_lost_servers(
                        lambda: measure(self._setup, self._loop, self._effects, secs), say
                    ),
                    "scores_after_step": self._first_step,
                    "recoveries": self._recoveries.completed,
                    "scalings": self._scalings.completed,
                }
                self._close_cluster()
                problem = scoring.wait(self._notices.stop) if self.finished else None
                measured |= self._end_with_best()
                result = self._write_summary({**measured, "evaluator_problem": problem})
                self._effects.tell(lambda callback, run: callback.on_train_end(run, result))
                self._effects.deliver(lambda text: None)
                return result
        except (tf.errors.OpError, ServerLostError) as error:
            cause = self._cause(error)
            if cause is not error:
                raise cause from error
            raise
        finally:
            self.close()

    def close(self) -> None:
        """Ends the processes that this object started, and lets others train in the directory.

        `fit` does it too.
        """
        if self._lost_timer is not None:
            self._lost_timer.cancel()
        if self._metrics is not None:
            self._metrics.close()
        if self._scoring is not None:
            self._scoring.close()
        if self._scaling is not None:
            self._scaling.drop("the run lost a server meanwhile, and goes on as it was if it can")
        if self._watched is not None:
            self._watched.call_on_loss(None)
            self._watched = None
        self._close_cluster()
        self._run_lock.release()

    def _close_cluster(self) -> None:
        """Closes the cluster that this object made: no server of it counts as lost any more."""
        cluster, self._own_cluster = self._own_cluster, None
        if cluster is not None:
            if cluster.num_ps:
                tf_logging.silence_native_stderr()
            cluster.close()

    def _note_loss(self, error: ClusterError) -> None:
        """Makes `fit` raise an error; ends the process if it waits for a server for ever."""
        self._lost = error
        self._lost_noted.set()
        self._lost_timer = threading.Timer(
            self._config.grace_secs, end_process, (str(error), error.exit_code)
        )
        self._lost_timer.daemon = True
        self._lost_timer.start()

    def _cause(self, error: BaseException) -> BaseException:
        """Gives the error that tells why an operation failed: often a server was lost."""
        failed = error.__cause__ if isinstance(error, ServerLostError) else error
        if not isinstance(failed, tf.errors.OpError):
            return error
        explained = explain(error)
        if isinstance(explained, ServerLostError) and self._hears_of_loss:
            self._lost_noted.wait(_CAUSE_SECS)
        return self._lost or explained

    def _check_cluster(self) -> None:
        """Raises the error by which the cluster cannot go on."""
        if self._lost is not None:
            raise self._lost

    def _end_with_best(self) -> dict[str, Any]:
        """Makes the best checkpoint the newest if the config asks for it; gives what changes."""
        asked, writer = self._config.evaluation, self._setup.writer
        if asked.end_with != "best" or not self.finished or writer.last is None:
            return {}
        found = end_with_best(
            self._setup.directory, writer.last, asked, after_step=self._first_step
        )
        if found is None:
            return {}
        writer.last, ended_with = found
        event = SavedCheckpoint.of(writer.last)
        self._effects.tell(lambda callback, run: callback.on_checkpoint(run, event))
        return {"ended_with": ended_with}

    def _write_summary(self, result: dict[str, Any]) -> FitResult:
        model_dir = self._setup.directory.path
        path = model_dir / SUMMARY_NAME
        evaluations = read_evaluations(model_dir)
        result["evaluation"] = evaluations[-1] if evaluations else None
        last = self._setup.writer.last
        result["checkpoint"] = {"number": last.number if last else None, **result["checkpoint"]}
        result |= self._loop.count_restarts()
        write_json(path, complete(result, read_json(path), self._run.to_json()))
        return FitResult.of(read_json(path), evaluations, model_dir)
