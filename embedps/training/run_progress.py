"""Shows how far a run is, and what is new in it, on its line of progress and above it."""

from __future__ import annotations

import math
import time

from embedps.cluster.interface import Cluster
from embedps.console.progress import ProgressLine
from embedps.run.cluster_config import NO_BOUND
from embedps.run.config import TrainConfig
from embedps.training.file_watch import FileWatch
from embedps.training.training_log import TrainingLog
from embedps.training.training_setup import TrainingSetup


class RunProgress:
    """Says what a run's parts have to say."""

    def __init__(
        self,
        config: TrainConfig,
        cluster: Cluster,
        setup: TrainingSetup,
        watch: FileWatch | None,
        log: TrainingLog,
    ) -> None:
        """Shows nothing yet; the parts are those of `LoopParts`."""
        self._config, self._log = config, log
        self._shown_units, self._shown_text = setup.ledger.num_done, ""
        self.take(cluster, setup, watch)

    def take(self, cluster: Cluster, setup: TrainingSetup, watch: FileWatch | None) -> None:
        """Takes another cluster, and what is trained on it."""
        self._cluster, self._setup, self._watch, self._ledger = cluster, setup, watch, setup.ledger
        self.count_from_now()

    def make_line(self) -> ProgressLine:
        """Makes the line that the run shows until it ends or pauses for another cluster."""
        return ProgressLine(
            "units",
            self._ledger.num_units,
            log_secs=self._config.log_secs,
            completed=self._ledger.num_done,
        )

    def begin(self, line: ProgressLine, *, finished: bool) -> None:
        """Says what the run goes on from, and why units or steps wait.

        Args:
          finished: whether nothing is left to train.
        """
        last, ledger = self._setup.writer.last, self._ledger
        if last is not None and not finished:
            line.say(
                f"resumes from checkpoint {last.number}, step {last.step}: "
                f"{ledger.num_done}/{ledger.num_units} units are done"
            )
        if not finished:
            for change in self._setup.changes:
                line.say(change)
        bound = self._setup.step_logs.most_stale
        if self._config.cluster.max_staleness_steps is None and bound is not None:
            line.say(
                f"of {self._cluster.num_workers} workers, {bound + 1} are in a step at once: more "
                f"stale steps lose accuracy. --sync dense or full lets all work at once, "
                f"--max-staleness-steps {NO_BOUND} too, at that price"
            )
        self.say_deaths(line)

    def say_deaths(self, line: ProgressLine) -> None:
        """Says which units were set aside."""
        for news in self._ledger.deaths.news():
            line.say(news)

    def say_files(self, line: ProgressLine) -> None:
        """Shows the news of watched files."""
        if self._watch is None:
            return
        for news in self._watch.news():
            line.say(news)
        for scores in self._watch.scores():
            self._log.write("watch", scores, step=self._ledger.steps_done())

    def count_from_now(self) -> None:
        """Counts units, and the time that they take, from now on."""
        self._first_units, self._began = self._ledger.num_done, time.monotonic()

    @property
    def has_new_units(self) -> bool:
        """Whether a unit was done since `count_from_now`."""
        return self._ledger.num_done > self._first_units

    def left_hours(self) -> float:
        """Estimates how long the units that are left will take; for ever if more files arrive."""
        if self._watch is not None or self._ledger.grows:
            return math.inf
        done = self._ledger.num_done - self._first_units
        left = self._ledger.num_units - self._ledger.num_done
        return (time.monotonic() - self._began) / 3600 * left / done if done else math.inf

    def show(self, line: ProgressLine, *, force: bool) -> None:
        """Shows how many units are done, after the lines of the files that they are of."""
        done, total = self._ledger.num_done, self._ledger.num_units
        self.say_files(line)
        text = self._log.show(
            step=self._ledger.steps_done(),
            rows=sum(self._setup.collection.stats().rows.values()),
            last=self._setup.writer.last,
        )
        # A unit's counts may have been shown just before it was done: then no text is new.
        if text is None and (done == self._shown_units or not self._shown_text):
            return
        self._shown_units, self._shown_text = done, text or self._shown_text
        text = self._shown_text
        if aside := self._ledger.num_aside:
            text += f", {aside:,} set aside"
        if self._watch is not None:
            text += f", {self._watch.num_waiting:,} files wait"
        line.update(done, text, total=total, force=force)
