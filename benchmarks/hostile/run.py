"""Makes the small run that is served and whose files are forged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

import embedps

# isort: split
from benchmarks.datasets import write_dataset
from benchmarks.hostile import ids as hostile_ids
from embedps.data.dataset_metadata import LabelColumn
from embedps.models import dlrm

MODEL = dlrm.Config(embedding_dim=8, bottom_mlp=(8,), top_mlp=(8,))
_ROWS = 2000


def columns(num_tables: int) -> list[str]:
    """Names the columns, each of one id per record; each has a table of its name."""
    return [f"C{i + 1}" for i in range(num_tables)]


def examples(ids: dict[str, hostile_ids.Ids]) -> pa.Table:
    """Makes examples of columns of ids, with labels at random."""
    count = len(next(iter(ids.values())))
    labels = np.random.default_rng(1).integers(0, 2, count).astype(np.float32)
    return pa.table({"label": labels, **ids})


def train(folder: Path, names: Sequence[str], train_on: pa.Table | None = None) -> Path:
    """Trains a DLRM without numbers for an epoch; gives its model directory.

    Args:
      folder: gets `data` and `model`.
      train_on: the examples; random ids by default.
    """
    seeds = range(len(names))
    evaluated = {n: hostile_ids.random(100, seed=s) for n, s in zip(names, seeds, strict=True)}
    if train_on is None:
        given = {n: hostile_ids.random(_ROWS, seed=s) for n, s in zip(names, seeds, strict=True)}
        train_on = examples(given)
    tables = {"train": train_on, "eval": examples(evaluated)}
    dataset = write_dataset(folder / "data", tables, labels=[LabelColumn(name="label")])
    config = embedps.TrainConfig.from_options(
        model="dlrm",
        data=str(dataset.directory),
        model_dir=str(folder / "model"),
        batch_size=512,
        eval="none",
    )
    embedps.Trainer.from_config(config, MODEL).fit()
    return folder / "model"
