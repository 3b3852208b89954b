"""Trains DLRM at the Kaggle configuration in this process, unit by unit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.example_columns import describe
from benchmarks.unit_trainer import UnitTrainer
from benchmarks.workload import W1
from embedps.engine.unit_functions import make_eval_unit
from embedps.metrics import ClickScores
from embedps.models import dlrm
from embedps.tables.collection import EmbeddingCollection


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddedDLRM:
    """A DLRM to train and score.

    Attributes:
      collection: the tables.
      variables: the variables of the network and its optimizer.
      train: trains on a unit (path, first row, rows, unit number); returns the examples trained.
      score: scores all rows of a file.
    """

    collection: EmbeddingCollection
    variables: list[tf.Variable]
    train: Callable[[Path, int, int, int], int]
    score: Callable[[Path, int], ClickScores]


def make(
    *, container: str, batch: int, unit_batches: int, sparse: str, rate: float
) -> EmbeddedDLRM:
    """Makes empty tables and a new network."""
    columns = describe(W1.num_numerics, len(W1.cardinalities))
    recommender = dlrm.make(dlrm.Config(sparse_optimizer=sparse), columns)
    tf.keras.utils.set_random_seed(0)
    trainer = UnitTrainer(
        recommender, columns, container=container, batch=batch, shuffle_rows=unit_batches * batch
    )
    model, tables = trainer.model, trainer.tables
    eval_unit = make_eval_unit(model, tables, model.input(batch_rows=batch, shuffle_rows=0))

    def train(path: Path, first: int, rows: int, number: int) -> int:
        trainer.train(path, first, rows, seed=number, step=number * unit_batches, rate=rate)
        return rows

    def score(path: Path, rows: int) -> ClickScores:
        counts: Any = eval_unit(
            tf.constant(str(path)), tf.constant(0, tf.int64), tf.constant(rows, tf.int64)
        )
        accumulator = model.accumulator(training=False)
        accumulator.add(counts)
        return accumulator.result()

    return EmbeddedDLRM(collection=tables, variables=trainer.variables, train=train, score=score)
