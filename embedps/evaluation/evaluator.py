"""Scores the held-out split at a run's checkpoints, apart from the training."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import tensorflow as tf

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.engine.unit_functions import explain, make_eval_unit
from embedps.errors import CheckpointError, UsageError
from embedps.evaluation.example_scores import ExampleScorer, write_scores
from embedps.evaluation.restored_model import RestoredModel
from embedps.evaluation.shared_scoring import SharedScoring
from embedps.evaluation.sliced_scores import SlicedScores, total_of
from embedps.metrics import ClickScores, Counts
from embedps.run.slice_options import SliceOptions
from embedps.run.summary import append_evaluation
from embedps.scheduling.division import LedgerOptions
from embedps.scheduling.ledger import Ledger, Unit
from embedps.score_names import scores_of
from embedps.storage.object_store import local_dir
from embedps.tables.tiered import Tiered

EVAL_BATCH_ROWS = 4096
_POLL_SECS = 0.5


OnProgress = Callable[[Manifest, int, int, ClickScores], None]
"""Takes the manifest being scored, the units scored, their total, and the scores so far."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The scores of one checkpoint; a line of evaluation.jsonl.

    Attributes:
      number: of the checkpoint's manifest.
      step: the training steps that the checkpoint holds.
      metrics: over the whole split.
      secs: how long restoring and scoring took.
      lag_secs: from the manifest's commit to the end of the scoring.
    """

    number: int
    step: int
    metrics: ClickScores
    secs: float
    lag_secs: float

    def to_json(self) -> dict[str, Any]:
        """Makes a flat dict for JSON; a value that is not finite becomes None."""
        values = {
            "number": self.number,
            "step": self.step,
            **self.metrics.values,
            **self.metrics.details,
            "examples": self.metrics.examples,
            "secs": round(self.secs, 3),
            "lag_secs": round(self.lag_secs, 3),
            "time": time.time(),
        }
        return {name: _finite(value) for name, value in values.items()}


def _finite(value: Any) -> Any:
    """Makes None of what is not finite, in parts too."""
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class EvaluationLog:
    """Writes a run's scores: each is a line of evaluation.jsonl and a point in TensorBoard."""

    def __init__(self, model_dir: Path) -> None:
        self._model_dir = model_dir
        self._writer: tf.summary.SummaryWriter | None = None

    def add(self, evaluation: Evaluation) -> None:
        """Writes the scores of one checkpoint.

        Raises:
          CheckpointError: evaluation.jsonl cannot be written.
        """
        append_evaluation(self._model_dir, evaluation.to_json())
        folder = str(local_dir(self._model_dir) / "tensorboard" / "eval")
        # A full disk must not end the run here: the scores are in evaluation.jsonl.
        with contextlib.suppress(tf.errors.OpError), tf.device("/device:CPU:0"):
            writer = self._writer = self._writer or tf.summary.create_file_writer(folder)
            with writer.as_default(step=evaluation.step):
                for name, value in scores_of(evaluation.metrics.values).items():
                    tf.summary.scalar(name, value)
            writer.flush()


def eval_ledger(dataset: Dataset, *, split: str, batch_rows: int) -> Ledger:
    """Makes the units of one scoring; they are the same for the sidecar and for inline scoring."""
    options = LedgerOptions(
        split=split, batch_rows=batch_rows, unit_rows=max(32768, batch_rows), shuffle=False
    )
    return Ledger(dataset, options, epochs=1)


def eval_arguments(unit: Unit) -> tuple[tf.Tensor, ...]:
    """Makes the arguments that `make_eval_unit`'s function takes for a unit."""
    numbers = (unit.first_row, unit.num_rows)
    return (tf.constant(unit.path), *(tf.constant(n, tf.int64) for n in numbers))


class Evaluator(RestoredModel):
    """Scores a run's checkpoints.

    It needs only the model directory and the dataset: it never talks to the training cluster.
    """

    def __init__(
        self,
        recommender: Recommender,
        dataset: Dataset,
        directory: CheckpointDirectory,
        *,
        split: str = "eval",
        batch_rows: int = EVAL_BATCH_ROWS,
        num_shards: int = 1,
        seed: int = 0,
        is_shared: bool = False,
        memory: Tiered | None = None,
        slices: SliceOptions = SliceOptions(),  # noqa: B008  frozen
        on_progress: OnProgress | None = None,
    ) -> None:
        """Makes empty tables and an untrained network.

        Args:
          dataset: has the examples to score.
          split: the name of the dataset's split to score.
          batch_rows: examples per batch.
          num_shards: of each table in this process; the scores do not depend on it.
          seed: the run's, for random values that the network draws when it is made and that
            checkpoints do not hold.
          is_shared: score the newest manifest together with other such evaluators.
          memory: for the rows, if those used least go to disk.
          slices: how the scores are divided.
          on_progress: called after each unit that is scored for a manifest.

        Raises:
          UsageError: the split has no rows, or cannot be divided so.
          DatasetError: there is no such split.
        """
        self._ledger = lambda: eval_ledger(dataset, split=split, batch_rows=batch_rows)
        state = self._ledger().state()  # raises now, and not when the first checkpoint is there
        digest = state["dataset"]
        if slices.divides:  # those that share a scoring must keep the same of each example
            digest += hashlib.sha256(repr(slices.divided_by).encode()).hexdigest()[:8]
        self._shared = SharedScoring(directory.path, split=digest) if is_shared else None
        self._dataset, self._batch_rows = dataset, batch_rows
        super().__init__(
            recommender, dataset, directory, num_shards=num_shards, seed=seed, memory=memory
        )
        self._sliced, kept = None, None
        unit_input = self._model.input(batch_rows=batch_rows, shuffle_rows=0)
        if slices.divides:
            self._sliced = SlicedScores(slices, self._model, dataset, split=split)
            kept = self._sliced.kept
            unit_input = kept.input(batch_rows=batch_rows)
        self._eval_unit = make_eval_unit(self._model, self._collection, unit_input, kept)
        self._encoders = self._model.candidate_encoders(self._collection)
        self._on_progress = on_progress

    def score(self) -> ClickScores:
        """Scores the split with the current tables and network.

        Raises:
          DatasetError: a file of the split cannot be read.
        """
        units, score = self._units()
        return self._total(map(score, units))

    def _units(self) -> tuple[range, Callable[[int], Counts]]:
        """Gives the positions of the units, and what scores one and shows the progress."""
        units = list(iter(self._ledger().take, None))
        candidates = self._model.encode_candidates(self._encoders)
        here, done = self._model.accumulator(training=False), itertools.count(1)

        def score(position: int) -> Counts:
            try:
                counts: Counts = self._eval_unit(*eval_arguments(units[position]), *candidates)
            except tf.errors.OpError as error:
                raise explain(error) from error
            here.add(counts)
            if self._on_progress is not None and self._applied is not None:
                self._on_progress(self._applied, next(done), len(units), here.result())
            return counts

        return range(len(units)), score

    def _total(self, counts: Iterable[Counts]) -> ClickScores:
        return total_of(self._model, list(counts), self._sliced)

    def _scores_of(self, manifest: Manifest) -> ClickScores | None:
        """Scores the split, with others if it is shared; None if one of them logs the scores."""
        if self._shared is None:
            return self.score()
        counts = self._shared.counts(manifest.number, *self._units())
        return None if counts is None else self._total(counts)

    def evaluate_latest(self, *, newer_than: int) -> tuple[Manifest, Evaluation] | None:
        """Scores the newest manifest, or that which others score, unless it is up to `newer_than`.

        A lease keeps the manifest's files meanwhile. Gives None if there is none, or if another
        evaluator that shared the scoring adds it to evaluation.jsonl.
        """
        if max(self._directory.numbers(), default=-1) <= newer_than:
            return None
        with contextlib.ExitStack() as stack:
            if not self._follower.is_open:
                stack.enter_context(self._follower)
            began = time.time()
            if not self._join(newer_than):
                while (advance := self._follower.next()) is not None:
                    self._apply(advance)
            manifest = self._applied
            if manifest is None or manifest.number <= newer_than:
                return None
            metrics = self._scores_of(manifest)
        return None if metrics is None else (manifest, _evaluation(manifest, metrics, began))

    def _join(self, newer_than: int) -> bool:
        """Moves to the manifest that others score, if they do and it is still there."""
        begun = None if self._shared is None else self._shared.begun()
        if begun is None or begun <= newer_than:
            return False
        with contextlib.suppress(CheckpointError):
            self._apply(self._follower.to(begun))
            return True
        return False

    def evaluate(self, number: int) -> Evaluation:
        """Scores one manifest.

        Raises:
          CheckpointError: there is no such manifest, or it cannot be restored.
        """
        began = time.time()
        with self._follower:
            advance = self._follower.to(number)
            self._apply(advance)
        return _evaluation(advance.manifest, self.score(), began)

    def write_scores(self, path: Path, on_progress: Callable[[int], None]) -> int:
        """Writes the scores of each example of the split, for the manifest that was scored last.

        The file is Parquet, with its examples in the split's order and the columns "file" (the path
        in the dataset), "row" (in that file), the labels that the scoring reads, and the
        predictions by name, after "predicted/" if one has the name of a label. They are those of
        `embedps.load`, bit for bit.

        Args:
          on_progress: called with the examples scored so far.

        Returns:
          How many examples there are.

        Raises:
          UsageError: the model predicts nothing, or the file cannot be written.
          DatasetError: a file of the split cannot be read.
        """
        manifest = self._applied
        if manifest is None:
            raise UsageError("scores are written of a manifest: score one first")
        labels = self._model.columns.label_names
        scorer = ExampleScorer(
            self._model,
            self._predict,
            self._dataset,
            batch_rows=self._batch_rows,
            prefix="" if {*labels}.isdisjoint(self._model.prediction_names) else "predicted/",
        )

        def tables() -> Iterator[pa.Table]:
            ledger, done = self._ledger(), 0
            for table in scorer.tables(iter(ledger.take, None)):
                yield table
                done += table.num_rows
                on_progress(done)

        told = {"embedps.number": str(manifest.number), "embedps.step": str(manifest.step)}
        return write_scores(path, tables(), told)

    def follow(
        self,
        report: Callable[[Evaluation], None],
        *,
        newer_than: int = -1,
        final_after: int = -1,
        idle_secs: float = math.inf,
    ) -> None:
        """Scores the newest manifest again and again, until it has scored the run's last one.

        Args:
          report: called with each evaluation.
          newer_than: manifests up to this number count as scored.
          final_after: a final manifest up to this number is not the last: the run was resumed.
          idle_secs: return if nothing was committed for this long.
        """
        # Its lease lasts between scorings too, so that the deltas after this checkpoint stay.
        with self._follower:
            self._follow(report, newer_than, final_after, idle_secs)
        self.clean()

    def clean(self) -> None:
        """Removes what is left of scorings that were shared and are over."""
        if self._shared is not None:
            self._shared.clean()

    def _follow(
        self,
        report: Callable[[Evaluation], None],
        scored: int,
        final_after: int,
        idle_secs: float,
    ) -> None:
        last_change = time.monotonic()
        while True:
            found = self.evaluate_latest(newer_than=scored)
            if found is not None:
                manifest, evaluation = found
                report(evaluation)
                scored, last_change = manifest.number, time.monotonic()
                if manifest.final and manifest.number > final_after:
                    return
                continue
            if self._shared is not None:
                scored = max(scored, self._shared.scored())
            # An evaluator before this one, or beside it, may have scored the last manifest.
            latest = self._directory.latest()
            if latest is not None and latest.final and final_after < latest.number <= scored:
                return
            if time.monotonic() - last_change > idle_secs:
                return
            if latest is None or latest.number <= scored:
                time.sleep(_POLL_SECS)


def _evaluation(manifest: Manifest, metrics: ClickScores, began: float) -> Evaluation:
    now = time.time()
    return Evaluation(
        number=manifest.number,
        step=manifest.step,
        metrics=metrics,
        secs=now - began,
        lag_secs=now - manifest.wall_time,
    )
