"""Ends a run with its best checkpoint: commits it again, as the newest.

The weights of a run's last epoch may be far worse than those of an earlier one. `KeepBest` keeps
the files of the best checkpoint, so a manifest is all that is written.
"""

from __future__ import annotations

import time
from typing import Any

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.tools.rollback import commit_again
from embedps.run.evaluation_config import EvaluationConfig
from embedps.run.summary import append_evaluation, read_evaluations
from embedps.score_names import is_worse
from embedps.training.fit_result import Scores


def end_with_best(
    directory: CheckpointDirectory, last: Manifest, asked: EvaluationConfig, *, after_step: int
) -> tuple[Manifest, dict[str, Any]] | None:
    """Commits the rows and the network of the best checkpoint, and the progress of the last one.

    The scores of the best checkpoint are written once more, as those of the new one.

    Args:
      directory: of the run, which is finished.
      last: its last checkpoint.
      asked: the score to go by, and how much worse than the best the last one may be.
      after_step: scores up to this step are of other data.

    Returns:
      The new checkpoint, and what summary.json says of it; None if the last one is good enough, or
      has no score yet.

    Raises:
      CheckpointError: it cannot be written.
    """
    metric = asked.metric
    lines = [e for e in read_evaluations(directory.path) if e["step"] > after_step]
    scored = [line for line in lines if line["step"] == last.step]
    there = directory.numbers()
    best = Scores.of(line for line in lines if line["number"] in there).best(metric)
    if not scored or best is None:
        return None
    if not is_worse(metric, scored[-1].get(metric), best.get(metric), asked.tolerance):
        return None
    again = commit_again(
        directory,
        directory.read(best.number),
        ledger=last.ledger,
        progress=last.progress,
        final=True,
    )
    line = next(line for line in reversed(lines) if line["number"] == best.number)
    append_evaluation(directory.path, line | {"number": again.number, "time": time.time()})
    told = {"step": best.step, "metric": metric, "score": best.get(metric)}
    return again, told | {"last_step": last.step, "last_score": scored[-1].get(metric)}
