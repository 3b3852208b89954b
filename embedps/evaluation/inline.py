"""Inline evaluation: scores the held-out split on the training workers, while training pauses.

Each unit returns its counts, and the counts of a unit are taken once, from the attempt that
completed: so every example counts exactly once, whichever workers die. They are added in the
units' order, so that the sums, which are floats, are those of one process to the last bit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from embedps.checkpoint.format.manifest import Manifest
from embedps.cluster.interface import Cluster
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.engine.unit_functions import explain, make_eval_unit
from embedps.evaluation.evaluator import (
    EVAL_BATCH_ROWS,
    Evaluation,
    EvaluationLog,
    eval_arguments,
    eval_ledger,
)
from embedps.metrics import Accumulator, Counts
from embedps.scheduling.ledger import Unit
from embedps.scheduling.scheduler import Scheduler
from embedps.tables.collection import EmbeddingCollection

_TICK_SECS = 0.2


class InlineEvaluation:
    """Scores a run's tables and network where they are."""

    def __init__(
        self,
        recommender: Recommender,
        network: tf.keras.Model,
        collection: EmbeddingCollection,
        dataset: Dataset,
        cluster: Cluster,
        *,
        split: str = "eval",
        every_units: int = 0,
    ) -> None:
        """Takes a run's model.

        Args:
          recommender: the model, whose `network` and `collection` are being trained.
          dataset: of which `split` is scored; its files as the workers see them.
          cluster: whose workers do it.
          every_units: of training, a scoring is due, besides at the end of each epoch; 0 is never.
        """
        self._cluster = cluster
        self._dataset = dataset
        self._split = split
        self._every_units = every_units
        self._log: EvaluationLog | None = None
        self._eval_unit = make_eval_unit(
            recommender,
            network,
            collection,
            recommender.input(batch_rows=EVAL_BATCH_ROWS, shuffle_rows=0),
        )

    def next_pause(self, position: int, units_per_epoch: int) -> int:
        """The first position after this one before which training pauses to be scored."""
        epoch, within = divmod(position, units_per_epoch)
        every = self._every_units or units_per_epoch
        return epoch * units_per_epoch + min(units_per_epoch, (within // every + 1) * every)

    def count(
        self, stop: threading.Event, check: Callable[[], None] = lambda: None
    ) -> dict[int, Counts] | None:
        """Scores the split once.

        Args:
          stop: ends it without a result.
          check: called all the while; may raise.

        Returns:
          The counts of every unit by its position, or None.

        Raises:
          DatasetError: a file of the split cannot be read.
          ClusterError: a parameter server was lost.
        """
        ledger = eval_ledger(self._dataset, split=self._split, batch_rows=EVAL_BATCH_ROWS)
        found: dict[int, Counts] = {}

        def record(unit: Unit, counts: Counts) -> None:
            found[unit.position] = counts

        with Scheduler(
            self._cluster,
            ledger,
            self._eval_unit,
            arguments=eval_arguments,
            record=record,
            stop=stop,
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
        """Scores what a manifest has just saved, and logs the scores as the sidecar does."""
        began = time.time()
        counts = self.count(stop, check)
        if counts is None:
            return None
        total = Accumulator()
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
