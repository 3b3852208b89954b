"""Scores the held-out split on the training workers, while training pauses.

Each unit returns its counts. A unit's counts are taken once, from the attempt that completed, so
every example counts exactly once, whichever workers die. The counts are floats and are added in the
units' order, so that the sums equal those of one process to the last bit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from embedps.checkpoint.format.manifest import Manifest
from embedps.cluster.interface import Cluster, OnDeath
from embedps.data.dataset import Dataset
from embedps.engine.step_model import StepModel
from embedps.engine.steps.ways import way_of
from embedps.engine.unit_functions import explain, make_eval_unit
from embedps.evaluation.evaluator import (
    EVAL_BATCH_ROWS,
    Evaluation,
    EvaluationLog,
    eval_arguments,
    eval_ledger,
)
from embedps.metrics import Counts
from embedps.scheduling.ledger import Unit
from embedps.scheduling.scheduler import Scheduler
from embedps.tables.collection import EmbeddingCollection

_TICK_SECS = 0.2


class InlineEvaluation:
    """Scores a run's tables and network on its cluster."""

    def __init__(
        self,
        model: StepModel,
        collection: EmbeddingCollection,
        dataset: Dataset,
        cluster: Cluster,
        *,
        split: str = "eval",
        every_units: int = 0,
    ) -> None:
        """Prepares the scoring of a run's model.

        Args:
          model: which is being trained.
          collection: its tables, which are being trained.
          dataset: has the examples to score, in files that the workers can read.
          cluster: has the workers.
          split: the name of the dataset's split to score.
          every_units: score after this many units of training, and at the end of each epoch; 0 is
            only at the end.

        Raises:
          UsageError: the model ranks candidates, which the cluster cannot encode.
        """
        self._model = model
        self._cluster = cluster
        self._collection = collection
        self._dataset = dataset
        self._split = split
        self._every_units = every_units
        self._log: EvaluationLog | None = None
        if model.candidates:
            way_of(place=cluster.place).check({"ranks_inline": True})
        unit_input = model.input(batch_rows=EVAL_BATCH_ROWS, shuffle_rows=0)
        self._eval_unit = cluster.led("score", make_eval_unit(model, collection, unit_input))

    def next_pause(self, position: int, units_per_epoch: int) -> int:
        """Returns the first position after this one at which training pauses for a scoring."""
        epoch, within = divmod(position, units_per_epoch)
        every = self._every_units or units_per_epoch
        return epoch * units_per_epoch + min(units_per_epoch, (within // every + 1) * every)

    def count(
        self, stop: threading.Event, check: Callable[[], None] = lambda: None
    ) -> dict[int, Counts] | None:
        """Scores the split once.

        Args:
          stop: ends the scoring without a result.
          check: called again and again; may raise.

        Returns:
          The counts of every unit by its position, or None if it was stopped.

        Raises:
          DatasetError: a file of the split cannot be read.
          ClusterError: a parameter server was lost.
        """
        return self._count(self._dataset, self._split, stop, check)

    def scores_of(
        self,
        dataset: Dataset,
        split: str,
        stop: threading.Event,
        on_death: OnDeath | None = None,
    ) -> dict[str, float] | None:
        """Scores a split of another dataset; see `count`. Gives None if it was stopped.

        Args:
          dataset: has the split's files.
          stop: ends the scoring.
          on_death: of its units, as a ScheduledCall has it.
        """
        counts = self._count(dataset, split, stop, lambda: None, on_death)
        if counts is None:
            return None
        total = self._model.accumulator(training=False)
        for each in counts.values():
            total.add(each)
        return dict(total.result().values)

    def _count(
        self,
        dataset: Dataset,
        split: str,
        stop: threading.Event,
        check: Callable[[], None],
        on_death: OnDeath | None = None,
    ) -> dict[int, Counts] | None:
        ledger = eval_ledger(dataset, split=split, batch_rows=EVAL_BATCH_ROWS)
        found: dict[int, Counts] = {}

        def record(unit: Unit, counts: Counts) -> None:
            found[unit.position] = counts

        try:
            candidates = self._model.encode_candidates(self._collection)
        except tf.errors.OpError as error:
            raise explain(error) from error

        def arguments(unit: Unit) -> tuple[tf.Tensor, ...]:
            return (*eval_arguments(unit), *candidates)

        with Scheduler(
            self._cluster,
            ledger,
            self._eval_unit,
            arguments=arguments,
            record=record,
            stop=stop,
            on_death=None if on_death is None else lambda _: on_death(),
        ) as schedule:
            while schedule.wait(_TICK_SECS):
                check()
        if schedule.error is not None:
            raise explain(schedule.error) from schedule.error
        return dict(sorted(found.items())) if ledger.finished else None

    def score(
        self,
        model_dir: Path,
        manifest: Manifest,
        stop: threading.Event,
        check: Callable[[], None] = lambda: None,
    ) -> Evaluation | None:
        """Scores the model that a manifest has just saved; logs the scores as the sidecar does."""
        began = time.time()
        counts = self.count(stop, check)
        if counts is None:
            return None
        total = self._model.accumulator(training=False)
        for each in counts.values():
            total.add(each)
        now = time.time()
        evaluation = Evaluation(
            number=manifest.number,
            step=manifest.step,
            metrics=total.result(),
            secs=now - began,
            lag_secs=now - manifest.wall_time,
        )
        self._log = self._log or EvaluationLog(model_dir)
        self._log.add(evaluation)
        return evaluation
