"""Checks what a run is given before it starts: its dataset, its model directory, its task."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from embedps.checkpoint.directory import CheckpointDirectory
from embedps.data.dataset import Dataset
from embedps.engine.steps.ways import COLLECTIVES
from embedps.errors import CheckpointError, UsageError
from embedps.run.cluster_config import asked_of
from embedps.run.config import TrainConfig
from embedps.run.tf_config import is_of_workers, read_tf_config
from embedps.storage.file_io import write_bytes
from embedps.storage.object_store import ObjectPath, as_path, is_local


def open_dataset(config: TrainConfig) -> Dataset:
    """Opens the dataset of a run.

    Raises:
      DatasetError: it cannot be read.
      UsageError: the run is to be scored, and the dataset has no rows to score.
    """
    directory = CheckpointDirectory(as_path(config.model_dir))
    dataset = open_as_trained(config.data, directory)
    check_dataset(dataset, config)
    return dataset


def open_as_trained(data: Path | str, directory: CheckpointDirectory) -> Dataset:
    """Opens a dataset without the features that the data of the last checkpoint did not have.

    Raises:
      DatasetError: it cannot be read.
      UsageError: it lacks a column that the data of the checkpoint had.
      CheckpointError: the last checkpoint cannot be read.
    """
    dataset, last = Dataset.open(data), directory.latest()
    columns = [] if last is None else last.ledger.get("columns", [])
    return dataset.as_before(columns) if columns else dataset


def check_dataset(dataset: Dataset, config: TrainConfig) -> None:
    """Refuses a dataset that the run cannot train and score on.

    Raises:
      UsageError: it is not the dataset of `config.data`, or the run is to be scored and the dataset
        has no rows to score.
    """
    if os.path.abspath(dataset.directory) != os.path.abspath(config.data):
        raise UsageError(
            f"config.data is {config.data!r}, but the dataset that is given lies in "
            f"{str(dataset.directory)!r}: they must be the same"
        )
    split, mode = dataset.splits.get("eval"), config.evaluation.mode
    if mode != "none" and (split is None or not split.rows):
        raise UsageError(
            f"{dataset.directory} has no rows in split 'eval', so --eval {mode} has nothing "
            "to score: use --eval none, or make the dataset with --eval-fraction above 0"
        )


def check_watch(config: TrainConfig) -> Path | None:
    """Gives the directory that a run watches; None if it watches none.

    Raises:
      UsageError: it is no directory, or in an object store that does not answer; or the config
        asks for what needs an end.
    """
    if config.watch is None:
        return None
    watched = as_path(config.watch)
    if not is_local(watched):
        _check_bucket(watched)
    elif not watched.is_dir():
        raise UsageError(f"--watch {watched} must be a directory: make it first")
    if not config.optimizer.is_constant:
        raise UsageError(
            "--watch has no end, which --schedule and --warmup need: leave them out, or train the "
            "epochs with them first, in a run without --watch"
        )
    if config.evaluation.is_inline:
        raise UsageError(
            "--watch scores each file before it trains on it, and makes no pause for --eval "
            "inline or --inner-share: use --eval sidecar or none"
        )
    return watched.absolute()


def _check_bucket(watched: Path) -> None:
    bucket = ObjectPath(*watched.parts[:2])
    try:
        found = bucket.exists()
    except OSError as error:
        message = " ".join(str(error).split())
        raise UsageError(f"--watch {watched} cannot be listed: {message}") from error
    if not found:
        raise UsageError(f"--watch {watched}: there is no bucket {str(bucket)!r}: make it first")


def chief_task(config: TrainConfig) -> dict[str, Any] | None:
    """Reads TF_CONFIG for the process that trains; None if it is not set.

    Raises:
      UsageError: it is malformed, its task is no chief, or the config asks for a local cluster too;
        or it is not set, and the config counts its workers.
    """
    task = read_tf_config()
    if task is None:
        if config.cluster.min_workers:
            raise UsageError("--min-workers counts workers of TF_CONFIG, which is not set")
        return None
    if config.cluster.num_ps:
        raise UsageError("--num-ps is of a local cluster; TF_CONFIG already names one")
    config.cluster.check_way("servers")
    kind, index = task["task"]["type"], task["task"]["index"]
    if is_of_workers(task):
        raise UsageError(
            f"TF_CONFIG says that this process is {kind} {index} of workers without servers, which "
            "a Trainer of Python cannot lead: run `python -m embedps.train --model MODULE` in each"
        )
    if kind != "chief":
        raise UsageError(
            f"TF_CONFIG says that this process is {kind} {index}; only the chief trains: start a "
            "worker or a parameter server by `python -m embedps.server`"
        )
    return task


def check_task(config: TrainConfig) -> None:
    """Checks that a config fits TF_CONFIG, if that is set.

    Raises:
      UsageError: as `chief_task`; or TF_CONFIG has workers only, and the config asks for what these
        do not have.
    """
    task = read_tf_config()
    if task is not None and is_of_workers(task):
        COLLECTIVES.check(asked_of(config), "workers")
    else:
        chief_task(config)


def prepare_directory(config: TrainConfig) -> Path:
    """Makes the model directory of a run, and checks that it can be written.

    Raises:
      UsageError: it cannot be made or written.
    """
    model_dir = as_path(config.model_dir)
    if not is_local(model_dir):
        try:
            write_bytes(model_dir / "_writable", b"")
        except CheckpointError as error:
            raise UsageError(f"--model-dir must be one that can be written: {error}") from error
        (model_dir / "_writable").unlink()
        return model_dir
    try:
        model_dir.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise UsageError(f"--model-dir must be a directory, {model_dir} is a file") from error
    except OSError as error:
        raise UsageError(f"--model-dir {model_dir} cannot be made: {error.strerror}") from error
    if not os.access(model_dir, os.W_OK | os.X_OK):
        raise UsageError(f"--model-dir {model_dir} must be a directory that can be written")
    return model_dir
