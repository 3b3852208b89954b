"""Scores the held-out split on the training workers, while training pauses.

Each unit returns its counts. A unit's counts are taken once, from the attempt that completed, so
every example counts exactly once, whichever workers die. The counts are floats and are added in the
units' order, so that the sums equal those of one process to the last bit.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from embedps.checkpoint.format.manifest import Manifest
from embedps.cluster.interface import Cluster, OnDeath
from embedps.data.dataset import Dataset
from embedps.engine.step_model import StepModel
from embedps.engine.steps.ways import way_of
from embedps.engine.unit_functions import explain, make_eval_unit
from embedps.errors import UsageError
from embedps.evaluation.evaluator import (
    EVAL_BATCH_ROWS,
    Evaluation,
    EvaluationLog,
    eval_arguments,
    eval_ledger,
)
from embedps.evaluation.sliced_scores import SlicedScores, total_of
from embedps.metrics import ClickScores, Counts
from embedps.run.config import TrainConfig
from embedps.run.evaluation_config import INNER, INNER_LOSS, NOT_OF_INNER
from embedps.run.slice_options import KNOWN, SliceOptions
from embedps.scheduling.division import LedgerOptions
from embedps.scheduling.ledger import Ledger, Unit
from embedps.scheduling.scheduler import Scheduler
from embedps.score_names import stem
from embedps.tables.collection import EmbeddingCollection

_TICK_SECS = 0.2
_UNIT_SPECS = tuple(tf.TensorSpec([], dtype) for dtype in (tf.string, tf.int64, tf.int64))


class InlineEvaluation:
    """Scores a run's tables and network on its cluster."""

    def __init__(
        self,
        model: StepModel,
        collection: EmbeddingCollection,
        dataset: Dataset,
        cluster: Cluster,
        *,
        split: str | None = "eval",
        every_units: int = 0,
        inner: LedgerOptions | None = None,
        slices: SliceOptions = SliceOptions(),  # noqa: B008  frozen
    ) -> None:
        """Prepares the scoring of a run's model.

        Args:
          model: which is being trained.
          collection: its tables, which are being trained.
          dataset: has the examples to score, in files that the workers can read.
          cluster: has the workers.
          split: the name of the dataset's split to score; None scores the inner rows only.
          every_units: score after this many units of training, and at the end of each epoch; 0 is
            only at the end.
          inner: how the inner rows are divided, if the run has any.
          slices: how the scores are divided.

        Raises:
          UsageError: the model ranks candidates, which the cluster cannot encode; there are no
            inner rows; or the scores cannot be divided so.
        """
        self._model = model
        self._cluster = cluster
        self._collection = collection
        self._dataset = dataset
        self._split = split
        self._inner = None if inner is None else lambda: Ledger(dataset, inner, epochs=1)
        if self._inner is not None:
            self._inner()  # raises now, and not after an epoch
        self._every_units = every_units
        self._log: EvaluationLog | None = None
        if model.candidates:
            way_of(place=cluster.place).check({"ranks_inline": True})
        self._sliced, kept = None, None
        unit_input = model.input(batch_rows=EVAL_BATCH_ROWS, shuffle_rows=0)
        if slices.divides:
            if cluster.place == "workers" and any(s.startswith(KNOWN) for s in slices.slices):
                raise UsageError(
                    f"--slices {KNOWN}COLUMN needs all rows, and each worker in step has its own "
                    "only: score with `embedps evaluate`"
                )
            self._sliced = SlicedScores(slices, model, dataset, split=split)
            kept = self._sliced.kept
            unit_input = kept.input(batch_rows=EVAL_BATCH_ROWS)
        eval_unit = make_eval_unit(model, collection, unit_input, kept)
        self._eval_unit = cluster.led("score", eval_unit)
        self._encoders = self._trace()

    @classmethod
    def of_run(
        cls,
        config: TrainConfig,
        model: StepModel,
        collection: EmbeddingCollection,
        dataset: Dataset,
        cluster: Cluster,
    ) -> InlineEvaluation | None:
        """Makes what a run's config asks for; None if it asks for no pauses."""
        asked = config.evaluation
        if not asked.is_inline:
            return None
        return cls(
            model,
            collection,
            dataset,
            cluster,
            split="eval" if asked.mode == "inline" else None,
            every_units=asked.every_units,
            inner=LedgerOptions.of_run(config, inner=True) if asked.inner_share else None,
            slices=asked,
        )

    def _trace(self) -> list[Any]:
        """Traces what `count` calls, as `Cluster.trace` says; returns what encodes candidates."""
        specs, encoders = [*_UNIT_SPECS], self._model.candidate_encoders(self._collection)
        for i, each in enumerate(self._model.candidates):
            traced = self._cluster.trace(encoders[i], (each.batches.element_spec,))
            if traced is None:
                return encoders  # all is in this process
            encoders[i], dim = traced, traced.structured_outputs.shape[1]
            specs += [tf.TensorSpec([None, dim], tf.float32), each.encoded_specs[1]]
        self._cluster.trace(self._eval_unit, tuple(specs))
        return encoders

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
        return self._count(self._eval_ledger(), stop, check)

    def _eval_ledger(self) -> Ledger:
        return eval_ledger(self._dataset, split=self._split or "", batch_rows=EVAL_BATCH_ROWS)

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
        ledger = eval_ledger(dataset, split=split, batch_rows=EVAL_BATCH_ROWS)
        counts = self._count(ledger, stop, lambda: None, on_death)
        return None if counts is None else dict(self._total(counts).values)

    def _total(self, counts: Mapping[int, Counts]) -> ClickScores:
        return total_of(self._model, list(counts.values()), self._sliced)

    def _count(
        self,
        ledger: Ledger,
        stop: threading.Event,
        check: Callable[[], None],
        on_death: OnDeath | None = None,
    ) -> dict[int, Counts] | None:
        found: dict[int, Counts] = {}

        def record(unit: Unit, counts: Counts) -> None:
            found[unit.position] = counts

        try:
            candidates = self._model.encode_candidates(self._encoders)
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
        began, found = time.time(), ClickScores(values={}, examples=0)
        if self._split is not None:
            if (counts := self.count(stop, check)) is None:
                return None
            found = self._total(counts)
        if self._inner is not None:
            if (counts := self._count(self._inner(), stop, check)) is None:
                return None
            inner = self._total(counts)
            kept = {n: v for n, v in inner.values.items() if stem(n) not in NOT_OF_INNER}
            values = {**found.values, INNER_LOSS: inner.loss}
            values |= {INNER + n: v for n, v in kept.items()}
            examples = found.examples or inner.examples
            found = dataclasses.replace(found, values=values, examples=examples)
        now = time.time()
        evaluation = Evaluation(
            number=manifest.number,
            step=manifest.step,
            metrics=found,
            secs=now - began,
            lag_secs=now - manifest.wall_time,
        )
        self._log = self._log or EvaluationLog(model_dir)
        self._log.add(evaluation)
        return evaluation
