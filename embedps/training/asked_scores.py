"""Checks before a run begins that it will have the scores that its options go by."""

from __future__ import annotations

from embedps.data.dataset import Dataset
from embedps.engine.step_model import StepModel
from embedps.evaluation.sliced_scores import SlicedScores
from embedps.run.config import TrainConfig
from embedps.run.evaluation_config import INNER, INNER_LOSS, NOT_OF_INNER
from embedps.score_names import AT, no_score, slice_of, stem


def check_scores(config: TrainConfig, model: StepModel, dataset: Dataset) -> None:
    """Checks that the scores of a model can be divided as asked, and include the metric.

    Raises:
      UsageError: they cannot, or do not.
    """
    asked = config.evaluation
    known = model.accumulator(training=False).names(model.zero_counts(training=False))
    sliced: list[str] = []
    if asked.divides:
        split = "eval" if "eval" in dataset.splits and asked.mode != "none" else None
        slices = SlicedScores(asked, model, dataset, split=split)
        known += slices.group_scores
        sliced = slices.slice_scores
    acts = asked.stop_patience or asked.reduce_patience or asked.end_with == "best"
    is_scored = asked.mode != "none" or asked.inner_share
    if not is_scored or not (acts or config.checkpoint.keep_best):
        return
    found = known if asked.mode != "none" else []
    if asked.inner_share:
        found = [*found, INNER_LOSS, *(INNER + name for name in known if name not in NOT_OF_INNER)]
        sliced = [*sliced, *(INNER + name for name in sliced if name not in NOT_OF_INNER)]
    of_slice = slice_of(asked.metric) and stem(asked.metric) in sliced
    if asked.metric not in found and not of_slice:
        more = "; of slices also " + ", ".join(
            f"{name}{AT}{column}=VALUE" for column in asked.slices for name in sliced
        )
        raise no_score(asked.metric, found, more * bool(sliced))
