"""Trains a model in this process, unit by unit."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from embedps.cluster.embedded import EmbeddedCluster
from embedps.data.dataset import Dataset
from embedps.engine.dense_optimizer import make_dense_optimizer
from embedps.engine.recommender import Recommender
from embedps.engine.step_model import StepModel
from embedps.engine.unit_functions import make_train_unit
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.tiered import Tiered


class UnitTrainer:
    """A model with empty tables and a new network, in this process.

    Attributes:
      model: built.
      tables: the model's.
      variables: of the network and its optimizer.
    """

    def __init__(
        self,
        recommender: Recommender,
        dataset: Dataset,
        *,
        container: str,
        batch: int,
        shuffle_rows: int = 0,
        dense: str = "adam",
        dense_rate: float = 0.001,
        memory: Tiered | None = None,
    ) -> None:
        cluster = EmbeddedCluster()
        self.model = StepModel(recommender, dataset)
        self.tables = EmbeddingCollection(
            self.model.tables,
            self.model.features,
            devices=cluster.shard_devices,
            container=container,
            memory=memory,
        )
        optimizer = make_dense_optimizer(dense, dense_rate, self.model.model)
        self.variables = [*self.model.model.variables, *optimizer.variables()]
        self._train = make_train_unit(
            self.model,
            optimizer,
            self.tables,
            cluster.strategy,
            self.model.input(batch_rows=batch, shuffle_rows=shuffle_rows),
        )

    def train(
        self, path: Path | str, first: int, rows: int, *, seed: int, step: int, rate: float
    ) -> None:
        """Trains on rows of a file; the first step has the number `step`."""
        numbers = (tf.constant(n, tf.int64) for n in (first, rows, seed, step))
        self._train(tf.constant(str(path)), *numbers, tf.constant(rate))
