"""Checks the types of what a trainer is given: people pass what other libraries take."""

from __future__ import annotations

from typing import Any

from embedps.data.dataset import Dataset
from embedps.engine.recommender import Recommender
from embedps.errors import UsageError
from embedps.run.config import TrainConfig


def check_kinds(recommender: Any, dataset: Any, config: Any) -> None:
    """Checks the types of a trainer's arguments.

    Raises:
      UsageError: one is of another type.
    """
    if not isinstance(recommender, Recommender):
        raise UsageError(
            f"Trainer's recommender must be an embedps.Recommender but got {_kind(recommender)}: "
            "write embedps.Recommender(build=...), where build makes the model"
        )
    if not isinstance(dataset, Dataset):
        raise UsageError(
            f"Trainer's dataset must be an embedps.Dataset but got {_kind(dataset)}: write its "
            "rows to files, make a dataset of them by embedps.pipelines.ingest and open it by "
            "embedps.Dataset.open; or give dataset_fn, with embedps.describe_dataset for its "
            "columns; or train by the model's fit"
        )
    check_config(config)


def check_config(config: Any) -> None:
    """Checks the type of a trainer's config.

    Raises:
      UsageError: it is of another type.
    """
    if not isinstance(config, TrainConfig):
        raise UsageError(
            f"Trainer's config must be an embedps.TrainConfig but got {_kind(config)}: write "
            "embedps.TrainConfig(data=..., model_dir=...)"
        )


def _kind(value: Any) -> str:
    return f"a {type(value).__module__.split('.')[0]} {type(value).__qualname__}"
