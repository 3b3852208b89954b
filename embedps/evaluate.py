"""The sidecar evaluator by itself: `python -m embedps.evaluate --model-dir DIR --data DIR`.

It follows the checkpoints of a run that `embedps.train` started, from any machine that sees the
directory, scores each newest one on the held-out split, appends the scores to
DIR/evaluation.jsonl and ends with the run's last checkpoint.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path

from embedps import flags, quiet
from embedps.errors import UsageError


def main(arguments: Sequence[str]) -> int:
    """`python -m embedps.evaluate`."""
    parser = flags.Parser(
        prog="python -m embedps.evaluate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model-dir", required=True, help="what embedps.train was given")
    parser.add_argument("--data", help="the dataset's directory (default: the run's)")
    parser.add_argument("--split", default="eval", help="which split to score (default: eval)")
    parser.add_argument("--batch-size", type=int, default=4096, help="(default: 4096)")
    parser.add_argument(
        "--num-shards", type=int, default=1, help="of the tables in this process (default: 1)"
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
        "--idle-secs", type=float, default=math.inf, help="end when nothing new came for so long"
    )
    options = parser.parse_args(arguments)
    if options.batch_size < 1 or options.num_shards < 1:
        raise UsageError("--batch-size and --num-shards must be at least 1")
    parent = os.environ.get("EMBEDPS_PARENT_PID")
    if parent is not None:
        from embedps.server import end_with_parent

        end_with_parent(int(parent))
        os.nice(10)  # training comes first
    quiet.import_tensorflow()
    import tensorflow as tf

    if parent is not None:
        tf.config.threading.set_intra_op_parallelism_threads(1)

    from embedps.checkpoint.directory import CheckpointDirectory
    from embedps.dataset import Dataset
    from embedps.evaluator import FILE_NAME, Evaluation, Evaluator, read_evaluations
    from embedps.runs import read_run

    model_dir = Path(options.model_dir)
    run = read_run(model_dir)
    dataset = Dataset.open(options.data or run.config.data)
    evaluator = Evaluator(
        run.recommender(dataset),
        dataset,
        CheckpointDirectory(model_dir),
        split=options.split,
        batch_rows=options.batch_size,
        num_shards=options.num_shards,
    )

    writer = tf.summary.create_file_writer(str(model_dir / "tensorboard" / "eval"))

    def report(evaluation: Evaluation) -> None:
        m = evaluation.metrics
        print(
            f"step {evaluation.step}: AUC {m.auc:.5f}, log loss {m.logloss:.5f}, "
            f"NE {m.normalized_entropy:.5f}, calibration {m.calibration:.4f}, "
            f"{m.examples:,} examples in {evaluation.secs:.1f} s, "
            f"{evaluation.lag_secs:.1f} s behind training",
            flush=True,
        )
        with open(model_dir / FILE_NAME, "a") as file:
            file.write(json.dumps(evaluation.to_json()) + "\n")
        with writer.as_default(step=evaluation.step):
            for name in ("auc", "logloss", "normalized_entropy", "calibration"):
                tf.summary.scalar(f"eval/{name}", getattr(m, name))
        writer.flush()

    if options.once:
        found = evaluator.evaluate_latest(newer_than=-1)
        if found is None:
            raise UsageError(f"{model_dir} has no checkpoint yet: train first")
        report(found[1])
        return 0
    scored = max((e["number"] for e in read_evaluations(model_dir)), default=-1)
    evaluator.follow(
        report,
        newer_than=scored,
        final_after=options.resumed_after,
        idle_secs=options.idle_secs,
    )
    return 0


if __name__ == "__main__":
    flags.run(main)
