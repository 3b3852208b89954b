"""Encodes items with rows and a network that are not served yet, beside those that are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from embedps.engine.batch_free import batch_free
from embedps.engine.row_padding import pad
from embedps.engine.step_model import StepModel
from embedps.errors import UsageError
from embedps.serving.inputs import rows_of
from embedps.serving.server.item_catalog import ItemCatalog
from embedps.serving.server.item_index import Ids, ItemIndex
from embedps.tables.collection import EmbeddingCollection
from embedps.tables.staged_files import StagedFiles

_CHANGE_BATCHES = 32
_NONE: Ids = np.zeros(0, np.int64)


class ItemEncoder:
    """Computes items' vectors as of the served manifest and what is staged after it.

    The network's new values are in variables of their own. So nothing that answers requests
    changes.

    Attributes:
      dim: of the vectors.
    """

    def __init__(self, model: StepModel, collection: EmbeddingCollection) -> None:
        """Traces the item tower.

        Args:
          model: whose candidates are encoded.
          collection: the rows that are served.

        Raises:
          UsageError: the candidates' vectors have no fixed length.
        """
        (self._candidates,) = model.candidates
        self._embeddings, self._collection = model.embeddings, collection
        self._nothing = collection.files.stage([])
        self._staged = self._nothing.handles
        specs = tf.nest.map_structure(lambda each: tf.TensorSpec([], each.dtype), self._staged)
        function = tf.function(
            self._encoded, input_signature=[self._candidates.column_specs, specs]
        )
        self._encode = function.get_concrete_function()
        # The tower's variables, and those that take their place.
        self._own = {v.ref(): tf.Variable(v, trainable=False) for v in self._encode.graph.variables}
        handles = {id(v.deref().handle): own.handle for v, own in self._own.items()}
        given = self._encode.captured_inputs
        self._encode.set_external_captures([handles.get(id(each), each) for each in given])
        shape = self._encode.structured_outputs.shape
        if shape.rank != 2 or shape[1] is None:
            raise UsageError(
                f"the candidates of {type(model.model).__name__} must be encoded as vectors of a "
                f"known length but have shape {shape}: give its tower an output of fixed width"
            )
        self.dim = int(shape[1])

    def advance(self, staged: StagedFiles, values: Sequence[tuple[tf.Variable, Any]]) -> bool:
        """Takes what leads from the served manifest to the next.

        Args:
          staged: the rows that change; those of the call before no longer count.
          values: the network's variables with their new values.

        Returns:
          Whether the network encodes items otherwise than before.
        """
        self._staged = staged.handles
        is_new = False
        for variable, value in values:
            own = self._own.get(variable.ref())
            if own is not None and not np.array_equal(variable.numpy(), value):
                is_new = True
            if own is not None:
                own.assign(value)
        return is_new

    def forget(self) -> None:
        """Frees what is staged, once it is applied."""
        self._staged = self._nothing.handles

    def encode(
        self, index: ItemIndex, catalog: ItemCatalog, keys: Ids, removed: Ids, *, rate: float = 0
    ) -> ItemIndex:
        """Makes an index of another one.

        Args:
          index: which stays as it is.
          catalog: has the items' columns.
          keys: of items to encode, and to add or replace.
          removed: keys of items to remove.
          rate: how many items to encode per second at most; 0 for as many as it can.
        """
        began, done = time.monotonic(), 0
        ids, vectors = [_NONE], [tf.zeros([0, self.dim])]
        for part, columns in catalog.batches(keys):
            ids.append(part)
            vectors.append(self._encode(columns, self._staged))
            done += len(part)
            if len(ids) > _CHANGE_BATCHES:  # vectors are not kept twice
                index = index.changed(np.concatenate(ids), tf.concat(vectors, axis=0), removed)
                ids, vectors, removed = ids[:1], vectors[:1], _NONE
            early = done / rate - (time.monotonic() - began) if rate else 0.0
            if early > 0:
                time.sleep(early)
        return index.changed(np.concatenate(ids), tf.concat(vectors, axis=0), removed)

    def _encoded(self, batch: dict[str, Any], staged: Sequence[Sequence[tf.Tensor]]) -> tf.Tensor:
        rows = rows_of(next(iter(batch.values())))
        # In whole lanes: the bits do not depend on the batch.
        batch = {name: pad(value, rows) for name, value in batch.items()}
        return batch_free(self._padded_vectors)(batch, staged)[:rows]

    def _padded_vectors(
        self, batch: dict[str, Any], staged: Sequence[Sequence[tf.Tensor]]
    ) -> tf.Tensor:
        features = {feature.name for feature in self._embeddings.features}
        ids = {name: value for name, value in batch.items() if name in features}
        found = self._collection.lookup_staged(ids, staged)
        with self._embeddings.providing(self._collection.combine(found), ids):
            return self._candidates.tower(batch)
