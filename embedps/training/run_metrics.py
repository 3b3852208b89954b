"""What the client of a run tells Prometheus, read of the parts of the run when it asks."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from embedps.cluster.interface import Cluster
from embedps.engine.steps.step_logs import Staleness
from embedps.run.metrics_port import Metric, Summary, one
from embedps.scheduling.ledger import Ledger
from embedps.training.callback_effects import CallbackEffects
from embedps.training.checkpoint_writer import CheckpointWriter
from embedps.training.file_watch import FileWatch
from embedps.training.recovery_record import RecoveryRecord
from embedps.training.run_scoring import RunScoring
from embedps.training.training_log import TrainingLog


@dataclasses.dataclass(kw_only=True)
class RunSource:
    """The parts of a run that have its numbers; reading them sends nothing to a server.

    Attributes:
      unsaved_secs: since the first save began that was not committed; 0 if all were.
      watch: of the directory where files arrive; None if the run has none.
      report: the tables' statistics at the last look; empty before.
      staleness: of the steps, at that look.
      lost: how often a worker was lost.
      returned: how often one worked again.
    """

    ledger: Ledger
    log: TrainingLog
    writer: CheckpointWriter
    cluster: Cluster
    recoveries: RecoveryRecord
    effects: CallbackEffects
    scoring: RunScoring
    unsaved_secs: Callable[[], float] = lambda: 0.0
    watch: FileWatch | None = None
    report: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    staleness: Staleness = dataclasses.field(default_factory=dict)
    lost: int = 0
    returned: int = 0

    def of_tables(self, name: str) -> dict[tuple[str, ...], float]:
        """Gives a number of each table."""
        return {(t,): found[name] for t, found in self.report.get("tables", {}).items()}

    def of_servers(self, name: str) -> dict[tuple[str, ...], float]:
        """Gives a number of each server that has it."""
        servers = enumerate(self.report.get("servers", ()))
        return {(str(i),): s[name] for i, s in servers if s[name] is not None}

    def of_disks(self, name: str) -> Mapping[tuple[str, ...], float]:
        """Gives a number of all spill files; none if all rows are in memory."""
        return one(self.report.get("tier", {}).get(name))

    def of_saves(self, name: str) -> dict[tuple[str, ...], float]:
        """Gives a number of the saves of each kind."""
        return {(kind,): counts[name] for kind, counts in self.writer.counts.items()}


def _save_secs(run: RunSource) -> dict[tuple[str, ...], Summary]:
    return {(k,): Summary(c["count"], c["secs"]) for k, c in run.writer.counts.items()}


def _recovery_secs(run: RunSource) -> Summary:
    secs = [record["secs"] for record in run.recoveries.completed]
    return Summary(len(secs), sum(secs))


def _evicted(run: RunSource) -> dict[tuple[str, ...], float]:
    tables = run.report.get("tables", {}).items()
    return {(t, cause): n for t, found in tables for cause, n in found["evicted"].items()}


def _on_disk(run: RunSource) -> dict[tuple[str, ...], float]:
    return {(t,): n for t, n in run.report.get("tier", {}).get("rows_on_disk", {}).items()}


def _stale(run: RunSource) -> Mapping[int, int] | None:
    total: Counter[int] = Counter()
    for counts in run.staleness.values():
        total.update(counts)
    return total or None


_TABLE, _SERVER, _KIND = ("table",), ("server",), ("kind",)

METRICS = (
    Metric(
        "embedps_train_examples_total",
        "Examples that this process trained.",
        lambda r: one(r.log.examples),
    ),
    Metric("embedps_train_steps_total", "Steps of all runs.", lambda r: one(r.ledger.steps_done())),
    Metric("embedps_train_units", "Units to train in all.", lambda r: one(r.ledger.num_units)),
    Metric(
        "embedps_train_units_done_total",
        "Units that are done.",
        lambda r: one(r.ledger.num_done),
    ),
    Metric(
        "embedps_train_unit_attempts_total",
        "Attempts at units, repeated ones included.",
        lambda r: one(r.ledger.num_attempts),
    ),
    Metric(
        "embedps_train_units_set_aside_total",
        "Units that kill who trains them.",
        lambda r: one(r.ledger.num_aside),
    ),
    Metric(
        "embedps_train_staleness_steps",
        "How many other steps a server applied between a step's read and its update.",
        lambda r: one(_stale(r)),
    ),
    Metric(
        "embedps_train_waiting_files",
        "Files that arrived and wait.",
        lambda r: one(r.watch and r.watch.num_waiting),
    ),
    Metric(
        "embedps_train_workers", "Workers that are there.", lambda r: one(r.cluster.present_workers)
    ),
    Metric(
        "embedps_train_unreachable_workers",
        "Workers that do not answer now.",
        lambda r: one(len(r.cluster.lost_workers())),
    ),
    Metric("embedps_train_lost_workers_total", "Losses of workers.", lambda r: one(r.lost)),
    Metric(
        "embedps_train_returned_workers_total",
        "Lost workers that ended a unit again.",
        lambda r: one(r.returned),
    ),
    Metric(
        "embedps_train_evaluator_restarts_total",
        "Starts of the evaluator after its end.",
        lambda r: one(r.scoring.restarts),
    ),
    Metric(
        "embedps_train_recovery_seconds",
        "From the loss of a server to the next unit done, of all runs.",
        lambda r: one(_recovery_secs(r)),
    ),
    Metric("embedps_train_save_seconds", "Time of saves that were committed.", _save_secs, _KIND),
    Metric(
        "embedps_train_saved_bytes_total", "What they wrote.", lambda r: r.of_saves("bytes"), _KIND
    ),
    Metric("embedps_train_saved_rows_total", "Rows in them.", lambda r: r.of_saves("rows"), _KIND),
    Metric(
        "embedps_train_unsaved_seconds",
        "Since the first save began that is not committed; 0 if all are.",
        lambda r: one(r.unsaved_secs()),
    ),
    Metric(
        "embedps_train_checkpoint_step",
        "Step of the last checkpoint.",
        lambda r: one(r.writer.last and r.writer.last.step),
    ),
    Metric(
        "embedps_train_checkpoint_timestamp_seconds",
        "When it was committed.",
        lambda r: one(r.writer.last and r.writer.last.wall_time),
    ),
    Metric(
        "embedps_train_scored_step",
        "Step of the last checkpoint that was scored.",
        lambda r: one(r.effects.last_step if r.effects.last_step >= 0 else None),
    ),
    Metric("embedps_train_table_rows", "Rows.", lambda r: r.of_tables("rows"), _TABLE),
    Metric(
        "embedps_train_table_bytes",
        "Memory of the rows and their index.",
        lambda r: r.of_tables("bytes"),
        _TABLE,
    ),
    Metric("embedps_train_table_disk_rows", "Rows on disk.", _on_disk, _TABLE),
    Metric(
        "embedps_train_table_lookups_total",
        "Distinct ids of all steps.",
        lambda r: r.of_tables("lookups"),
        _TABLE,
    ),
    Metric(
        "embedps_train_table_refused_total",
        "Of these, ids that got no row.",
        lambda r: r.of_tables("refused"),
        _TABLE,
    ),
    Metric(
        "embedps_train_table_evicted_rows_total",
        "Rows that went.",
        _evicted,
        ("table", "cause"),
    ),
    Metric(
        "embedps_train_server_rows",
        "Rows on a parameter server.",
        lambda r: r.of_servers("rows"),
        _SERVER,
    ),
    Metric(
        "embedps_train_server_table_bytes",
        "Memory of its tables.",
        lambda r: r.of_servers("memory_bytes"),
        _SERVER,
    ),
    Metric(
        "embedps_train_server_resident_bytes",
        "Memory of its process.",
        lambda r: r.of_servers("resident_bytes"),
        _SERVER,
    ),
    Metric(
        "embedps_train_server_available_bytes",
        "Memory that its machine or container has left.",
        lambda r: r.of_servers("available_bytes"),
        _SERVER,
    ),
    Metric(
        "embedps_train_server_lookups_total",
        "Distinct ids that it was asked for.",
        lambda r: r.of_servers("lookups"),
        _SERVER,
    ),
    Metric("embedps_train_spill_bytes", "Spill files.", lambda r: r.of_disks("disk_bytes")),
    Metric(
        "embedps_train_spill_rows_read_total",
        "Rows read from them.",
        lambda r: r.of_disks("read"),
    ),
    Metric(
        "embedps_train_spill_rows_written_total",
        "Rows written to them, those that compaction moved included.",
        lambda r: r.of_disks("written"),
    ),
    Metric(
        "embedps_train_spill_rows_evicted_total",
        "Rows evicted as a disk was full.",
        lambda r: r.of_disks("evicted"),
    ),
)
"""What is of tables and servers is as of the last look, of each --stats-secs."""
