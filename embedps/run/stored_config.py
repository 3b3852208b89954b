"""A run's config as resolved, kept in MODEL_DIR/config.json so that others can make its model."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.errors import CheckpointError, UsageError
from embedps.run.config import DEFAULT_MODEL, TrainConfig
from embedps.run.tf_config import read_tf_config
from embedps.storage.file_io import read_bytes, write_bytes
from embedps.storage.object_store import ObjectPath, as_path

FILE_NAME = "config.json"
_ZOO = "models"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What was asked for: how to train, and the model's own config.

    Attributes:
      config: names the model's module; None where the model is known to the training process only.
      model_config: of that module's class `Config`; None where there is none.
    """

    config: TrainConfig
    model_config: Any

    def recommender(self, dataset: Dataset) -> Recommender:
        """Makes the model over a dataset's columns.

        Raises:
          UsageError: the module's `make` returns something else.
        """
        name = self.config.model or DEFAULT_MODEL
        made = find_model(name).make(self.model_config, dataset)
        if not isinstance(made, Recommender):
            raise UsageError(
                f"{name}: make must return a Recommender but got {type(made).__name__}"
            )
        return dataclasses.replace(made, model=name, config=self.model_config)

    def to_json(self) -> dict[str, Any]:
        """Gives both configs, every field."""
        known = self.model_config is not None
        return {
            "train": self.config.to_options(),
            "model": dataclasses.asdict(self.model_config) if known else {},
        }

    def save(self) -> None:
        """Writes MODEL_DIR/config.json."""
        path = as_path(self.config.model_dir) / FILE_NAME
        write_bytes(path, (json.dumps(self.to_json(), indent=1) + "\n").encode())


def run_of(recommender: Recommender, config: TrainConfig) -> RunConfig:
    """Says by what name and config another process can make a recommender.

    Raises:
      UsageError: `config.model` names a module that did not make it.
    """
    name = recommender.model
    if config.model is not None and config.model != name:
        made_by = "no module that it names" if name is None else f"module {name}"
        raise UsageError(
            f"config.model is {config.model!r}, but the recommender was made by {made_by}: leave "
            "config.model out, or use Trainer.from_config, which makes the model by that name"
        )
    return RunConfig(
        config=dataclasses.replace(config, model=name),
        model_config=None if name is None else recommender.config,
    )


def open_dataset(config: TrainConfig) -> Dataset:
    """Opens the dataset of a run.

    Raises:
      DatasetError: it cannot be read.
      UsageError: the run would be scored, and the dataset has nothing to score.
    """
    dataset = Dataset.open(config.data)
    check_dataset(dataset, config)
    return dataset


def check_dataset(dataset: Dataset, config: TrainConfig) -> None:
    """Refuses a dataset that a run cannot end well with.

    Raises:
      UsageError: it is not that of `config.data`, or has nothing to score where the run is scored.
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


def chief_task(config: TrainConfig) -> dict[str, Any] | None:
    """Gives TF_CONFIG, where it is set.

    Raises:
      UsageError: it is wrong, names another task than a chief, or the config a local cluster.
    """
    task = read_tf_config()
    if task is None:
        return None
    if config.cluster.num_ps:
        raise UsageError("--num-ps is of a local cluster; TF_CONFIG already names one")
    kind, index = task["task"]["type"], task["task"]["index"]
    if kind != "chief":
        raise UsageError(
            f"TF_CONFIG says that this process is {kind} {index}; only the chief trains: start a "
            "worker or a parameter server by `python -m embedps.server`"
        )
    return task


def prepare_directory(config: TrainConfig) -> Path:
    """Makes the model directory of a run, and checks that it can be written.

    Raises:
      UsageError: it cannot.
    """
    model_dir = as_path(config.model_dir)
    if isinstance(model_dir, ObjectPath):
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


def find_model(name: str) -> ModuleType:
    """A model's module: of models/ by its bare name, or any by its dotted one.

    Raises:
      UsageError: there is none, or it lacks a `Config` dataclass or a `make`.
    """
    full = name if "." in name else f"{_ZOO}.{name}"
    if not all(part.isidentifier() for part in full.split(".")):
        raise UsageError(f"--model must be a module's name but got {name!r}")
    try:
        module = importlib.import_module(full)
    except ModuleNotFoundError as error:
        if error.name is None or not full.startswith(error.name):
            raise  # the module is there; something it imports is not
        raise UsageError(
            f"--model {name}: there is no module {full}; models/ has dlrm, and your own is named "
            "as package.module"
        ) from error
    if not dataclasses.is_dataclass(getattr(module, "Config", None)) or not callable(
        getattr(module, "make", None)
    ):
        raise UsageError(
            f"--model {name}: {full} must have a dataclass Config and make(config, dataset)"
        )
    return module


def read_run(model_dir: Path, *, model: str | None = None) -> RunConfig:
    """Reads MODEL_DIR/config.json.

    A file of a model directory is data: a module of models/ that it names is imported, any other
    only if the caller names it too.

    Args:
      model_dir: what a run was given.
      model: the module of the run's model.

    Raises:
      UsageError: it is absent, or not what `RunConfig.save` writes, or of another model.
    """
    path = model_dir / FILE_NAME
    try:
        content = json.loads(read_bytes(path))
        config = TrainConfig.from_options(**content["train"])
        name, options = _model_of(config.model, content["model"], model, path)
        model_config = find_model(name).Config(
            **{k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
        )
    except FileNotFoundError as error:
        raise UsageError(
            f"{path} is not there: --model-dir must be one that embedps.train has trained in"
        ) from error
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise UsageError(f"{path} is not a run's config ({error!r}): train again") from error
    return RunConfig(config=dataclasses.replace(config, model=name), model_config=model_config)


def _model_of(
    stored: str | None, options: dict[str, Any], given: str | None, path: Path
) -> tuple[str, dict[str, Any]]:
    """The module and the options of its Config that make a stored run's model."""
    if stored is None:
        if given is None:
            raise UsageError(
                f"{path} is of a model that was given from Python, and no module is known to make "
                "it: give --model package.module, whose make returns the same recommender"
            )
        return given, {}
    if stored != given and (given is not None or "." in stored):
        raise UsageError(
            f"{path} is of model {stored!r}: give --model {stored} to have its module imported"
        )
    return stored, options
