"""Folds of a small dataset, and the AUC of a model trained on all but one of them."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from embedps import load
from embedps.data.dataset import Dataset
from embedps.data.dataset_metadata import DataFile, Split
from embedps.metrics import histogram_auc
from embedps.storage.file_io import checksum_file
from embedps.train import parse
from embedps.training.fit_result import FitResult
from embedps.training.trainer import Trainer

INNER_SHARE = 0.15
"""Of the rows to train on, those that choose the checkpoint."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fold:
    """A fold of a dataset's rows.

    Attributes:
      dataset: the rows' description.
      table: all rows.
      folds: the fold of each row.
      number: of the fold that is held out.
    """

    dataset: Dataset
    table: pa.Table
    folds: npt.NDArray[np.int64]
    number: int

    @property
    def test(self) -> pa.Table:
        """The rows held out."""
        return self.table.filter(pa.array(self.folds == self.number))


def write_fold(fold: Fold, directory: Path) -> tuple[Dataset, Dataset]:
    """Writes the rows of the other folds as two datasets.

    The eval split of the first chooses how long to train; the second has all rows to train on.
    """
    rest = np.flatnonzero(fold.folds != fold.number)
    is_inner = np.random.default_rng(fold.number).random(len(rest)) < INNER_SHARE
    parts = {"train": rest[~is_inner], "eval": rest[is_inner]}
    chosen = _write(fold, directory / "chosen", parts)
    return chosen, _write(fold, directory / "whole", {"train": rest})


def _write(fold: Fold, directory: Path, parts: Mapping[str, npt.NDArray[np.int64]]) -> Dataset:
    splits = {}
    for name, rows in parts.items():
        path = directory / name / "shard-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        table = fold.table.take(np.random.default_rng(1).permutation(rows))
        pq.write_table(table, path, row_group_size=32768, compression="zstd")
        size, checksum = checksum_file(path)
        groups = pq.ParquetFile(path).metadata
        file = DataFile(
            path=str(path.relative_to(directory)),
            rows=table.num_rows,
            bytes=size,
            xxh3_64=checksum,
            row_groups=tuple(groups.row_group(g).num_rows for g in range(groups.num_row_groups)),
        )
        positives = int(table[fold.dataset.label].to_numpy().sum())
        splits[name] = Split(rows=table.num_rows, positives=positives, files=(file,))
    dataset = dataclasses.replace(fold.dataset, directory=directory, splits=splits, transforms="")
    dataset.save()
    return Dataset.open(directory)


def score_fold(
    datasets: tuple[Dataset, Dataset],
    fold: Fold,
    model: str,
    seed: int,
    folder: Path,
    flags: Sequence[str] = (),
) -> float:
    """Trains a model with the preset of small data; gives the AUC on the rows held out.

    The epochs with the best AUC on the eval split are trained again on all rows.

    Args:
      datasets: as `write_fold` returns them.
      fold: has the rows held out.
      model: a model of the zoo.
      seed: of the run.
      folder: for model directories.
      flags: more flags of the run.
    """
    chosen, whole = datasets
    model_dir = folder / f"{model}-{fold.number}-{seed}"
    common = (f"--model={model}", f"--seed={seed}", "--preset=small", "--log-secs=1e6", *flags)

    def train(dataset: Dataset, *more: str) -> FitResult:
        shutil.rmtree(model_dir, ignore_errors=True)
        run = parse([*common, f"--data={dataset.directory}", f"--model-dir={model_dir}", *more])
        return Trainer(run.recommender(dataset), dataset, run.config).fit()

    scores = train(chosen).scores
    best = scores.best("auc")
    epochs = 1 + (0 if best is None else scores.index(best))
    train(whole, f"--epochs={epochs}", "--eval=none", "--stop-patience=0")
    found = load(model_dir).predict(fold.test)["score"]
    shutil.rmtree(model_dir)
    return auc(fold.test[fold.dataset.label].to_numpy(), found)


def auc(labels: npt.NDArray[Any], scores: npt.NDArray[Any]) -> float:
    """The area under the ROC curve; ties count as half."""
    _, ranks = np.unique(scores, return_inverse=True)
    counts = np.zeros((2, ranks.max() + 1), np.int64)
    np.add.at(counts, (labels.astype(np.int64), ranks), 1)
    return float(histogram_auc(counts))
