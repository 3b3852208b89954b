"""Trains a recommender: `python -m embedps.train --model dlrm --data DIR --model-dir DIR`.

Alone, it trains in this process, with a sidecar evaluator in a second one. With --num-ps and
--num-workers it starts a local cluster of processes. With TF_CONFIG set it takes this task's role
in that cluster: the chief trains, workers and parameter servers serve.

Run the same command again to resume from the last checkpoint.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embedps import flags, quiet
from embedps.config import TrainConfig
from embedps.errors import ClusterError, UsageError
from embedps.server import read_tf_config, serve
from embedps.summary import SUMMARY_NAME, read_evaluations, read_json, versions, write_json


def main(arguments: Sequence[str]) -> int:
    """`python -m embedps.train`."""
    task = read_tf_config()
    if task is not None and task["task"]["type"] in ("worker", "ps"):
        serve()
    quiet.import_tensorflow()
    run = parse(arguments)
    from embedps.dataset import Dataset

    dataset = Dataset.open(run.config.data)
    model_dir = Path(run.config.model_dir)
    _check_directory(model_dir)

    from embedps.trainer import Trainer

    cluster = _make_cluster(run.config, in_tf_config=task is not None)
    sidecar = None
    try:
        trainer = Trainer(run.recommender(dataset), dataset, run.config, cluster)
        run.save()  # not before the directory's checkpoint has proved to be of this model
        # In a TF_CONFIG cluster the evaluator is a task of its own, started with the others.
        beside = run.config.eval == "sidecar" and task is None
        if beside and not _is_over(trainer, model_dir):
            sidecar = Sidecar(run.config, resumed_after=_resumed_after(trainer))
        summary = trainer.run()
        if sidecar is not None and summary["finished"]:
            print("waiting for the evaluator to score the last checkpoint", flush=True)
            sidecar.wait()
        _finish(run, model_dir, summary)
    finally:
        if sidecar is not None:
            sidecar.close()
        quiet.silence_native_stderr()
        cluster.close()
    return 0


def parse(arguments: Sequence[str]) -> Any:
    """Reads the flags of a run and of its model.

    Raises:
      UsageError: a flag is unknown, or has a value that it may not have.
    """
    from embedps.runs import Run, find_model

    # The model's module first: its config's fields are flags too.
    first = flags.Parser(prog="python -m embedps.train", add_help=False)
    first.add_argument("--model")
    first.add_argument("--config")
    early, _ = first.parse_known_args(arguments)
    default = TrainConfig.__dataclass_fields__["model"].default
    model = early.model or str(flags.read_file(early.config).get("model", default))
    module = find_model(model)
    parser = flags.Parser(
        prog="python -m embedps.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config", metavar="FILE", help="TOML with any of the values below; flags go before it"
    )
    flags.add_flags(parser, TrainConfig, "training")
    try:
        flags.add_flags(parser, module.Config, f"model {model}")
    except argparse.ArgumentError as error:
        raise UsageError(f"{model}.Config has a field that is a flag already: {error}") from error
    given = parser.parse_args(arguments)
    file = flags.read_file(given.config, TrainConfig, module.Config)
    return Run(
        config=flags.make(TrainConfig, given, file),
        model_config=flags.make(module.Config, given, file),
    )


class Sidecar:
    """The evaluator's process, which ends with this one."""

    def __init__(self, config: TrainConfig, *, resumed_after: int) -> None:
        """Starts it; its output goes to MODEL_DIR/logs/evaluator.log."""
        logs = Path(config.model_dir) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self._log = logs / "evaluator.log"
        environment = dict(os.environ, EMBEDPS_PARENT_PID=str(os.getpid()), PYTHONUNBUFFERED="1")
        environment.pop("TF_CONFIG", None)
        command = [sys.executable, "-m", "embedps.evaluate", "--model-dir", config.model_dir]
        command += ["--model", config.model]
        command += ["--data", config.data, "--resumed-after", str(resumed_after)]
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait(self) -> None:
        """Waits until it has scored the run's last checkpoint.

        Raises:
          ClusterError: it ended without.
        """
        code = self._process.wait()
        if code != 0:
            raise ClusterError(
                f"the evaluator ended with code {code}: see {self._log}; "
                "`python -m embedps.evaluate` scores the checkpoints again"
            )

    def close(self) -> None:
        """Ends it."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _is_over(trainer: Any, model_dir: Path) -> bool:
    """Whether nothing is left to train and the last checkpoint is scored."""
    scored = [e["number"] for e in read_evaluations(model_dir)[-1:]]
    last = trainer.saver.last
    return trainer.ledger.finished and last is not None and last.final and scored == [last.number]


def _resumed_after(trainer: Any) -> int:
    """The number up to which a final checkpoint is not the last one of this run."""
    last = trainer.saver.last
    return -1 if last is None or trainer.ledger.finished else int(last.number)


def _make_cluster(config: TrainConfig, *, in_tf_config: bool) -> Any:
    if in_tf_config:
        if config.num_ps:
            raise UsageError("--num-ps is of a local cluster; TF_CONFIG already names one")
        import tensorflow as tf

        from embedps.cluster import CoordinatorCluster

        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        return CoordinatorCluster(resolver, num_shards=config.num_shards)
    if config.num_ps:
        from embedps import local

        cluster, _ = local.start(
            num_ps=config.num_ps,
            num_workers=config.num_workers,
            num_shards=config.num_shards,
            log_dir=Path(config.model_dir) / "logs",
        )
        return cluster
    from embedps.cluster import EmbeddedCluster

    return EmbeddedCluster(num_workers=config.num_workers, num_shards=config.num_shards or 1)


def _check_directory(model_dir: Path) -> None:
    try:
        model_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--model-dir {model_dir} cannot be made: {error}") from error
    if not os.access(model_dir, os.W_OK | os.X_OK):
        raise UsageError(f"--model-dir {model_dir} must be a directory that can be written")


def _finish(run: Any, model_dir: Path, summary: dict[str, Any]) -> None:
    """Writes summary.json and prints the table of scores."""
    from rich.console import Console
    from rich.table import Table

    evaluations = read_evaluations(model_dir)
    path = model_dir / SUMMARY_NAME
    before = read_json(path)
    if not summary["wall_secs"] and before:
        # Nothing was left to do: what the run that did it measured still stands.
        measured = ("wall_secs", "examples_per_sec", "training", "checkpoint")
        summary = {**summary, **{k: before[k] for k in measured if k in before}}
    summary = {
        **summary,
        "evaluation": evaluations[-1] if evaluations else None,
        "versions": versions(),
        "config": run.to_json(),
    }
    write_json(path, summary)
    console = Console(file=sys.stdout)
    if evaluations:
        table = Table(title="Held-out scores, by the sidecar evaluator")
        for name in ("step", "AUC", "log loss", "NE", "calibration", "examples"):
            table.add_column(name, justify="right")
        for e in evaluations[-10:]:
            scores = (e[k] for k in ("auc", "logloss", "normalized_entropy", "calibration"))
            table.add_row(
                f"{e['step']:,}",
                *("-" if s is None else f"{s:.5f}" for s in scores),
                f"{e['examples']:,}",
            )
        console.print(table)
    units = summary["units"]
    state = "done" if summary["finished"] else "stopped; run the same command again to resume"
    print(
        f"{state}: {units['done']}/{units['total']} units, {summary['examples']:,} examples, "
        f"{summary['examples_per_sec']:,.0f}/s; see {path}",
        flush=True,
    )


if __name__ == "__main__":
    flags.run(main)
