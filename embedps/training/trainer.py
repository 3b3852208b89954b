"""The client: schedules units, keeps the ledger, saves checkpoints, shows how it goes."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence, Set
from contextlib import closing
from typing import Any

import numpy as np
import tensorflow as tf

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.ledger_state import check_ledger
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.retention import KeepPolicy
from embedps.cluster.factory import check_cluster, make_cluster
from embedps.cluster.health import TaskId
from embedps.cluster.interface import Cluster
from embedps.console import tf_logging
from embedps.console.progress import ProgressLine
from embedps.console.shutdown import end_process, shutdown_signals
from embedps.data.dataset import Dataset
from embedps.engine.checkpoint_restore import check_tables
from embedps.engine.dense_optimizer import make_dense_optimizer
from embedps.engine.model_signature import check_optimizer, check_signature, signature_of
from embedps.engine.network_check import check_missing, check_step
from embedps.engine.random_numbers import reseed_generators
from embedps.engine.recommender import Recommender
from embedps.engine.unit_functions import explain, make_train_unit
from embedps.errors import ClusterError, EmbedpsError, ServerLostError, UsageError
from embedps.evaluation.inline import InlineEvaluation
from embedps.evaluation.sidecar import Sidecar
from embedps.metrics import Counts
from embedps.run.config import DEFAULT_MODEL, TrainConfig
from embedps.run.model_module import find_model
from embedps.run.preparation import check_dataset, open_dataset, prepare_directory
from embedps.run.run_config import RunConfig, run_of
from embedps.run.run_lock import RunLock
from embedps.run.summary import (
    SUMMARY_NAME,
    Restarts,
    complete,
    read_evaluations,
    read_json,
    write_json,
)
from embedps.run.tf_config import read_tf_config
from embedps.scheduling.ledger import Ledger, LedgerOptions, Unit
from embedps.scheduling.scheduler import Scheduler
from embedps.tables.collection import EmbeddingCollection
from embedps.training.callbacks import Callback, Callbacks, stock
from embedps.training.checkpoint_schedule import CheckpointSchedule
from embedps.training.checkpoint_writer import CheckpointWriter
from embedps.training.fit_result import FitResult
from embedps.training.lost_progress import LostProgress
from embedps.training.training_log import TrainingLog

_TICK_SECS = 0.2
_ACT_SECS = 1.0  # from one look for new evaluations to the next
_LET_GO_SECS = 5.0


class TrainingError(EmbedpsError):
    """Training cannot go on: the loss is not a number."""


class Trainer:
    """Trains a recommender on a dataset's training split, on any kind of cluster.

    A run resumes from the last manifest of its model directory. SIGTERM and Ctrl-C finish what is
    in flight, commit a checkpoint and end the run; a second Ctrl-C ends it at once.

    `python -m embedps.train` is this class: whatever a config's field does there, it does here.
    """

    @classmethod
    def from_config(
        cls, config: TrainConfig, model_config: Any = None, **arguments: Any
    ) -> Trainer:
        """Makes a trainer of the model and the dataset that a config names.

        Args:
          config: `config.model` is a module of models/, or package.module; dlrm if it is None.
          model_config: of the class `Config` of that module; by default one of its defaults.
          arguments: of the constructor, by name.

        Raises:
          UsageError: there is no such model, or it has another Config.
          DatasetError: the dataset cannot be read.
        """
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
    ) -> None:
        """Makes the cluster, the tables and the network, and restores the last checkpoint.

        Args:
          recommender: the model.
          dataset: that of `config.data`; its split "train" is read, its files as the workers see
            them.
          config: how to train.
          cluster: where; by default what `config` or TF_CONFIG asks for, which `fit` closes.
          recovered_from: the progress that an earlier process lost; this run resumes after it.
          callbacks: what acts on evaluations, besides what the config asks for.
          keep: which checkpoints stay, besides those that the config asks for.
          on_lost: told, on another thread, that the cluster cannot go on; by default `fit` raises
            that error.

        Raises:
          DirectoryInUseError: another run trains in the model directory.
          UsageError: the model directory is of another dataset or way to cut it; the config asks
            for something that another argument contradicts, or that cannot end well; the network
            is none that can be trained.
          DimMismatchError: the model directory is of another model, or of another optimizer of its
            network.
          CheckpointError: its last checkpoint cannot be read.
          ClusterError: a server did not come up, or was lost.
        """
        check_dataset(dataset, config)
        self._run = run_of(recommender, config)
        self._recommender = recommender
        self._run_lock = RunLock(prepare_directory(config))
        self._config = config
        self._lost: ClusterError | None = None
        self._lost_timer: threading.Timer | None = None
        self._sidecar: Sidecar | None = None
        self._own_cluster: Cluster | None = None
        try:
            if cluster is None:
                cluster = make_cluster(config, on_lost=on_lost or self._note_loss)
                self._own_cluster = cluster
            else:
                check_cluster(cluster, config)
            self._set_up(recommender, dataset, config, cluster, recovered_from, callbacks, keep)
        except BaseException as error:
            self.close()
            explained = explain(error) if isinstance(error, tf.errors.OpError) else error
            if explained is not error:
                raise explained from error
            raise

    def _set_up(
        self,
        recommender: Recommender,
        dataset: Dataset,
        config: TrainConfig,
        cluster: Cluster,
        recovered_from: LostProgress | None,
        callbacks: Sequence[Callback],
        keep: Sequence[KeepPolicy],
    ) -> None:
        self._cluster = cluster
        self._directory = CheckpointDirectory(config.model_dir)
        self._ledger = _make_ledger(dataset, config)
        last = self._directory.latest()
        if last is not None:
            check_ledger(last.ledger, self._directory.manifest_path(last.number))
            self._ledger.restore(last.ledger)
        self._collection = EmbeddingCollection(
            recommender.tables,
            recommender.features,
            devices=cluster.shard_devices,
            container=f"embedps-{os.getpid()}-{id(self)}" if _is_local(cluster) else "embedps",
        )
        tf.keras.utils.set_random_seed(config.seed)
        with cluster.scope():
            network = recommender.build_network()
            check_step(recommender, network, cluster.strategy, on_servers=not _is_local(cluster))
            self._nan_where_missing = not check_missing(recommender, network, dataset)
            optimizer = make_dense_optimizer(
                config.optimizer.dense_optimizer, config.optimizer.dense_learning_rate, network
            )
            if last is not None:
                reseed_generators(network, config.seed, last.step)
        signature = signature_of(recommender, config.optimizer.dense_optimizer)
        self._saver = CheckpointWriter(
            self._directory,
            self._collection,
            [*network.variables, *optimizer.variables()],
            model=signature,
            rebase=config.checkpoint.rebase_policy(),
            keep=(*config.keep_policies(), *keep),
            encoding=config.checkpoint.encoding(),
        )
        self._examples_before = self._ledger.rows_done()
        if last is not None:
            check_tables(last, self._collection)
            check_signature(last, signature)
            check_optimizer(last, self._directory, config.optimizer.dense_optimizer, network)
            self._saver.restore(last)
        self._train_unit = make_train_unit(
            recommender,
            network,
            optimizer,
            self._collection,
            cluster.strategy,
            recommender.input(
                batch_rows=config.batch_size, shuffle_rows=config.unit_rows if config.shuffle else 0
            ),
            overlap=config.cluster.overlap,
        )
        self._recovered_from = recovered_from
        self._recoveries: list[dict[str, Any]] = list(
            last.progress.get("recoveries", []) if last is not None else []
        )
        if recovered_from is not None:  # which knows of those since that checkpoint too
            self._recoveries = list(recovered_from.earlier)
        self._set_dense_rate = lambda factor: optimizer.learning_rate.assign(
            factor * config.optimizer.dense_learning_rate
        )
        self._inline: InlineEvaluation | None = None
        if config.evaluation.mode == "inline":
            self._inline = InlineEvaluation(
                recommender,
                network,
                self._collection,
                dataset,
                cluster,
                every_units=config.evaluation.every_units,
            )
        self._callbacks = Callbacks(self._directory.path, [*stock(config.evaluation), *callbacks])
        self._rate_factor = 1.0
        self._stopping = False
        self._log = TrainingLog(self._directory.path)
        self._act(say=lambda text: None)
        self._stop = threading.Event()  # a signal came, or a parameter server is to end
        self._told_to_end = False
        self._leaving: set[TaskId] = set()
        self._restarts = Restarts(self._directory.path)

    @property
    def ledger(self) -> Ledger:
        """Which units are done."""
        return self._ledger

    @property
    def collection(self) -> EmbeddingCollection:
        """The tables."""
        return self._collection

    @property
    def saver(self) -> CheckpointWriter:
        """What writes the checkpoints."""
        return self._saver

    @property
    def told_to_end(self) -> bool:
        """Whether a signal asked for the run's end."""
        return self._told_to_end

    def unsaved(self) -> dict[str, Any]:
        """What was done since the last checkpoint, and the earlier recoveries: a LostProgress."""
        last = self._saver.last
        done = 0 if last is None else last.ledger["prefix"] + len(last.ledger["beyond"])
        return {
            "earlier": [
                *self._recoveries,
                *([self._recovered_from.record(None)] if self._recovered_from else []),
            ],
            "checkpoint": None if last is None else last.number,
            "units": self._ledger.num_done - done,
            "steps": self._ledger.steps_done() - (0 if last is None else last.step),
            "examples": self._ledger.rows_done()
            - (0 if last is None else int(last.progress["examples"])),
        }

    @property
    def finished(self) -> bool:
        """Whether nothing is left to train: every unit is done, or a callback stopped the run."""
        return self._ledger.finished or self._callbacks.control.reason is not None

    def fit(self) -> FitResult:
        """Trains until the ledger is done, or a signal or an error stops it.

        With `eval="sidecar"` an evaluator's process scores the checkpoints meanwhile, but in a
        cluster of TF_CONFIG, where it is a task of its own. A run that finishes waits for its last
        scores.

        Returns:
          The scores, the speed, the last checkpoint, and what MODEL_DIR/summary.json then holds.

        Raises:
          ServerLostError: a parameter server was lost, or told to end; run again to resume.
          DatasetError: a file of the dataset cannot be read.
          TrainingError: the loss is not a number.
          CheckpointsStalledError: no checkpoint could be written for too long.
          DirectoryTakenError: another run commits to the model directory.
          CheckpointError: the last checkpoint could not be written when a signal ended the run.
        """
        try:
            with shutdown_signals(self._end, grace_secs=self._config.grace_secs):
                self._run.save()  # the directory's checkpoint has proved to be of this model
                self._start_evaluator()
                result = self._train_to_the_end()
                self._close_cluster()
                problem = self._wait_for_scores()
                return self._write_summary({**result, "evaluator_problem": problem})
        finally:
            self.close()

    def close(self) -> None:
        """Ends the processes that this object started, and lets others train in the directory.

        `fit` does it too.
        """
        if self._lost_timer is not None:
            self._lost_timer.cancel()
        if self._sidecar is not None:
            self._sidecar.close()
        self._close_cluster()
        self._run_lock.release()

    def _close_cluster(self) -> None:
        """Ends a cluster of our own: a server of it that ends is no loss any more."""
        cluster, self._own_cluster = self._own_cluster, None
        if cluster is not None:
            if cluster.num_ps:
                tf_logging.silence_native_stderr()
            cluster.close()

    def _start_evaluator(self) -> None:
        if (
            self._config.evaluation.mode != "sidecar"
            or read_tf_config() is not None
            or self._is_scored()
        ):
            return
        last = self._saver.last
        self._sidecar = Sidecar(
            self._run.config,
            # Up to this number, a final checkpoint is not the last one of this run.
            resumed_after=-1 if last is None or self.finished else last.number,
            recommender=self._recommender if self._run.config.model is None else None,
        )

    def _is_scored(self) -> bool:
        """Whether nothing is left to train and the last checkpoint is scored."""
        scored = [e["step"] for e in read_evaluations(self._directory.path)[-1:]]
        last = self._saver.last  # which may be what was scored, with a new base
        return self.finished and last is not None and last.final and scored == [last.step]

    def _wait_for_scores(self) -> str | None:
        """Waits for the evaluator where the run is finished; returns why there are no scores."""
        if self._sidecar is None or not self.finished or self._stop.is_set():
            return None
        print("waiting for the evaluator to score the last checkpoint", flush=True)
        try:
            self._sidecar.finish(
                wait_secs=self._config.cluster.wait_secs,
                stop=self._stop,
                say=lambda text: print(text, flush=True),
            )
        except ClusterError as error:
            print(f"embedps: {error}", file=sys.stderr, flush=True)
            return str(error)
        return None

    def _write_summary(self, result: dict[str, Any]) -> FitResult:
        path = self._directory.path / SUMMARY_NAME
        evaluations = read_evaluations(self._directory.path)
        result["evaluation"] = evaluations[-1] if evaluations else None
        write_json(
            path,
            complete({**result, **self._count_restarts()}, read_json(path), self._run.to_json()),
        )
        return FitResult.of(read_json(path), evaluations, self._directory.path)

    def _count_restarts(self) -> dict[str, int]:
        return self._restarts.count(
            workers=self._cluster.worker_restarts,
            evaluator=0 if self._sidecar is None else self._sidecar.restarts,
        )

    def _note_loss(self, error: ClusterError) -> None:
        """Has `fit` raise an error; if it waits for a server for ever, ends the process."""
        self._lost = error
        self._lost_timer = threading.Timer(
            self._config.grace_secs, end_process, (str(error), error.exit_code)
        )
        self._lost_timer.daemon = True
        self._lost_timer.start()

    def _check_cluster(self) -> None:
        """Raises what made the cluster unable to go on."""
        if self._lost is not None:
            raise self._lost

    def _train_to_the_end(self) -> dict[str, Any]:
        began = time.monotonic()
        with (
            closing(self._saver),
            ProgressLine(
                "units",
                self._ledger.num_units,
                log_secs=self._config.log_secs,
                completed=self._ledger.num_done,
            ) as line,
        ):
            last = self._saver.last
            if last is not None and not self.finished:
                line.say(
                    f"resumes from checkpoint {last.number}, step {last.step}: "
                    f"{self._ledger.num_done}/{self._ledger.num_units} units are done"
                )
            self._saves = CheckpointSchedule(
                self._config.checkpoint, self._ledger, self._save, say=line.say
            )
            self._score(line)  # what was saved and not scored when the run before ended
            while not self.finished and not self._stop.is_set():
                self._train(line)
                self._saves.save_last(final=self.finished, stop=self._stop)
                self._let_go()
                self._score(line)
            if self.finished and self._saver.last is not None and not self._saver.last.final:
                self._saves.save_last(final=True, stop=self._stop)
        secs = time.monotonic() - began
        stats = self._collection.stats()
        examples, training = self._log.result()
        return {
            "examples": self._examples_before + examples,
            "units": {
                "done": self._ledger.num_done,
                "repeated": self._ledger.num_repeated,
                "attempts": self._ledger.num_attempts,
                "total": self._ledger.num_units,
            },
            "finished": self.finished,
            "stopped_early": self._callbacks.control.reason,
            "learning_rate_factor": self._rate_factor,
            "wall_secs": round(secs, 3),
            "examples_per_sec": round(examples / secs, 1) if examples else 0.0,
            "tables": stats.rows,
            "tables_memory_bytes": stats.memory_bytes,
            "checkpoint": {
                "number": self._saver.last.number if self._saver.last else None,
                **{f"{kind}s": dict(c) for kind, c in self._saver.counts.items()},
            },
            "training": {"auc": training.auc, "logloss": training.logloss},
            "recoveries": self._recoveries,
        }

    def _train(self, line: ProgressLine) -> None:
        """Trains until the units are done, or up to where it is to be scored."""
        error: BaseException | None = None
        pause = self._ledger.num_units
        if self._inline is not None:
            pause = self._inline.next_pause(self._ledger.num_done, self._ledger.units_per_epoch)
        self._ledger.pause_at(pause)
        with Scheduler(
            self._cluster,
            self._ledger,
            self._train_unit,
            arguments=self._arguments,
            record=self._record,
            stop=self._stop,
            finish_secs=self._config.grace_secs / 2,
        ) as schedule:
            try:
                self._watch(schedule, line)
            except tf.errors.OpError as lost:  # a lost server may be met here before a unit fails
                error = lost
                schedule.abandon()
        self._check_cluster()  # which knows the cause of what failed after it
        error = schedule.error or error
        if error is not None:
            raise explain(error) from error

    def _end(self) -> None:
        self._told_to_end = True
        self._stop.set()

    def _let_go(self) -> None:
        """Lets the parameter servers end that were told to: all they held is saved."""
        for task in self._leaving:
            self._cluster.allow_shutdown(task)
        deadline = time.monotonic() + _LET_GO_SECS
        while self._leaving & self._cluster.draining() and time.monotonic() < deadline:
            time.sleep(_TICK_SECS)
        if self._leaving and not self._ledger.finished and not self._told_to_end:
            raise ServerLostError(f"{_names(self._leaving)} was told to end, after a checkpoint")

    def _score(self, line: ProgressLine) -> None:
        """Scores the last checkpoint on the workers, if that is how and where it is to be done."""
        last = self._saver.last
        done, per_epoch = self._ledger.num_done, self._ledger.units_per_epoch
        if self._inline is None or last is None or done == 0 or self._stop.is_set():
            return
        at_pause = self._inline.next_pause(done - 1, per_epoch) == done
        if not at_pause or last.step <= self._callbacks.last_step:
            return
        found = self._inline.score(self._directory.path, last, self._stop, self._check_cluster)
        if found is not None:
            line.say(f"step {found.step}: {found.metrics.describe()} in {found.secs:.1f} s")
        self._act(line.say)

    def _act(self, say: Callable[[str], None]) -> None:
        """Gives new evaluations to the callbacks, and does what these ask for."""
        self._callbacks.poll()
        control = self._callbacks.control
        if control.rate_factor != self._rate_factor:
            self._rate_factor = control.rate_factor
            self._set_dense_rate(self._rate_factor)
            say(f"the learning rates are {self._rate_factor:g} of what was asked for, from here on")
        if control.reason is not None and not self._stopping:
            self._stopping = True
            say(f"the run stops: {control.reason}")

    def _arguments(self, unit: Unit) -> tuple[tf.Tensor, ...]:
        rate = self._rate_factor * self._config.optimizer.sparse_learning_rate
        numbers = (unit.first_row, unit.num_rows, unit.seed, unit.first_step)
        return (
            tf.constant(unit.path),
            # NumPy's numbers: TensorFlow keeps every Python one that it is given, for ever.
            *(tf.constant(np.int64(n)) for n in numbers),
            tf.constant(np.float32(rate)),
        )

    def _record(self, unit: Unit, counts: Counts) -> None:
        if not math.isfinite(float(counts.sums[2])):
            advice = (
                "the network gives NaN where a numeric column is missing: have its call replace NaN"
                if self._nan_where_missing
                else "lower --sparse-learning-rate or --dense-learning-rate"
            )
            raise TrainingError(
                f"the loss is not a number in the steps from {unit.first_step} on: {advice}, and "
                "start a new model directory"
            )
        self._log.add(counts, rows=unit.num_rows)

    def _watch(self, schedule: Scheduler, line: ProgressLine) -> None:
        """Saves when due and shows how it goes, until no unit is left to do."""
        self._log.count_from_now()
        first_units = self._ledger.num_done
        acted = -math.inf
        noticed: Set[TaskId] = set()
        told = False
        self._saves.count_from_now()
        running = True
        while running or self._saves.under_way:
            running = schedule.wait(_TICK_SECS)
            if not running:
                self._saves.wait(_TICK_SECS)
            if self._ledger.num_done > first_units:
                self._recovered(line)
            self._check_cluster()
            if time.monotonic() - acted >= _ACT_SECS:
                acted = time.monotonic()
                self._act(line.say)
                self._count_restarts()
                sidecar_news = self._sidecar.news() if self._sidecar is not None else []
                for news in [*sidecar_news, *self._saver.news()]:
                    line.say(news)
            leaving = self._cluster.draining()
            if leaving - noticed:
                line.say(f"{_names(leaving - noticed)} was told to end: saving a checkpoint")
                self._saves.hurry()
                self._leaving = {task for task in leaving if task[0] == "ps"}
                if self._leaving:
                    self._stop.set()
            noticed = leaving
            if self._told_to_end and not told:  # not in the signal's handler, which may not print
                told = True
                line.say("told to end: finishing and saving what was begun; Ctrl-C again ends now")
            if self._stopping:
                schedule.end()
            self._saves.poll()
            if running and not (self._stop.is_set() or self._stopping):
                self._saves.begin_if_due()
            if line.due() or not running:
                text = self._log.show(
                    step=self._ledger.steps_done(),
                    rows=sum(self._collection.stats().rows.values()),
                    last=self._saver.last,
                )
                if text is not None:
                    line.update(self._ledger.num_done, text, force=not running)

    def _recovered(self, line: ProgressLine) -> None:
        """Says once how long it took from a loss to the first unit done after it."""
        if self._recovered_from is None:
            return
        loss, self._recovered_from = self._recovered_from, None
        secs = round(time.time() - loss.noticed_at, 1)
        self._recoveries.append(loss.record(secs))
        line.say(f"recovered: the first unit is done {secs} s after {loss.why}")

    def _save(self, *, final: bool, rest_secs: float = 0.0) -> Manifest:
        # The ledger first: a unit that it lists as done is then in the tables that are cut.
        ledger = self._ledger.state()
        examples, metrics = self._log.result()
        progress: dict[str, Any] = {
            "examples": self._examples_before + examples,
            "logloss": metrics.logloss,
        }
        progress = {k: v for k, v in progress.items() if math.isfinite(v)}
        progress["recoveries"] = list(self._recoveries)
        return self._saver.save(
            step=self._ledger.steps_done(),
            ledger=ledger,
            partially_applied=lambda: self._ledger.partially_applied(ledger),
            progress=progress,
            final=final,
            rest_secs=rest_secs,
        )


def _make_ledger(dataset: Dataset, config: TrainConfig) -> Ledger:
    options = LedgerOptions(
        batch_rows=config.batch_size,
        unit_rows=config.unit_rows,
        shuffle=config.shuffle,
        seed=config.seed,
    )
    return Ledger(dataset, options, epochs=config.epochs)


def _names(tasks: Set[TaskId]) -> str:
    return ", ".join(f"{job} {index}" for job, index in sorted(tasks))


def _is_local(cluster: Cluster) -> bool:
    return not cluster.shard_devices[0].startswith("/job:")
