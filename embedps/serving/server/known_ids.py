"""Which queries have an id that the tables know: see `embedps.tables.known_ids`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from embedps.engine.step_model import StepModel
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.known_ids import update_rates


class QueryIds:
    """The ids that a query is computed of.

    Attributes:
      names: of their columns, for messages.
    """

    def __init__(self, model: StepModel, collection: EmbeddingCollection, query: str) -> None:
        """Finds the features.

        Args:
          collection: its rows, of one shard.
          query: the prediction that is a query's vector.
        """
        used = model.output_inputs(query)
        self._features = [f for f in model.features if f.name in used]
        self._model, self._collection = model, collection
        self.names: Sequence[str] = [f.name for f in self._features]

    def unknown(self, columns: Mapping[str, Any], rows: tf.Tensor) -> tf.Tensor:
        """Tells which queries have ids but none that is known, bool [rows].

        Args:
          rows: how many, int64.
        """
        if not self._features:
            return tf.fill([rows], False)
        if any(name not in columns for name in self.names):  # the model computes ids
            columns = self._model.prepare(self._model.fill(columns), training=False)
        known = tf.fill([rows], False)
        for feature in self._features:
            ids = columns[feature.name]
            if not isinstance(ids, tf.RaggedTensor):
                known |= self._is_known(feature.table_name, ids)
                continue
            if feature.max_length is not None:
                ids = ids[:, -feature.max_length :]
            is_known = self._is_known(feature.table_name, ids.values)
            known |= tf.reduce_any(ids.with_values(is_known), axis=1)
        return ~known

    def _is_known(self, table: str, ids: tf.Tensor) -> tf.Tensor:
        _, is_updated = update_rates(self._collection, table, ids)
        return is_updated & (ids != self._model.recommender.missing_id)
