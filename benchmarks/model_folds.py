"""A fold of a small dataset, and the AUC of a model trained without it."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from embedps import load
from embedps.data.dataset import Dataset, describe_file
from embedps.data.dataset_metadata import Split
from embedps.metrics import histogram_auc
from embedps.train import parse
from embedps.training.trainer import Trainer

INNER_SHARE = 0.15
"""Of the rows to train on, those on which settings are chosen."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fold:
    """Rows of a small dataset to train on, and rows held out.

    Attributes:
      dataset: the rows' description.
      table: all rows.
      number: of the fold.
      train: numbers of the rows to train on.
      test: numbers of the rows held out.
    """

    dataset: Dataset
    table: pa.Table
    number: int
    train: npt.NDArray[np.int64]
    test: npt.NDArray[np.int64]

    @property
    def inner(self) -> Fold:
        """The rows to train on as a fold of their own, which has nothing of the rows held out."""
        is_held = np.random.default_rng(self.number).random(len(self.train)) < INNER_SHARE
        return dataclasses.replace(self, train=self.train[~is_held], test=self.train[is_held])


def write_train(fold: Fold, directory: Path) -> Dataset:
    """Writes the rows to train on, in an order drawn at random, as a dataset."""
    path = directory / "train" / "shard-00000-of-00001.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    table = fold.table.take(np.random.default_rng(1).permutation(fold.train))
    pq.write_table(table, path, row_group_size=32768, compression="zstd")
    file = describe_file(directory, path)
    positives = int(table[fold.dataset.label].to_numpy().sum())
    splits = {"train": Split(rows=table.num_rows, positives=positives, files=(file,))}
    dataset = dataclasses.replace(fold.dataset, directory=directory, splits=splits, transforms="")
    dataset.save()
    return Dataset.open(directory)


def score_fold(fold: Fold, flags: Sequence[str]) -> float:
    """Trains on a fold's rows; gives the AUC of the last checkpoint on the rows held out.

    Args:
      fold: the rows.
      flags: of the run, without those of its directories. No row held out takes part in training,
        so no flag may ask for an evaluation.
    """
    with tempfile.TemporaryDirectory() as folder:
        dataset = write_train(fold, Path(folder) / "data")
        model_dir = Path(folder) / "model"
        where = (f"--data={dataset.directory}", f"--model-dir={model_dir}")
        run = parse([*flags, "--eval=none", "--log-secs=1e6", *where])
        Trainer(run.recommender(dataset), dataset, run.config).fit()
        held = fold.table.take(fold.test)
        return auc(held[fold.dataset.label].to_numpy(), load(model_dir).predict(held)["score"])


def auc(labels: npt.NDArray[Any], scores: npt.NDArray[Any]) -> float:
    """The area under the ROC curve; ties count as half."""
    _, ranks = np.unique(scores, return_inverse=True)
    counts = np.zeros((2, ranks.max() + 1), np.int64)
    np.add.at(counts, (labels.astype(np.int64), ranks), 1)
    return float(histogram_auc(counts))
