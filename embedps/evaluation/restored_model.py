"""A run's model as a checkpoint has it: tables without optimizer slots, and the network."""

from __future__ import annotations

import functools
import os
from typing import Any

import tensorflow as tf

from embedps import kernels
from embedps.checkpoint.chain import continuation
from embedps.checkpoint.directory import CheckpointDirectory
from embedps.checkpoint.follow import Advance, Follower
from embedps.checkpoint.format.manifest import Manifest
from embedps.console import tf_logging
from embedps.data.dataset import Dataset
from embedps.data.unit_reader import NUMERICS
from embedps.engine.batch_free import batch_free
from embedps.engine.calibration import Curve
from embedps.engine.checkpoint_restore import (
    check_tables,
    load_dense,
    load_rows,
    load_vectors,
)
from embedps.engine.click_model import ClickModel
from embedps.engine.model_signature import check_signature, signature_of
from embedps.engine.recommender import Recommender
from embedps.engine.row_padding import pad
from embedps.engine.step_model import StepModel
from embedps.metrics import ClickMetrics
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.tiered import Tiered


class RestoredModel:
    """Holds the embeddings, without optimizer slots, and the network of a run's checkpoint."""

    def __init__(
        self,
        recommender: Recommender,
        dataset: Dataset,
        directory: CheckpointDirectory,
        *,
        num_shards: int = 1,
        seed: int = 0,
        memory: Tiered | None = None,
    ) -> None:
        """Makes empty tables and an untrained network.

        Args:
          dataset: whose columns it gets.
          num_shards: of each table in this process.
          seed: the run's, for random values that the network draws when it is made and that
            checkpoints do not hold.
          memory: for the rows, if those used least go to disk.

        Raises:
          UsageError: the model is not of this dataset.
        """
        kernels.load()
        tf_logging.silence_python_logging()
        self._directory = directory
        tf.keras.utils.set_random_seed(seed)
        self._model = StepModel(recommender, dataset)
        _calibrate_metrics(self._model)
        self._signature = signature_of(self._model)
        self._collection = EmbeddingCollection(
            self._model.tables,
            self._model.features,
            devices=["/device:CPU:0"] * num_shards,
            container=f"embedps-eval-{os.getpid()}-{id(self)}",
            trainable=False,
            memory=memory,
        )
        self._applied: Manifest | None = None
        self._follower = Follower(directory, holder="evaluator")
        self._predict = tf.function(self._outputs, reduce_retracing=True)

    @property
    def collection(self) -> EmbeddingCollection:
        """The tables, as of the manifest that was applied last."""
        return self._collection

    def apply(self, manifest: Manifest) -> int:
        """Brings tables and network to a manifest.

        Only newer deltas are read if the manifest continues the chain that was applied before.

        Returns:
          How many records were read.

        Raises:
          CorruptCheckpointError: a file is absent, or differs from what was written.
          DimMismatchError: the checkpoint is of another model.
        """
        saves = continuation(manifest, self._follower.position)
        return self._apply(
            Advance(
                manifest=manifest,
                saves=manifest.chain if saves is None else saves,
                reset=saves is None,
            )
        )

    def _apply(self, advance: Advance) -> int:
        manifest = advance.manifest
        tables, dim = self._collection.tables, self._model.embedding_dim
        check_tables(manifest, tables, embedding_dim=dim)
        check_signature(manifest, self._signature)
        self._directory.check_present(manifest)
        self._applied = None
        self._follower.forget()  # until all of it is in
        if advance.reset:
            self._collection.clear()
            if any(table.absent == "initial" for table in tables):
                load_vectors(self._collection, self._directory, manifest.vectors)
        taken = load_rows(self._collection, self._directory, advance.saves)
        load_dense(self._directory, manifest, self._model.named_variables)
        self._follower.reached(advance)
        self._applied = manifest
        return taken

    def _outputs(self, columns: dict[str, Any]) -> dict[str, tf.Tensor]:
        """Computes predictions; their bits do not depend on how rows are batched."""
        rows = tf.shape(columns[NUMERICS], tf.int64)[0]
        columns = {name: pad(value, rows) for name, value in columns.items()}
        predicted = self._padded_outputs(columns)
        return {name: value[:rows] for name, value in predicted.items()}

    def _padded_outputs(self, columns: dict[str, Any]) -> dict[str, tf.Tensor]:
        return batch_free(self._network_outputs)(columns)

    def _network_outputs(self, columns: dict[str, Any]) -> dict[str, tf.Tensor]:
        columns = self._model.prepare(self._model.fill(columns), training=False)
        found = self._collection.lookup(columns, insert=False)
        return self._model.outputs(columns, self._collection.combine(found))


def _calibrate_metrics(model: StepModel) -> None:
    """Makes the scores of a model's clicks those of its calibrated predictions."""
    calibration = model.recommender.calibration
    if calibration is None:
        return
    for metric in model.model.metrics:
        name = "score" if isinstance(model.model, ClickModel) else metric.name
        if isinstance(metric, ClickMetrics) and name in calibration.curves:
            metric.mapped = functools.partial(_mapped, calibration.curves[name])


def _mapped(curve: Curve, logits: tf.Tensor) -> tf.Tensor:
    chances = curve.apply(tf.sigmoid(logits))
    return tf.math.log(chances) - tf.math.log1p(-chances)
