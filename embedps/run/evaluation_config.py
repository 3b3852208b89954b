"""The evaluation options of a run: when it is scored, and what follows from the scores."""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

from embedps.config_fields import MAX_COUNT, option
from embedps.errors import UsageError
from embedps.run.slice_options import SliceOptions

EvaluationMode: TypeAlias = Literal["sidecar", "inline", "none"]

INNER = "inner_"
"""What the names of scores of the inner rows begin with."""

INNER_LOSS = f"{INNER}loss"
"""Of the inner rows: the log loss of a click model, or the mean of what steps minimize."""

NOT_OF_INNER = ("loss", "logloss", "normalized_entropy", "calibration", "examples")
"""Scores that there are not of the inner rows: what they tell is in INNER_LOSS."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig(SliceOptions):
    """How a run is scored on the held-out split, and what it does about the scores."""

    mode: EvaluationMode = option(
        "sidecar",
        "sidecar: another process scores each checkpoint while training goes on (with TF_CONFIG, "
        "start `embedps evaluate` yourself); inline: the workers score, and training pauses; "
        "none: no scores",
        flag="eval",
    )
    every_units: int = option(
        0,
        "with --eval inline: score after every this many units, and at the end of each epoch; "
        "0 scores at the end of each epoch only",
        flag="eval_units",
        least=0,
        most=MAX_COUNT,
    )
    every_epochs: int = option(
        1,
        "with --eval inline: score at the end of every this many epochs only, and of the run",
        flag="eval_epochs",
        least=1,
        most=MAX_COUNT,
    )
    metric: str = option(
        "auc",
        "the score that --keep-best, --stop-patience, --reduce-patience and --end-with go by: auc, "
        "logloss, another one of evaluation.jsonl, such as gauc or auc@country=3 of a slice, or a "
        "metric of your model; with --inner-share also inner_loss, and the others after inner_",
    )
    inner_share: float = option(
        0.0,
        "share of the training rows, at the end of each unit, that is not trained on but scored "
        "with each --eval inline or none, so that a run can stop by rows of its own",
        least=0,
        most=0.5,
    )
    inner_fold: int = option(
        0,
        "which share of a unit --inner-share leaves out: 0 is at its end, 1 is before it, so that "
        "several runs leave out different rows",
        least=0,
        most=MAX_COUNT,
    )
    end_with: Literal["last", "best"] = option(
        "last",
        "the checkpoint that a finished run leaves as its newest: the last; or, if the last is "
        "worse by --metric, the best, rows and network",
    )
    stop_patience: int = option(
        0,
        "stop the run after this many scores in a row without improvement; 0 never stops it",
        least=0,
        most=MAX_COUNT,
    )
    reduce_patience: int = option(
        0,
        "multiply the learning rates by --reduce-factor after this many scores in a row without "
        "improvement; 0 never does",
        least=0,
        most=MAX_COUNT,
    )
    reduce_factor: float = option(
        0.5, "factor that --reduce-patience multiplies the learning rates by", above=0, below=1
    )
    min_delta: float = option(
        0.0, "a score is an improvement if it is better by more than this", least=0
    )

    tolerance: float = option(
        0.0,
        "for --stop-patience and --end-with, a score that is worse than the best by at most this "
        "share of it counts as no worse",
        least=0,
        below=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.metric:
            raise UsageError("metric must be the name of a score but is empty")
        if self.inner_share and self.mode == "sidecar":
            raise UsageError(
                "inner_share needs --eval inline or none: a sidecar scores the eval split only"
            )
        if self.inner_fold and (self.inner_fold + 1) * self.inner_share > 1:
            raise UsageError(
                f"inner_fold must be below {int(1 / self.inner_share)}, the inner_shares of "
                f"{self.inner_share:g} that a unit has, but is {self.inner_fold}"
            )
        if self.inner_fold and not self.inner_share:
            raise UsageError("inner_fold needs --inner-share")
        if self.divides and self.mode == "none" and not self.inner_share:
            raise UsageError("gauc and slices need --eval sidecar or inline, or --inner-share")
        self.check_metric(self.metric)
        if self.tolerance and not (self.stop_patience or self.end_with == "best"):
            raise UsageError(
                "tolerance says how much worse than the best a score may be for --stop-patience "
                f"and --end-with best, but {self.tolerance:g} was given without these: give one"
            )
        if self.min_delta and not (self.stop_patience or self.reduce_patience):
            raise UsageError(
                "min_delta says what is an improvement for --stop-patience and --reduce-patience, "
                f"but {self.min_delta:g} was given without these: give one"
            )
        if self.every_units and not self.is_inline:
            raise UsageError(
                "eval_units needs --eval inline: a sidecar scores every checkpoint instead"
            )
        if self.every_epochs > 1 and not self.is_inline:
            raise UsageError("eval_epochs above 1 needs --eval inline or --inner-share")
        asks = self.stop_patience or self.reduce_patience or self.end_with == "best"
        if self.mode == "none" and not self.inner_share and asks:
            raise UsageError(
                "stop_patience, reduce_patience and end_with best need --eval sidecar or inline, "
                "or --inner-share"
            )

    @property
    def is_inline(self) -> bool:
        """Whether training pauses to be scored by the workers."""
        return self.mode == "inline" or self.inner_share > 0
