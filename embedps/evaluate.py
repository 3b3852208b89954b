"""Scores a run's checkpoints: `embedps evaluate --model-dir DIR`.

It runs on any machine that can read the directory, during training or later. Again and again it
scores the newest checkpoint on held-out data and appends the scores to DIR/evaluation.jsonl. It
ends after the run's last checkpoint.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from embedps.checkpoint.format.manifest import Manifest
from embedps.checkpoint.refs import manifest_option
from embedps.config_fields import MAX_COUNT, option
from embedps.console import command_line, flags
from embedps.console.child_process import end_with_parent
from embedps.console.lines import log_as, say
from embedps.console.progress import ProgressLine, rate_text
from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.evaluation.sidecar import RECOMMENDER_VARIABLE
from embedps.run.cluster_config import MAX_SHARDS
from embedps.run.memory_options import MemoryOptions
from embedps.run.monitoring_config import LogFormat, log_format_option
from embedps.run.opened_run import OpenedRun, RunOptions, open_run, uncalibrated_option
from embedps.run.run_config import RunConfig
from embedps.run.slice_options import SliceOptions
from embedps.run.summary import (
    SUMMARY_NAME,
    read_evaluations,
    read_json,
    write_json,
)
from embedps.score_names import EVALUATIONS_NAME

if TYPE_CHECKING:  # these import TensorFlow, which --help does not wait for
    from embedps.evaluation.evaluator import Evaluation, Evaluator
    from embedps.metrics import ClickScores

_LOG_SECS = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateConfig(MemoryOptions, SliceOptions, RunOptions):
    """An evaluation: of which run, of which of its checkpoints, and how scores are divided.

    By default scores are divided as the run's config says.
    """

    split: str = option("eval", "the split to score", metavar="NAME")
    batch_size: int = option(4096, "examples per batch", least=1, most=MAX_COUNT)
    num_shards: int = option(1, "shards per table in this process", least=1, most=MAX_SHARDS)
    once: bool = option(False, "score only the newest checkpoint")
    number: int | str | None = manifest_option(
        None,
        "score only this checkpoint, or that of a ref; its scores are not added to "
        "evaluation.jsonl",
    )
    scores: Path | None = option(
        None,
        "with --once or --number: a Parquet file to write, with the file, row, labels and "
        "predictions of each example",
    )
    shared: bool = option(
        False,
        "score each checkpoint together with other processes, here or elsewhere, that are given "
        "this too",
    )
    resumed_after: int = option(
        -1,
        "the run was resumed after checkpoint N: none up to N is its last",
        least=-1,
        most=MAX_COUNT,
    )
    idle_secs: float = option(
        math.inf, "end when there was no new checkpoint for this long", above=0, most=math.inf
    )
    uncalibrated: bool = uncalibrated_option()
    log_format: LogFormat = log_format_option()

    def __post_init__(self) -> None:
        super().__post_init__()
        SliceOptions.__post_init__(self)
        if self.once and self.number is not None:
            raise UsageError(
                "--once scores the newest checkpoint, --number another: give one of them"
            )
        if self.shared and (self.number is not None or self.scores is not None):
            raise UsageError(
                "--shared scores the newest checkpoints for evaluation.jsonl: give it without "
                "--number and --scores"
            )
        if self.scores is None:
            return
        if not self.once and self.number is None:
            raise UsageError("--scores is of one checkpoint: give --once or --number too")
        if self.scores.is_dir() or not self.scores.parent.is_dir():
            raise UsageError(
                f"--scores must be a file in a local directory that is there but is {self.scores}"
            )


def main(arguments: Sequence[str], prog: str = "python -m embedps.evaluate") -> int:
    """Scores checkpoints until the run's last one, or once."""
    config = flags.read(EvaluateConfig, arguments, prog, __doc__)
    log_as(config.log_format)
    is_sidecar = end_with_parent()
    if is_sidecar:
        os.nice(10)  # training comes first
    evaluate(config, is_sidecar=is_sidecar)
    return 0


def evaluate(config: EvaluateConfig, *, is_sidecar: bool = False) -> None:
    """Scores checkpoints until the run's last one, or once.

    Args:
      config: what to score.
      is_sidecar: leave the cores to the training beside it.

    Raises:
      UsageError: the directory is not of a run, or there is no checkpoint to score.
      CheckpointError: the checkpoint is not there, is damaged, or is of another model.
    """
    recommender, seed = _sent_model()
    run = open_run(
        config.model_dir, data=config.data, model=config.model, recommender=recommender, seed=seed
    )
    split = run.dataset.split(config.split)
    number = None if config.number is None else run.manifest(config.number).number
    # TensorFlow takes seconds to import; wrong flags and files are reported before that.
    import tensorflow as tf

    from embedps.evaluation.evaluator import Evaluator

    if is_sidecar:
        tf.config.threading.set_intra_op_parallelism_threads(1)
    display = _ScoreDisplay(run.path)
    recommender = _model(run, config, number)
    is_calibrated = recommender.calibration is not None
    evaluator = Evaluator(
        recommender,
        run.dataset,
        run.directory,
        split=config.split,
        slices=_slices(run, config),
        batch_rows=config.batch_size,
        num_shards=config.num_shards,
        seed=run.seed,
        is_shared=config.shared,
        memory=config.memory(),
        on_progress=lambda *progress: display.show(evaluator, *progress),
    )
    try:
        _score(evaluator, display, run, config, number, is_calibrated)
        if config.scores is not None:
            _write_scores(evaluator, config.scores, split.rows)
    finally:
        evaluator.collection.drop()  # a program may run the command again and again


def _model(run: OpenedRun, config: EvaluateConfig, number: int | None) -> Recommender:
    """Makes the model; calibrated if one checkpoint is scored here, as those of a run go on."""
    if number is None and (config.shared or not config.once):
        return run.recommender()
    return run.calibrated(run.manifest(number), uncalibrated=config.uncalibrated)


def _slices(run: OpenedRun, config: EvaluateConfig) -> SliceOptions:
    """Gives how scores are divided: as the flags say, or as the run does."""
    if config.divides or not isinstance(run.model, RunConfig):
        return config
    return run.model.config.evaluation


def _score(
    evaluator: Evaluator,
    display: _ScoreDisplay,
    run: OpenedRun,
    config: EvaluateConfig,
    number: int | None,
    is_calibrated: bool,
) -> None:
    if number is not None:
        display.report(evaluator.evaluate(number), is_logged=False)
    elif config.once:
        found = evaluator.evaluate_latest(newer_than=-1)
        if found is not None:
            display.report(found[1], is_logged=not is_calibrated)
            if is_calibrated:
                say("not added to evaluation.jsonl, whose scores are of uncalibrated predictions")
        elif config.shared and (latest := run.directory.latest()) is not None:
            say(f"step {latest.step}: another process adds the scores to evaluation.jsonl")
        else:
            raise run.has_none()
        evaluator.clean()
    else:
        scored = max((e["number"] for e in read_evaluations(run.path)), default=-1)
        evaluator.follow(
            display.report,
            newer_than=scored,
            final_after=config.resumed_after,
            idle_secs=config.idle_secs,
        )
        if config.shared:  # this process may have printed none of them
            say(f"the scores of all processes are in {run.path / EVALUATIONS_NAME}")
        _complete_summary(run.path)


def _write_scores(evaluator: Evaluator, file: Path, rows: int) -> None:
    with (
        command_line.sigterm_interrupts(),
        ProgressLine("write scores", rows, unit="examples") as line,
    ):
        written = evaluator.write_scores(file, line.update)
    say(f"{file}: the scores of {written:,} examples")


def _sent_model() -> tuple[Recommender | None, int]:
    """Reads the model and seed that a trainer sent on standard input, if it did: see `sidecar`."""
    if os.environ.pop(RECOMMENDER_VARIABLE, None) is None:
        return None, 0
    import cloudpickle

    recommender, seed = cloudpickle.load(sys.stdin.buffer)
    return recommender, seed


class _ScoreDisplay:
    """Shows a scoring to the user, and writes its scores."""

    def __init__(self, model_dir: Path) -> None:
        from embedps.evaluation.evaluator import EvaluationLog

        self._log = EvaluationLog(model_dir)
        self._line: ProgressLine | None = None

    def show(
        self, evaluator: Evaluator, manifest: Manifest, done: int, total: int, metrics: ClickScores
    ) -> None:
        """Shows the progress; each manifest has a progress line of its own."""
        if self._line is None:
            self._line = ProgressLine(f"scoring step {manifest.step}:", total, log_secs=_LOG_SECS)
            self._line.__enter__()
            self._began, self._first = time.monotonic(), metrics.examples
            self._rows = sum(evaluator.collection.stats().rows.values())
        saved, age = manifest.chain[-1], time.time() - manifest.wall_time
        secs = time.monotonic() - self._began
        rate = rate_text(metrics.examples - self._first, secs)
        self._line.update(
            done,
            f"{metrics.examples:,} examples{rate}, {metrics.brief()}, "
            f"{self._rows:,} rows, "
            f"{saved.kind} {saved.bytes / 1e6:.1f} MB {age:.0f} s ago",
        )

    def report(self, evaluation: Evaluation, *, is_logged: bool = True) -> None:
        """Prints the scores, and adds them to the evaluation log if `is_logged`."""
        if self._line is not None:
            self._line.__exit__(None, None, None)
            self._line = None
        say(
            f"step {evaluation.step}: {evaluation.metrics.describe()} in {evaluation.secs:.1f} s, "
            f"{evaluation.lag_secs:.1f} s behind training",
        )
        if is_logged:
            self._log.add(evaluation)


def _complete_summary(model_dir: Path) -> None:
    """Adds the last scores to the summary of a run that did not wait for them."""
    evaluations = read_evaluations(model_dir)
    summary = read_json(model_dir / SUMMARY_NAME)
    if summary and evaluations:
        write_json(model_dir / SUMMARY_NAME, {**summary, "evaluation": evaluations[-1]})


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
