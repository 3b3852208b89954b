"""The loop of a run: units on the workers, checkpoints when due, scores, and the progress line."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from embedps.checkpoint.format.manifest import Manifest
from embedps.cluster.interface import Cluster
from embedps.console.progress import ProgressLine
from embedps.engine.steps.ways import IN_STEP
from embedps.engine.unit_functions import explain
from embedps.errors import ClusterError, ServerLostError, TrainingError
from embedps.metrics import Counts
from embedps.run.config import TrainConfig
from embedps.run.summary import Restarts
from embedps.scheduling.gang_scheduler import GangScheduler
from embedps.scheduling.ledger import Unit
from embedps.scheduling.scheduler import Scheduler
from embedps.scheduling.unit_deaths import DeadlyUnitsError
from embedps.scheduling.unit_threads import OnFailure, UnitThreads
from embedps.training.callback_effects import CallbackEffects
from embedps.training.checkpoint_schedule import CheckpointSchedule
from embedps.training.file_watch import FileWatch
from embedps.training.last_finite import way_back
from embedps.training.recovery_record import RecoveryRecord
from embedps.training.run_events import LostWorker, RecoveryEnd, SavedCheckpoint, UnitEnd
from embedps.training.run_metrics import RunSource
from embedps.training.run_progress import RunProgress
from embedps.training.run_reports import RunReports
from embedps.training.run_scoring import RunScoring
from embedps.training.scale_requests import ClusterChange, ScaleRequests
from embedps.training.scaling_record import ScalingRecord
from embedps.training.server_recovery import ServerRecovery
from embedps.training.stop_notices import StopNotices
from embedps.training.training_log import TrainingLog
from embedps.training.training_setup import TrainingSetup
from embedps.training.wait_report import WaitReport

_T = TypeVar("_T")
_SCHEDULERS: Mapping[str, type[UnitThreads]] = {"units": Scheduler, "gangs": GangScheduler}
_TICK_SECS = 0.2
_LOSS_SECS = 0.5  # from a failure to the notice that its server is lost
_SLOW_POLL_SECS = 1.0  # from one look for new evaluations to the next


class LoopParts(NamedTuple):
    """What another cluster has a run make anew.

    Attributes:
      cluster: where the units run.
      setup: what is trained.
      watch: of the directory where files arrive; None if the run has none.
      servers: recovers the run from lost servers in place.
    """

    cluster: Cluster
    setup: TrainingSetup
    watch: FileWatch | None
    servers: ServerRecovery


class TrainingLoop:
    """Trains units until none is left, or a notice or an error stops it.

    Attributes:
      scoring: of its checkpoints.
      log: what was trained, and how well.
      numbers: for the port of metrics.
      reports: on the tables and the steps.
      saves: of the run, once it trains.
    """

    saves: CheckpointSchedule

    def __init__(
        self,
        config: TrainConfig,
        parts: LoopParts,
        *,
        notices: StopNotices,
        effects: CallbackEffects,
        recoveries: RecoveryRecord,
        scalings: ScalingRecord,
        scaling: ScaleRequests,
        scoring: RunScoring,
        check_cluster: Callable[[], None],
    ) -> None:
        """Takes what it polls.

        Args:
          notices: ask for a stop.
          scaling: asks for other numbers of tasks.
          check_cluster: raises if the cluster cannot go on.
        """
        self._config = config
        self._notices = notices
        self._effects = effects
        self._recoveries = recoveries
        self._scalings = scalings
        self._scaling = scaling
        self.scoring = scoring
        self._check_cluster = check_cluster
        self._counted: dict[int, int] = {}  # rows by position, of units that are trained again
        self._cluster, self._setup, self._watch_files, self._servers = parts
        setup = parts.setup
        self._ledger = setup.ledger
        self._restarts = Restarts(setup.directory.path)
        self.log = TrainingLog(
            setup.directory.path, lambda: self._setup.model.accumulator(training=True)
        )
        self._examples_before = setup.examples_before
        self.last_unit_at = time.time()
        self._waits = WaitReport()
        self._not_finite = ""  # which unit's loss was no number
        self.numbers = RunSource(
            ledger=self._ledger,
            log=self.log,
            writer=setup.writer,
            cluster=parts.cluster,
            recoveries=recoveries,
            effects=effects,
            scoring=scoring,
            watch=parts.watch,
        )
        self.reports = RunReports(config, parts.cluster, setup, self.log, self.numbers)
        self._progress = RunProgress(config, parts.cluster, setup, parts.watch, self.log)

    def take(self, parts: LoopParts) -> None:
        """Takes what was made anew for another cluster, which restored the last checkpoint."""
        parts.setup.writer.counts = self._setup.writer.counts
        self._cluster, self._setup, self._watch_files, self._servers = parts
        self._ledger = parts.setup.ledger
        numbers = self.numbers
        numbers.ledger, numbers.writer = self._ledger, parts.setup.writer
        numbers.cluster, numbers.watch = parts.cluster, parts.watch
        self.reports.take(parts.cluster, parts.setup)
        self._progress.take(parts.cluster, parts.setup, parts.watch)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to train: all units are done, or a callback stopped the run."""
        return self._ledger.finished or self._effects.reason is not None

    @property
    def _ends(self) -> bool:
        """Whether this loop trains no more."""
        return self.finished or self._notices.stop.is_set() or self._scaling.due is not None

    def run(self) -> ClusterChange | None:
        """Trains, saves and scores; the last checkpoint says whether the run is finished.

        Returns:
          The change of the cluster for which it pauses; None if the run ends.

        Raises:
          TrainingError: the loss or the network is not a number, or each unit kills who trains it.
        """
        try:
            self._run()
        except ClusterError:
            raise  # what is in progress may have ended the server
        except BaseException as error:
            self._ledger.deaths.forgive()
            if not isinstance(error, TrainingError) or isinstance(error, DeadlyUnitsError):
                raise
            raise TrainingError(
                f"{error}: {self._advice()}, and {way_back(self._setup.directory)}"
            ) from error
        self._ledger.deaths.forgive()
        if not self.finished and not self._notices.stop.is_set():
            return self._scaling.due
        self._scaling.drop("the run ended before")
        return None

    def _run(self) -> None:
        writer, stop = self._setup.writer, self._notices.stop
        with (
            closing(writer),
            self._watch_files or nullcontext(),
            self._progress.make_line() as line,
        ):
            self._progress.begin(line, finished=self.finished)
            self.saves = CheckpointSchedule(
                self._config.checkpoint, self._ledger, self.save, say=line.say
            )
            self.numbers.unsaved_secs = self.saves.unsaved_secs
            self._scaling.save_problem = self.saves.problem
            # A checkpoint that the previous run saved and did not score.
            self.beside_lost_servers(partial(self._score, line), line.say)
            training = not self._ends
            while training:
                self._setup.collection.thaw(self._ledger.steps_done())
                if self.beside_lost_servers(partial(self._train_on, line), line.say):
                    continue
                self._effects.deliver(line.say)
                self._release_servers(line.say)
                self.beside_lost_servers(partial(self._score, line), line.say)
                self._progress.say_deaths(line)
                training = not self._ends
            if self.finished and writer.last is not None and not writer.last.final:
                self.saves.save_last(final=True, stop=stop)
                self._effects.deliver(line.say)

    def _train_on(self, line: ProgressLine) -> bool:
        """Trains until the units are done, or a pause, and saves what it ends with.

        Returns:
          Whether it was a pause for a save alone, which is over.
        """
        self._setup.collection.hold_sweeps(False)
        paused_to_save = self._train(line)
        self._advance_event_clock()
        if paused_to_save and not self._ends:
            return True
        # Who resumes would evict and count again what went after the last checkpoint.
        self._setup.collection.hold_sweeps(True)
        self.saves.save_last(final=self.finished, stop=self._notices.stop)
        return False

    def beside_lost_servers(self, act: Callable[[], _T], say: Callable[[str], None]) -> _T:
        """Does what needs all servers, and again after each that was lost and is restored."""
        with self._servers.watching():
            while True:
                try:
                    return act()
                except (ServerLostError, tf.errors.OpError) as error:
                    if self._notices.stop.is_set():
                        raise
                    self._recover(error, say)

    def _recover(self, error: Exception, say: Callable[[str], None]) -> None:
        loss, again = self._servers.recover(error, self.saves, say)
        self._recoveries.begin(loss)
        self._counted |= {unit.position: unit.num_rows for unit in again}
        self.reports.count_anew()

    def _release_servers(self, say: Callable[[str], None]) -> None:
        """Lets servers end that were told to; goes on beside one that is started again."""
        with self._servers.watching():
            try:
                self._notices.release_servers(finished=self._ledger.finished)
            except ServerLostError as error:
                self._recover(error, say)
                self._notices.go_on()

    def save(self, *, final: bool, rest_secs: float = 0.0) -> Manifest:
        """Writes a checkpoint.

        Args:
          final: nothing follows.
          rest_secs: how long in all its writers may rest while training needs the cores.
        """
        # The ledger first: a unit that it lists as done is then in the tables that are written.
        ledger = self._ledger.state()
        examples, metrics = self.log.result()
        progress: dict[str, Any] = {
            "examples": self.examples_of(examples),
            "logloss": metrics.loss,
        }
        progress = {k: v for k, v in progress.items() if math.isfinite(v)}
        progress["recoveries"] = self._recoveries.completed
        progress["scalings"] = self._scalings.completed

        def partially_applied() -> dict[str, Any]:
            if self._not_finite:  # so that no checkpoint has what is known to be wrong
                raise TrainingError(self._not_finite)
            return self._ledger.partially_applied(ledger)

        saved = self._setup.writer.save(
            step=self._ledger.steps_done(),
            ledger=ledger,
            partially_applied=partially_applied,
            progress=progress,
            final=final,
            rest_secs=rest_secs,
        )
        event = SavedCheckpoint.of(saved)
        self._effects.tell(lambda callback, run: callback.on_checkpoint(run, event))
        return saved

    def examples_of(self, counted: int) -> int:
        """Gives the examples of all runs, of what the log counted in this one."""
        return self._examples_before + counted - sum(self._counted.values())

    def count_restarts(self) -> dict[str, int]:
        """Counts how often workers and the evaluator were started again, in all runs."""
        return self._restarts.count(
            workers=self._cluster.worker_restarts, evaluator=self.scoring.restarts
        )

    def unit_arguments(self, unit: Unit) -> tuple[tf.Tensor, ...]:
        """Makes the arguments of a unit's training function."""
        asked = self._config.optimizer
        rate = self._factor_at(unit) * self._effects.rate_factor
        if self._cluster.place == "servers":  # units of several workers run at once
            self._effects.schedule(self._factor_at(unit))
        if not self._setup.model.has_row_schedule:
            rate *= asked.row_rate(self._setup.collection.tables)
            rate *= self._config.row_rate_scale(self._cluster.num_workers)
        numbers = (unit.first_row, unit.num_rows, unit.seed, unit.first_step)
        return (
            tf.constant(unit.path),
            # NumPy numbers: TensorFlow caches every Python number that it is given, for ever.
            *(tf.constant(np.int64(n)) for n in numbers),
            tf.constant(np.float32(rate)),
        )

    def _factor_at(self, unit: Unit) -> float:
        return self._config.optimizer.rate_factor(self._ledger.share_at(unit))

    def _begin(self, unit: Unit) -> None:
        """Sets the network's rate: the unit before, which had another, is done."""
        if self._cluster.place != "servers":
            self._effects.schedule(self._factor_at(unit))

    def _train(self, line: ProgressLine) -> bool:
        """Trains until the units are done, or until a pause; see `_train_on`."""
        error: BaseException | None = None
        self._ledger.pause_at(self.scoring.next_pause(self._ledger))
        deaths = self._ledger.deaths
        schedule = _SCHEDULERS[self._config.cluster.way(self._cluster.place).schedules]
        with schedule(
            self._cluster,
            self._ledger,
            self._setup.train_unit,
            arguments=self.unit_arguments,
            record=self._record,
            on_begin=self._begin,
            stop=self._notices.stop,
            group_size=self.reports.group_size,
            finish_secs=self._config.grace_secs / 2,
            on_failure=self._on_failure,
            on_death=lambda unit: deaths.count_death(self._ledger.name_of(unit)),
        ) as scheduler:
            paused_to_save = False
            try:
                paused_to_save = self._watch(scheduler, line)
            # A lost server, or a network that is not finite, may show here before a unit fails.
            except (tf.errors.OpError, TrainingError) as found:
                error = found
                scheduler.abandon()
        self._check_cluster()  # it knows the cause of the failures that followed
        error = scheduler.error or error
        if isinstance(error, tf.errors.OpError) and (lost := self._cluster.lost_server(_LOSS_SECS)):
            raise ServerLostError(lost.why) from error
        if error is not None:
            raise explain(error) from error
        return paused_to_save

    def _advice(self) -> str:
        """Says what keeps the loss a number."""
        if self._setup.nan_where_missing:
            return (
                "the network gives NaN where a numeric column is missing: have its call replace NaN"
            )
        return "lower --sparse-learning-rate or --dense-learning-rate"

    def _on_failure(self, unit: Unit, error: BaseException) -> OnFailure:
        if self._watch_files is None:
            return OnFailure.STOP
        return self._watch_files.on_failure(unit, error)

    def _watch(self, scheduler: UnitThreads, line: ProgressLine) -> bool:
        """Polls the run's parts until no unit is left to do and no save is under way.

        Where a loss must not change the bits, a save begins once the units in progress are done,
        and no unit begins before it has ended: else it had parts of them, which a run that resumes
        from it trains again.

        Returns:
          Whether training paused for a save alone.
        """
        cuts_between_units = self._config.cluster.way(self._cluster.place) == IN_STEP
        pauses_to_save = False
        paused_at = -math.inf
        self.log.count_from_now()
        self.saves.count_from_now()
        self._notices.forget_servers()
        self._progress.count_from_now()
        polled = -math.inf
        running = True
        while running or self.saves.under_way:
            running = scheduler.wait(_TICK_SECS)
            if not running:
                self.saves.wait(_TICK_SECS)
            if self._progress.has_new_units:
                self._tell_recovery(self._recoveries.note_unit(line.say))
                if scaled := self._scalings.note_unit():
                    line.say(scaled)
                    self._scaling.done(scaled)
            self._check_cluster()
            self._tell_losses()
            self._effects.deliver(line.say)
            if time.monotonic() - polled >= _SLOW_POLL_SECS:
                polled = time.monotonic()
                self._poll_slowly(line)
                if running and self._setup.step_logs.groups is not None:
                    self._setup.step_logs.groups.poll()
                for news in self._waits.news(scheduler.awaited(self._setup.step_logs)):
                    line.say(news)
            self._notices.poll(say=line.say, save_now=self.saves.hurry)
            if self._notices.stop.is_set():
                self._ledger.deaths.forgive()
            if self._effects.stopping:
                scheduler.end()
            elif self._scaling.due:
                scheduler.drain()
            self.saves.poll()
            pauses = self._notices.stop.is_set() or self._effects.stopping or self._scaling.due
            if not pauses and self.saves.is_due():
                if running and cuts_between_units:
                    pauses_to_save = True
                    scheduler.drain()
                elif running or (pauses_to_save and not self._ledger.exhausted):
                    self._setup.collection.hold_sweeps(pauses_to_save)
                    paused_at = time.monotonic()
                    self.saves.begin()
            if line.due() or not running:
                self._progress.show(line, force=not running)
        self._progress.say_files(line)
        if not pauses_to_save or pauses or self._ledger.exhausted:
            return False
        self.saves.paused_for(time.monotonic() - paused_at)
        return True

    def _tell_losses(self) -> None:
        """Tells the callbacks which workers were lost, or work again."""
        for worker, lost_secs in self._cluster.worker_news():
            if lost_secs is None:
                self.numbers.lost += 1
                self._tell_loss(LostWorker(worker=worker))
            else:
                self.numbers.returned += 1
                self._tell_recovery(RecoveryEnd(why=f"worker {worker} was lost", secs=lost_secs))

    def _tell_loss(self, event: LostWorker) -> None:
        self._effects.tell(lambda callback, run: callback.on_lost_worker(run, event))

    def _tell_recovery(self, event: RecoveryEnd | None) -> None:
        if event is not None:
            self._effects.tell(lambda callback, run: callback.on_recovered(run, event))

    def _poll_slowly(self, line: ProgressLine) -> None:
        """Reads files that change rarely: evaluations, restarts; shows news; lets rows age."""
        self._advance_event_clock()
        self._setup.step_logs.forget(self._cluster.unresponsive_workers())
        self._effects.poll(line.say)
        self._progress.say_deaths(line)
        self.count_restarts()
        news = [*self.scoring.news(), *self._setup.writer.news()]
        news += self.reports.look_at_tables(left_hours=self._progress.left_hours)
        for each in [*news, *self._scaling.poll(), *self._cluster.news()]:
            line.say(each)
        self._progress.say_files(line)

    def _advance_event_clock(self) -> None:
        """Tells the tables which step it is, and which rows are too old by their event time."""
        self._setup.collection.thaw(self._ledger.steps_done())
        if oldest := self._setup.event_ages.changes(self._ledger.num_done):
            self._setup.collection.set_oldest_steps(oldest)

    def _score(self, line: ProgressLine) -> None:
        scored = self.scoring.score_at_pause(
            self._setup.writer.last,
            self._ledger,
            scored_step=self._effects.last_step,
            stop=self._notices.stop,
            check=self._check_cluster,
            say=line.say,
        )
        if scored:
            self._effects.poll(line.say)

    def _record(self, unit: Unit, counts: Counts) -> None:
        """Takes the counts of a unit that is done."""
        self.last_unit_at = time.time()
        if not math.isfinite(float(counts["loss"])):
            self._not_finite = f"the loss is not a number in the steps from {unit.first_step} on"
            raise TrainingError(self._not_finite)
        num_batches = -(-unit.num_rows // self._ledger.batch_rows)
        joint_steps = -(-num_batches // self.reports.group_size)
        rows = int(counts["examples"])  # a dataset_fn's last batch may have fewer
        if self._counted.pop(unit.position, None) is None:  # its first visit counts
            self.log.add(counts, rows=rows, joint_steps=joint_steps)
        event = UnitEnd(
            unit=unit,
            loss=float(counts["loss"]) / max(1.0, float(counts["examples"])),
        )
        self._effects.tell(lambda callback, run: callback.on_unit_end(run, event))
