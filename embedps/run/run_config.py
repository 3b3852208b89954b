"""The resolved config of a run, stored in MODEL_DIR/config.json: others make its model from it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.run.config import DEFAULT_MODEL, TrainConfig
from embedps.run.model_module import find_model, is_built_in
from embedps.storage.file_io import read_bytes, write_bytes
from embedps.storage.object_store import as_path

FILE_NAME = "config.json"
EARLIER_NAMES = {
    "checkpoint_rows": "checkpoint_row_encoding",
    "checkpoint_slots": "checkpoint_slot_encoding",
}
"""Options that the config.json of earlier runs has by other names."""

NO_DATASET = "no dataset of embedps"
"""The `data` of a config of Keras' `fit` that read something else."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The config of a run and the config of its model.

    Attributes:
      config: names the model's module; the name is None if only the training process has the model.
      model_config: an instance of that module's class `Config`; None if there is no module.
    """

    config: TrainConfig
    model_config: Any

    @property
    def data(self) -> str:
        """The directory of the run's dataset.

        Raises:
          UsageError: there is none: `SaveCheckpoints` was given none.
        """
        if self.config.data == NO_DATASET:
            raise UsageError(
                f"{self.config.model_dir} was trained by Keras' fit without a dataset of embedps: "
                "give one with the model's columns (--data DIR, or data= of embedps.load)"
            )
        return self.config.data

    def recommender(self, dataset: Dataset) -> Recommender:
        """Makes the model over a dataset's columns.

        Raises:
          UsageError: the module's `make` returns something else, or gives a Recommender what it
            does not take.
        """
        name = self.config.model or DEFAULT_MODEL
        try:
            made = find_model(name).make(self.model_config, dataset)
        except TypeError as error:
            if f"{Recommender.__name__}.__init__()" not in str(error):
                raise
            raise UsageError(
                f"--model {name}: make must return a Recommender of these fields, "
                f"{', '.join(f.name for f in dataclasses.fields(Recommender))}, but {error}: "
                "what build makes has its tables in an embedps.Embeddings layer"
            ) from error
        if not isinstance(made, Recommender):
            raise UsageError(
                f"{name}: make must return a Recommender but got {type(made).__name__}"
            )
        return dataclasses.replace(made, model=name, config=self.model_config)

    def to_json(self) -> dict[str, Any]:
        """Gives both configs with all their options."""
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
    """Finds the name and the config by which another process can make a recommender.

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


def read_run(model_dir: Path, *, model: str | None = None) -> RunConfig:
    """Reads MODEL_DIR/config.json.

    A file in a model directory is data. A built-in model that it names is imported. Any other
    module is imported only if the caller names it too.

    Args:
      model: the module of the run's model.

    Raises:
      UsageError: the file is absent, is not what `RunConfig.save` writes, or is of another model.
    """
    path = model_dir / FILE_NAME
    try:
        content = json.loads(read_bytes(path))
        named = {EARLIER_NAMES.get(name, name): v for name, v in content["train"].items()}
        config = TrainConfig.from_options(**named)
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
    """Finds the module, and the options of its Config, that make the model of a stored run."""
    if stored is None:
        if given is None:
            raise UsageError(
                f"{path} is of a model that was given from Python, and no module is known to make "
                "it: give --model mymodel or package.module, whose make returns the same "
                "recommender"
            )
        return given, {}
    if stored != given and (given is not None or not is_built_in(stored)):
        raise UsageError(
            f"{path} is of model {stored!r}: give --model {stored} to have its module imported"
        )
    return stored, options
