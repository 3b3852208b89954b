"""Trains a recommender: `python -m embedps.train --model dlrm --data DIR --model-dir DIR`.

Alone, it trains in this process, with a sidecar evaluator in a second one. With --num-ps and
--num-workers it starts a local cluster of processes. With TF_CONFIG set it takes this task's role
in that cluster: the chief trains, workers and parameter servers serve.

Run the same command again to resume from the last checkpoint. A local cluster that loses a
parameter server does so by itself; with TF_CONFIG the chief ends with code 75 and one line.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from embedps import flags, quiet
from embedps.checkpoint.io import write_bytes
from embedps.checkpoint.objects import ObjectPath, as_path, local_dir
from embedps.config import TrainConfig
from embedps.errors import CheckpointError, ClusterError, ServerLostError, UsageError
from embedps.notice import within
from embedps.server import add_grace_flag, read_tf_config, serve
from embedps.sidecar import Sidecar
from embedps.summary import SUMMARY_NAME, read_evaluations, read_json, versions, write_json


def main(arguments: Sequence[str]) -> NoReturn:
    """`python -m embedps.train`; ends the process."""
    task = read_tf_config()
    if task is not None and task["task"]["type"] in ("worker", "ps"):
        parser = flags.Parser(prog="python -m embedps.train", add_help=False)
        add_grace_flag(parser)
        serve(grace_secs=parser.parse_known_args(arguments)[0].grace_secs)
    quiet.import_tensorflow()
    run = parse(arguments)
    from embedps.dataset import Dataset

    dataset = Dataset.open(run.config.data)
    model_dir = as_path(run.config.model_dir)
    _check_directory(model_dir)

    import tensorflow as tf

    from embedps.recovery import Recovery, take_loss
    from embedps.trainer import Trainer
    from embedps.units import explain

    loss = take_loss()
    started: list[Any] = []  # to be ended, the last one first

    def end() -> None:
        for each in started[::-1]:
            each.close()

    recovery = Recovery(loss, again=run.config.num_ps > 0, end=end)
    try:
        with _ends_in_good_order(run.config.grace_secs):
            cluster = _make_cluster(run.config, task, recovery.begin)
            started.append(cluster)
            trainer = Trainer(run.recommender(dataset), dataset, run.config, cluster, loss=loss)
            recovery.follow(trainer)
            run.save()  # not before the directory's checkpoint has proved to be of this model
            # In a TF_CONFIG cluster the evaluator is a task of its own, started with the others.
            beside = run.config.eval == "sidecar" and task is None
            if beside and not _is_over(trainer, model_dir):
                started.append(Sidecar(run.config, resumed_after=_resumed_after(trainer)))
            summary = trainer.run()
            quiet.silence_native_stderr()
            cluster.close()  # what it held is saved, and a server that ends is no loss any more
            with suppress(SystemExit):
                for sidecar in started[1:]:
                    summary["evaluator_restarts"] = sidecar.finish(
                        wait_secs=run.config.wait_secs if summary["finished"] else 0.0
                    )
            _finish(run, model_dir, summary)
    except (ServerLostError, tf.errors.OpError) as error:
        lost = explain(error)
        if not isinstance(lost, ServerLostError):
            raise
        recovery.begin(lost)
    finally:
        if started:
            quiet.silence_native_stderr()
        end()
    sys.stdout.flush()
    # Not the interpreter's end: it would wait for a thread whose unit could not finish in time, or
    # for a server that hangs.
    os._exit(0)


@contextmanager
def _ends_in_good_order(grace_secs: float) -> Iterator[None]:
    """SIGTERM ends the program with code 0 where nothing is to be saved: before and after training.

    It raises SystemExit in the main thread, or ends the process if that cannot take it in time.
    """

    def end(number: int, _: FrameType | None) -> None:
        timer = threading.Timer(grace_secs / 2, os._exit, (0,))
        timer.daemon = True
        timer.start()
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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


def _is_over(trainer: Any, model_dir: Path) -> bool:
    """Whether nothing is left to train and the last checkpoint is scored."""
    scored = [e["number"] for e in read_evaluations(model_dir)[-1:]]
    last = trainer.saver.last
    return trainer.finished and last is not None and last.final and scored == [last.number]


def _resumed_after(trainer: Any) -> int:
    """The number up to which a final checkpoint is not the last one of this run."""
    last = trainer.saver.last
    return -1 if last is None or trainer.finished else int(last.number)


def _make_cluster(
    config: TrainConfig, task: dict[str, Any] | None, on_lost: Callable[[ClusterError], None]
) -> Any:
    """The cluster that is asked for.

    Args:
      config: of the run.
      task: what TF_CONFIG says, where it is set.
      on_lost: told that the cluster cannot go on.
    """
    if task is not None:
        if config.num_ps:
            raise UsageError("--num-ps is of a local cluster; TF_CONFIG already names one")
        import tensorflow as tf

        from embedps.cluster import CoordinatorCluster
        from embedps.health import wait_until_serving

        addresses = {
            (job, index): address
            for job in ("ps", "worker")
            for index, address in enumerate(task["cluster"].get(job, []))
        }
        if {job for job, _ in addresses} == {"ps", "worker"}:
            wait_until_serving(addresses, secs=config.wait_secs, check=lambda task: None)
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        with within(config.wait_secs, "the servers of TF_CONFIG to take a client"):
            return CoordinatorCluster(
                resolver,
                num_shards=config.num_shards,
                server_timeout_secs=config.server_timeout_secs,
                wait_secs=config.wait_secs,
                on_lost=on_lost,
            )
    if config.num_ps:
        from embedps import local

        with within(config.wait_secs, "the local cluster to take a client"):
            cluster, _ = local.start(
                num_ps=config.num_ps,
                num_workers=config.num_workers,
                num_shards=config.num_shards,
                log_dir=local_dir(as_path(config.model_dir)) / "logs",
                grace_secs=config.grace_secs,
                server_timeout_secs=config.server_timeout_secs,
                wait_secs=config.wait_secs,
                on_lost=on_lost,
            )
        return cluster
    from embedps.cluster import EmbeddedCluster

    return EmbeddedCluster(num_workers=config.num_workers, num_shards=config.num_shards or 1)


def _check_directory(model_dir: Path) -> None:
    if isinstance(model_dir, ObjectPath):
        try:
            write_bytes(model_dir / "_writable", b"")
        except CheckpointError as error:
            raise UsageError(f"--model-dir must be one that can be written: {error}") from error
        (model_dir / "_writable").unlink()
        print(f"logs and TensorBoard's events are in {local_dir(model_dir)}", flush=True)
        return
    try:
        model_dir.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise UsageError(f"--model-dir must be a directory, {model_dir} is a file") from error
    except OSError as error:
        raise UsageError(f"--model-dir {model_dir} cannot be made: {error.strerror}") from error
    if not os.access(model_dir, os.W_OK | os.X_OK):
        raise UsageError(f"--model-dir {model_dir} must be a directory that can be written")


def _finish(run: Any, model_dir: Path, summary: dict[str, Any]) -> None:
    """Writes summary.json and prints the table of scores."""
    from rich.console import Console
    from rich.table import Table

    evaluations = read_evaluations(model_dir)
    path = model_dir / SUMMARY_NAME
    before = read_json(path)
    if not summary["examples_per_sec"] and before:
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
        table = Table(title="Held-out scores")
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
