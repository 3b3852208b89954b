"""What a scoring keeps of each example, for scores that do not add up: of slices and of groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from embedps.data.columns import Columns
from embedps.data.dataset import Dataset
from embedps.data.unit_reader import UnitReader
from embedps.engine.click_model import ClickModel
from embedps.engine.step_model import StepModel
from embedps.errors import UsageError
from embedps.metrics import KEPT
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.known_ids import update_rates

LABEL, SCORE, WEIGHT, COLUMN, IS_KNOWN = (
    KEPT + part for part in ("label/", "score/", "weight/", "column/", "known/")
)


def predicted_labels(model: StepModel, dataset: Dataset) -> dict[str, str]:
    """Finds the binary labels whose chances a model predicts.

    Returns:
      By label, the name of the prediction: the label's, or "score".

    Raises:
      UsageError: the model has no call.
    """
    click = model.model.label if isinstance(model.model, ClickModel) else dataset.label
    names, found = model.prediction_names, {}
    for label in dataset.labels:
        named = [label.name, *(["score"] if label.name == click else [])]
        predicted = [name for name in named if name in names]
        if label.kind == "binary" and predicted:
            found[label.name] = predicted[0]
    return found


class KeptExamples:
    """Gives, of each example, labels, predictions and weights, and by what it is divided.

    Attributes:
      labels: the binary labels that the model predicts, with the names of their predictions.
      weights: by label, the column of its weights; empty if it has none.
    """

    def __init__(
        self, model: StepModel, dataset: Dataset, *, columns: Sequence[str], known: Sequence[str]
    ) -> None:
        """Finds out what to read.

        Args:
          columns: whose values are kept.
          known: features; kept is whether training has updated the row of an example's id.

        Raises:
          UsageError: the model predicts no binary label, or has no such feature.
        """
        self.labels = predicted_labels(model, dataset)
        if not self.labels:
            raise UsageError(
                "--gauc and --slices need a model that predicts a binary label, by its name or as "
                f"'score': it predicts {', '.join(model.prediction_names)}"
            )
        own = {label.name: label.weight or dataset.weight for label in dataset.labels}
        self.weights = {name: own[name] for name in self.labels}
        self._tables = {f.name: f.table_name for f in model.features if not f.ragged}
        for name in known:
            if name not in self._tables:
                raise UsageError(
                    f"--slices known:{name} needs a feature that the model looks up, one id per "
                    f"example: it looks up {', '.join(self._tables) or 'none'}"
                )
        self._model, self._columns, self._known = model, tuple(columns), tuple(known)
        weights = {name for name in self.weights.values() if name}
        wanted = {*model.columns.names, *columns, *known, *self.labels, *weights}
        self._read = Columns.of(dataset, wanted)
        self.extra = wanted.difference(model.columns.names)

    def input(self, *, batch_rows: int) -> UnitReader:
        """Makes the reader of the model's columns and of what is kept."""
        missing_id = self._model.recommender.missing_id
        return self._read.reader(batch_rows=batch_rows, shuffle_rows=0, missing_id=missing_id)

    @property
    def dtypes(self) -> dict[str, tf.DType]:
        """The dtypes of what is kept, by name."""
        weights = [WEIGHT + name for name, column in self.weights.items() if column]
        floats = [*(LABEL + n for n in self.labels), *(SCORE + n for n in self.labels), *weights]
        found = dict.fromkeys(floats, tf.float32)
        found |= {COLUMN + name: tf.int64 for name in self._columns}
        return found | {IS_KNOWN + name: tf.bool for name in self._known}

    def of(
        self,
        read: Mapping[str, Any],
        prepared: Mapping[str, Any],
        activations: Mapping[str, Any],
        collection: EmbeddingCollection,
    ) -> dict[str, tf.Tensor]:
        """Keeps what is wanted of a batch, in a graph.

        Args:
          read: the columns of `input`.
          prepared: the model's columns among them, as `StepModel.prepare` returns them.
          activations: of the batch.
          collection: the tables.

        Returns:
          Those of `dtypes`, [batch] each.
        """
        predicted = self._model.outputs(prepared, activations)
        found = {LABEL + name: read[name] for name in self.labels}
        for name, prediction in self.labels.items():
            found[SCORE + name] = tf.reshape(tf.cast(predicted[prediction], tf.float32), [-1])
            if self.weights[name]:
                found[WEIGHT + name] = read[self.weights[name]]
        found |= {COLUMN + name: read[name] for name in self._columns}
        for name in self._known:
            _, known = update_rates(collection, self._tables[name], read[name])
            is_missing = read[name] == self._model.recommender.missing_id
            found[IS_KNOWN + name] = known & ~is_missing
        return found
