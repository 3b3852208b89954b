"""Names of scores, and which way they are better."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from embedps.errors import UsageError

EVALUATIONS_NAME = "evaluation.jsonl"
"""In a model directory, the file of its scores: a line per scoring."""

NOT_SCORES = ("number", "step", "examples", "secs", "lag_secs", "time")
"""The keys of a line of evaluation.jsonl that are no scores."""

AT = "@"
"""Between a score and its slice: auc@country=3."""

TITLES = {
    "auc": "AUC",
    "logloss": "log loss",
    "normalized_entropy": "NE",
    "auprc": "AUPRC",
    "rmse": "RMSE",
    "mae": "MAE",
    "gauc": "GAUC",
}
"""What a person reads for the name of a score."""

_LOWER = ("loss", "error", "entropy", "rmse", "mse", "mae", "deviance", "divergence")


def is_higher_better(name: str) -> bool:
    """Tells whether a greater score is better.

    Scores whose name tells of a loss or an error are better if they are lower; all others, such as
    auc, accuracy and top-k, if they are higher.
    """
    return not any(part in stem(name).lower() for part in _LOWER)


def stem(name: str) -> str:
    """Gives a score's name without its slice."""
    return name.partition(AT)[0] if slice_of(name) else name


def slice_of(name: str) -> str:
    """Gives the slice of a score, COLUMN=VALUE; empty of all examples, such as recall@20."""
    found = name.partition(AT)[2]
    return found if "=" in found else ""


def merit(name: str, value: float) -> float:
    """Gives a number that is greater if the score is better: 0 of a calibration of 1, its best."""
    if "calibration" in stem(name).lower():
        return -abs(math.log(value)) if 0 < value < math.inf else -math.inf
    return value if is_higher_better(name) else -value


def is_worse(name: str, score: float | None, best: float | None, share: float) -> bool:
    """Tells whether a score is worse than the best by more than a share of it; None is not."""
    if score is None or best is None:
        return False
    return merit(name, best) - merit(name, score) > share * abs(best)


def scores_of(line: Mapping[str, Any]) -> dict[str, float | None]:
    """Returns the scores of a line of evaluation.jsonl."""
    return {
        name: value
        for name, value in line.items()
        if stem(name) not in NOT_SCORES
        and (value is None or (isinstance(value, int | float) and not isinstance(value, bool)))
    }


def check_score(name: str, line: Mapping[str, Any]) -> None:
    """Checks that a line of evaluation.jsonl has a score.

    Raises:
      UsageError: it has none of this name.
    """
    if name not in line:
        raise no_score(name, scores_of(line))


def no_score(name: str, known: Iterable[str], by_slice: str = "") -> UsageError:
    """Makes the error that there is no such score: it lists those of its slices, or of no slice.

    Args:
      known: the scores that there are.
      by_slice: says which there are of slices, if these are not among them.
    """
    of_slice = bool(slice_of(name))
    same = [n for n in known if bool(slice_of(n)) == of_slice]
    same = [n for n in same if not of_slice or stem(n) == stem(name)]
    of = f"the model has {', '.join(same)}" if same else f"there is none of {stem(name)} by slice"
    return UsageError(f"there is no score {name!r} to go by: {of}{by_slice}")
