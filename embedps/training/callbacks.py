"""Callbacks act on what happens in a run: early stopping, learning-rate reduction, and your own.

A keep policy says which checkpoints stay (`KeepBest` of checkpoint/retention.py goes by scores).

A callback has those methods of Callback that it needs:

    class StopAtGoal(Callback):
        def on_evaluation(self, run: RunControl, entry: Mapping[str, Any]) -> None:
            if (entry["auc"] or 0) > 0.8:
                run.stop("the AUC is above 0.8")

    Trainer(recommender, dataset, config, callbacks=[StopAtGoal()]).fit()

All are called by the client, on the thread that called `fit`. If one raises, the run ends by that
error, as of its last checkpoint.

On resume, past evaluations on the same data are replayed to the callbacks, in order. So a callback
stores nothing that follows from them. Nothing else is replayed. With other data, callbacks begin
anew.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from embedps.errors import UsageError
from embedps.run.evaluation_config import EvaluationConfig
from embedps.run.summary import EvaluationReader
from embedps.score_names import check_score, is_worse, merit
from embedps.training.fit_result import FitResult
from embedps.training.run_events import LostWorker, RecoveryEnd, SavedCheckpoint, UnitEnd


class RunControl:
    """Lets a callback stop a run and scale its learning rates. Used by one thread only."""

    def __init__(self) -> None:
        self.rate_factor = 1.0
        self.reason: str | None = None

    def stop(self, reason: str) -> None:
        """Ends the run after the units in progress; the run counts as finished."""
        self.reason = self.reason or reason

    def scale_learning_rates(self, factor: float) -> None:
        """Multiplies the learning rates of the tables and the network from the next units on.

        Raises:
          UsageError: the factor is not above 0.
        """
        if not 0 < factor < math.inf:
            raise UsageError(f"a learning rate's factor must be above 0 but is {factor}")
        self.rate_factor *= factor


class Callback:
    """Acts on what happens in a run. Each method does nothing by default.

    `run` stops the run or scales its learning rates.
    """

    def on_evaluation(self, run: RunControl, entry: Mapping[str, Any]) -> None:
        """Takes an evaluation; called once per evaluation, in the order of the checkpoints.

        Args:
          run: stops the run or scales its learning rates.
          entry: number (the checkpoint's), step, examples, auc, logloss, normalized_entropy,
            calibration (a score is None where it is not defined), secs, lag_secs, time.
        """

    def on_unit_end(self, run: RunControl, event: UnitEnd) -> None:
        """Takes that a unit was trained; called soon after it, in any order of units."""

    def on_checkpoint(self, run: RunControl, event: SavedCheckpoint) -> None:
        """Takes that a checkpoint was committed."""

    def on_lost_worker(self, run: RunControl, event: LostWorker) -> None:
        """Takes that a worker was lost; called once until it has ended a unit again."""

    def on_recovered(self, run: RunControl, event: RecoveryEnd) -> None:
        """Takes that a lost worker is at work again, or the run is after the loss of a server."""

    def on_train_end(self, run: RunControl, result: FitResult) -> None:
        """Takes the result that `fit` is about to return; a run that fails has none."""


Tell: TypeAlias = Callable[[Callback, RunControl], None]
"""Calls the method of a callback that an event is for."""


class Best:
    """Tracks the best score, and how many evaluations came since."""

    def __init__(self, metric: str, min_delta: float = 0.0, tolerance: float = 0.0) -> None:
        """Tracks a metric.

        Args:
          metric: the score's name.
          min_delta: a score is better if it improves by more than this.
          tolerance: a score that is worse by at most this share of the best counts as no worse.
        """
        if not metric:
            raise UsageError("the name of a metric must not be empty")
        if not 0 <= min_delta < math.inf:
            raise UsageError(f"min_delta must be at least 0 but got {min_delta}")
        self.metric = metric
        self._min_delta, self._tolerance = min_delta, tolerance
        self.score: float | None = None
        self.evaluations_since = 0

    def add(self, entry: Mapping[str, Any]) -> bool:
        """Takes a score; returns whether it is the best so far.

        Raises:
          UsageError: the entry has no such score.
        """
        check_score(self.metric, entry)
        score = entry[self.metric]
        better = score is not None and (
            self.score is None
            or merit(self.metric, score) - merit(self.metric, self.score) > self._min_delta
        )
        self.score = score if better else self.score
        tolerated = self._tolerance and score is not None
        tolerated = tolerated and not is_worse(self.metric, score, self.score, self._tolerance)
        self.evaluations_since = 0 if better or tolerated else self.evaluations_since + 1
        return better


class EarlyStopping(Callback):
    """Stops the run after `patience` evaluations in a row without improvement."""

    def __init__(
        self,
        *,
        patience: int,
        metric: str = "auc",
        min_delta: float = 0.0,
        tolerance: float = 0.0,
    ) -> None:
        if patience < 1:
            raise UsageError(f"patience must be at least 1 evaluation but got {patience}")
        self._patience = patience
        self._best = Best(metric, min_delta, tolerance)

    def on_evaluation(self, run: RunControl, entry: Mapping[str, Any]) -> None:
        best = self._best
        if not best.add(entry) and best.evaluations_since >= self._patience:
            shown = "none" if best.score is None else f"{best.score:.5f}"
            run.stop(
                f"{best.metric} has not been better than {shown} for {best.evaluations_since} "
                "evaluations"
            )


class ReduceLearningRate(Callback):
    """Scales the learning rates after each `patience` evaluations without improvement."""

    def __init__(
        self,
        *,
        patience: int,
        factor: float = 0.5,
        metric: str = "auc",
        min_delta: float = 0.0,
    ) -> None:
        if patience < 1 or not 0 < factor < 1:
            raise UsageError(
                "patience must be at least 1 evaluation and factor in (0, 1) but got "
                f"{patience} and {factor}"
            )
        self._patience = patience
        self._factor = factor
        self._best = Best(metric, min_delta)

    def on_evaluation(self, run: RunControl, entry: Mapping[str, Any]) -> None:
        if not self._best.add(entry) and self._best.evaluations_since >= self._patience:
            run.scale_learning_rates(self._factor)
            self._best.evaluations_since = 0


def stock(config: EvaluationConfig) -> list[Callback]:
    """Makes the callbacks that a config asks for."""
    found: list[Callback] = []
    if config.reduce_patience:
        found.append(
            ReduceLearningRate(
                patience=config.reduce_patience,
                factor=config.reduce_factor,
                metric=config.metric,
                min_delta=config.min_delta,
            )
        )
    if config.stop_patience:
        found.append(
            EarlyStopping(
                patience=config.stop_patience,
                metric=config.metric,
                min_delta=config.min_delta,
                tolerance=config.tolerance,
            )
        )
    return found


class Callbacks:
    """Gives events and new lines of a run's evaluation.jsonl to its callbacks.

    Used by one thread only, but for `tell`.
    """

    def __init__(
        self, model_dir: Path, callbacks: Sequence[Callback], *, after_step: int = -1
    ) -> None:
        """Reads the scores of a run; those up to a step are of earlier data and not given.

        Raises:
          UsageError: one is no Callback.
        """
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise UsageError(
                    "a callback must be an instance of a subclass of embedps.Callback but is "
                    f"{callback!r}: write class {type(callback).__name__}(embedps.Callback)"
                )
        self._after_step = after_step
        self.control = RunControl()
        self._waiting: collections.deque[Tell] = collections.deque()
        self._callbacks = list(callbacks)
        self._reader = EvaluationReader(model_dir)
        self.last_number = self.last_step = -1

    def tell(self, event: Tell) -> None:
        """Queues an event for `deliver`; for any thread."""
        self._waiting.append(event)

    def deliver(self) -> None:
        """Calls the callbacks with the events that were told."""
        while self._waiting:
            event = self._waiting.popleft()
            for callback in self._callbacks:
                event(callback, self.control)

    def poll(self) -> list[dict[str, Any]]:
        """Calls the callbacks with the new lines; returns these."""
        new = []
        for entry in self._reader.new():
            if entry["number"] <= self.last_number:
                continue  # scored again
            self.last_number, self.last_step = entry["number"], entry["step"]
            new.append(entry)
            if entry["step"] <= self._after_step:
                continue
            for callback in self._callbacks:
                callback.on_evaluation(self.control, entry)
        return new
