"""The sidecar evaluator by itself: `python -m embedps.evaluate --model-dir DIR --data DIR`.

It follows the checkpoints of a run that `embedps.train` started, from any machine that sees the
directory, scores each newest one on the held-out split, appends the scores to
DIR/evaluation.jsonl and ends with the run's last checkpoint.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.format.manifest import Manifest
from embedps.config_fields import MAX_COUNT
from embedps.console import command_line
from embedps.console.command_line import number, text
from embedps.console.progress import ProgressLine
from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.evaluation.sidecar import RECOMMENDER_VARIABLE
from embedps.run.cluster_config import MAX_SHARDS
from embedps.run.run_config import read_run
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
    """Scores checkpoints."""
    options = _parser(prog).parse_args(arguments)
    parent = os.environ.get("EMBEDPS_PARENT_PID")
    if parent is not None:
        from embedps.console.child_process import end_with_parent

        end_with_parent(int(parent))
        os.nice(10)  # training comes first
    model_dir = as_path(options.model_dir)
    sent = _sent_model()
    if sent is None:
        run = read_run(model_dir, model=options.model)
        dataset = Dataset.open(options.data or run.config.data)
        recommender, seed = run.recommender(dataset), run.config.seed
    else:
        dataset = Dataset.open(options.data)
        recommender, seed = sent
    dataset.split(options.split)
    # Below what the flags and the files can be refused for: that comes at once.
    import tensorflow as tf

    from embedps.evaluation.evaluator import Evaluator

    if parent is not None:
        tf.config.threading.set_intra_op_parallelism_threads(1)
    scoring = _Scoring(model_dir)
    evaluator = Evaluator(
        recommender,
        dataset,
        CheckpointDirectory(model_dir),
        split=options.split,
        batch_rows=options.batch_size,
        num_shards=options.num_shards,
        seed=seed,
        watch=lambda *progress: scoring.show(evaluator, *progress),
    )

    if options.once:
        found = evaluator.evaluate_latest(newer_than=-1)
        if found is None:
            raise UsageError(f"{model_dir} has no checkpoint yet: train first")
        scoring.report(found[1])
        return 0
    scored = max((e["number"] for e in read_evaluations(model_dir)), default=-1)
    evaluator.follow(
        scoring.report,
        newer_than=scored,
        final_after=options.resumed_after,
        idle_secs=options.idle_secs,
    )
    _complete_summary(model_dir)
    return 0


def _sent_model() -> tuple[Recommender, int] | None:
    """Reads the model and seed that a trainer sent to its evaluator, if it did: see `sidecar`."""
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
        help="what embedps.train was given",
    )
    parser.add_argument(
        "--model",
        metavar="NAME",
        help="the run's; needed where it is a module of your own, package.module",
    )
    parser.add_argument(
        "--data",
        type=text,
        metavar="DIR",
        help="the dataset's directory (default: the run's)",
    )
    parser.add_argument(
        "--split", default="eval", metavar="NAME", help="which split to score (default: eval)"
    )
    parser.add_argument(
        "--batch-size",
        type=number(int, least=1, most=MAX_COUNT),
        default=4096,
        metavar="N",
        help="(default: 4096)",
    )
    parser.add_argument(
        "--num-shards",
        type=number(int, least=1, most=MAX_SHARDS),
        default=1,
        metavar="N",
        help="of the tables in this process (default: 1)",
    )
    parser.add_argument(
        "--once", action="store_true", help="score the newest checkpoint once, and end"
    )
    parser.add_argument(
        "--resumed-after",
        type=int,
        default=-1,
        metavar="N",
        help="a checkpoint up to number N that says it is the last is not: the run was resumed",
    )
    parser.add_argument(
        "--idle-secs",
        type=number(float, above=0, most=math.inf),
        default=math.inf,
        metavar="X",
        help="end when nothing new came for so long",
    )
    return parser


class _Scoring:
    """What the user sees of a scoring, and what stays of it."""

    def __init__(self, model_dir: Path) -> None:
        from embedps.evaluation.evaluator import EvaluationLog

        self._log = EvaluationLog(model_dir)
        self._line: ProgressLine | None = None

    def show(
        self, evaluator: Evaluator, manifest: Manifest, done: int, total: int, metrics: Metrics
    ) -> None:
        """The live line; a line of its own for each manifest."""
        if self._line is None:
            self._line = ProgressLine(f"scoring step {manifest.step}:", total, log_secs=_LOG_SECS)
            self._line.__enter__()
            self._began, self._first = time.monotonic(), metrics.examples
            self._rows = sum(evaluator.collection.stats().rows.values())
        saved, age = manifest.chain[-1], time.time() - manifest.wall_time
        secs = time.monotonic() - self._began
        rate = (metrics.examples - self._first) / secs if done > 1 else 0.0
        self._line.update(
            done,
            f"{metrics.examples:,} examples, {rate:,.0f}/s, loss {metrics.logloss:.4f}, "
            f"AUC {metrics.auc:.4f}, {self._rows:,} rows, "
            f"{saved.kind} {saved.bytes / 1e6:.1f} MB {age:.0f} s ago",
        )

    def report(self, evaluation: Evaluation) -> None:
        """The scores: a line here, and what the log keeps."""
        if self._line is not None:
            self._line.__exit__(None, None, None)
            self._line = None
        print(
            f"step {evaluation.step}: {evaluation.metrics.describe()} in {evaluation.secs:.1f} s, "
            f"{evaluation.lag_secs:.1f} s behind training",
            flush=True,
        )
        self._log.add(evaluation)


def _complete_summary(model_dir: Path) -> None:
    """Puts the last scores into the summary of a run that did not wait for them."""
    evaluations = read_evaluations(model_dir)
    summary = read_json(model_dir / SUMMARY_NAME)
    if summary and evaluations:
        write_json(model_dir / SUMMARY_NAME, {**summary, "evaluation": evaluations[-1]})


if __name__ == "__main__":
    sys.exit(command_line.run(main, sys.argv[1:]))
