"""Scores a run's checkpoints: `embedps evaluate --model-dir DIR`.

It runs on any machine that can read the directory, during training or later. Again and again it
scores the newest checkpoint on held-out data and appends the scores to DIR/evaluation.jsonl. It
ends after the run's last checkpoint.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.config_fields import MAX_COUNT
from embedps.console import command_line
from embedps.console.child_process import end_with_parent
from embedps.console.command_line import number, path, text
from embedps.console.lines import say
from embedps.console.progress import ProgressLine, rate_text
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.evaluation.sidecar import RECOMMENDER_VARIABLE
from embedps.run.cluster_config import MAX_SHARDS
from embedps.run.run_config import read_run
from embedps.run.run_flags import add_model_and_data
from embedps.run.summary import (
    SUMMARY_NAME,
    read_evaluations,
    read_json,
    write_json,
)
from embedps.storage.object_store import as_path

if TYPE_CHECKING:  # these import TensorFlow, which --help does not wait for
    from embedps.evaluation.evaluator import Evaluation, Evaluator
    from embedps.metrics import Metrics

_LOG_SECS = 5.0


def main(arguments: Sequence[str], prog: str = "python -m embedps.evaluate") -> int:
    """Scores checkpoints until the run's last one, or once."""
    options = _parser(prog).parse_args(arguments)
    _check(options)
    is_sidecar = end_with_parent()
    if is_sidecar:
        os.nice(10)  # training comes first
    model_dir = as_path(options.model_dir)
    sent = _sent_model()
    if sent is None:
        run = read_run(model_dir, model=options.model)
        dataset = Dataset.open(options.data or run.data)
        recommender, seed = run.recommender(dataset), run.config.seed
    else:
        dataset = Dataset.open(options.data)
        recommender, seed = sent
    dataset.split(options.split)
    directory = CheckpointDirectory(model_dir)
    if options.number is not None:
        directory.read(options.number)
    # TensorFlow takes seconds to import; wrong flags and files are reported before that.
    import tensorflow as tf

    from embedps.evaluation.evaluator import Evaluator

    if is_sidecar:
        tf.config.threading.set_intra_op_parallelism_threads(1)
    display = _ScoreDisplay(model_dir)
    evaluator = Evaluator(
        recommender,
        dataset,
        directory,
        split=options.split,
        batch_rows=options.batch_size,
        num_shards=options.num_shards,
        seed=seed,
        on_progress=lambda *progress: display.show(evaluator, *progress),
    )
    try:
        _score(evaluator, display, model_dir, dataset.split(options.split).rows, options)
    finally:
        evaluator.collection.drop()  # a program may run the command again and again
    return 0


def _score(
    evaluator: Evaluator, display: _ScoreDisplay, model_dir: Path, rows: int, options: Any
) -> None:
    if options.number is not None:
        display.report(evaluator.evaluate(options.number), is_logged=False)
    elif options.once:
        found = evaluator.evaluate_latest(newer_than=-1)
        if found is None:
            raise UsageError(f"{model_dir} has no checkpoint yet: train first")
        display.report(found[1])
    else:
        scored = max((e["number"] for e in read_evaluations(model_dir)), default=-1)
        evaluator.follow(
            display.report,
            newer_than=scored,
            final_after=options.resumed_after,
            idle_secs=options.idle_secs,
        )
        _complete_summary(model_dir)
    if options.scores is not None:
        _write_scores(evaluator, options.scores, rows)


def _check(options: Any) -> None:
    if options.once and options.number is not None:
        raise UsageError("--once scores the newest checkpoint, --number another: give one of them")
    if options.scores is None:
        return
    if not options.once and options.number is None:
        raise UsageError("--scores is of one checkpoint: give --once or --number too")
    if options.scores.is_dir() or not options.scores.parent.is_dir():
        raise UsageError(
            f"--scores must be a file in a local directory that is there but is {options.scores}"
        )


def _write_scores(evaluator: Evaluator, file: Path, rows: int) -> None:
    with (
        command_line.sigterm_interrupts(),
        ProgressLine("write scores", rows, unit="examples") as line,
    ):
        written = evaluator.write_scores(file, line.update)
    say(f"{file}: the scores of {written:,} examples")


def _sent_model() -> tuple[Recommender, int] | None:
    """Reads the model and seed that a trainer sent on standard input, if it did: see `sidecar`."""
    if os.environ.pop(RECOMMENDER_VARIABLE, None) is None:
        return None
    import cloudpickle

    recommender, seed = cloudpickle.load(sys.stdin.buffer)
    return recommender, seed


def _parser(prog: str) -> command_line.Parser:
    parser = command_line.Parser(prog=prog, description=__doc__)
    parser.add_argument(
        "--model-dir",
        type=text,
        required=True,
        metavar="DIR",
        help="the directory that embedps train was given",
    )
    add_model_and_data(parser)
    parser.add_argument(
        "--split", default="eval", metavar="NAME", help="the split to score (default: eval)"
    )
    parser.add_argument(
        "--batch-size",
        type=number(int, least=1, most=MAX_COUNT),
        default=4096,
        metavar="N",
        help="examples per batch (default: 4096)",
    )
    parser.add_argument(
        "--num-shards",
        type=number(int, least=1, most=MAX_SHARDS),
        default=1,
        metavar="N",
        help="shards per table in this process (default: 1)",
    )
    parser.add_argument("--once", action="store_true", help="score only the newest checkpoint")
    parser.add_argument(
        "--number",
        type=number(int, least=0, most=MAX_COUNT),
        metavar="N",
        help="score only this checkpoint; its scores are not added to evaluation.jsonl",
    )
    parser.add_argument(
        "--scores",
        type=path,
        metavar="FILE",
        help="with --once or --number: a Parquet file to write, with the file, row, labels and "
        "predictions of each example",
    )
    parser.add_argument(
        "--resumed-after",
        type=int,
        default=-1,
        metavar="N",
        help="the run was resumed after checkpoint N: none up to N is its last",
    )
    parser.add_argument(
        "--idle-secs",
        type=number(float, above=0, most=math.inf),
        default=math.inf,
        metavar="X",
        help="end when there was no new checkpoint for this long",
    )
    return parser


class _ScoreDisplay:
    """Shows a scoring to the user, and writes its scores."""

    def __init__(self, model_dir: Path) -> None:
        from embedps.evaluation.evaluator import EvaluationLog

        self._log = EvaluationLog(model_dir)
        self._line: ProgressLine | None = None

    def show(
        self, evaluator: Evaluator, manifest: Manifest, done: int, total: int, metrics: Metrics
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
