"""Reports on a run's tables and steps: to TensorBoard while it trains, and for summary.json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from embedps.cluster.interface import Cluster
from embedps.run.config import TrainConfig
from embedps.training.run_metrics import RunSource
from embedps.training.staleness_report import staleness_histograms, staleness_json
from embedps.training.table_report import points, texts
from embedps.training.table_watch import TableWatch
from embedps.training.training_log import TrainingLog
from embedps.training.training_setup import TrainingSetup


class RunReports:
    """Takes the statistics of a run's tables and steps."""

    def __init__(
        self,
        config: TrainConfig,
        cluster: Cluster,
        setup: TrainingSetup,
        log: TrainingLog,
        numbers: RunSource,
    ) -> None:
        """Counts from now on.

        Args:
          log: writes what was found to TensorBoard.
          numbers: get it too.
        """
        self._config, self._log, self._numbers = config, log, numbers
        self._first_step = setup.ledger.steps_done()
        self.take(cluster, setup)

    def take(self, cluster: Cluster, setup: TrainingSetup) -> None:
        """Takes another cluster, and what is trained on it."""
        self._cluster, self._setup = cluster, setup
        self.count_anew()

    def count_anew(self) -> None:
        """Takes that a server was started again, and counts from 0."""
        self._tables = TableWatch(
            self._setup.collection,
            self._setup.directory.path,
            every_secs=self._config.stats_secs,
            share_machine=self._cluster.shares_machine,
        )

    @property
    def group_size(self) -> int:
        """How many workers take a step together."""
        return self._config.cluster.group_size(self._cluster.num_workers)

    def look_at_tables(self, *, left_hours: Callable[[], float]) -> list[str]:
        """Takes the tables' statistics if it is time; returns warnings.

        Args:
          left_hours: estimates how long the run will take still.
        """
        if not self._tables.due:
            return []
        step = self._setup.ledger.steps_done()
        self._write(self._tables.look(step=step), step)
        return self._tables.warnings(left_hours=left_hours())

    def table_statistics(self, *, walk: bool) -> dict[str, Any]:
        """Gives the tables' statistics at the end of the run, and writes them to TensorBoard.

        They are empty if this run had nothing to do.

        Args:
          walk: whether to look at all rows.
        """
        step = self._setup.ledger.steps_done()
        if step == self._first_step:
            return {}
        report = self._tables.finish(step=step, walk=walk)
        self._write(report, step)
        return report

    def staleness(self) -> dict[str, Any]:
        """Tells how stale this run's steps were, by worker; empty if it had no servers."""
        return staleness_json(self._setup.step_logs.staleness())

    def sync(self) -> dict[str, Any]:
        """Tells which steps workers trained together, and how many this run has."""
        asked = self._config.cluster
        if not asked.is_in_step:
            return {"mode": asked.sync}
        together = {"workers": self._cluster.num_workers, "joint_steps": self._joint_steps()}
        if asked.in_groups:
            together["backup_workers"] = asked.backup_workers
        if asked.sync_group_size:
            together["group_size"] = self.group_size
        return {"mode": asked.sync, **together}

    def _joint_steps(self) -> int:
        """Counts the steps that workers took together in this run."""
        groups = self._setup.step_logs.groups
        return self._log.joint_steps if groups is None else groups.num_closed()

    def _write(self, report: dict[str, Any], step: int) -> None:
        """Writes the tables' statistics and the steps' staleness."""
        numbers = self._numbers
        numbers.report = report
        numbers.staleness = self._setup.step_logs.staleness()
        stale = staleness_histograms(numbers.staleness)
        if self._config.cluster.is_in_step:
            self._log.write("train", {"joint_steps": float(self._joint_steps())}, step=step)
        self._log.write("tables", points(report), step=step, texts=texts(report), histograms=stale)
