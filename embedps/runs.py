"""A run's config as resolved, kept in MODEL_DIR/config.json so that others can make its model."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

from embedps.checkpoint.io import write_bytes
from embedps.checkpoint.objects import as_path
from embedps.config import TrainConfig
from embedps.dataset import Dataset
from embedps.errors import UsageError
from embedps.recommender import Recommender

FILE_NAME = "config.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What was asked for: how to train, and the model's own config."""

    config: TrainConfig
    model_config: Any

    def recommender(self, dataset: Dataset) -> Recommender:
        """The model over a dataset's columns."""
        made = find_model(self.config.model).make(self.model_config, dataset)
        if not isinstance(made, Recommender):
            raise UsageError(
                f"{self.config.model}: make must return a Recommender but got {type(made).__name__}"
            )
        return made

    def to_json(self) -> dict[str, Any]:
        """Both configs, every field."""
        return {
            "train": dataclasses.asdict(self.config),
            "model": dataclasses.asdict(self.model_config),
        }

    def save(self) -> None:
        """Writes MODEL_DIR/config.json."""
        path = as_path(self.config.model_dir) / FILE_NAME
        write_bytes(path, (json.dumps(self.to_json(), indent=1) + "\n").encode())


def find_model(name: str) -> ModuleType:
    """A model's module: of models/ by its bare name, or any by its dotted one.

    Raises:
      UsageError: there is none, or it lacks a `Config` dataclass or a `make`.
    """
    full = name if "." in name else f"models.{name}"
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


def read_run(model_dir: Path, *, model: str | None = None) -> Run:
    """Reads MODEL_DIR/config.json.

    A file of a model directory is data: a module of models/ that it names is imported, any other
    only if the caller names it too.

    Args:
      model_dir: what a run was given.
      model: the module of the run's model.

    Raises:
      UsageError: it is absent, or not what `Run.save` writes, or of another model.
    """
    path = model_dir / FILE_NAME
    try:
        content = json.loads(path.read_text())
        config = TrainConfig(**content["train"])
        if config.model != model and (model is not None or "." in config.model):
            raise UsageError(
                f"{path} is of model {config.model!r}: give --model {config.model} to have its "
                "module imported"
            )
        model_config = find_model(config.model).Config(
            **{k: tuple(v) if isinstance(v, list) else v for k, v in content["model"].items()}
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
        RecursionError,
    ) as error:
        raise UsageError(f"{path} is not a run's config ({error!r}): train again") from error
    return Run(config=config, model_config=model_config)
