"""The evaluation options of a run: when it is scored, and what follows from the scores."""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

from embedps.config_fields import MAX_COUNT, check, option
from embedps.errors import UsageError

EvaluationMode: TypeAlias = Literal["sidecar", "inline", "none"]

"""A score to improve: a higher AUC is better; of the others, a lower value is better."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
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
    metric: str = option(
        "auc",
        "the score that --keep-best, --stop-patience and --reduce-patience go by: auc, logloss, "
        "normalized_entropy, or a metric of your model",
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

    def __post_init__(self) -> None:
        check(self)
        if not self.metric:
            raise UsageError("metric must be the name of a score but is empty")
        if self.every_units and self.mode != "inline":
            raise UsageError(
                "eval_units needs --eval inline: a sidecar scores every checkpoint instead"
            )
        if self.mode == "none" and (self.stop_patience or self.reduce_patience):
            raise UsageError("stop_patience and reduce_patience need --eval sidecar or inline")
